"""What commands show: streamed text, who drafted it, progress, figures. Plain text wherever there is no terminal."""

import sys
import unicodedata
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from slipstream.engine import Engine
from slipstream.types import Completion, StepOutput

__all__ = [
    "ACCEPTED",
    "BUSY",
    "CORRECTED",
    "OWN",
    "REJECTED",
    "counted",
    "disturbed",
    "figures",
    "in_colour",
    "legend",
    "loading",
    "marked",
    "note",
    "print_warnings",
    "segments",
    "speedup_text",
    "stream",
    "styled",
    "table",
    "times",
    "tracking",
    "verdict_text",
    "visible",
]

Item = TypeVar("Item")

BUSY = "But it gained more than the passes saved allow: the machine was busy with something else, so run this again."

# Who a stretch of text is from, as the style that shows it.
ACCEPTED = "green"  # drafted, and the target agreed
CORRECTED = "yellow"  # the target's own, in place of a rejected draft
OWN = ""  # the target's own
REJECTED = "red strike"  # drafted, and turned down: no part of the answer


def visible(text: str) -> str:
    """The text with control characters shown as such, so that nothing a model or a file says can steer the terminal."""
    return "".join(
        f"\\x{ord(character):02x}" if unicodedata.category(character) == "Cc" and character not in "\n\t" else character
        for character in text
    )


def in_colour(console: Console) -> bool:
    """Whether this console is a terminal that shows styles."""
    return console.is_terminal and console.color_system is not None and not console.no_color


def segments(step: StepOutput) -> list[tuple[str, str]]:
    """A step's text by whom it is from, as (text, style). Rejected text comes before the token that replaced it."""
    labelled = [(piece.text, ACCEPTED if piece.origin == "draft" else OWN) for piece in step.pieces]
    if step.rejected:
        rejected = ("".join(step.rejected).replace("\n", "⏎"), REJECTED)
        # Without a closing token of the target's, it is held back as a possible stop string, and comes later.
        corrected = [(labelled.pop()[0], CORRECTED)] if labelled and labelled[-1][1] == OWN else []
        labelled += [rejected, *corrected]
    merged = [("".join(text for text, _ in run), style) for style, run in groupby(labelled, key=lambda pair: pair[1])]
    return [(visible(text), style) for text, style in merged if text]


def styled(step: StepOutput) -> Text:
    """A step's text in colour."""
    return Text.assemble(*segments(step))


def marked(step: StepOutput) -> str:
    """A step's text with accepted drafts as {+text+} and rejected ones as [-text-], for where there is no colour."""
    marks = {ACCEPTED: ("{+", "+}"), REJECTED: ("[-", "-]")}
    return "".join(text.join(marks.get(style, ("", ""))) for text, style in segments(step))


def legend(console: Console) -> str:
    """What the colours, or the marks in their place, mean."""
    if in_colour(console):
        return (
            "Green: drafted and accepted. Yellow: the model's own token after a rejection. Red, struck out: rejected."
        )
    return "{+accepted+} and [-rejected-] mark what was drafted."


def stream(steps: Generator[StepOutput, None, None], *, show_drafts: bool = False) -> tuple[str, Completion | None]:
    """Prints an answer to standard output as it comes; returns its text, and the completion.

    Ctrl-C ends the answer, not the program: what was printed stays, and there is no completion.
    """
    console = Console(highlight=False)
    colour = show_drafts and in_colour(console)
    text = ""
    with closing(steps):
        try:
            for step in steps:
                added = "".join(piece.text for piece in step.pieces)
                text += added
                if colour:
                    console.print(styled(step), end="", soft_wrap=True)
                else:
                    plain = marked(step) if show_drafts else visible(added) if console.is_terminal else added
                    sys.stdout.write(plain)
                    sys.stdout.flush()
                if step.completion:
                    return text, step.completion
        except KeyboardInterrupt:
            pass
        finally:
            sys.stdout.write("\x1b[0m\n" if colour else "\n")
            sys.stdout.flush()
    return text, None


def figures(completion: Completion, engine: Engine | None = None) -> str:
    """One line on how an answer came about; with the engine, its drafter too, where the engine's default is used."""
    stats = completion.speculation
    parts = [
        counted(completion.usage.completion_tokens, "token"),
        counted(stats.target_passes, "pass", "passes"),
        f"mean accepted length {stats.mean_accepted_length:.2f}",
        f"{completion.timing.tokens_per_second:.1f} tokens/s",
    ]
    if engine is not None:
        tuned = " (tuned)" if engine.tuned else ""
        parts.append(f"drafter: {stats.drafter}, {stats.num_speculative_tokens}{tuned}")
    return " · ".join(parts)


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def note(line: str) -> None:
    """A dim line on standard error, where a person is there to read it."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        console.print(Text(visible(line), "dim"))


def times(factor: float) -> str:
    """A factor, written as one."""
    return f"{factor:.2f}\N{MULTIPLICATION SIGN}"


def speedup_text(speedup: float) -> Text:
    """A speed-up, green for a gain and red for a loss; within 2% of 1 it is noise."""
    return Text(times(speedup), "green" if speedup > 1.02 else "red" if speedup < 0.98 else "")


def disturbed(speedup: float, mean_accepted_length: float) -> bool:
    """Whether a measured speed-up is above what the passes saved allow: something else slowed the plain run down."""
    return speedup > 1.15 * max(1.0, mean_accepted_length)


def table(left: Sequence[str], right: Sequence[str], title: str | None = None) -> Table:
    """An empty table with these columns, set to the left and to the right."""
    made = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in left:
        made.add_column(heading)
    for heading in right:
        made.add_column(heading, justify="right")
    return made


def print_warnings(console: Console, environment: Mapping[str, Any]) -> None:
    """Why the figures of a record with this environment aren't to be relied on, if they aren't."""
    for warning in environment["warnings"]:
        console.print(Text(f"Not to be relied on: {warning}.", "yellow"))


def verdict_text(identical: bool) -> Text:
    """Whether two outputs are identical, to the token."""
    return Text("yes", "green") if identical else Text("no", "bold red")


@contextmanager
def loading() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for each thing that Engine.load reports, on standard error and only on a terminal."""
    with _progress() as progress:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(visible(what))
            progress.update(tasks[what], completed=done, total=total or None)

        yield report


def tracking(items: Sequence[Item], what: str) -> Iterator[Item]:
    """The items, with a progress bar and their count on standard error while they are worked through, only on a
    terminal."""
    with _progress(MofNCompleteColumn()) as progress:
        yield from progress.track(items, description=what)


def _progress(*more: ProgressColumn) -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), *more, TimeRemainingColumn())
    return Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,  # nothing is printed meanwhile, and Ctrl-C could leave them redirected
        redirect_stderr=False,
        disable=not console.is_terminal,
    )
