"""slipstream bench generate and bench batch: what each drafter gains on whole answers, alone and in batches."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slipstream import Engine, OptionError, SamplingParams
from slipstream.cli.options import (
    EngineOptions,
    ListOf,
    data_option,
    drafters_option,
    engine_options,
    examples,
    json_option,
    out_option,
    suite_option,
)
from slipstream.cli.prompts import suite_prompts
from slipstream.cli.render import (
    counted,
    loading,
    print_warnings,
    speedup_text,
    table,
    tracking,
    verdict_text,
    visible,
)
from slipstream.files import write_whole
from slipstream.tools.bench_batch import SIZES, bench_batch
from slipstream.tools.bench_generate import SHORTEST, bench_generate, cost_curve
from slipstream.tools.conditions import Conditions
from slipstream.tools.suites import SUITES

__all__ = ["bench_batch_command", "bench_generate_command"]


@click.command(
    "generate",
    short_help="Whole answers, with each drafter.",
    epilog=examples(
        "slipstream bench generate --limit 2 --max-tokens 64",
        "slipstream bench generate --suite prompts.jsonl --drafters ngram --json",
        "slipstream bench generate --suite spec_bench --suite code_edit --data data --limit 1 --out out.json",
    ),
)
@suite_option
@data_option
@drafters_option
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    help="N prompts of each category, spread evenly over it.  [default: all]",
)
@click.option(
    "--max-tokens",
    metavar="N",
    type=click.IntRange(min=SHORTEST),
    default=128,
    show_default=True,
    help="Most tokens to answer with.",
)
@click.option(
    "--temperature",
    metavar="T",
    type=float,
    default=0.0,
    show_default=True,
    help="0 takes the likeliest token each time; higher is more varied.",
)
@click.option("--seed", metavar="N", type=int, default=0, show_default=True, help="The seed of every answer.")
@out_option
@json_option
@engine_options(drafter=False)
def bench_generate_command(
    suites: Sequence[str],
    data: Path | None,
    drafters: list[str] | None,
    limit: int | None,
    max_tokens: int,
    temperature: float,
    seed: int,
    out: Path | None,
    as_json: bool,
    engine_options: EngineOptions,
) -> None:
    """Time plain decoding and each drafter on the same prompts, in turns, and compare their outputs.

    The speed-up is the median over a category's prompts, of decoding alone. Answers are timed up to where they begin to
    go round in circles, which would flatter every drafter; those of fewer than 16 tokens are left out. Exit code 1 if
    any output differs from plain decoding's.
    """
    _refuse_null(drafters)
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    prompts = suite_prompts(suites, data, limit)
    conditions = Conditions.now()
    engine, drafters = engine_options.load_with(drafters)
    with loading() as progress:
        curve = cost_curve(engine.target, progress)
    result = bench_generate(
        engine, prompts, drafters, params, conditions, tracking=lambda work: tracking(work, "Generating")
    )
    heading = _heading("generate", engine, engine_options, suites)
    record = {**heading, "limit": limit, "cost_curve": curve, **result}
    _write(record, out, as_json)
    if not as_json:
        _show_generate(record)
    if not all(figures["identical"] for figures in record["overall"].values()):
        raise click.exceptions.Exit(1)


@click.command(
    "batch",
    short_help="Batches of 1 to 16, with each drafter.",
    epilog=examples("slipstream bench batch --sizes 1,2", "slipstream bench batch --suite prompts.jsonl --json"),
)
@suite_option
@data_option
@drafters_option
@click.option(
    "--sizes",
    metavar="N,M",
    type=ListOf(click.IntRange(min=1)),
    default=",".join(map(str, SIZES)),
    show_default=True,
    help="Requests that run at once.",
)
@out_option
@json_option
@engine_options(drafter=False)
def bench_batch_command(
    suites: Sequence[str],
    data: Path | None,
    drafters: list[str] | None,
    sizes: Sequence[int],
    out: Path | None,
    as_json: bool,
    engine_options: EngineOptions,
) -> None:
    """Time batches of prompts, in plain decoding and with each drafter in turns: where does drafting cease to pay?

    Tokens a second are those of a batch's requests together, 64 tokens each, once all of them have begun: medians of
    nine repeats. Exit code 1 if any output differs from plain decoding's.
    """
    _refuse_null(drafters)
    prompts = suite_prompts(suites, data)
    conditions = Conditions.now()
    engine, drafters = engine_options.load_with(drafters)
    result = bench_batch(
        engine, prompts, drafters, conditions, sizes, tracking=lambda work: tracking(work, "Generating")
    )
    record = {**_heading("batch", engine, engine_options, suites), **result}
    _write(record, out, as_json)
    if not as_json:
        _show_batch(record)
    if not all(figures["identical"] for by_drafter in record["sizes"].values() for figures in by_drafter.values()):
        raise click.exceptions.Exit(1)


def _refuse_null(drafters: Sequence[str] | None) -> None:
    if drafters and "null" in drafters:
        raise OptionError("--drafters null is plain decoding, with which all others are compared: leave it out")


def _heading(kind: str, engine: Engine, options: EngineOptions, suites: Sequence[str]) -> dict[str, Any]:
    """What was measured. Of files, the names alone: paths tell of this machine and nothing of the figures."""
    draft_model = options.draft_model
    return {
        "kind": kind,
        "model": engine.model_name,
        "dtype": options.dtype,
        "draft_model": Path(draft_model).name if draft_model and Path(draft_model).exists() else draft_model,
        "num_speculative_tokens": engine.default_num_speculative_tokens,
        "suites": [suite if suite in SUITES else Path(suite).name for suite in suites] or ["built_in"],
    }


def _write(record: dict[str, Any], out: Path | None, as_json: bool) -> None:
    text = json.dumps(record)
    if out is not None:
        write_whole(out, f"{text}\n".encode())
    if as_json:
        click.echo(text)


def _show_generate(record: dict[str, Any]) -> None:
    title = f"{visible(record['model'])}: {_amounts(record)}"
    rows = table(["Category", "Drafter"], ["Prompts", "Speed-up", "Quartiles", "Accepted", "Identical"], title)
    groups = {**record["categories"], "overall": record["overall"]}
    for category, by_drafter in groups.items():
        for drafter, figures in by_drafter.items():
            rows.add_row(
                visible(category),
                drafter,
                str(figures["prompts"]),
                _speedup(figures),
                _range(figures),
                f"{figures['mean_accepted_length']:.2f}",
                verdict_text(figures["identical"]),
            )
    closing = "Speed-up: the median over prompts. Accepted: the mean accepted length, in tokens for each pass."
    _print(record, rows, closing)


def _amounts(record: dict[str, Any]) -> str:
    """How much was measured, and what was left out."""
    outcomes = record["prompts"]
    parts = [counted(len(outcomes), "prompt")]
    for number, what in (
        (sum(outcome["looped"] for outcome in outcomes), "cut where the answer loops"),
        (sum(not outcome["runs"] for outcome in outcomes), "left out as too short"),
    ):
        parts += [f"{number} {what}"] * (number > 0)
    return ", ".join(parts)


def _show_batch(record: dict[str, Any]) -> None:
    columns = ["Tokens/s", "Speed-up", "Quartiles", "With prefill", "Identical"]
    rows = table(["Batch", "Drafter"], columns, visible(record["model"]))
    for size, by_drafter in record["sizes"].items():
        for drafter, figures in by_drafter.items():
            plain = drafter == "null"
            rows.add_row(
                size,
                "plain" if plain else drafter,
                f"{figures['tokens_per_second']:.1f}",
                "" if plain else speedup_text(figures["speedup"]),
                "" if plain else _range(figures),
                "" if plain else speedup_text(figures["speedup_with_prefill"]),
                "" if plain else verdict_text(figures["identical"]),
            )
    _print(record, rows, "Tokens/s: of all requests of the batch together, once the last of them has begun.")


def _print(record: dict[str, Any], rows: Table, closing: str) -> None:
    console = Console(highlight=False)
    console.print(rows)
    console.print(closing)
    print_warnings(console, record["environment"])


def _speedup(figures: dict[str, Any]) -> Text:
    return Text("–") if figures["speedup"] is None else speedup_text(figures["speedup"])


def _range(figures: dict[str, Any]) -> str:
    quartiles = figures["speedup_quartiles"]
    return "–" if quartiles is None else "{:.2f}–{:.2f}".format(*quartiles)
