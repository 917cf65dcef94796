"""Prompts from files: one by one, or as the suites that benchmarks run, by category."""

import codecs
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from slipstream.engine import Engine
from slipstream.errors import OptionError
from slipstream.types import Message, Prompt, SamplingParams

__all__ = [
    "SUITES",
    "SuitePrompt",
    "as_prompt",
    "check_text",
    "decode",
    "mixed",
    "prompt_ids",
    "read_prompts",
    "read_suites",
    "spread",
    "suite_ids",
]

WORKLOADS = {
    "code_edit": (("prompt", "canonical_solution"), "Add type hints and a docstring to this function."),
    "human_eval": (("prompt",), "Complete this function, and show the whole of it."),
}
"""Requests that are made of records with code: the fields that hold the code, and what is asked."""

SUITES = {
    "spec_bench": ("spec_bench.jsonl", None),
    "code_edit": ("human_eval.jsonl", "code_edit"),
    "human_eval": ("human_eval.jsonl", "human_eval"),
}
"""Name of a suite → its file in the data directory, the workload that its records become.

Sources: Spec-Bench (Xia et al. 2024, "Unlocking Efficiency in Large Language Model Inference", of whose conversations
the first turn is used) and HumanEval (Chen et al. 2021, "Evaluating Large Language Models Trained on Code").
"""


@dataclass(frozen=True, slots=True)
class SuitePrompt:
    """A prompt with its category, and its place among all that the suites have of that category."""

    category: str
    index: int
    prompt: Prompt


def read_suites(suites: Sequence[str], data: Path | None = None, limit: int | None = None) -> list[SuitePrompt]:
    """The prompts of some suites, category by category, at most `limit` of each, spread evenly over it.

    suites  names of SUITES, or paths of files as read_prompts takes them, whose category is that of each record, else
            the file's name without its ending
    data    the directory that holds the named suites' files

    Raises OptionError for a suite that there isn't or that can't be read.
    """
    if data is not None and not any(suite in SUITES for suite in suites):
        raise OptionError(f"--data {data} is of no use without one of the suites {', '.join(SUITES)}: leave it out")
    by_category: dict[str, list[Prompt]] = defaultdict(list)
    for suite in dict.fromkeys(suites):
        path, workload = _suite_file(suite, data)
        for category, prompt in _read(path, workload, raw=False):
            by_category[category or (suite if suite in SUITES else path.stem)].append(prompt)
    return [
        SuitePrompt(category, index, prompts[index])
        for category, prompts in by_category.items()
        for index in spread(len(prompts), limit)
    ]


def spread(count: int, limit: int | None) -> Sequence[int]:
    """At most `limit` of the indices below `count`: the middle ones of as many equal parts."""
    if limit is None or limit >= count:
        return range(count)
    return [(2 * part + 1) * count // (2 * limit) for part in range(limit)]


def mixed(prompts: Sequence[SuitePrompt]) -> list[SuitePrompt]:
    """The prompts in turns: the first of every category, then the second of every category, and so on."""
    by_category: dict[str, list[SuitePrompt]] = defaultdict(list)
    for prompt in prompts:
        by_category[prompt.category].append(prompt)
    return [prompt for turn in zip_longest(*by_category.values()) for prompt in turn if prompt is not None]


def prompt_ids(engine: Engine, prompt: Prompt) -> list[int]:
    """The token ids that a prompt becomes. Raises OptionError where the engine couldn't complete it."""
    return list(engine.generate(prompt, SamplingParams(max_tokens=0, echo=True)).token_ids)


def suite_ids(engine: Engine, prompts: Sequence[SuitePrompt]) -> list[list[int]]:
    """The token ids of each prompt. Raises OptionError naming the first that the engine couldn't complete."""
    ids = []
    for prompt in prompts:
        try:
            ids.append(prompt_ids(engine, prompt.prompt))
        except OptionError as error:
            raise OptionError(f"prompt {prompt.index + 1} of {prompt.category}: {error}") from None
    return ids


def _suite_file(suite: str, data: Path | None) -> tuple[Path, str | None]:
    """A suite's file and workload."""
    if suite in SUITES:
        file, workload = SUITES[suite]
        if data is None:
            raise OptionError(f"the suite {suite} needs --data: the directory that holds {file}")
        return data / file, workload
    if not Path(suite).exists():
        near = "".join(f" (did you mean {close}?)" for close in get_close_matches(suite, SUITES, 1))
        raise OptionError(f"there is no suite or file {suite!r}{near}: use {', '.join(SUITES)} or a file of prompts")
    return Path(suite), None


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


def read_prompts(path: Path, *, limit: int | None, workload: str | None, raw: bool) -> list[Prompt]:
    """The prompts of a file, at most `limit` of them, read no further than that.

    JSON lines (the name ends in .jsonl, or the text begins with a brace), each an object with `prompt`, or `messages`,
    or `turns` (the first is used), in this order; a `category` is a text; other fields are ignored. Otherwise plain
    text, one prompt a line. Blank lines are skipped. With a workload of WORKLOADS, records need its fields instead, and
    become its request.

    Raises OptionError naming the file and the line.
    """
    return [prompt for _, prompt in islice(_read(path, workload, raw), limit)]


def _read(path: Path, workload: str | None, raw: bool) -> Iterator[tuple[str | None, Prompt]]:
    """The prompts of a file, each with its record's category if it has one."""
    json_lines = path.suffix == ".jsonl"
    empty = True
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        json_lines = json_lines or (empty and line.lstrip().startswith("{"))
        empty = False
        if json_lines:
            record = _parse(line, where)
            category = _text(record, "category", where) if "category" in record else None
            yield category, _from_record(record, where, workload, raw)
        elif workload:
            needed = " and ".join(WORKLOADS[workload][0])
            raise OptionError(f"{where} is plain text: {workload} needs JSON lines with {needed}")
        else:
            yield None, as_prompt(line, raw=raw)
    if empty:
        raise OptionError(f"{path} holds no prompts: write one a line, as text or as JSON")


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
