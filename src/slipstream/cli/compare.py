"""slipstream compare: every drafter against plain decoding, prompt by prompt."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slipstream import DRAFTERS, Completion, Engine, OptionError, SamplingParams, SpeculationStats
from slipstream.cli.options import EngineOptions, engine_options, examples, json_option, raw_option, sampling_options
from slipstream.cli.prompts import BUILT_IN, as_prompt, read_prompts
from slipstream.cli.render import BUSY, counted, disturbed, rate_ratio, speedup_text, tracking, verdict_text, visible
from slipstream.types import Prompt

__all__ = ["Difference", "Tally", "compare", "drafter_names", "first_difference", "requests_of"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two outputs part: index of the prompt, position in the output, both tokens there, None past an end."""

    prompt: int
    position: int
    plain: int | None
    drafted: int | None


@dataclass(slots=True)
class Tally:
    """Totals over prompts that were decoded in one way. decoded: the tokens that decode_seconds were spent on."""

    drafter: str
    stats: SpeculationStats = field(init=False)
    completion_tokens: int = 0
    decoded: float = 0.0
    decode_seconds: float = 0.0
    difference: Difference | None = None

    def __post_init__(self) -> None:
        self.stats = SpeculationStats(self.drafter, 0)

    def add(self, completion: Completion) -> None:
        for counter in ("target_passes", "committed", "drafted", "accepted", "rejected", "unverified"):
            setattr(self.stats, counter, getattr(self.stats, counter) + getattr(completion.speculation, counter))
        self.completion_tokens += completion.usage.completion_tokens
        self.decoded += completion.timing.tokens_per_second * completion.timing.decode_seconds
        self.decode_seconds += completion.timing.decode_seconds

    @property
    def tokens_per_second(self) -> float:
        return self.decoded / self.decode_seconds if self.decode_seconds else 0.0

    def speedup(self, plain: "Tally") -> float:
        return rate_ratio(self.tokens_per_second, plain.tokens_per_second)


@click.command(
    short_help="Measure every drafter against plain decoding.",
    epilog=examples(
        "slipstream compare",
        "slipstream compare --prompts prompts.jsonl --limit 2 --max-tokens 64",
        "slipstream compare --prompts functions.jsonl --as code_edit --drafters ngram --json",
    ),
)
@click.option("--drafters", metavar="A,B", help="Which drafters.  [default: all that work with the models given]")
@click.option(
    "--prompts",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="JSON lines with prompt, messages or turns (the first is used), or plain text, one prompt a line.  "
    "[default: a few built-in prompts]",
)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Only the first N prompts.  [default: all]")
@click.option(
    "--as",
    "workload",
    type=click.Choice(["code_edit"]),
    help="Turn records with prompt and canonical_solution into requests to annotate that function.",
)
@raw_option
@json_option
@sampling_options(max_tokens=128)
@engine_options(drafter=False)
def compare(
    drafters: str | None,
    prompts: Path | None,
    limit: int | None,
    workload: str | None,
    raw: bool,
    as_json: bool,
    params: SamplingParams,
    engine_options: EngineOptions,
) -> None:
    """Decode the same prompts plainly and with each drafter: is the output identical, and what was gained?

    Plain decoding and the drafters take turns on each prompt, so that noise of the machine hits all of them. Figures
    are totals over all prompts. Exit code 1 if any output differs.
    """
    if params.verification != "match":
        raise OptionError(
            "--verification rejection keeps the distribution, not the very tokens that compare checks: use match, or "
            "slipstream audit"
        )
    names = None if drafters is None else drafter_names(drafters, engine_options)
    requests = requests_of(prompts, limit, workload, raw)
    engine = engine_options.load()
    plain, tallies = _run(engine, requests, params, names or [name for name in engine.drafter_names if name != "null"])
    if as_json:
        click.echo(json.dumps(_record(engine, plain, tallies)))
    else:
        _show(engine, plain, tallies, len(requests))
    if any(tally.difference for tally in tallies):
        raise click.exceptions.Exit(1)


def first_difference(prompt: int, plain: Sequence[int], drafted: Sequence[int]) -> Difference | None:
    """Where two outputs for a prompt part."""
    for position, (expected, got) in enumerate(zip_longest(plain, drafted)):
        if expected != got:
            return Difference(prompt, position, expected, got)
    return None


