"""The processed distribution, the noise, and that the two draw from what they should."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import ModelError
from slipstream.sampling import Sampler, gumbel_noise, process
from slipstream.types import SamplingParams

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0, 0.5], np.float32)


def kept(**params: float) -> list[int]:
    return process(LOGITS, SamplingParams(temperature=params.pop("temperature", 1.0), **params))[0].tolist()


def test_filters_and_their_ties() -> None:
    assert kept(top_k=1) == [1]  # 1 and 3 tie: the lowest id
    assert kept(top_k=3) == [1, 2, 3]
    assert kept(top_k=100) == kept() == [0, 1, 2, 3, 4, 5]
    assert kept(top_p=0.3) == [1]
    assert kept(top_p=0.7) == [1, 3]
    assert kept(min_p=0.9) == [1, 3]
    assert kept(min_p=math.exp(-1) * 0.999) == [1, 2, 3]
    assert kept(min_p=1.0) == [1, 3]
    assert kept(top_p=1e-9) == [1]


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40),
    st.floats(0.05, 5),
    st.integers(0, 10),
    st.floats(0.01, 1),
    st.floats(0, 1),
)
def test_process_against_the_plain_definition(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Sorting and summing as the words say it, in the documented order."""
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    scaled = np.array(logits, np.float32).astype(np.float64)
    scaled = (scaled - scaled.max()) / temperature
    left = sorted(range(len(logits)), key=lambda token: (-scaled[token], token))
    if top_k:
        left = left[:top_k]
    weights = [math.exp(scaled[token]) for token in left]
    total, mass, count = sum(weights), 0.0, 0
    while count < len(left) and (count == 0 or mass < top_p * total * (1 - 1e-12)):
        mass += weights[count]
        count += 1
    if top_p < 1:
        left = left[:count]
    left = [token for token in left if min_p == 0 or scaled[token] >= math.log(min_p)]
    token_ids, scores = process(np.array(logits, np.float32), params)
    assert token_ids.tolist() == sorted(left)
    assert np.array_equal(scores, scaled[token_ids])


def test_noise_is_pinned() -> None:
    """Changing the noise changes every seeded output that people have: it must not happen unnoticed."""
    noise = gumbel_noise(7, 3, np.arange(6))
    assert np.array_equal(noise, gumbel_noise(7, 3, np.arange(100))[:6])  # a token's noise stands alone
    assert np.array_equal(noise[[1, 4]], gumbel_noise(7, 3, np.array([1, 4])))
    assert len({*gumbel_noise(7, 4, np.arange(6)), *gumbel_noise(8, 3, np.arange(6)), *noise}) == 18


def test_philox_against_known_answers() -> None:
    """Random123's published vectors for philox4x32-10 (NumPy's Philox is the 4x64 variant)."""
    from slipstream.sampling import _philox

    assert [int(word[0]) for word in _philox(0, 0, np.array([0]))] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_noise_is_gumbel() -> None:
    noise = np.concatenate([gumbel_noise(1, position, np.arange(1000)) for position in range(50)])
    assert abs(noise.mean() - np.euler_gamma) < 0.02
    assert abs(noise.std() - math.pi / math.sqrt(6)) < 0.02


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2, "temperature": 2.0}]
)
def test_draws_follow_the_distribution(params: dict[str, float]) -> None:
    """Chi-square over 8,000 draws, alpha 1e-4 (the seeds are fixed)."""
    made = SamplingParams(**{"temperature": 1.0, **params})
    token_ids, scores = process(LOGITS, made)
    expected = np.exp(scores) / np.exp(scores).sum()
    draws = 8_000
    counts = np.bincount([Sampler(made, seed).choose(LOGITS, 5) for seed in range(draws)], minlength=len(LOGITS))
    assert counts.sum() == counts[token_ids].sum() == draws
    statistic = float(((counts[token_ids] - draws * expected) ** 2 / (draws * expected)).sum())
    critical = {1: 15.14, 2: 18.42, 3: 21.11, 4: 23.51, 5: 25.74}  # chi-square quantiles at 1 - 1e-4
    assert statistic < critical.get(len(token_ids) - 1, 0.1)
    wrong = np.roll(expected, 1)  # the test of the test: another distribution must be told apart
    if len(token_ids) > 2:
        assert float(((counts[token_ids] - draws * wrong) ** 2 / (draws * wrong)).sum()) > 100


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    assert Sampler(SamplingParams(), 1).choose(LOGITS, 0) == 1


def test_a_tiny_temperature_is_greedy() -> None:
    assert Sampler(SamplingParams(temperature=1e-300), 1).choose(np.array([0, 1, 5, 2], np.float32), 0) == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_damaged_logits_are_refused(temperature: float) -> None:
    with pytest.raises(ModelError, match="not numbers"):
        Sampler(SamplingParams(temperature=temperature), 1).choose(np.array([1, np.nan, 2], np.float32), 0)
