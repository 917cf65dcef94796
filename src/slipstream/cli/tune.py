"""slipstream tune: what suits this model on this machine."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from slipstream.cli.options import (
    EngineOptions,
    engine_options,
    examples,
    json_option,
    limit_option,
    prompts_option,
    raw_option,
)
from slipstream.cli.prompts import requests_of
from slipstream.cli.render import (
    BUSY,
    counted,
    disturbed,
    loading,
    print_warnings,
    speedup_text,
    table,
    times,
    tracking,
    verdict_text,
    visible,
)
from slipstream.tools.bench_generate import SHORTEST
from slipstream.tools.conditions import Conditions
from slipstream.tools.tune_drafters import tune_drafters
from slipstream.tools.tune_layer_skip import MOST_DRAFTED, tune_layer_skip

__all__ = ["tune"]


@click.group(
    short_help="Find what suits a model.",
    epilog=examples("slipstream tune layer-skip --limit 1 --max-tokens 16"),
)
def tune() -> None:
    """Search, with a model on this machine, what its drafters work best with."""


@tune.command(
    short_help="Which layers layer_skip should skip.",
    epilog=examples(
        "slipstream tune layer-skip --limit 1 --max-tokens 16",
        "slipstream tune layer-skip --prompts prompts.jsonl --max-tokens 16 --json",
    ),
)
@prompts_option
@limit_option
@click.option(
    "--max-tokens",
    metavar="N",
    type=click.IntRange(min=MOST_DRAFTED + 1),
    default=64,
    show_default=True,
    help="Most tokens of each answer to try drafts on.",
)
@raw_option
@json_option
@engine_options(draft_model=False, draft_length=False, drafter=False)
def layer_skip(
    prompts: Path | None, limit: int | None, max_tokens: int, raw: bool, as_json: bool, engine_options: EngineOptions
) -> None:
    """Search the layers that the drafter layer_skip leaves out, on the model's own answers to a few prompts.

    The best set is saved beside the model (in the cache directory where that can't be written), and used from then on.
    It takes minutes. Ctrl-C keeps what was tried: the same command goes on from there, another starts anew.
    """
    requests = requests_of(prompts, limit, raw)
    conditions = Conditions.now()
    engine = engine_options.load()
    with loading() as progress:
        result = tune_layer_skip(engine, requests, conditions, max_tokens=max_tokens, progress=progress)
    if as_json:
        click.echo(json.dumps(result))
    else:
        _show(result)


@tune.command(
    short_help="Which drafter, with which draft length.",
    epilog=examples(
        "slipstream tune drafters --limit 1 --max-tokens 16",
        "slipstream tune drafters --prompts prompts.jsonl --temperature 0.8 --max-tokens 16 --json",
    ),
)
@prompts_option
@limit_option
@click.option(
    "--max-tokens",
    metavar="N",
    type=click.IntRange(min=SHORTEST),
    default=96,
    show_default=True,
    help="Most tokens of each answer.",
)
@click.option(
    "--temperature",
    metavar="T",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Answer at temperature T as well as greedily.",
)
@raw_option
@json_option
@engine_options(draft_length=False, drafter=False)
def drafters(
    prompts: Path | None,
    limit: int | None,
    max_tokens: int,
    temperature: float,
    raw: bool,
    as_json: bool,
    engine_options: EngineOptions,
) -> None:
    """Time every drafter, with drafts of 2 to 12 tokens, and plain decoding on the same prompts, in turns.

    The fastest is saved in the cache directory for this model, its draft model, dtype, threads and processor, and is
    what commands use from then on that are given neither --drafter nor --num-speculative-tokens. Where nothing is 2%
    faster than auto, that is auto. Exit code 1, and nothing saved, if any output differs from plain decoding's.
    """
    requests = requests_of(prompts, limit, raw)
    conditions = Conditions.now()
    engine = engine_options.load()
    result = tune_drafters(
        engine,
        requests,
        conditions,
        max_tokens=max_tokens,
        temperature=temperature,
        tracking=lambda work: tracking(work, "Answering in every way"),
    )
    if as_json:
        click.echo(json.dumps(result))
    else:
        _show_drafters(result)
    if result["profile"] is None:
        raise click.exceptions.Exit(1)


def _show_drafters(result: dict[str, Any]) -> None:
    console = Console(highlight=False)
    amounts = f"{counted(result['prompts'], 'prompt')}, {counted(result['timed'], 'answer')} timed"
    title = f"{visible(result['model'])}: {amounts}"
    sampled = result["temperatures"][1:]
    by_temperature = ["Greedy", f"At {sampled[0]}"] if sampled else []
    headings = ["Tokens", "Speed-up", *by_temperature, "Length", "Accepted", "Identical"]
    rows = table(["Drafter"], headings, title)
    for way in result["ways"]:
        length = way["num_speculative_tokens"]
        rows.add_row(
            way["drafter"],
            "any" if length is None else str(length),
            speedup_text(way["speedup"]),
            *(("–" if speedup is None else times(speedup)) for speedup in way["speedups"] if sampled),
            f"{way['mean_accepted_length']:.2f}",
            f"{way['acceptance_rate']:.0%}",
            verdict_text(way["identical"]),
        )
    console.print(rows)
    console.print("Tokens: most in a draft. Length: the mean accepted length, in tokens for each pass.")
    console.print(result["why"])
    if any(disturbed(way["speedup"], way["mean_accepted_length"]) for way in result["ways"]):
        console.print(Text(BUSY, "yellow"))
    if result["profile"] is None:
        console.print(Text("Nothing is saved: outputs differ from plain decoding's.", "bold red"))
    else:
        console.print(Text(f"Saved in {visible(result['profile'])}"), soft_wrap=True)
    print_warnings(console, result["environment"])


def _show(result: dict[str, Any]) -> None:
    console = Console(highlight=False)
    best = result["best"]
    amounts = f"{counted(result['prompts'], 'prompt')}, {counted(result['drafts'], 'draft')} for each set"
    title = f"{visible(result['model'])}: {result['num_layers']} layers, {amounts}"
    rows = table(["Skipped layers"], ["Tokens", "Accepted", "Length", "Expected speed-up"], title)
    for found in result["sets"]:
        rows.add_row(
            ", ".join(map(str, found["skipped"])),
            str(found["num_speculative_tokens"]),
            f"{found['acceptance_rate']:.0%}",
            f"{found['mean_accepted_length']:.2f}",
            speedup_text(found["speedup"]),
        )
    console.print(rows)
    console.print("Tokens: in a draft. Length: the mean accepted length, in tokens for each pass.")
    if best["speedup"] > 1:
        drafted = counted(best["num_speculative_tokens"], "token")
        console.print(
            f"Best: {len(best['skipped'])} skipped and {drafted} drafted, {times(best['speedup'])} expected with "
            "--drafter layer_skip."
        )
        console.print("To measure it: slipstream compare --drafters layer_skip")
    else:
        console.print(f"Layer skipping doesn't pay on this model: best expected {times(best['speedup'])}.")
    console.print(Text(f"Saved in {visible(result['profile'])}"), soft_wrap=True)
    print_warnings(console, result["environment"])
