"""Where prompts come from: the command line, a prompts file, or the built-in ones."""

import codecs
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import OptionError
from slipstream.types import Message, Prompt

__all__ = ["BUILT_IN", "BuiltIn", "as_prompt", "check_text", "decode", "read_prompts", "read_standard_input"]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A prompt of our own."""

    title: str
    text: str


# The first three are the demo's: two whose answer repeats much of the prompt, where looking up drafts helps, and one
# where it can't. With the default model each of their answers ends by itself: a loop would flatter every drafter.
BUILT_IN = (
    BuiltIn(
        "Edit a page",
        """Change the title of this page to "Garden" and show the whole page:

```html
<html>
<head><title>Home</title></head>
<body>
<h1>Welcome</h1>
<p>Here you find the plants of the month.</p>
<p>Open from Monday to Friday, nine to five.</p>
</body>
</html>
```""",
    ),
    BuiltIn(
        "Correct a text",
        """Correct the spelling mistakes in this text:

The museum is open evry day from ten to six, exept on Mondays. Tickets cost eight euros, and children under twelve go \
in for free. Guided tours start at eleven and at three, and they last about an hour. You can leave bags and coats at \
the entrance.""",
    ),
    BuiltIn("Explain freely", "Explain in a few sentences how bread rises."),
    BuiltIn(
        "Comment code",
        """Print this Python function again with a comment above each line:

```python
def count_words(path):
    counts = {}
    with open(path) as file:
        for line in file:
            for word in line.split():
                counts[word] = counts.get(word, 0) + 1
    return counts
```""",
    ),
    BuiltIn(
        "Reword a message",
        """Make this email more polite:

Hi Tom, the report for March is still missing. I need it by Friday at noon, because the board meets on Friday \
afternoon. Send me the tables as well, and the list of open questions. Anna""",
    ),
    BuiltIn("Tell a story", "Write a short story about a lighthouse keeper who finds a message in a bottle."),
)


def as_prompt(text: str, *, system: str | None = None, raw: bool = False) -> Prompt:
    """The request for a user's text: the text itself when raw, else chat messages."""
    if raw and system is not None:
        raise OptionError("--system needs the chat template, which --raw leaves out: use one of the two")
    if raw:
        return text
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": text}]


def check_text(text: str, where: str) -> str:
    """Returns the text. Raises OptionError, naming `where` it came from, if it is empty or not Unicode."""
    if not text:
        raise OptionError(f"{where} is empty: give some text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"{where} is not valid UTF-8 text at character {error.start + 1}: convert it first") from None
    return text


def read_standard_input() -> str:
    """All of standard input, without its last newline, so that `echo hello | slipstream generate -` asks "hello"."""
    where = "the prompt on standard input"
    return check_text(decode(sys.stdin.buffer.read(), where).removesuffix("\n"), where)


def decode(data: bytes, where: str) -> str:
    """The text of some bytes. Raises OptionError, naming `where` they came from, if they aren't UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise OptionError(f"{where} is not UTF-8 text at byte {error.start + 1}: convert it first") from None


def read_prompts(path: Path, *, limit: int | None, code_edit: bool, raw: bool) -> list[Prompt]:
    """The prompts of a file, at most `limit` of them, read no further than that.

    JSON lines (the name ends in .jsonl, or the text begins with a brace), each an object with `prompt`, or `messages`,
    or `turns` (the first is used), in this order; other fields are ignored. Otherwise plain text, one prompt a line.
    Blank lines are skipped. With code_edit, records need `prompt` and `canonical_solution`, and become the request to
    annotate that function.

    Raises OptionError naming the file and the line.
    """
    prompts: list[Prompt] = []
    json_lines = path.suffix == ".jsonl"
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        json_lines = json_lines or (not prompts and line.lstrip().startswith("{"))
        if json_lines:
            prompts.append(_from_record(_parse(line, where), where, code_edit, raw))
        elif code_edit:
            raise OptionError(
                f"{where} is plain text: --as code_edit needs JSON lines with prompt and canonical_solution"
            )
        else:
            prompts.append(as_prompt(line, raw=raw))
        if len(prompts) == limit:
            break
    if not prompts:
        raise OptionError(f"{path} holds no prompts: write one a line, as text or as JSON")
    return prompts


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that aren't blank, with their numbers from 1."""
    try:
        with path.open("rb") as file:
            for number, data in enumerate(file, 1):
                line = decode(data.removeprefix(codecs.BOM_UTF8), f"{path}, line {number}").rstrip("\r\n")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise OptionError(
            f"the prompts file {path} can't be read ({error.strerror}): give the path of a file"
        ) from None


def _parse(line: str, where: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{where} is not JSON ({error}): mend or remove it") from None
    if not isinstance(record, dict):
        raise OptionError(f'{where} is {_kind(record)}, not an object: write {{"prompt": …}}')
    return record


def _from_record(record: Mapping[str, Any], where: str, code_edit: bool, raw: bool) -> Prompt:
    if code_edit:
        code = _text(record, "prompt", where) + _text(record, "canonical_solution", where)
        request = f"Add type hints and a docstring to this function.\n\n```python\n{code.strip()}\n```"
        return as_prompt(request, raw=raw)
    if "prompt" in record:
        return as_prompt(_text(record, "prompt", where), raw=raw)
    if "messages" in record:
        if raw:
            raise OptionError(f"{where} has messages, which need the chat template that --raw leaves out: drop --raw")
        return _messages(record["messages"], where)
    if "turns" in record:
        turns = record["turns"]
        if not isinstance(turns, list) or not turns:
            raise OptionError(f"{where}: turns is {_kind(turns)}: write a list of texts")
        return as_prompt(_text({"turns": turns[0]}, "turns", where), raw=raw)
    raise OptionError(f"{where} has neither prompt nor messages nor turns: add one of them")


def _messages(messages: object, where: str) -> list[Message]:
    remedy = 'write [{"role": "user", "content": "…"}]'
    if not isinstance(messages, list) or not messages:
        raise OptionError(f"{where}: messages is {_kind(messages)}: {remedy}")
    checked: list[Message] = []
    for message in messages:
        if not isinstance(message, dict):
            raise OptionError(f"{where}: a message is {_kind(message)}: {remedy}")
        checked.append({name: _text(message, name, where) for name in ("role", "content")})
    return checked


def _text(record: Mapping[str, Any], name: str, where: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise OptionError(f"{where}: {name} is {_kind(value) if name in record else 'missing'}: give a text")
    return check_text(value, f"{where}: {name}")


def _kind(value: object) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    if value in ([], {}):
        return "empty"
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return names[type(value)]
