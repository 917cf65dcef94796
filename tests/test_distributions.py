"""Both rules draw from the target's distribution: exactly, where all outcomes can be enumerated, and by chi-square
tests with fixed seeds (alpha 1e-4) through the whole engine. Each test is tested: a wrong distribution must fail it."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream import DRAFTERS, Engine, Request, SamplingParams
from slipstream.drafters.draft_model import DraftModelDrafter
from slipstream.sampling import Sampler
from slipstream.tools.statistics import chi_square_p, survival
from slipstream.types import NO_TOKEN, Draft
from slipstream.verify import rejection

ALPHA = 1e-4
VOCAB = 3
LENGTH = 2  # of drafts


def test_chi_square_against_published_values() -> None:
    """Quantiles from the usual tables."""
    for degrees, quantile, tail in [(1, 3.841, 0.05), (1, 15.137, 1e-4), (5, 25.745, 1e-4), (10, 2.558, 0.99)]:
        assert survival(quantile, degrees) == pytest.approx(tail, rel=2e-3)
    for degrees, quantile, tail in [(30, 43.773, 0.05), (100, 135.807, 0.01), (2, 2 * math.log(1e6), 1e-6)]:
        assert survival(quantile, degrees) == pytest.approx(tail, rel=2e-3)
    assert chi_square_p({"a": 50, "b": 50}, {"a": 0.5, "b": 0.5}) == 1
    assert chi_square_p({"a": 1}, {"b": 1.0}) == 0
    assert chi_square_p({"a": 60, "b": 40}, {"a": 0.5, "b": 0.5}) == pytest.approx(math.erfc(2 / math.sqrt(2)))
    rare = {outcome: 0.01 for outcome in range(100)}  # none of them is expected five times
    assert chi_square_p({7: 100}, rare) < 1e-4
    assert chi_square_p(dict.fromkeys(range(100), 1), rare) == 1


# Exactly -------------------------------------------------------------------------------------------------------------

Law = dict[tuple[int, ...], float]
Table = Callable[[tuple[int, ...]], np.ndarray]


class Script:
    """One outcome of every draw that verification makes, and its probability."""

    def __init__(self, target: Table, outcomes: Sequence[bool], replacement: int) -> None:
        self.target, self.outcomes, self.replacement = target, outcomes, replacement
        self.asked = 0
        self.probability = 1.0

    def accepts(self, probability: float, drafted: Sequence[int]) -> bool:
        accepted = self.outcomes[self.asked]
        self.asked += 1
        chance = min(1.0, probability)
        self.probability *= chance if accepted else 1 - chance
        return accepted

    def correct(self, residual: np.ndarray, drafted: Sequence[int]) -> int:
        assert residual.sum() == pytest.approx(1)
        self.probability *= residual[self.replacement]
        return self.replacement

    def bonus(self, node: int, drafted: Sequence[int]) -> int:
        self.probability *= self.target(tuple(drafted))[self.replacement]
        return self.replacement


def emitted_law(target: Table, drafter: Table, claimed: Table) -> Law:
    """The probability of every sequence of LENGTH + 1 tokens that verify.rejection emits, plain decoding filling up
    what a rejection left out: all drafts and all outcomes of all draws, each with its probability."""
    law: Law = {}

    def add(tokens: tuple[int, ...], probability: float) -> None:
        if len(tokens) == LENGTH + 1:
            law[tokens] = law.get(tokens, 0.0) + probability
            return
        for token, chance in enumerate(target(tokens)):
            add((*tokens, token), probability * chance)

    for draft in itertools.product(range(VOCAB), repeat=LENGTH):
        drawn = math.prod(drafter(draft[:at])[token] for at, token in enumerate(draft))
        if drawn == 0:
            continue
        probs = np.array([claimed(draft[:at]) for at in range(LENGTH)])
        for outcomes in itertools.product([True, False], repeat=LENGTH):
            for replacement in range(VOCAB):
                script = Script(target, outcomes, replacement)
                verdict = rejection(
                    Draft.chain(draft, probs),
                    lambda node, drafted: target(tuple(drafted)),
                    script.accepts,
                    script.correct,
                    script.bonus,
                )
                if not any(outcomes[script.asked :]):  # one script for each outcome of the draws that were made
                    add(verdict.tokens, drawn * script.probability)
    return law


def target_law(target: Table) -> Law:
    return {
        tokens: math.prod(target(tokens[:at])[token] for at, token in enumerate(tokens))
        for tokens in itertools.product(range(VOCAB), repeat=LENGTH + 1)
    }


def table(weights: Sequence[Sequence[float]]) -> Table:
    """A distribution after every prefix, out of a few rows."""
    return lambda prefix: np.array(row := weights[(len(prefix) + sum(prefix)) % len(weights)]) / sum(row)


some = st.lists(st.floats(0.05, 1), min_size=VOCAB, max_size=VOCAB)
with_zeros = st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=VOCAB, max_size=VOCAB).filter(any)
tables = st.lists(some | with_zeros, min_size=2, max_size=4).map(table)


@settings(deadline=None, max_examples=60)
@given(tables, tables)
def test_rejection_is_exact(target: Table, drafter: Table) -> None:
    law, expected = emitted_law(target, drafter, drafter), target_law(target)
    for tokens, probability in expected.items():
        assert law.get(tokens, 0.0) == pytest.approx(probability, abs=1e-12)


def test_the_exact_test_can_fail() -> None:
    """A drafter that says it drew from another distribution than it did."""
    target, drafter = table([[0.5, 0.3, 0.2]]), table([[0.1, 0.1, 0.8]])
    law, expected = emitted_law(target, drafter, table([[0.4, 0.3, 0.3]])), target_law(target)
    assert max(abs(law[tokens] - probability) for tokens, probability in expected.items()) > 0.01


def test_rejection_where_nothing_can_follow() -> None:
    verdict = rejection(
        Draft.chain([0, 1], np.full((2, 2), 0.5)),
        lambda node, drafted: None if drafted else np.array([1.0, 0.0]),
        lambda probability, drafted: True,
        lambda residual, drafted: 0,
        lambda node, drafted: 0,
    )
    assert (verdict.accepted, verdict.tokens) == ((0,), (0, NO_TOKEN))


def test_how_often_coupled_draws_agree() -> None:
    """The formula in docs/lossless.md, and its bound: a drafter and the target that share their noise."""
    target, drafter = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.3, 0.4, 0.1, 0.2])
    samplers = [Sampler(SamplingParams(temperature=1.0), seed, 0) for seed in range(20_000)]
    rows = [np.log(probs).astype(np.float32) for probs in (target, drafter)]
    agree = sum(sampler.choose(rows[0], []) == sampler.choose(rows[1], []) for sampler in samplers) / len(samplers)
    rate = sum(1 / np.maximum(target / target[token], drafter / drafter[token]).sum() for token in range(4))
    distance = np.abs(target - drafter).sum() / 2
    assert agree == pytest.approx(rate, abs=0.014)  # four standard deviations
    assert (1 - distance) / (1 + distance) <= rate <= 1 - distance


# Through the engine --------------------------------------------------------------------------------------------------

PROMPT = "the thing in the"
OPTIONS = [
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.5, "top_k": 4, "min_p": 0.1, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"temperature": 1.0, "regex": "[ab]*[cd]?", "logit_bias": {66: 1.5}},
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("distributions")
    target = tiny.make(folder / "target")
    return Engine.load(target, draft_model=tiny.make(folder / "noisy", noise=0.02), max_batch_size=64)


class Liar(DraftModelDrafter):
    """Says that it drew from a flatter distribution than it did."""

    name: ClassVar[str] = "liar"

    def propose(self, states: Sequence[object], lengths: Sequence[int]) -> list[Draft]:
        drafts = super().propose(states, lengths)
        for draft in drafts:
            if draft.probs is not None:
                draft.probs[...] = np.where(draft.probs > 0, 1 / (draft.probs > 0).sum(-1, keepdims=True), 0)
        return drafts


def exact(engine: Engine, options: dict[str, object], length: int, prompt: str | list[int] = PROMPT) -> Law:
    """The law of the first tokens: from processed logprobs, prefix by prefix. EOS ends a sequence early."""
    law: Law = {}
    seed = 0

    def expand(output: tuple[int, ...], probability: float) -> None:
        if len(output) == length:
            law[output] = law.get(output, 0.0) + probability
            return
        # The same output again, by force: then the next position's distribution.
        base = SamplingParams(**options, max_tokens=length, seed=seed, logprobs=20, logprobs_of="processed")
        sampler, logits = forced_logits(engine, base, prompt, output)
        probs = sampler.probs(logits, [*engine._prompt_tokens(prompt), *output], [])
        assert probs is not None
        for token in np.flatnonzero(probs):
            if token in sampler.end_ids:
                law[output] = law.get(output, 0.0) + probability * probs[token]
            else:
                expand((*output, int(token)), probability * float(probs[token]))

    expand((), 1.0)
    return law


def forced_logits(engine: Engine, params: SamplingParams, prompt: str | list[int], output: Sequence[int]):
    """The request's sampler, and the target's logits after an output."""
    from slipstream.models.decoder import Segment

    [running] = engine._running(Request(prompt, params))
    tokens = [*running.history.tokens, *output]
    logits = engine.target.forward([Segment.chain(running.cache, tokens, num_logits=1)])
    return running.history.sampler, logits[0, : engine.tokenizer.vocab_size]


def drawn(
    engine: Engine, options: dict[str, object], length: int, draws: int, drafter: str, prompt: str | list[int] = PROMPT
) -> Counter[tuple[int, ...]]:
    params = [SamplingParams(**options, max_tokens=length, seed=1000 + at, n=64) for at in range(math.ceil(draws / 64))]
    requests = [Request(prompt, one, drafter, length) for one in params]
    return Counter(completion.token_ids for completion in engine.generate_batch(requests))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_draws_follow_the_targets_distribution(engine: Engine, options: dict[str, object], rule: str) -> None:
    expected = exact(engine, options, 3)
    assert sum(expected.values()) == pytest.approx(1)
    for drafter in ("draft_model", "ngram"):
        counts = drawn(engine, {**options, "verification": rule}, 3, 3000, drafter)
        assert chi_square_p(counts, expected) > ALPHA
    wrong = {
        tokens: expected[other]
        for tokens, other in zip(expected, [*list(expected)[1:], next(iter(expected))], strict=True)
    }
    assert chi_square_p(counts, wrong) < ALPHA


def test_a_lie_about_q_is_noticed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test, once more: only `rejection` trusts the drafter's q, and only it can be misled."""
    monkeypatch.setitem(DRAFTERS, "liar", Liar)
    options = {"temperature": 1.0, "top_k": 3}
    expected = exact(engine, options, 3)
    assert chi_square_p(drawn(engine, {**options, "verification": "rejection"}, 3, 3000, "liar"), expected) < ALPHA
    assert chi_square_p(drawn(engine, {**options, "verification": "match"}, 3, 3000, "liar"), expected) > ALPHA


