"""Plots of measurements, for people. Needs the extra [plot]."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from slipstream.errors import OptionError

__all__ = ["check_plot_file", "plot_cost_of_rows"]


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
