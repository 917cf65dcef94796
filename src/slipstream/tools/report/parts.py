"""What a report is made of, on the page and in the document alike, and how its figures and words are written."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from slipstream.tools.report.plots import Plot

__all__ = [
    "EVEN",
    "GAIN",
    "LOSS",
    "NOTHING",
    "Block",
    "Cell",
    "Figures",
    "Finding",
    "Section",
    "Table",
    "command_line",
    "counted",
    "listed",
    "milliseconds",
    "number",
    "speedup_cell",
    "tone_of",
    "yes_or_no",
]

NOISE = 0.02  # a speed-up within this of 1 is neither a gain nor a loss
GAIN, LOSS, EVEN = "gain", "loss", "even"
NOTHING = "–"  # in the place of a figure that there isn't

Figures = Mapping[str, Any]
"""A record within a result, whose shape records.KINDS tells."""


class Cell(NamedTuple):
    """A text, and whether it tells of a gain, a loss (or something else that went wrong), or neither."""

    text: str
    tone: str = EVEN


class Finding(NamedTuple):
    """A sentence for the top of the report, with the tone of a Cell."""

    text: str
    tone: str = EVEN


@dataclass(frozen=True, slots=True)
class Table:
    """Cells under a header. The first `keys` columns say what a row is about, the others hold figures."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    keys: int = 1


@dataclass(frozen=True, slots=True)
class Block:
    """A table under a heading, with what there is to know about it, and plots of what it holds."""

    title: str
    table: Table
    text: str = ""
    plots: Sequence[Plot] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """What one file says. command: how to have it measured again, as far as the file tells its settings.

    verdicts: for each of Slipstream's drafters and what it was run on, whether all outputs were plain decoding's.
    """

    title: str
    file: str
    settings: str
    command: str
    findings: Sequence[Finding]
    blocks: Sequence[Block]
    verdicts: Sequence[tuple[str, bool]] = ()


def tone_of(speedup: float) -> str:
    """Whether a speed-up is a gain, a loss or neither."""
    return GAIN if speedup > 1 + NOISE else LOSS if speedup < 1 - NOISE else EVEN


def speedup_cell(speedup: float | None) -> Cell:
    """A speed-up, marked as a gain or a loss so that it can be told without colour."""
    if speedup is None:
        return Cell(NOTHING)
    tone = tone_of(speedup)
    mark = {GAIN: " ▲", LOSS: " ▼", EVEN: ""}[tone]
    return Cell(f"{speedup:.2f}×{mark}", tone)


def yes_or_no(answer: bool | None) -> Cell:
    """An answer that should be yes."""
    return Cell(NOTHING) if answer is None else Cell("yes") if answer else Cell("NO", LOSS)


def number(value: float | None, form: str) -> str:
    """A figure in that format, where there is one."""
    return NOTHING if value is None else format(value, form)


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, with three digits or more."""
    return NOTHING if seconds is None else format(seconds * 1e3, ".3f" if seconds < 0.01 else ".1f")


def counted(count: float, noun: str) -> str:
    """A number with its noun."""
    return f"{count:g} {noun if count == 1 else noun + 's'}"


def listed(items: Sequence[object]) -> str:
    """a, b and c."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def command_line(program: str, **options: Any) -> str:
    """A command line with those options that have a value, a list's once for each item."""
    words = [program]
    for name, value in options.items():
        for item in value if isinstance(value, list) else [value]:
            text = "" if item is None else f"{item:g}" if isinstance(item, float) else str(item)
            if text:
                words += [f"--{name.replace('_', '-')}", shlex.quote(text)]
    return " ".join(words)
