"""Plots of measurements, for people. Needs the extra [plot]."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.errors import OptionError

__all__ = ["check_plot_file", "plot_cost_of_rows", "plot_plan"]


def check_plot_file(path: Path) -> None:
    """Raises OptionError before any work where the plot couldn't be written in the end."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise OptionError(f"{path}: a plot is written as .png, .svg or .pdf: name such a file")
    if not path.resolve().parent.is_dir():
        raise OptionError(f"{path}: its directory doesn't exist: make it first")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise OptionError("plots need matplotlib: pip install 'slipstream[plot]'") from None


def plot_cost_of_rows(path: Path, title: str, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """Draws, for each curve of (rows, ratio to one row), what a pass over more rows costs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        axes.plot([rows for rows, _ in points], [ratio for _, ratio in points], marker="o", markersize=4, label=name)
    ticks = sorted({rows for points in curves.values() for rows, _ in points})
    axes.plot(ticks, ticks, color="0.7", linestyle="--", label="one row at a time")
    axes.set(xscale="log", yscale="log", xlabel="rows in the pass", ylabel="time, relative to one row", title=title)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_yticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


PLOTTED = (0.4, 0.6, 0.8, 0.95)
"""Acceptances whose curves over batches are drawn."""


def plot_plan(path: Path, title: str, sources: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws, for each source of drafts as plan_source has it, its best speed-up over acceptance and over batch sizes:
    the measured one solid, the formula's dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2 * len(sources)), layout="constrained")
    figure.suptitle(title)
    for name, source, (left, right) in zip(
        sources, sources.values(), figure.subplots(len(sources), 2, squeeze=False), strict=True
    ):
        found = source["acceptances"]
        acceptances = [each["acceptance"] for each in found]
        left.plot(acceptances, [each["formula"]["speedup"] for each in found], "C0--", label="formula")
        left.plot(acceptances, [each["speedup"] for each in found], "C0-", marker="o", markersize=4, label="measured")
        sizes = [batch["batch_size"] for batch in source["batches"]]
        for number, acceptance in enumerate(PLOTTED):
            at, colour = acceptances.index(acceptance), f"C{number}"
            measured = [batch["acceptances"][at]["speedup"] for batch in source["batches"]]
            right.plot(sizes, [found[at]["formula"]["speedup"]] * len(sizes), f"{colour}--")
            right.plot(sizes, measured, f"{colour}-", marker="o", markersize=4, label=f"acceptance {acceptance}")
        left.set(xlabel="acceptance", ylabel="speed-up at the best draft length", title=name.replace("_", " "))
        right.set(xscale="log", xlabel="requests at once", title="dashed: the formula; solid: measured")
        right.set_xticks(sizes, [str(size) for size in sizes])
        right.minorticks_off()
        for axes in (left, right):
            axes.set_yscale("log")
            axes.set_yticks([1, 2, 3, 5, 10, 16], ["1", "2", "3", "5", "10", "16"])
            axes.yaxis.minorticks_off()
            axes.grid(alpha=0.3)
        left.legend(frameon=False)
        right.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=150)
