"""slipstream compare: every drafter against plain decoding, prompt by prompt."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slipstream import Engine, OptionError, SamplingParams
from slipstream.cli.options import (
    EngineOptions,
    drafters_option,
    engine_options,
    examples,
    json_option,
    limit_option,
    prompts_option,
    raw_option,
    sampling_options,
)
from slipstream.cli.prompts import requests_of
from slipstream.cli.render import BUSY, counted, disturbed, speedup_text, tracking, verdict_text, visible
from slipstream.tools.suites import prompt_ids
from slipstream.tools.tally import Tally, first_difference

__all__ = ["compare"]


@click.command(
    short_help="Measure every drafter against plain decoding.",
    epilog=examples(
        "slipstream compare",
        "slipstream compare --prompts prompts.jsonl --limit 2 --max-tokens 64",
        "slipstream compare --prompts functions.jsonl --as code_edit --drafters ngram --json",
    ),
)
@drafters_option
@prompts_option
@limit_option
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
    drafters: list[str] | None,
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
    requests = requests_of(prompts, limit, raw, workload)
    engine, drafters = engine_options.load_with(drafters)
    plain, tallies = _run(engine, prompt_ids(engine, requests), params, drafters)
    if as_json:
        click.echo(json.dumps(_record(engine, plain, tallies)))
    else:
        _show(engine, plain, tallies, len(requests))
    if any(tally.difference for tally in tallies):
        raise click.exceptions.Exit(1)


def _run(
    engine: Engine, requests: Sequence[list[int]], params: SamplingParams, drafters: Sequence[str]
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
