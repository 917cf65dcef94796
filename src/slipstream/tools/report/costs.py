"""What results of `slipstream bench pass` and `bench kernels` say: what more rows cost."""

from collections.abc import Mapping, Sequence

from slipstream.tools.report.parts import (
    NOTHING,
    Block,
    Cell,
    Finding,
    Section,
    Table,
    command_line,
    listed,
    milliseconds,
)
from slipstream.tools.report.plots import Lines
from slipstream.tools.report.records import Result

__all__ = ["cost_block", "kernels_section", "pass_section"]

Curves = Mapping[str, Sequence[tuple[float, float]]]
"""Name → (rows, seconds), beginning with one row."""


def pass_section(result: Result) -> Section:
    """A model's pass, at each context length."""
    data = result.data
    curves = {
        f"context {part['context']:g}": [(point["rows"], point["seconds"]) for point in part["passes"]]
        for part in data["contexts"]
    }
    settings = [
        f"read bandwidth {data['read_bandwidth_gbps']:.1f} GB/s",
        f"prefill {data['prefill_tokens_per_second']:.0f} tokens/s",
        *(
            f"one row at context {part['context']:g}: {part['fraction_of_bandwidth_limit']:.0%} of the bandwidth limit"
            for part in data["contexts"]
        ),
    ]
    return Section(
        f"A pass: {data['model']}",
        result.file,
        "; ".join(settings),
        command_line("slipstream bench pass", model=data["model"]),
        _findings(curves),
        [cost_block(f"Cost of a pass, {data['model']}", curves)],
    )


def kernels_section(result: Result) -> Section:
    """A linear layer, with each type of weights."""
    data = result.data
    curves = {name: [(point["rows"], point["seconds"]) for point in points] for name, points in data["types"].items()}
    rates = [f"{name} {points[0]['gbps']:.1f} GB/s" for name, points in data["types"].items() if points]
    return Section(
        "The kernels: a linear layer of 8960 × 1536",
        result.file,
        f"read bandwidth {data['read_bandwidth_gbps']:.1f} GB/s, of which one row uses: {listed(rates)}",
        "slipstream bench kernels",
        _findings(curves),
        [cost_block("Cost of a linear layer", curves)],
    )


def cost_block(title: str, curves: Curves, text: str = "") -> Block:
    """T(r), the time over r rows, for each curve."""
    ratios = {name: _ratios(curve) for name, curve in curves.items()}
    rows = sorted({rows for curve in curves.values() for rows, _ in curve})
    header = ["Rows"]
    table = [[Cell(f"{count:g}")] for count in rows]
    for name, curve in curves.items():
        header += [f"{name}, ms", "T(r)/T(1)"]
        seconds, ratio = dict(curve), dict(ratios[name])
        for row, count in zip(table, rows, strict=True):
            row.append(Cell(milliseconds(seconds.get(count))))
            row.append(Cell(f"{ratio[count]:.2f}×" if count in ratio else NOTHING))
    plot = Lines(
        title,
        "rows in the pass",
        "time, relative to one row",
        ratios,
        log_y=True,
        including=(1, 4),
        guide=("one row at a time", [(count, count) for count in rows]),
    )
    return Block("What more rows cost", Table(header, table), text, [plot])


def _findings(curves: Curves) -> list[Finding]:
    told = {
        name: [f"{rows:g} rows take {ratio:.2f}×" for rows, ratio in _ratios(curve) if rows in (4, 8)]
        for name, curve in curves.items()
    }
    return [Finding(f"{name}: {listed(times)} the time of one.") for name, times in told.items() if times]


def _ratios(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(rows, seconds) as (rows, times the first point's seconds)."""
    return [(rows, seconds / curve[0][1]) for rows, seconds in curve if curve[0][1]]
