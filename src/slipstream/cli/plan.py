"""slipstream plan: does drafting pay with this model on this machine, and does it fit?"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from slipstream.cli.bench import plot_option
from slipstream.cli.options import EngineOptions, engine_options, examples, json_option
from slipstream.cli.render import counted, loading, print_warnings, times, visible
from slipstream.models.checkpoint import open_checkpoint
from slipstream.tools.conditions import Conditions
from slipstream.tools.plan import BATCH_SIZES, DEFAULT_CONTEXT, available_memory, check_weights_fit
from slipstream.tools.plan import plan as make_plan
from slipstream.tools.plots import plot_plan

__all__ = ["plan"]

SHOWN_ROWS = (2, 4, 8, 16)

LEGEND = (
    "4: 2.31 is a draft of 4 tokens and 2.31 times the speed of plain decoding; a dash, plain decoding. Rate: the "
    "acceptance rate. Formula: if a pass cost the same whatever its rows. 1 to 32, the requests at once: by what "
    "passes took; what only some of them gain counts for less, as auto counts it. Ends at: the smallest batch that "
    "drafting doesn't pay in."
)


@click.command(
    short_help="Say whether drafting pays here, and fits.",
    epilog=examples("slipstream plan", "slipstream plan --context 512 --plot plan.png", "slipstream plan --json"),
)
@click.option(
    "--context",
    metavar="N",
    type=click.IntRange(min=1),
    help=f"Tokens of a request, prompt and answer.  [default: {DEFAULT_CONTEXT}, or all that the model holds]",
)
@plot_option
@json_option
@engine_options(draft_length=False, drafter=False)
def plan(context: int | None, plot: Path | None, as_json: bool, engine_options: EngineOptions) -> None:
    """Measure what passes of the models cost, and tell what drafting can gain: by how often drafts are accepted, how
    long they are, and how many requests run at once; by the textbook's formula too. And what fits into memory.

    No text is generated: which acceptance your prompts have, slipstream compare and slipstream tune drafters measure.
    """
    available = available_memory()
    with loading() as progress:
        for model in filter(None, (engine_options.model, engine_options.draft_model)):
            dtype = engine_options.dtype if model == engine_options.model else "auto"
            check_weights_fit(open_checkpoint(model, progress), dtype, available)
    conditions = Conditions.now()
    engine = engine_options.load()
    with loading() as progress:
        result = make_plan(engine, conditions, context, available, progress)
    if plot and result["sources"]:
        plot_plan(plot, f"{engine.model_name}, {result['environment']['processor']}", result["sources"])
    if as_json:
        click.echo(json.dumps(result))
    else:
        _show(result)


def _show(result: Mapping[str, Any]) -> None:
    console = Console(highlight=False)
    where = result["environment"]
    console.print(f"{where['processor']}, {where['isa']}, threads: {where['threads']}")
    console.print(_memory(result))
    for name, passes in result["passes"].items():
        rows = ", ".join(f"{rows} rows {times(passes[rows - 1]['ratio_to_one_row'])}" for rows in SHOWN_ROWS)
        what = "A target pass" if name == "target" else "A draft model's pass"
        console.print(f"{what} takes {passes[0]['seconds'] * 1e3:.1f} ms; {rows}.")
    for name, source in result["sources"].items():
        console.print()
        what = "Lookup" if name == "lookup" else "Draft model"
        console.print(f"[bold]{what}[/]: best draft length and speed-up, by acceptance rate and requests at once")
        console.print(_table(source))
    if result["sources"]:
        console.print(LEGEND)
    console.print()
    for sentence in result["advice"]:
        console.print(sentence)
    print_warnings(console, where)


def _memory(result: Mapping[str, Any]) -> str:
    memory = result["memory"]
    weights = _gigabytes(memory["target_weight_bytes"])
    cache = _gigabytes(memory["target_cache_bytes"])
    if memory["draft_weight_bytes"]:
        weights += f" and {_gigabytes(memory['draft_weight_bytes'])} (draft model)"
        cache += f" and {_gigabytes(memory['draft_cache_bytes'])}"
    text = f"{visible(result['model'])}: weights {weights}, a request of {result['context']} tokens {cache}. "
    if memory["fits"] is None:
        return text + "This system doesn't tell how much memory is available."
    there = f"{_gigabytes(memory['available_bytes'])} of memory are available:"
    fit = f"{counted(memory['requests'], 'request fits', 'requests fit')} at once"
    return f"{text}{there} {fit if memory['fits'] else 'not even one request fits'}."


def _table(source: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for column in ("Rate", "Formula", *map(str, BATCH_SIZES), "Ends at"):
        table.add_column(column, justify="right")
    for at, found in enumerate(source["acceptances"]):
        table.add_row(
            f"{found['acceptance']:.2f}",
            _best(found["formula"]),
            *(_best(batch["acceptances"][at]) for batch in source["batches"]),
            "–" if found["crossover"] is None else str(found["crossover"]),
        )
    return table


def _best(found: Mapping[str, Any]) -> str:
    length = found["num_speculative_tokens"]
    return f"{length}: {found['speedup']:.2f}" if length else "–"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
