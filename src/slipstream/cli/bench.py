"""slipstream bench: what kernels and passes cost on this machine; the other benchmarks have files of their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from slipstream.cli.bench_generate import bench_batch_command, bench_generate_command
from slipstream.cli.bench_load import bench_load_command
from slipstream.cli.options import EngineOptions, engine_options, examples, json_option
from slipstream.cli.render import loading, times
from slipstream.tools.bench_kernels import bench_kernels
from slipstream.tools.bench_pass import bench_pass
from slipstream.tools.plots import check_plot_file, plot_cost_of_rows

__all__ = ["bench"]

Command = Callable[..., Any]


def _plot_file(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    if value is not None:
        check_plot_file(value)
    return value


plot_option = click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_plot_file,
    help="Draw the figures into FILE (.png, .svg or .pdf).",
)


def repeats_option(default: int) -> Callable[[Command], Command]:
    return click.option(
        "--repeats",
        metavar="N",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        help="Interleaved repeats, of which the medians are shown.",
    )


@click.group(
    short_help="Measure kernels, passes, answers, servers.",
    epilog=examples("slipstream bench kernels --repeats 1", "slipstream bench pass --repeats 1"),
)
def bench() -> None:
    """Measure what kernels, passes, answers and servers take on this machine. Leave it alone meanwhile."""


for command in (bench_generate_command, bench_batch_command, bench_load_command):
    bench.add_command(command)


@bench.command(short_help="A linear layer over 1 to 64 rows.", epilog=examples("slipstream bench kernels --repeats 1"))
@plot_option
@repeats_option(15)
@json_option
def kernels(plot: Path | None, repeats: int, as_json: bool) -> None:
    """Measure a linear layer of 8960 x 1536 over 1 to 64 rows, for every type of weights, against memory bandwidth."""
    with loading() as progress:
        result: Any = bench_kernels(repeats, progress=progress)
    if plot:
        curves = {name: _ratios(points) for name, points in result["types"].items()}
        plot_cost_of_rows(plot, "A linear layer, 8960 × 1536", curves)
    if as_json:
        click.echo(json.dumps(result))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("rows", justify="right")
    for name in result["types"]:
        table.add_column(f"{name} ms", justify="right")
        table.add_column("GB/s", justify="right")
        table.add_column("T(r)/T(1)", justify="right")
    for points in zip(*result["types"].values(), strict=True):
        row = [str(points[0]["rows"])]
        for point in points:
            row += [f"{point['seconds'] * 1e3:.3f}", f"{point['gbps']:.1f}", times(point["ratio_to_one_row"])]
        table.add_row(*row)
    _show(result, table, f"read bandwidth {result['read_bandwidth_gbps']:.1f} GB/s")


@bench.command(
    "pass", short_help="A model's pass over 1 to 64 rows.", epilog=examples("slipstream bench pass --repeats 1")
)
@engine_options(drafter=False)
@plot_option
@repeats_option(7)
@json_option
def bench_pass_command(engine_options: EngineOptions, plot: Path | None, repeats: int, as_json: bool) -> None:
    """Measure a model's whole pass over 1 to 64 rows, at a context of 256 and of 2048 tokens, and its prefill."""
    engine = engine_options.load()
    with loading() as progress:
        result: Any = {"model": engine.model_name, **bench_pass(engine.target, repeats, progress=progress)}
    if plot:
        curves = {f"context {part['context']}": _ratios(part["passes"]) for part in result["contexts"]}
        plot_cost_of_rows(plot, f"A pass of {engine.model_name}", curves)
    if as_json:
        click.echo(json.dumps(result))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("rows", justify="right")
    for part in result["contexts"]:
        table.add_column(f"context {part['context']}, ms", justify="right")
        table.add_column("T(r)/T(1)", justify="right")
    for points in zip(*(part["passes"] for part in result["contexts"]), strict=True):
        row = [str(points[0]["rows"])]
        for point in points:
            row += [f"{point['seconds'] * 1e3:.2f}", times(point["ratio_to_one_row"])]
        table.add_row(*row)
    shares = ", ".join(
        f"{part['fraction_of_bandwidth_limit']:.0%} of the bandwidth limit at context {part['context']}"
        for part in result["contexts"]
    )
    _show(
        result,
        table,
        f"one row: {shares} (read bandwidth {result['read_bandwidth_gbps']:.1f} GB/s); "
        f"prefill {result['prefill_tokens_per_second']:.0f} tokens/s",
    )


def _ratios(points: list[dict[str, float]]) -> list[tuple[int, float]]:
    return [(int(point["rows"]), point["ratio_to_one_row"]) for point in points]


def _show(result: dict[str, Any], table: Table, closing: str) -> None:
    console = Console(highlight=False)
    where = result["environment"]
    console.print(f"{where['processor']}, {where['isa']}, threads: {where['threads']}")
    console.print(table)
    console.print(closing)
