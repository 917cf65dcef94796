"""Suites of prompts, by category, that benchmarks run; and the token ids that prompts become."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import Path

from slipstream.engine import Engine
from slipstream.errors import OptionError, SlipstreamError
from slipstream.tools.prompt_files import SourcedPrompt, read_by_category
from slipstream.types import SamplingParams

__all__ = ["SUITES", "SuitePrompt", "mixed", "prompt_ids", "read_suites", "spread"]

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
class SuitePrompt(SourcedPrompt):
    """A prompt with its category, and its place among all that the suites have of that category."""

    category: str
    index: int


def read_suites(suites: Sequence[str], data: Path | None = None, limit: int | None = None) -> list[SuitePrompt]:
    """The prompts of some suites, category by category, at most `limit` of each, spread evenly over it.

    suites  names of SUITES, or paths of files as read_prompts takes them, whose category is that of each record, else
            the file's name without its ending
    data    the directory that holds the named suites' files

    Raises OptionError for a suite that there isn't or that can't be read.
    """
    if data is not None and not any(suite in SUITES for suite in suites):
        raise OptionError(f"--data {data} is of no use without one of the suites {', '.join(SUITES)}: leave it out")
    by_category: dict[str, list[SourcedPrompt]] = defaultdict(list)
    for suite in dict.fromkeys(suites):
        path, workload = _suite_file(suite, data)
        for category, prompt in read_by_category(path, workload, raw=False):
            by_category[category or (suite if suite in SUITES else path.stem)].append(prompt)
    return [
        SuitePrompt(prompts[index].prompt, prompts[index].where, category, index)
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


def prompt_ids(engine: Engine, prompts: Sequence[SourcedPrompt]) -> list[list[int]]:
    """The token ids of each prompt. Raises a SlipstreamError that says where the first one is from that the engine
    couldn't complete."""
    ids = []
    for sourced in prompts:
        try:
            ids.append(list(engine.generate(sourced.prompt, SamplingParams(max_tokens=0, echo=True)).token_ids))
        except SlipstreamError as error:
            raise type(error)(f"{sourced.where}: {error}") from None
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
