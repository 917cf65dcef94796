"""Chat templates: a program in the model's own files, run in a sandbox and held to an amount of work."""

import json
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from slipstream.checks import one_line
from slipstream.errors import ModelError
from slipstream.messages import Message, marked

if TYPE_CHECKING:
    from jinja2 import Template

    from slipstream.models.template_sandbox import TemplateEnvironment

__all__ = ["ChatTemplate"]

_MOST_CHARACTERS = 1 << 24
_MOST_MAKES = 256
"""Makes of conversations (which roles, which entries) for which is remembered what the template leaves out of them."""


class ChatTemplate:
    """A Jinja template that writes a conversation as the model was trained to see it."""

    def __init__(self, source: str, variables: Mapping[str, str | None]) -> None:
        """variables are the names that a template may use besides the messages: bos_token, eos_token."""
        self._source = source
        self._variables = variables
        self._compiled: tuple[TemplateEnvironment, Template] | None = None
        self._lock = threading.Lock()
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

        from slipstream.models.template_sandbox import Refusal, TemplateEnvironment, TooMuchWork

        try:
            with self._lock:
                if self._compiled is None:
                    environment = TemplateEnvironment()
                    self._compiled = environment, environment.template(self._source)
                return self._run(*self._compiled, messages)
        except jinja2.TemplateSyntaxError as error:
            reason = one_line(error.message or "", 300)
            raise ModelError(f"the model's chat template is broken at line {error.lineno}: {reason}") from None
        except Refusal as error:
            raise ModelError(f"the model's chat template refuses these messages: {one_line(str(error), 300)}") from None
        except TooMuchWork:
            raise ModelError("the model's chat template does far more work than a conversation needs") from None
        except Exception as error:  # it is the model's program: anything may come out of it
            reason = one_line(f"{type(error).__name__}: {error}", 300)
            raise ModelError(f"the model's chat template failed: {reason}") from None

    def _run(self, environment: "TemplateEnvironment", template: "Template", messages: list[dict[str, Any]]) -> str:
        environment.start()
        present = {name: value for name, value in self._variables.items() if value is not None}
        text = template.render(messages=messages, add_generation_prompt=True, tools=None, documents=None, **present)
        if len(text) > _MOST_CHARACTERS:
            raise RuntimeError(f"it writes more than {_MOST_CHARACTERS} characters")
        return text
