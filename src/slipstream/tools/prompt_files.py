"""Prompts from files: JSON lines, JSON, or plain text with one prompt a line."""

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

from slipstream.errors import OptionError
from slipstream.messages import checked_messages
from slipstream.types import Message, Prompt

__all__ = ["SourcedPrompt", "as_prompt", "check_text", "decode", "read_by_category", "read_prompts"]

WORKLOADS = {
    "code_edit": (("prompt", "canonical_solution"), "Add type hints and a docstring to this function."),
    "human_eval": (("prompt",), "Complete this function, and show the whole of it."),
}
"""Requests that are made of records with code: the fields that hold the code, and what is asked."""

NO_PROMPTS = {
    ".csv": "a table",
    ".tsv": "a table",
    ".yaml": "YAML",
    ".yml": "YAML",
    ".toml": "TOML",
    ".xml": "XML",
    ".html": "HTML",
}
"""Ending of a file's name → what such a file is. It's text, but its lines aren't prompts."""

NO_TEXT = {
    b"\x1f\x8b": "is compressed with gzip: unpack it first",
    b"\xfd7zXZ\0": "is compressed with xz: unpack it first",
    b"(\xb5/\xfd": "is compressed with zstd: unpack it first",
    b"PK\3\4": "is a ZIP archive: unpack it first",
    b"PAR1": "is a Parquet file: convert it to JSON lines",
    codecs.BOM_UTF16_LE: "is UTF-16 text: convert it to UTF-8",
    codecs.BOM_UTF16_BE: "is UTF-16 text: convert it to UTF-8",
}
"""The first bytes of files that aren't UTF-8 text, and what to do with them."""

JSON_LINES = (".jsonl", ".ndjson")
_LIST_BEGINS = re.compile(r"\s*\[\s*([\[{\"]|$)")  # not "[INST] Hello"
_BETWEEN_VALUES = re.compile(r"[\s,:]*")

Entry: TypeAlias = str | Mapping[str, Any]
"""What a file has for a prompt: a text, or a record."""


@dataclass(frozen=True, slots=True)
class SourcedPrompt:
    """A prompt, and where it is from: a file and its line, or the name of a built-in prompt."""

    prompt: Prompt
    where: str


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


def decode(data: bytes, where: str) -> str:
    """The text of some bytes. Raises OptionError, naming `where` they came from, if they aren't UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise OptionError(f"{where} is not UTF-8 text at byte {error.start + 1}: convert it first") from None


def read_prompts(path: Path, *, limit: int | None, workload: str | None, raw: bool) -> list[SourcedPrompt]:
    """The prompts of a file, at most `limit` of them; files with a prompt a line are read no further than that.

    A file is one of these, in UTF-8:
    - JSON lines (the name ends in .jsonl or .ndjson, or the first line is an object): a record a line
    - JSON (the name ends in .json, or the text begins as an object or a list does): a list of texts and records, an
      object whose `prompts` is such a list, or a single record
    - plain text: one prompt a line

    A record is an object with `prompt`, or `messages`, or `turns` (the first is used), in this order; a `category` is a
    text; other fields are ignored. With a workload of WORKLOADS, records need its fields instead, and become its
    request. Blank lines are skipped.

    Raises OptionError naming the file and the line.
    """
    return [prompt for _, prompt in islice(read_by_category(path, workload, raw), limit)]


def read_by_category(path: Path, workload: str | None, raw: bool) -> Iterator[tuple[str | None, SourcedPrompt]]:
    """The prompts of a file, each with its record's category if it has one; otherwise as read_prompts."""
    empty = True
    for where, entry in _entries(path):
        empty = False
        category = None
        if not isinstance(entry, str):
            prompt = _from_record(entry, where, workload, raw)
            category = _text(entry, "category", where) if "category" in entry else None
        elif workload:
            needed = " and ".join(WORKLOADS[workload][0])
            raise OptionError(f"{where} is plain text: {workload} needs JSON lines with {needed}")
        else:
            prompt = as_prompt(check_text(entry, where), raw=raw)
        yield category, SourcedPrompt(prompt, where)
    if empty:
        raise OptionError(f"{path} holds no prompts: write one a line, as text or as JSON")


