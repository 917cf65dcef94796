"""Totals over completions, and where outputs part."""

import pytest

from slipstream.tools.tally import Difference, Tally, first_difference, rate_ratio
from slipstream.types import Completion, SpeculationStats, Timing, Usage


def test_first_difference() -> None:
    assert first_difference(2, (1, 2), (1, 2)) is None
    assert first_difference(2, (1, 2), (1, 3)) == Difference(2, 1, 2, 3)
    assert first_difference(2, (1,), (1, 3)) == Difference(2, 1, None, 3)
    assert first_difference(2, (1, 2), (1,)) == Difference(2, 1, 2, None)


def test_rates_are_pooled() -> None:
    """Tokens over seconds of all together, not a mean of rates."""
    tally = Tally("any")
    assert tally.tokens_per_second == 0
    for seconds, rate in ((1.0, 10.0), (3.0, 2.0)):
        stats = SpeculationStats("any", 5, target_passes=4, committed=8)
        tally.add(Completion("", (1,) * 8, "stop", 0, Usage(1, 8), stats, Timing(0.5, seconds, rate)))
    assert tally.tokens_per_second == pytest.approx(16 / 4)
    assert (tally.completion_tokens, tally.stats.mean_accepted_length) == (16, 2)


def test_no_ratio_to_nothing() -> None:
    assert rate_ratio(3.0, 2.0) == 1.5
    assert rate_ratio(3.0, 0.0) == 0
