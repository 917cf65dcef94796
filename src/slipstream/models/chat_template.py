"""Chat templates: a program in the model's own files, run in a sandbox and held to a time and a size."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from types import FrameType
from typing import Any, NoReturn

from slipstream.checks import one_line
from slipstream.errors import ModelError
from slipstream.messages import Message, marked

__all__ = ["ChatTemplate"]

_MOST_SECONDS = 5.0
_MOST_CHARACTERS = 1 << 24
_MOST_MAKES = 256
"""Makes of conversations (which roles, which entries) for which is remembered what the template leaves out of them."""


class ChatTemplate:
    """A Jinja template that writes a conversation as the model was trained to see it."""

    def __init__(self, source: str, variables: Mapping[str, str | None]) -> None:
        """variables are the names that a template may use besides the messages: bos_token, eos_token."""
        self._source = source
        self._variables = variables
        self._compiled: Any = None
        self._left_out = lru_cache(_MOST_MAKES)(self._what_is_left_out)

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation up to where the answer begins. The messages are as checked_messages gives them.

        Raises ModelError where the template is broken, refuses the messages, leaves out a part of them, or runs on
        without end.
        """
        text = self._render([dict(message) for message in messages])
        made, places = marked(messages)
        left_out = self._left_out(json.dumps(made), tuple(places))
        if left_out:
            names = ", ".join(dict.fromkeys(places[mark] for mark in left_out))
            raise ModelError(f"the model's chat template has no place for {one_line(names, 300)}: leave it out")
        return text

    def _what_is_left_out(self, messages: str, marks: Sequence[str]) -> tuple[str, ...]:
        """Which of the marks in these messages, JSON, the template doesn't write. Messages of one make are asked about
        once. A template that can't write marks, since it reads a text's own form, isn't found out."""
        try:
            text = self._render(json.loads(messages)).casefold()
        except ModelError:
            return ()
        return tuple(mark for mark in marks if mark not in text)

    def _render(self, messages: list[dict[str, Any]]) -> str:
        import jinja2  # 50 ms that a prompt without messages needn't pay

        try:
            if self._compiled is None:
                self._compiled = _environment().from_string(self._source)
            return self._run(messages)
        except jinja2.TemplateSyntaxError as error:
            reason = one_line(error.message or "", 300)
            raise ModelError(f"the model's chat template is broken at line {error.lineno}: {reason}") from None
        except _Refusal as error:
            raise ModelError(f"the model's chat template refuses these messages: {one_line(str(error), 300)}") from None
        except Exception as error:  # it is the model's program: anything may come out of it
            reason = one_line(f"{type(error).__name__}: {error}", 300)
            raise ModelError(f"the model's chat template failed: {reason}") from None

    def _run(self, messages: list[dict[str, Any]]) -> str:
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


def _to_json(value: Any, **options: Any) -> str:
    """Unlike Jinja's own, without HTML escapes."""
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _raise(message: str) -> NoReturn:
    raise _Refusal(message)