def drafter_names(drafters: str, engine_options: EngineOptions) -> list[str]:
    """The names in the value of --drafters. Raises OptionError for one that there isn't, or that lacks its models."""
    names = list(dict.fromkeys(name.strip() for name in drafters.split(",")))
    for name in names:
        if name not in DRAFTERS:
            near = "".join(f" (did you mean {close}?)" for close in get_close_matches(name, DRAFTERS, 1))
            raise OptionError(f"--drafters has {name!r}{near}: use some of {', '.join(DRAFTERS)}, with commas between")
    engine_options.check_drafters("--drafters", names)
    return names


def requests_of(prompts: Path | None, limit: int | None, workload: str | None, raw: bool) -> list[Prompt]:
    """The prompts of a file, or the built-in ones."""
    if prompts is not None:
        return read_prompts(prompts, limit=limit, code_edit=workload == "code_edit", raw=raw)
    if workload is not None:
        raise OptionError(f"--as {workload} needs a file of records: name one with --prompts")
    return [as_prompt(example.text, raw=raw) for example in BUILT_IN[:limit]]


def _run(
    engine: Engine, requests: Sequence[Prompt], params: SamplingParams, drafters: Sequence[str]
) -> tuple[Tally, list[Tally]]:
    """The totals of plain decoding and those of each drafter."""
    plain, tallies = Tally("null"), [Tally(name) for name in drafters]
    engine.generate(requests[0], replace(params, max_tokens=2))  # what only a first pass pays for is nobody's time
    for index, request in enumerate(tracking(requests, "Comparing")):
        expected = engine.generate(request, params, drafter="null")
        plain.add(expected)
        for tally in tallies:
            completion = engine.generate(request, replace(params, seed=expected.seed), drafter=tally.drafter)
            tally.add(completion)
            tally.difference = tally.difference or first_difference(index, expected.token_ids, completion.token_ids)
    return plain, tallies


def _record(engine: Engine, plain: Tally, tallies: Sequence[Tally]) -> dict[str, Any]:
    return {
        "model": engine.model_name,
        "plain": {
            "completion_tokens": plain.completion_tokens,
            "target_passes": plain.stats.target_passes,
            "decode_seconds": plain.decode_seconds,
            "tokens_per_second": plain.tokens_per_second,
        },
        "drafters": {
            tally.drafter: {
                "identical": tally.difference is None,
                "first_difference": asdict(tally.difference) if tally.difference else None,
                "speedup": tally.speedup(plain),
                "mean_accepted_length": tally.stats.mean_accepted_length,
                "acceptance_rate": tally.stats.acceptance_rate,
                "tokens_per_second": tally.tokens_per_second,
            }
            for tally in tallies
        },
    }


def _show(engine: Engine, plain: Tally, tallies: Sequence[Tally], prompts: int) -> None:
    console = Console(highlight=False)
    amounts = f"{counted(prompts, 'prompt')}, {counted(plain.completion_tokens, 'token')}"
    table = Table(title=f"{visible(engine.model_name)}: {amounts}", title_justify="left")
    table.add_column("Drafter")
    for heading in ("Identical", "Speed-up", "Mean accepted length", "Acceptance rate", "Tokens/s"):
        table.add_column(heading, justify="right")
    table.add_row("plain", "", "", "1.00", "", f"{plain.tokens_per_second:.1f}")
    for tally in tallies:
        table.add_row(
            tally.drafter,
            verdict_text(tally.difference is None),
            speedup_text(tally.speedup(plain)),
            f"{tally.stats.mean_accepted_length:.2f}",
            f"{tally.stats.acceptance_rate:.0%}",
            f"{tally.tokens_per_second:.1f}",
        )
    console.print(table)
    if any(disturbed(tally.speedup(plain), tally.stats.mean_accepted_length) for tally in tallies):
        console.print(BUSY)
    for tally in tallies:
        if tally.difference:
            at = tally.difference
            expected, got = (_token(engine, token) for token in (at.plain, at.drafted))
            where = f"prompt {at.prompt + 1}, token {at.position + 1}"
            console.print(Text(f"{tally.drafter} differs first in {where}: {got} where plain decoding has {expected}"))


def _token(engine: Engine, token_id: int | None) -> str:
    return "the end" if token_id is None else f"{engine.tokenizer.token_string(token_id)!r} ({token_id})"
