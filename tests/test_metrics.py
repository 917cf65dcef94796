"""The counters, pass by pass."""

import numpy as np

from slipstream import metrics
from slipstream.types import ROOT, Draft, SpeculationStats, Verdict

CHAIN = Draft.chain([5, 6, 7])
TREE = Draft(np.array([5, 6, 7, 8, 9], np.int32), np.array([ROOT, ROOT, 1, 1, 0], np.int32))


def counted(*passes: tuple[Draft, Verdict, int]) -> SpeculationStats:
    stats = SpeculationStats("any", 5)
    for draft, verdict, committed in passes:
        metrics.count_pass(stats, draft, verdict, committed)
        assert stats.drafted == stats.accepted + stats.rejected + stats.unverified
        assert sum(stats.accepted_by_depth) == stats.accepted
    return stats


def test_positions_are_counted_as_far_as_they_are_verified() -> None:
    stats = counted(
        (CHAIN, Verdict((0, 1, 2), (5, 6, 7, 1)), 4),
        (CHAIN, Verdict((0,), (5, 1)), 2),  # position 3 was never reached
        (CHAIN, Verdict((), (1,)), 1),
        (Draft.chain([5]), Verdict((0,), (5, 1)), 2),
        (Draft.chain([]), Verdict((), (1,)), 1),
    )
    assert stats.drafted_by_depth == [4, 2, 1]
    assert stats.accepted_by_depth == [3, 1, 1]
    assert stats.acceptance_by_position == (3 / 4, 1 / 2, 1)


def test_siblings_are_one_position() -> None:
    stats = counted(
        (TREE, Verdict((1, 3), (6, 8, 1)), 3),  # no node follows the last
        (TREE, Verdict((0,), (5, 1)), 2),
        (TREE, Verdict((), (1,)), 1),
    )
    assert (stats.drafted_by_depth, stats.accepted_by_depth) == ([3, 2], [2, 1])


def test_what_a_stop_cuts_is_no_position_verified() -> None:
    stats = counted((CHAIN, Verdict((0, 1, 2), (5, 6, 7, 1)), 2))
    assert (stats.unverified, stats.drafted_by_depth, stats.accepted_by_depth) == (1, [1, 1], [1, 1])
    assert counted((CHAIN, Verdict((), ()), 0)).drafted_by_depth == []  # a prompt that was only read


def test_add() -> None:
    total = counted((CHAIN, Verdict((0,), (5, 1)), 2))
    metrics.add(total, counted((CHAIN, Verdict((0, 1, 2), (5, 6, 7, 1)), 4)))
    assert total == counted((CHAIN, Verdict((0,), (5, 1)), 2), (CHAIN, Verdict((0, 1, 2), (5, 6, 7, 1)), 4))
    assert total.acceptance_by_position == (1, 1 / 2, 1)