def test_rejection_says_what_it_did(engine: Engine) -> None:
    params = SamplingParams(temperature=1.0, verification="rejection", seed=1, max_tokens=30, ignore_eos=True)
    drafted = engine.generate(PROMPT, params, drafter="draft_model")
    assert drafted.speculation.verification == "rejection"
    assert 0 < drafted.speculation.accepted < drafted.speculation.drafted
    assert engine.generate(PROMPT, params, drafter="draft_model").token_ids == drafted.token_ids  # seeded all the same
    matched = SamplingParams(temperature=1.0, seed=1, max_tokens=30, ignore_eos=True)
    plain = engine.generate(PROMPT, matched, drafter="null")
    for drafter in ("null", "ngram"):  # where nothing is drawn, the rules are the same
        completion = engine.generate(PROMPT, params, drafter=drafter)
        assert completion.token_ids == plain.token_ids
        assert completion.speculation.verification == "match"
    greedy = SamplingParams(verification="rejection", max_tokens=30, ignore_eos=True)
    assert engine.generate(PROMPT, greedy, drafter="draft_model").speculation.verification == "match"


def test_rejection_with_the_target_as_its_own_drafter(tmp_path: Path) -> None:
    """p = q: everything is accepted."""
    model = tiny.make(tmp_path / "model")
    engine = Engine.load(model, draft_model=model, drafter="draft_model")
    params = SamplingParams(
        temperature=1.0, top_p=0.9, verification="rejection", seed=4, max_tokens=40, ignore_eos=True
    )
    stats = engine.generate(PROMPT, params).speculation
    assert stats.accepted == stats.drafted > 0


class TestSmolLM2:
    def test_both_rules(self, smollm2: Engine) -> None:
        """The first two tokens of an answer, thousands of times, under both rules."""
        smollm2.scheduler.max_batch_size = 64
        prompt = smollm2.tokenizer.encode("Once upon a")
        options = {"temperature": 1.2, "top_k": 6}
        expected = exact(smollm2, options, 2, prompt)
        for rule in ("match", "rejection"):
            counts = drawn(smollm2, {**options, "verification": rule}, 2, 2048, "draft_model", prompt)
            assert chi_square_p(counts, expected) > ALPHA
        smollm2.scheduler.max_batch_size = 16
