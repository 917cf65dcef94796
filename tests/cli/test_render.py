"""What is shown, with and without a terminal."""

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from slipstream.cli.render import (
    ACCEPTED,
    CORRECTED,
    OWN,
    REJECTED,
    counted,
    in_colour,
    loading,
    marked,
    note,
    segments,
    stream,
    styled,
    tracking,
    visible,
)
from slipstream.types import Completion, Piece, SpeculationStats, StepOutput, Timing, Usage


def step(*pieces, rejected=(), completion=None):
    """pieces: (text, origin)."""
    return StepOutput(0, tuple(Piece(1, text, origin) for text, origin in pieces), tuple(rejected), completion)


def completion(text):
    return Completion(text, (1,), "stop", 0, Usage(1, 1), SpeculationStats("ngram", 5), Timing(0.1, 0.1, 10.0))


def generator(*steps, interrupt=False):
    yield from steps
    if interrupt:
        raise KeyboardInterrupt


ALL_ACCEPTED = step(("a", "draft"), ("b", "draft"), ("c", "target"))
SOME_REJECTED = step(("a", "draft"), ("c", "target"), rejected=["x\n", "y"])
HELD_BACK = step(("a", "draft"), rejected=["x"])
NOTHING_YET = step(rejected=["x"])


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (ALL_ACCEPTED, [("ab", ACCEPTED), ("c", OWN)]),
        (SOME_REJECTED, [("a", ACCEPTED), ("x⏎y", REJECTED), ("c", CORRECTED)]),
        (HELD_BACK, [("a", ACCEPTED), ("x", REJECTED)]),
        (NOTHING_YET, [("x", REJECTED)]),
        (step(), []),
        (step(("", "draft"), ("é", "target")), [("é", OWN)]),
        (step(("\x1b[2J", "target")), [("\\x1b[2J", OWN)]),
    ],
)
def test_segments(output, shown):
    assert segments(output) == shown


PIECES = st.lists(st.tuples(st.text(max_size=3), st.sampled_from(["draft", "target"])), max_size=6)


@given(pieces=PIECES, rejected=st.lists(st.text(max_size=3), max_size=3))
def test_what_is_shown_is_the_text_and_what_was_rejected(pieces, rejected):
    shown = segments(step(*pieces, rejected=rejected))
    assert "".join(text for text, style in shown if style != REJECTED) == visible("".join(text for text, _ in pieces))
    assert "".join(text for text, style in shown if style == REJECTED) == visible("".join(rejected).replace("\n", "⏎"))


def test_marks_stand_in_for_colour():
    assert marked(SOME_REJECTED) == "{+a+}[-x⏎y-]c"
    assert marked(ALL_ACCEPTED) == "{+ab+}c"
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(styled(SOME_REJECTED), end="")
    assert console.file.getvalue() == "\x1b[32ma\x1b[0m\x1b[9;31mx⏎y\x1b[0m\x1b[33mc\x1b[0m"


@given(st.text())
def test_no_control_character_reaches_the_terminal(text):
    shown = visible(text)
    assert all(character in "\n\t" or unicodedata.category(character) != "Cc" for character in shown)
    if shown.isascii() and "\\" not in text:
        assert shown.replace("\\x", "") or not text


def test_colour_needs_a_terminal_that_has_it():
    assert in_colour(Console(force_terminal=True, color_system="standard", no_color=False))
    assert not in_colour(Console(force_terminal=True, color_system="standard", no_color=True))
    assert not in_colour(Console(force_terminal=True, color_system=None))
    assert not in_colour(Console(file=io.StringIO()))


def test_streamed_into_a_pipe_text_stays_as_it_is(capsys):
    text, done = stream(generator(step(("a\x1b[1m", "draft")), step(("b", "target"), completion=completion("x"))))
    assert (text, done.text) == ("a\x1b[1mb", "x")
    assert capsys.readouterr() == ("a\x1b[1mb\n", "")


def test_drafts_shown_in_a_pipe_are_marked(capsys):
    stream(generator(SOME_REJECTED, step(completion=completion("x"))), show_drafts=True)
    assert capsys.readouterr().out == "{+a+}[-x⏎y-]c\n"


def test_an_interrupt_keeps_what_was_generated_and_cancels_the_rest(capsys):
    steps = generator(ALL_ACCEPTED, ALL_ACCEPTED, interrupt=True)
    assert stream(steps) == ("abcabc", None)
    assert capsys.readouterr().out == "abcabc\n"
    assert next(steps, "closed") == "closed"


def test_an_error_on_the_way_cancels_too(capsys):
    def failing():
        try:
            yield ALL_ACCEPTED
            yield ALL_ACCEPTED
        finally:
            closed.append(True)

    closed = []
    steps = failing()

    def broken(text):
        raise BrokenPipeError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout.write", broken)
        with pytest.raises(BrokenPipeError):
            stream(steps)
    assert closed == [True]


def test_nothing_but_text_goes_where_no_terminal_is(capsys):
    note("figures")
    with loading() as progress:
        progress("weights", 1, 2)
        progress("weights", 2, 2)
        progress("fetching", 1, 0)
    assert list(tracking([1, 2], "Comparing")) == [1, 2]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("number", "shown"), [(0, "0 passes"), (1, "1 pass"), (2, "2 passes")])
def test_counted(number, shown):
    assert counted(number, "pass", "passes") == shown
