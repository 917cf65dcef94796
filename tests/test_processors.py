"""Penalties, biases and bans, each against its plain definition; and their order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream import SamplingParams, processors
from slipstream.sampling import Sampler
from slipstream.types import NO_TOKEN
from slipstream.vocabulary import Vocabulary

VOCAB = 8
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=20)
rows = st.lists(st.floats(-8, 8, width=32), min_size=VOCAB, max_size=VOCAB)


@given(
    rows,
    tokens,
    tokens,
    st.floats(0.5, 2),
    st.floats(-1, 1),
    st.floats(-1, 1),
    st.none() | st.integers(1, 25),
)
def test_penalties(row, prompt, output, repetition, frequency, presence, window) -> None:
    prefix = prompt + output
    recent = range(len(prefix))[-window if window else 0 :]
    expected = list(row)
    for token in range(VOCAB):
        seen = sum(prefix[at] == token for at in recent)
        emitted = sum(prefix[at] == token for at in recent if at >= len(prompt))
        if seen:
            expected[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
        expected[token] -= frequency * emitted + (presence if emitted else 0)
    logits = np.array(row, np.float32)
    processors.penalise(
        logits,
        prefix,
        len(prompt),
        repetition=repetition,
        frequency=frequency,
        presence=presence,
        window=window,
    )
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@given(tokens, st.integers(1, 5))
def test_repeated_ngrams(prefix, size) -> None:
    logits = np.zeros(VOCAB, np.float32)
    processors.ban_repeated_ngrams(logits, prefix, size)
    have = {tuple(prefix[at : at + size]) for at in range(len(prefix) - size + 1)}
    for token in range(VOCAB):
        repeats = tuple([*prefix, token][-size:]) in have and len(prefix) + 1 >= size
        assert (logits[token] == -np.inf) == repeats


PIECES = [b"a", b"b", b"ab", b"ba", b"", "é".encode()[:1], "é".encode()[1:], b"abab"]


@given(tokens, st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3))
def test_bad_words(output, words) -> None:
    """Exactly the tokens that would bring a bad word into the text are banned, however it is split."""
    words = [word.encode() for word in words]
    bad_words = processors.BadWords(words, Vocabulary(PIECES))
    clean: list[int] = []
    for token in output:
        logits = np.zeros(len(PIECES), np.float32)
        bad_words.ban(logits, clean)
        text = b"".join(PIECES[at] for at in clean)
        for candidate, piece in enumerate(PIECES):
            assert (logits[candidate] == -np.inf) == any(word in text + piece for word in words)
        if logits[token] == 0:
            clean.append(token)


def test_order_of_the_steps() -> None:
    """Repetition divides the model's logit, before the other penalties and the bias; a ban beats any bias; filters see
    what comes of it."""
    logits = np.array([4, 1, 2, 0], np.float32)
    params = SamplingParams(
        temperature=1.0,
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        logit_bias={0: 3.0, 3: 100.0},
        no_repeat_ngram_size=1,
    )
    # The prefix is [0, 0]: 0 → 4 / 2 - 2 · 0.5 - 0.25 + 3 = 3.75, and then banned.
    adjusted = Sampler(params, 0, 0)._adjusted(logits, [0], [0])
    assert adjusted.tolist() == [-np.inf, 1, 2, 100]
    params = SamplingParams(temperature=1.0, repetition_penalty=2.0, logit_bias={0: 3.0}, top_k=1)
    assert Sampler(params, 0, 0)._adjusted(logits, [0], []).tolist() == [5, 1, 2, 0]
    assert logits.tolist() == [4, 1, 2, 0]  # the model's own row is left alone
    assert {Sampler(params, seed, 0).choose(logits, [0]) for seed in range(50)} == {0}


def test_each_drafted_position_sees_its_own_prefix() -> None:
    logits = np.array([1.0, 0.9, 0.8], np.float32)
    sampler = Sampler(SamplingParams(presence_penalty=1.0), 0, 1)
    assert sampler.choose(logits, [0]) == 0  # the prompt doesn't count
    assert sampler.choose(logits, [0], [0]) == 1
    assert sampler.choose(logits, [0], [0, 1]) == 2
    assert sampler.choose(logits, [0], [1]) == 0  # as if the other path had never been


def test_nothing_left_to_choose() -> None:
    logits = np.zeros(3, np.float32)
    for temperature in (0.0, 1.0):
        sampler = Sampler(SamplingParams(no_repeat_ngram_size=1, temperature=temperature), 0, 3)
        assert sampler.choose(logits, [0, 1, 2]) == NO_TOKEN


@given(rows, st.floats(0.05, 1))
def test_typical_p(row, typical_p) -> None:
    """Against the definition: least |information - entropy| first, until the probability reaches typical_p."""
    logits = np.array(row, np.float32)
    probs = np.exp(logits.astype(np.float64))
    probs /= probs.sum()
    distance = np.abs(-np.log(probs) + (probs * np.log(probs)).sum())
    order = sorted(range(VOCAB), key=lambda token: (round(distance[token], 9), token))
    mass, count = 0.0, 0
    while count < VOCAB and mass < typical_p:
        mass += probs[order[count]]
        count += 1
    token_ids, _ = Sampler(SamplingParams(temperature=1.0, typical_p=typical_p), 0, 0)._filtered(logits)
    if typical_p == 1:
        assert len(token_ids) == VOCAB
    elif abs(mass - typical_p) > 1e-6 and len(set(np.round(distance, 6))) == VOCAB:  # no ties, no edge
        assert sorted(order[:count]) == token_ids.tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_ban_the_end(temperature: float) -> None:
    logits = np.array([0, 50, 0], np.float32)
    params = SamplingParams(min_tokens=2, temperature=temperature)
    sampler = Sampler(params, 0, 1, end_ids={1})
    assert [sampler.choose(logits, [0] * length) == 1 for length in (1, 2, 3)] == [False, False, True]
