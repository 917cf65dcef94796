"""Prompt lookup against a search by hand."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.drafters.base import History
from slipstream.drafters.ngram import LENGTHS, NgramDrafter
from slipstream.sampling import Sampler
from slipstream.types import SamplingParams


def propose(histories: list[list[int]], length: int) -> list[int]:
    """The draft after the last of several growing histories of one request."""
    history = History([], 0, 1000, Sampler(SamplingParams(), 0, 0))
    drafter = NgramDrafter(None)  # type: ignore[arg-type]
    state = drafter.start(history)
    for tokens in histories:
        history.tokens.extend(tokens)
        (draft,) = drafter.propose([state], [length])
    return draft.tokens.tolist()


def expected(tokens: list[int], length: int) -> list[int]:
    for size in LENGTHS:
        ending = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if len(ending) == size and tokens[start : start + size] == ending:
                text = list(tokens)
                for at in range(length):
                    text.append(text[start + size + at])
                return text[len(tokens) :]
    return []


@given(st.lists(st.lists(st.integers(0, 3), max_size=8), min_size=1, max_size=8), st.integers(1, 12))
def test_longest_and_latest_match(parts: list[list[int]], length: int) -> None:
    assert propose(parts, length) == expected([token for part in parts for token in part], length)


def test_no_match_then_a_match() -> None:
    assert propose([[1, 2, 3, 4]], 5) == []
    assert propose([[1, 2, 3, 4], [9], [1, 2]], 3) == [3, 4, 9]
    assert propose([[7, 7, 7]], 4) == [7, 7, 7, 7]
