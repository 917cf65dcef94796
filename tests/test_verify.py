"""Matching drafts with the target's tokens, on every small tree."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slipstream.tree import depths, is_chain, path_to
from slipstream.types import ROOT, Draft
from slipstream.verify import match


def test_chain_accepted_up_to_the_first_wrong_token() -> None:
    target = [5, 6, 9, 1]
    verdict = match(Draft.chain([5, 6, 7]), lambda node, drafted: target[len(drafted)])
    assert verdict.accepted == (0, 1)
    assert verdict.tokens == (5, 6, 9)


def test_fully_accepted_chain_gives_a_bonus_token() -> None:
    verdict = match(Draft.chain([5, 6, 7]), lambda node, drafted: 5 + len(drafted))
    assert verdict.accepted == (0, 1, 2)
    assert verdict.tokens == (5, 6, 7, 8)


def test_empty_draft_is_plain_decoding() -> None:
    assert match(Draft.chain([]), lambda node, drafted: 42).tokens == (42,)


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(draw(st.integers(0, 10)))]
    taken: dict[int, int] = {}
    tokens = []
    for parent in parents:  # siblings differ
        tokens.append(taken.get(parent, 0))
        taken[parent] = tokens[-1] + 1
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32))


@given(trees(), st.lists(st.integers(0, 3), min_size=11, max_size=11))
def test_verdict_is_what_plain_decoding_gives(draft: Draft, target: list[int]) -> None:
    """The target's token depends on the depth alone here; the accepted nodes are the longest path that spells it."""
    asked = []

    def target_token(node: int, drafted: Sequence[int]) -> int:
        asked.append(node)
        path = [] if node == ROOT else path_to(draft.parents, node)
        assert list(drafted) == [int(draft.tokens[step]) for step in path]
        return target[len(drafted)]

    verdict = match(draft, target_token)
    spelled = [[int(draft.tokens[node]) for node in path_to(draft.parents, leaf)] for leaf in range(len(draft))]
    longest = max((len(path) for path in spelled if path == target[: len(path)]), default=0)
    assert len(verdict.accepted) == longest
    assert list(verdict.tokens) == target[: longest + 1]
    assert asked == [ROOT, *verdict.accepted]  # nothing off the path is sampled
    if verdict.accepted:
        assert path_to(draft.parents, verdict.accepted[-1]) == list(verdict.accepted)


@given(trees())
def test_depths_and_chains(draft: Draft) -> None:
    assert depths(draft.parents).tolist() == [len(path_to(draft.parents, node)) - 1 for node in range(len(draft))]
    assert is_chain(draft.parents) == (draft.parents.tolist() == list(range(-1, len(draft) - 1)))
