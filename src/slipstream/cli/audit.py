"""slipstream audit: does drafting change the output, with this model and these prompts, on this machine?"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slipstream import Engine, kernels
from slipstream.cli.options import (
    EngineOptions,
    drafters_option,
    engine_options,
    examples,
    json_option,
    limit_option,
    prompts_option,
    raw_option,
)
from slipstream.cli.prompts import requests_of
from slipstream.cli.render import counted, tracking, verdict_text, visible
from slipstream.tools.audit import ALPHA, DRAFT_LENGTHS, OPTIONS, Audit
from slipstream.tools.audit import audit as run_audit

__all__ = ["audit"]

SHOWN = 10  # differences that are printed


@click.command(
    short_help="Prove that drafting changes nothing.",
    epilog=examples(
        "slipstream audit --limit 1",
        "slipstream audit --prompts prompts.jsonl --limit 2 --samples 64",
        "slipstream audit --drafters ngram --limit 1 --json",
    ),
)
@drafters_option
@prompts_option
@limit_option
@click.option(
    "--samples",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Also draw N answers for each drafter and rule, and test their distribution; thousands make a sharp test.",
)
@click.option(
    "--seeds", metavar="N", type=click.IntRange(min=1), default=1, show_default=True, help="Seeds for each prompt."
)
@click.option(
    "--max-tokens",
    metavar="N",
    type=click.IntRange(min=16),
    default=32,
    show_default=True,
    help="Most tokens to answer with.",
)
@raw_option
@json_option
@engine_options(drafter=False)
def audit(
    drafters: list[str] | None,
    prompts: Path | None,
    limit: int | None,
    samples: int,
    seeds: int,
    max_tokens: int,
    raw: bool,
    as_json: bool,
    engine_options: EngineOptions,
) -> None:
    """Decode the same prompts plainly and with each drafter, under many options, and compare every bit.

    Tokens, text, log-probabilities, endings and usage must be the same: greedy and sampled, with penalties, bans,
    stops, grammars, at several draft lengths, alone and in a batch. --samples tests the distribution of what is drawn
    too, under both rules of verification. Exit code 1 if anything differs.
    """
    requests = requests_of(prompts, limit, raw)
    engine, drafters = engine_options.load_with(drafters)
    found = run_audit(
        engine,
        requests,
        drafters,
        max_tokens=max_tokens,
        seeds=range(1, seeds + 1),
        samples=samples,
        tracking=lambda work: tracking(work, "Auditing"),
    )
    if as_json:
        click.echo(json.dumps(_record(engine, engine_options, found, drafters, len(requests), max_tokens)))
    else:
        _show(engine, found, drafters, len(requests))
    if not found.lossless:
        raise click.exceptions.Exit(1)


def _record(
    engine: Engine, options: EngineOptions, found: Audit, drafters: Sequence[str], prompts: int, max_tokens: int
) -> dict[str, Any]:
    return {
        "slipstream": version("slipstream"),
        "model": engine.model_name,
        "draft_model": options.draft_model,
        "dtype": options.dtype,
        "isa": kernels.isa(),
        "threads": kernels.threads(),
        "prompts": prompts,
        "drafters": list(drafters),
        "draft_lengths": list(DRAFT_LENGTHS),
        "max_tokens": max_tokens,
        "options": OPTIONS,
        "lossless": found.lossless,
        "runs": found.runs,
        "identical": found.identical,
        "accepted": {drafter: found.accepted[drafter] for drafter in drafters},
        "differences": [{**asdict(difference), "options": difference.options} for difference in found.differences],
        "distribution": {
            "alpha": ALPHA,
            "tests": [{**asdict(test), "passed": test.passed} for test in found.distribution],
        },
    }


def _show(engine: Engine, found: Audit, drafters: Sequence[str], prompts: int) -> None:
    console = Console(highlight=False)
    title = f"{visible(engine.model_name)}: {counted(prompts, 'prompt')}, {counted(found.runs, 'run')} against plain"
    table = Table(title=title, title_justify="left")
    table.add_column("Options")
    for drafter in drafters:
        table.add_column(drafter, justify="right")
    for name in OPTIONS:
        table.add_row(name, *(verdict_text(not found.by_options[drafter, name]) for drafter in drafters))
    table.add_row("accepted drafts", *(str(found.accepted[drafter]) for drafter in drafters))
    console.print(table)
    if found.distribution:
        table = Table(title=f"Distribution of what is drawn (fails below p = {ALPHA:g})", title_justify="left")
        for heading in ("Drafter", "Rule", "Samples", "p", "Acceptance rate", "Right"):
            table.add_column(heading)
        for test in found.distribution:
            table.add_row(
                test.drafter,
                test.verification,
                str(test.samples),
                f"{test.p_value:.3g}",
                f"{test.acceptance_rate:.0%}",
                verdict_text(test.passed),
            )
        console.print(table)
    for difference in found.differences[:SHOWN]:
        where = "" if difference.position is None else f" at position {difference.position}"
        console.print(
            Text(
                f"prompt {difference.prompt + 1}, {difference.options}, {difference.drafter} with "
                f"{difference.num_speculative_tokens}: {difference.what} differ{where}: "
                f"{difference.drafted!r:.60} where plain decoding has {difference.plain!r:.60}"
            )
        )
    if len(found.differences) > SHOWN:
        console.print(f"and {len(found.differences) - SHOWN} more: --json has all")
    console.print("Lossless: no difference found." if found.lossless else "NOT lossless.")
