"""A request's tokens are drawn from the distribution that its parameters describe."""

import numpy as np
import pytest

from slipstream import ModelError, SamplingParams, kernels
from slipstream.sampling import Sampler

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0, 0.5], np.float32)


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2, "temperature": 2.0}]
)
def test_draws_follow_the_distribution(params: dict[str, float]) -> None:
    """Chi-square over 20,000 draws, alpha 1e-4 (the seeds are fixed)."""
    made = SamplingParams(**{"temperature": 1.0, **params})
    token_ids, scores = kernels.filter_logits(LOGITS, made.temperature, made.top_k, made.top_p, made.min_p)
    expected = np.exp(scores.astype(np.float64)) / np.exp(scores.astype(np.float64)).sum()
    draws = 20_000
    counts = np.bincount(
        [Sampler(made, seed, 0).choose(LOGITS, [0] * 5) for seed in range(draws)], minlength=len(LOGITS)
    )
    assert counts.sum() == counts[token_ids].sum() == draws
    statistic = float(((counts[token_ids] - draws * expected) ** 2 / (draws * expected)).sum())
    critical = {1: 15.14, 2: 18.42, 3: 21.11, 4: 23.51, 5: 25.74}  # chi-square quantiles at 1 - 1e-4
    assert statistic < critical[len(token_ids) - 1]
    wrong = np.roll(expected, 1)  # the test of the test: another distribution must be told apart
    if len(token_ids) > 2:
        assert float(((counts[token_ids] - draws * wrong) ** 2 / (draws * wrong)).sum()) > 100


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    assert Sampler(SamplingParams(), 1, 0).choose(LOGITS, []) == 1


def test_a_tiny_temperature_is_greedy() -> None:
    assert Sampler(SamplingParams(temperature=1e-300), 1, 0).choose(np.array([0, 1, 5, 2], np.float32), []) == 2


def test_seeded_draws_are_pinned() -> None:
    """Changing the noise would change every seeded output that people have: it must not happen unnoticed."""
    logits = np.linspace(0, 1, 1000, dtype=np.float32)
    drawn = [Sampler(SamplingParams(temperature=1.0), seed, 0).choose(logits, [0] * seed) for seed in range(5)]
    assert drawn == [554, 145, 202, 489, 922]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_damaged_logits_are_refused(temperature: float) -> None:
    with pytest.raises(ModelError, match="not numbers"):
        Sampler(SamplingParams(temperature=temperature), 1, 0).choose(np.array([1, np.nan, 2], np.float32), [])
