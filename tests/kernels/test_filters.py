"""The filters and the noise, in both backends: against the plain definition, published vectors, and each other."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.kernels import _native, reference

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0, 0.5], np.float32)

filters = {
    "temperature": st.floats(0.05, 5),
    "top_k": st.integers(0, 10),
    "top_p": st.floats(0.01, 1),
    "min_p": st.floats(0, 1),
}


def kept(backend, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> list[int]:
    return backend.filter_logits(LOGITS, temperature, top_k, top_p, min_p)[0].tolist()


def test_filters_and_their_ties(backend) -> None:
    assert kept(backend, top_k=1) == [1]  # 1 and 3 tie: the lowest id
    assert kept(backend, top_k=3) == [1, 2, 3]
    assert kept(backend, top_k=100) == kept(backend) == [0, 1, 2, 3, 4, 5]
    assert kept(backend, top_p=0.3) == [1]
    assert kept(backend, top_p=0.7) == [1, 3]
    assert kept(backend, top_p=1e-9) == [1]
    assert kept(backend, min_p=0.9) == [1, 3]
    assert kept(backend, min_p=math.exp(-1) * 0.999) == [1, 2, 3]
    assert kept(backend, min_p=1.0) == [1, 3]
    assert kept(backend, top_k=4, top_p=0.9) == [1, 2, 3]  # top_p of what top_k left


def test_tokens_at_minus_infinity_never_survive(backend) -> None:
    masked = np.array([-np.inf, 1.0, -np.inf, 0.0], np.float32)
    for top_k in (0, 3):
        for top_p in (1.0, 0.999999):
            assert backend.filter_logits(masked, 1.0, top_k, top_p, 0.0)[0].tolist() == [1, 3]


@given(logits=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=60), **filters)
def test_against_the_plain_definition(logits, temperature, top_k, top_p, min_p) -> None:
    """Sorting and summing as the words say it, in the documented order, with room for rounding at the edges."""
    array = np.array(logits, np.float32)
    scores = ((array - array.max()) / np.float32(temperature)).astype(np.float64)
    order = sorted(range(len(logits)), key=lambda token: (-scores[token], token))
    order = order[:top_k] if top_k else order
    masses = [math.exp(scores[token]) for token in order]
    allowed = []  # every set of tokens that rounding may make of it
    for slack in (1 - 1e-5, 1, 1 + 1e-5):
        mass, count = 0.0, 0
        while count < len(order) and (count == 0 or mass < top_p * sum(masses) * slack):
            mass += masses[count]
            count += 1
        left = order if top_p == 1 else order[:count]
        for least in (min_p * (1 - 1e-5), min_p * (1 + 1e-5)):
            allowed.append(sorted(t for t in left if least <= 0 or scores[t] >= math.log(least) or least > 1 >= min_p))
    for backend in (_native, reference):
        token_ids, kept_scores = backend.filter_logits(array, temperature, top_k, top_p, min_p)
        assert token_ids.tolist() in allowed
        assert np.array_equal(kept_scores, scores.astype(np.float32)[token_ids])


@given(seed=st.integers(0, 2**32 - 1), **filters)
def test_backends_agree_on_a_vocabulary(seed, temperature, top_k, top_p, min_p) -> None:
    """The native top-p sums in bins, the reference in one sorted line: the edge may differ by a token of its mass."""
    logits = (np.random.default_rng(seed).standard_normal(5000) * 4).astype(np.float32)
    native, plain = (b.filter_logits(logits, temperature, top_k * 100, top_p, min_p)[0] for b in (_native, reference))
    assert len(np.setxor1d(native, plain)) <= 1


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**40), spread=st.floats(0, 8), top_k=st.integers(0, 99))
def test_the_largest_sum_wins(seed, position, spread, top_k) -> None:
    """The native arg-max skips tokens that can't win; it must find the one that a full evaluation finds."""
    logits = (np.random.default_rng(seed % 1000).standard_normal(3000) * spread).astype(np.float32)
    for backend in (_native, reference):
        token_ids, scores = backend.filter_logits(logits, 0.9, top_k, 1.0, 0.0)
        sums = scores + backend.gumbel_noise(token_ids, seed, position)
        assert backend.sample(logits, 0.9, top_k, 1.0, 0.0, seed, position) == token_ids[np.argmax(sums)]


def test_noise_of_a_token_stands_alone(backend) -> None:
    """Neither the other tokens nor their order matter; another seed or position gives other noise."""
    ids = np.arange(100, dtype=np.int32)
    noise = backend.gumbel_noise(ids, 7, 3)
    some = np.array([40, 4, 99], np.int32)
    assert np.array_equal(noise[some], backend.gumbel_noise(some, 7, 3))
    others = [backend.gumbel_noise(ids, seed, position) for seed, position in [(8, 3), (7, 4), (7 + 2**32, 3)]]
    assert len({*noise, *(value for other in others for value in other)}) == 400


def test_backends_have_the_same_noise() -> None:
    ids = np.arange(20_000, dtype=np.int32)
    noise, plain = _native.gumbel_noise(ids, 1, 2), reference.gumbel_noise(ids, 1, 2)
    np.testing.assert_allclose(noise, plain, rtol=1e-14, atol=1e-15)


def test_philox_against_published_vectors() -> None:
    """Random123's known answer for philox4x32-10 with key and counter 0."""
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    expected = [-math.log(-math.log((word + 0.5) * 2.0**-32)) for word in words]
    for backend in (_native, reference):
        np.testing.assert_allclose(backend.gumbel_noise(np.arange(4, dtype=np.int32), 0, 0), expected, rtol=1e-14)


def test_noise_is_gumbel(backend) -> None:
    ids = np.arange(1000, dtype=np.int32)
    noise = np.concatenate([backend.gumbel_noise(ids, 1, position) for position in range(50)])
    assert abs(noise.mean() - np.euler_gamma) < 0.02
    assert abs(noise.std() - math.pi / math.sqrt(6)) < 0.02


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": np.empty(0, np.float32)}, "logits"),
        ({"logits": np.array([1, np.nan], np.float32)}, "numbers"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
    ],
)
def test_bad_input(backend, change, message) -> None:
    arguments = {"logits": LOGITS, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **change}
    with pytest.raises(ValueError, match=message):
        backend.filter_logits(**arguments)
    with pytest.raises(ValueError, match=message):
        backend.sample(**arguments, seed=0, position=0)
