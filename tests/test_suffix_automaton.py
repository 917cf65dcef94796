"""The suffix automaton against searches by hand, over texts that are hard on one: repetitive, random, in between."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.drafters.suffix_automaton import MAX_FANOUT, MAX_UPDATES, NO_STATE, ROOT_STATE, SuffixAutomaton

SHORT_TEXTS = st.one_of(
    st.lists(st.integers(0, 1), max_size=40),
    st.lists(st.integers(-1, 4), max_size=40),
    st.lists(st.integers(0, 50_000), max_size=40),
    st.lists(st.sampled_from([(7, 8, 9), (7, 8), (9,)]), max_size=12).map(lambda parts: [t for p in parts for t in p]),
)


def fibonacci(length: int) -> list[int]:
    shorter, word = [1], [1, 2]
    while len(word) < length:
        shorter, word = word, word + shorter
    return word[:length]


def de_bruijn(order: int) -> list[int]:
    """Every sequence of `order` bits once, by preferring one."""
    bits, seen = [0] * order, {(0,) * order}
    while True:
        for bit in (1, 0):
            last = (*bits[len(bits) - order + 1 :], bit)
            if last not in seen:
                seen.add(last)
                bits.append(bit)
                break
        else:
            return bits


RANDOM = random.Random(3)
LONG_TEXTS = {
    "equal": [7] * 500,
    "fibonacci": fibonacci(500),
    "de_bruijn": de_bruijn(9),
    "two_symbols": [RANDOM.randrange(2) for _ in range(500)],
    "many_symbols": [RANDOM.randrange(50_000) for _ in range(500)],
    "phrases": [token for _ in range(80) for token in RANDOM.choice([(1, 2, 3, 4, 5), (1, 2, 9), (3, 4, 5, 6, 7, 8)])],
}


def longest_repeat(text: list[int]) -> int:
    """Length of the longest ending that occurs at an earlier place."""
    length = 0
    while any(
        text[start : start + length + 1] == text[len(text) - length - 1 :] for start in range(len(text) - length - 1)
    ):
        length += 1
    return length


def occurrences(text: list[int], sequence: list[int]) -> list[int]:
    """Where the sequence ends in the text."""
    size = len(sequence)
    return [start + size for start in range(len(text) - size + 1) if text[start : start + size] == sequence]


def check(text: list[int], automaton: SuffixAutomaton) -> None:
    state = automaton.longest_repeat
    length = longest_repeat(text)
    assert automaton.length(state) == length
    sequence = text[len(text) - length :]
    ends = [end for end in occurrences(text, sequence) if end < len(text)]
    total, followers = automaton.followers(state)
    if length:  # more may have followed nothing than are looked through
        assert {follower.token for follower in followers} == {text[end] for end in ends}
    for follower in followers:
        assert automaton.step(state, follower.token) == follower.state
        assert follower.times <= len(occurrences(text, [*sequence, follower.token]))
        assert follower.recent in occurrences(text, [*sequence, follower.token])
    assert total == sum(follower.times for follower in followers)


@given(SHORT_TEXTS)
def test_every_state_of_short_texts(text: list[int]) -> None:
    """Texts that repeat no more than MAX_UPDATES endings: counts and the latest occurrence are exact."""
    text = text[:MAX_UPDATES]
    automaton = SuffixAutomaton()
    for at, token in enumerate(text):
        automaton.append(token)
        check(text[: at + 1], automaton)
    assert len(automaton) == len(text)
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            sequence = text[start:end]
            state = ROOT_STATE
            for token in sequence:
                state = automaton.step(state, token)
            ends = occurrences(text, sequence)
            following = Counter(text[end] for end in ends if end < len(text))
            total, followers = automaton.followers(state)
            assert total == following.total()
            assert {follower.token: follower.times for follower in followers} == following
            for follower in followers:
                assert follower.recent == max(occurrences(text, [*sequence, follower.token]))
            assert automaton.is_end(state) == (ends == [len(text)])
            keys = [(follower.times, follower.recent) for follower in followers]
            assert keys == sorted(keys, reverse=True)


@given(SHORT_TEXTS, st.integers(-1, 5))
def test_what_does_not_occur_leads_nowhere(text: list[int], token: int) -> None:
    automaton = SuffixAutomaton(text)
    state = ROOT_STATE
    for end, known in enumerate(text, 1):
        state = automaton.step(state, known)
        assert (automaton.step(state, token) == NO_STATE) == (not occurrences(text, [*text[:end], token]))


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_long_texts(name: str) -> None:
    text = LONG_TEXTS[name]
    grown = SuffixAutomaton()
    for at, token in enumerate(text):
        grown.append(token)
        if at % 37 == 0 or at == len(text) - 1:
            check(text[: at + 1], grown)
    assert grown.num_states <= 2 * len(text)
    at_once = SuffixAutomaton(text)
    for attribute in SuffixAutomaton.__slots__:
        assert getattr(at_once, attribute) == getattr(grown, attribute)


@given(SHORT_TEXTS, SHORT_TEXTS)
def test_the_endings_of_another_sequence(text: list[int], other: list[int]) -> None:
    automaton = SuffixAutomaton(text)
    state, length = ROOT_STATE, 0
    for end, token in enumerate(other, 1):
        state, length = automaton.advance(state, length, token)
        assert length == max(size for size in range(end + 1) if size == 0 or occurrences(text, other[end - size : end]))
        expected = ROOT_STATE
        for matched in other[end - length : end]:
            expected = automaton.step(expected, matched)
        assert state == expected


def test_rare_followers_are_left_out() -> None:
    automaton = SuffixAutomaton([1, 2, 1, 2, 1, 2, 1, 2, 1, 3])
    state = automaton.step(ROOT_STATE, 1)
    assert [follower.token for follower in automaton.followers(state, 0.2)[1]] == [2, 3]
    total, followers = automaton.followers(state, 0.21)
    assert (total, [follower.token for follower in followers]) == (5, [2])


def test_a_state_that_everything_follows_tells_nothing() -> None:
    automaton = SuffixAutomaton([token for other in range(1, MAX_FANOUT + 1) for token in (0, other)])
    state = automaton.step(ROOT_STATE, 0)
    assert len(automaton.followers(state)[1]) == MAX_FANOUT
    automaton.extend([0, MAX_FANOUT + 1])
    assert automaton.followers(state) == (0, [])