def _entries(path: Path) -> Iterator[tuple[str, Entry]]:
    """What a file has for each prompt, and where that is."""
    if what := NO_PROMPTS.get(path.suffix.lower()):
        raise OptionError(f"{path} is {what}, by its name: write JSON lines, or plain text with one prompt a line")
    lines = _lines(path)
    first = next((numbered for numbered in lines if numbered[1].strip()), None)
    if first is None:
        return
    number, line = first
    suffix = path.suffix.lower()
    json_lines = suffix in JSON_LINES or _is_record(line)
    if not json_lines and (suffix == ".json" or line.lstrip().startswith("{") or _LIST_BEGINS.match(line)):
        yield from _document("\n" * (number - 1) + "\n".join(line for _, line in chain([first], lines)), path)
        return
    for number, line in chain([first], lines):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _parse(line, where) if json_lines else line


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file, with their numbers from 1."""
    try:
        with path.open("rb") as file:
            for number, data in enumerate(file, 1):
                where = f"{path}, line {number}"
                for begin, what in NO_TEXT.items() if number == 1 else ():
                    if data.startswith(begin):
                        raise OptionError(f"{path} {what}")
                line = decode(data.removeprefix(codecs.BOM_UTF8), where).rstrip("\r\n")
                if "\0" in line:
                    raise OptionError(f"{where} is not UTF-8 text, it has a zero byte: convert it first")
                yield number, line
    except OSError as error:
        raise OptionError(
            f"the prompts file {path} can't be read ({error.strerror}): give the path of a file"
        ) from None


def _is_record(line: str) -> bool:
    """Whether a line is a record by itself, which makes its file JSON lines."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and not _holds_prompts(record)


def _holds_prompts(record: Mapping[str, Any]) -> bool:
    return "prompts" in record and not {"prompt", "messages", "turns"} & record.keys()


def _document(text: str, path: Path) -> Iterator[tuple[str, Entry]]:
    """The entries of a file that is one JSON value."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"{path}, line {error.lineno} is not JSON ({error.msg}): mend it") from None
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is not JSON ({error}): mend it") from None
    place = len(text) - len(text.lstrip())
    if isinstance(value, dict) and _holds_prompts(value):
        parts = list(_parts(text, place))
        place, value = next(part for (_, key), part in zip(parts[::2], parts[1::2], strict=True) if key == "prompts")
        if not isinstance(value, list):
            raise OptionError(f"{path}: prompts is {_kind(value)}: write a list")
    if not isinstance(value, (dict, list)):
        raise OptionError(f"{path} is {_kind(value)}: write a list of texts, or of objects with prompt")
    line, counted = 1, 0
    for begin, entry in [(place, value)] if isinstance(value, dict) else _parts(text, place):
        line, counted = line + text.count("\n", counted, begin), begin
        where = f"{path}, line {line}"
        if not isinstance(entry, (str, dict)):
            raise OptionError(f'{where} is {_kind(entry)}: write a text, or {{"prompt": …}}')
        yield where, entry


def _parts(text: str, place: int) -> Iterator[tuple[int, Any]]:
    """The values in the JSON list or object that begins at a place of a valid text, keys among them, each with its
    place."""
    decoder = json.JSONDecoder()
    place += 1
    while True:
        between = _BETWEEN_VALUES.match(text, place)
        assert between is not None
        place = between.end()
        if text[place] in "]}":
            return
        value, end = decoder.raw_decode(text, place)
        yield place, value
        place = end


def _parse(line: str, where: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{where} is not JSON ({error}): mend or remove it") from None
    if not isinstance(record, dict):
        raise OptionError(f'{where} is {_kind(record)}, not an object: write {{"prompt": …}}')
    return record


def _from_record(record: Mapping[str, Any], where: str, workload: str | None, raw: bool) -> Prompt:
    if workload is not None:
        fields, request = WORKLOADS[workload]
        code = "".join(_text(record, name, where) for name in fields)
        return as_prompt(f"{request}\n\n```python\n{code.strip()}\n```", raw=raw)
    if "prompt" in record:
        return as_prompt(_text(record, "prompt", where), raw=raw)
    if "messages" in record:
        if raw:
            raise OptionError(f"{where} has messages, which need the chat template that --raw leaves out: drop --raw")
        try:
            return checked_messages(record["messages"])
        except OptionError as error:
            raise OptionError(f"{where}: {error}") from None
    if "turns" in record:
        turns = record["turns"]
        if not isinstance(turns, list) or not turns:
            raise OptionError(f"{where}: turns is {_kind(turns)}: write a list of texts")
        return as_prompt(_text({"turns": turns[0]}, "turns", where), raw=raw)
    raise OptionError(f"{where} has neither prompt nor messages nor turns: add one of them")


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
