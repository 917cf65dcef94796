"""Standard input, and the built-in prompts."""

import io
import sys

import pytest

from slipstream.cli.prompts import BUILT_IN, read_standard_input
from slipstream.errors import OptionError


@pytest.mark.parametrize(("data", "text"), [(b"hi\n", "hi"), (b"hi\n\n", "hi\n"), (b"hi", "hi"), ("ü".encode(), "ü")])
def test_standard_input_loses_its_last_newline(monkeypatch, data, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert read_standard_input() == text


@pytest.mark.parametrize(
    ("data", "words"), [(b"", "is empty"), (b"\n", "is empty"), (b"ab\xff", "not UTF-8 text at byte 3")]
)
def test_bad_standard_input(monkeypatch, data, words):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(OptionError, match=words):
        read_standard_input()


def test_built_in_prompts_are_distinct():
    assert len({example.title for example in BUILT_IN}) == len({example.text for example in BUILT_IN}) == len(BUILT_IN)
