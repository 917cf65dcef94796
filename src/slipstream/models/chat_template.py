"""Chat templates: a program in the model's own files, run in a sandbox and held to a time and a size."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import Any, NoReturn

from slipstream.errors import ModelError
from slipstream.types import Message

__all__ = ["ChatTemplate"]

_MOST_SECONDS = 5.0
_MOST_CHARACTERS = 1 << 24


class ChatTemplate:
    """A Jinja template that writes a conversation as the model was trained to see it."""

    def __init__(self, source: str, variables: Mapping[str, str | None]) -> None:
        """variables are the names that a template may use besides the messages: bos_token, eos_token."""
        self._source = source
        self._variables = variables
        self._compiled: Any = None

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation up to where the answer begins. Raises ModelError where the template is broken, refuses the
        messages, or runs on without end."""
        import jinja2  # 50 ms that a prompt without messages needn't pay

        try:
            if self._compiled is None:
                self._compiled = _environment().from_string(self._source)
            return self._run([dict(message) for message in messages])
        except jinja2.TemplateSyntaxError as error:
            reason = _one_line(error.message)
            raise ModelError(f"the model's chat template is broken at line {error.lineno}: {reason}") from None
        except _Refusal as error:
            raise ModelError(f"the model's chat template refuses these messages: {_one_line(error)}") from None
        except Exception as error:  # it is the model's program: anything may come out of it
            reason = _one_line(f"{type(error).__name__}: {error}")
            raise ModelError(f"the model's chat template failed: {reason}") from None

    def _run(self, messages: list[dict[str, str]]) -> str:
        pieces: list[str] = []
        length = 0
        present = {name: value for name, value in self._variables.items() if value is not None}
        with _Deadline(_MOST_SECONDS):
            for piece in self._compiled.generate(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **present
            ):
                pieces.append(piece)
                length += len(piece)
                if length > _MOST_CHARACTERS:
                    raise RuntimeError(f"it writes more than {_MOST_CHARACTERS} characters")
        return "".join(pieces)


class _Refusal(Exception):
    """The template called raise_exception."""


class _Deadline:
    """Ends Python code that runs on past a deadline, by way of the line-by-line trace of this thread."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        if self._before is None:  # under a debugger the templates have all the time they want
            sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > self._end:
            raise RuntimeError(f"it ran for more than {_MOST_SECONDS:g} seconds")
        return self._trace


def _environment() -> Any:
    """Jinja as templates for transformers expect it."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks the model's own words for training; here it only passes them on."""

        tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration says what it is)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _one_line(message: object) -> str:
    """What the template says, without line ends or anything else that would drive a terminal."""
    return " ".join("".join(char if char.isprintable() else " " for char in str(message)[:300]).split())


def _to_json(value: Any, **options: Any) -> str:
    """Unlike Jinja's own, without HTML escapes."""
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _raise(message: str) -> NoReturn:
    raise _Refusal(message)
