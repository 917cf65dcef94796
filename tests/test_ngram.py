"""Prompt lookup against searches by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_suffix_automaton import LONG_TEXTS, SHORT_TEXTS, longest_repeat, occurrences

from slipstream.drafters.ngram import LEAST_PROBABILITY, NgramDrafter
from slipstream.types import ROOT, Draft

LENGTHS = st.integers(1, 12)


class Conversation:
    """A drafter with one request."""

    def __init__(self, prompt: list[int], store: Any = None) -> None:
        self.drafter = NgramDrafter(SimpleNamespace(store=store, tokenizer=None))  # type: ignore[arg-type]
        self.history = SimpleNamespace(tokens=list(prompt), num_prompt_tokens=len(prompt))
        self.state = self.drafter.start(self.history)  # type: ignore[arg-type]

    def propose(self, length: int) -> Draft:
        (draft,) = self.drafter.propose([self.state], [length])
        return draft

    def say(self, *tokens: int) -> None:
        self.history.tokens.extend(tokens)


def proposed(prompt: list[int], length: int) -> list[int]:
    return Conversation(prompt).propose(length).tokens.tolist()


def paths(draft: Draft) -> list[list[int]]:
    """The tokens from the root down to each node, itself included."""
    found: list[list[int]] = []
    for parent, token in zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True):
        found.append([*(found[parent] if parent != ROOT else []), token])
    return found


def check(text: list[int], draft: Draft, length: int) -> None:
    """Every path of the tree goes on with what followed the longest repeat earlier, in the text or in the path."""
    assert len(draft) <= length
    assert len(set(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))) == len(draft)
    matched = longest_repeat(text)
    for node, path in enumerate(paths(draft)):
        assert ROOT <= draft.parents[node] < node
        assert LEAST_PROBABILITY <= draft.confidence[node] < 1
        ending = text[len(text) - matched :]
        for at, token in enumerate(path):
            assert ending, "something was proposed after a match of nothing"
            assert occurrences(text, [*ending, token]), "it never followed"
            ending = [*ending, token]
            while at + 1 < len(path) and occurrences(text, ending) == [len(text)]:  # it runs into the present
                ending = ending[1:]


@given(SHORT_TEXTS, LENGTHS)
def test_what_is_proposed_has_followed_the_longest_match(text: list[int], length: int) -> None:
    text = [token for token in text if token >= 0]
    check(text, Conversation(text).propose(length), length)


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_hard_texts(name: str) -> None:
    text = LONG_TEXTS[name]
    conversation = Conversation([])
    for start in range(0, len(text), 23):
        conversation.say(*text[start : start + 23])
        check(conversation.history.tokens, conversation.propose(8), 8)


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=8), LENGTHS)
def test_asked_along_the_way_or_at_the_end(parts: list[list[int]], length: int) -> None:
    often, once = Conversation([0, 1]), Conversation([0, 1])
    for part in parts:
        often.say(*part)
        once.say(*part)
        often.propose(length)
    first, second = often.propose(length), once.propose(length)
    for one, other in ((first.tokens, second.tokens), (first.parents, second.parents)):
        assert one.tolist() == other.tolist()
    np.testing.assert_array_equal(first.confidence, second.confidence)


def test_the_longest_match_counts() -> None:
    """Twice 3 followed 2, but after 1 2 it was a 4."""
    assert proposed([5, 2, 3, 6, 2, 3, 1, 2, 4, 9, 1, 2], 2) == [4, 9]


def test_no_match_then_a_match() -> None:
    conversation = Conversation([1, 2, 3, 4])
    assert len(conversation.propose(5)) == 0
    conversation.say(9, 1, 2, 3)
    assert conversation.propose(3).tokens.tolist() == [4, 9, 1]
    conversation.say(4, 9)
    assert conversation.propose(3).tokens.tolist() == [1, 2, 3]


def test_a_copy_that_runs_into_the_present_goes_on_with_its_own_beginning() -> None:
    assert proposed([7] * 20, 6) == [7] * 6
    assert proposed([1, 2, 3] * 7, 7) == [1, 2, 3, 1, 2, 3, 1]


def test_drafts_lengthen_with_the_match() -> None:
    text = list(range(100, 140))
    lengths = [len(proposed([*text, 1, *text[:matched]], 30)) for matched in (1, 2, 4, 8, 16)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[1] < lengths[2] < lengths[3] < lengths[4]


def test_counts_decide_and_compete() -> None:
    clear = Conversation([1, 2, 3, 0, 1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 4, 7, 1, 2]).propose(8)
    assert clear.tokens[0] == 3  # three times against one
    even = Conversation([1, 2, 3, 0, 1, 2, 3, 5, 1, 2, 4, 7, 1, 2, 4, 8, 1, 2]).propose(2)
    assert even.tokens.tolist() == [4, 3]  # twice each: the latest first
    assert even.parents.tolist() == [ROOT, ROOT]
    assert even.confidence[0] == even.confidence[1] == np.float32(2 / (4 + 2 / 2))


def test_a_tree_gives_the_budget_to_what_is_likeliest() -> None:
    tail = list(range(10, 20))
    prompt = [1, 2, 3, *tail, 8, 1, 2, 3, *tail, 9, 1, 2, 3, *tail, 7, 1, 2, 4, 6, 1, 2]
    draft = Conversation(prompt).propose(6)
    assert draft.tokens.tolist() == [3, 10, 11, 12, 13, 14]
    assert draft.parents.tolist() == [ROOT, 0, 1, 2, 3, 4]


def test_luck_moves_the_doubt() -> None:
    """The same ending after an output that was a copy and after one that never was."""
    text = list(range(100, 140))
    lucky, unlucky = Conversation([*text, *text]), Conversation([*text, *text])
    lucky.say(*text, 5, 100, 101)
    for token in text:
        unlucky.say(token, 5)  # each time something else than the token that followed
    unlucky.say(100, 101)
    assert len(lucky.propose(30)) > len(Conversation([*text, *text, 5, 100, 101]).propose(30)) > 0
    fresh, dejected = Conversation([*unlucky.history.tokens]), unlucky
    assert len(dejected.propose(30)) < len(fresh.propose(30))


def test_an_unlucky_request_falls_silent_and_recovers() -> None:
    prompt = [token for other in range(100, 160) for token in (other, other + 100)]
    conversation = Conversation(prompt)
    conversation.say(100)
    assert conversation.propose(4).tokens.tolist() == [200]
    for other in range(100, 130):
        conversation.say(other, 999 + other)
    conversation.say(130)
    assert len(conversation.propose(4)) == 0
    for other in range(130, 160):
        conversation.say(other, other + 100)
    conversation.say(159)
    assert len(conversation.propose(4)) > 0


def test_requests_know_nothing_of_each_other() -> None:
    conversation = Conversation([1, 2, 3, 4])
    conversation.propose(5)
    conversation.history = SimpleNamespace(tokens=[1, 2], num_prompt_tokens=2)
    conversation.state = conversation.drafter.start(conversation.history)  # type: ignore[arg-type]
    assert len(conversation.propose(5)) == 0
