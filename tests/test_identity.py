"""The first promise: the same tokens as plain decoding, whatever drafts, at any draft length, batch or thread count."""

from pathlib import Path

import pytest
import tiny
import zoo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream import DRAFTER_NAMES, DRAFTERS, Completion, Engine, Request, SamplingParams, kernels

DRAFT_LENGTHS = [1, 2, 3, 4, 8, 16]
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=40, temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, seed=7, ignore_eos=True)
PROMPTS = [
    "the thing in the hand: the thing in the",
    "a",
    "def f(x):\n    return x\n\ndef f(x):\n    return",
    "aaa",
    "Tell me of an island in the north, then of another in the south, then of the thing between the two.",
]


def same(plain: Completion, other: Completion) -> None:
    assert other.token_ids == plain.token_ids
    assert (other.text, other.finish_reason, other.usage) == (plain.text, plain.finish_reason, plain.usage)
    stats = other.speculation
    assert stats.drafted == stats.accepted + stats.rejected + stats.unverified
    assert stats.committed >= len(other.token_ids)
    assert stats.target_passes <= plain.speculation.target_passes


@pytest.fixture(scope="module", params=zoo.DRAFT_MODELS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return zoo.zoo_engine(tmp_path_factory.mktemp("zoo"), "llama", request.param)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", DRAFT_LENGTHS)
def test_every_drafter_and_draft_length(engine: Engine, params: SamplingParams, length: int) -> None:
    plain = [engine.generate(prompt, params, drafter="null") for prompt in PROMPTS]
    for drafter in DRAFTER_NAMES:
        alone = [engine.generate(p, params, drafter=drafter, num_speculative_tokens=length) for p in PROMPTS]
        together = engine.generate_batch([Request(p, params, drafter, length) for p in PROMPTS])
        for expected, solo, batched in zip(plain, alone, together, strict=True):
            same(expected, solo)
            same(expected, batched)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_every_architecture(tiny_models: dict[str, Path], architecture: str) -> None:
    folder = tiny_models[architecture]
    engine = Engine.load(folder, draft_model=folder)
    for params in (GREEDY, SAMPLED):
        requests = [Request(p, params, drafter, 4) for p in PROMPTS for drafter in DRAFTER_NAMES]
        plain = {p: engine.generate(p, params, drafter="null") for p in PROMPTS}
        for request, completion in zip(requests, engine.generate_batch(requests), strict=True):
            same(plain[str(request.prompt)], completion)


def test_thread_count(tiny_models: dict[str, Path]) -> None:
    engine = Engine.load(tiny_models["qwen2"], draft_model=tiny_models["qwen2"], threads=1)
    for params in (GREEDY, SAMPLED):
        expected = engine.generate(PROMPTS[0], params, drafter="null")
        for threads in (1, 2, 3):
            kernels.set_threads(threads)
            for drafter in DRAFTER_NAMES:
                same(expected, engine.generate(PROMPTS[0], params, drafter=drafter))


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("wrong_every", [0, 1, 2, 3, 5])
def test_oracle(tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, wrong_every: int, tree: bool) -> None:
    monkeypatch.setitem(DRAFTERS, "oracle", zoo.Oracle)
    monkeypatch.setattr(zoo.Oracle, "wrong_every", wrong_every)
    monkeypatch.setattr(zoo.Oracle, "tree", tree)
    engine = Engine.load(tiny_models["qwen3"])
    for params in (GREEDY, SAMPLED):
        for prompt in PROMPTS:
            plain = engine.generate(prompt, params, drafter="null")
            monkeypatch.setitem(zoo.Oracle.answers, tuple(engine.tokenizer.encode(prompt)), list(plain.token_ids))
            for length in DRAFT_LENGTHS:
                completion = engine.generate(prompt, params, drafter="oracle", num_speculative_tokens=length)
                same(plain, completion)
                stats = completion.speculation
                if wrong_every == 0 and not tree:
                    assert stats.rejected == 0
                    assert stats.target_passes == -(-40 // (length + 1))
                if tree and length >= 2:
                    assert stats.accepted > 0


def test_the_draft_model_that_is_the_target_is_always_right(tmp_path: Path) -> None:
    engine = zoo.zoo_engine(tmp_path, "llama", "self", drafter="draft_model", num_speculative_tokens=4)
    for params in (GREEDY, SAMPLED):  # sampled too: drafter and target share their noise
        stats = engine.generate(PROMPTS[0], params).speculation
        assert stats.accepted == stats.drafted > 0
        assert stats.mean_accepted_length == 5


def test_a_batch_of_strangers(engine: Engine) -> None:
    """Different parameters, seeds, drafters and lengths in one batch, more requests than run at once."""
    engine.scheduler.max_batch_size = 3
    requests = [
        Request(
            prompt,
            SamplingParams(temperature=0.7 * (number % 2), seed=number, max_tokens=5 + 7 * number),
            drafter,
            number,
        )
        for number, prompt in enumerate(PROMPTS)
        for drafter in DRAFTER_NAMES
    ]
    for request, completion in zip(requests, engine.generate_batch(requests), strict=True):
        same(engine.generate(request.prompt, request.params, drafter="null"), completion)


def test_long_prompts_in_chunks(tiny_models: dict[str, Path]) -> None:
    engine = Engine.load(tiny_models["llama"], draft_model=tiny_models["llama"])
    prompt = PROMPTS[-1] * 2
    whole = engine.generate(prompt, GREEDY, drafter="null")
    for rows in (1, 2, 7, 64):
        engine.scheduler.max_prefill_rows = rows
        requests = [Request(prompt, GREEDY, drafter) for drafter in DRAFTER_NAMES] + [Request("a", GREEDY)]
        for completion in engine.generate_batch(requests)[:-1]:
            same(whole, completion)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.lists(st.integers(0, 263), min_size=1, max_size=30),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([0.1, 0.9, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    length=st.integers(1, 16),
    max_tokens=st.integers(1, 30),
)
def test_any_request(
    tiny_models: dict[str, Path], prompt: list[int], temperature: float, top_k: int, top_p: float, seed: int,
    length: int, max_tokens: int,
) -> None:  # fmt: skip
    engine = _shared_engine(tiny_models)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, max_tokens=max_tokens)
    plain = engine.generate(prompt, params, drafter="null")
    for completion in engine.generate_batch([Request(prompt, params, drafter, length) for drafter in DRAFTER_NAMES]):
        same(plain, completion)


_engines: list[Engine] = []


def _shared_engine(tiny_models: dict[str, Path]) -> Engine:
    if not _engines:
        _engines.append(Engine.load(tiny_models["mistral"], draft_model=tiny_models["llama"]))
    return _engines[0]


class TestSmolLM2:
    """The real model, with real prompts."""

    PROMPTS = (
        "Write a Python function that adds two numbers, then write it again with type hints.",
        "Repeat this list twice: apples, oranges, pears, apples, oranges, pears.",
        "What is gravity?",
        "Translate to French: good morning, good evening, good night.",
        "hi",
    )

    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    @pytest.mark.parametrize("drafter", ["auto", "ngram", "recycling", "draft_model"])
    def test_identical(self, smollm2: Engine, drafter: str, temperature: float) -> None:
        params = SamplingParams(temperature=temperature, top_p=0.95, seed=3, max_tokens=24)
        chats = [[{"role": "user", "content": prompt}] for prompt in self.PROMPTS]
        plain = [smollm2.generate(chat, params, drafter="null") for chat in chats]
        for length in DRAFT_LENGTHS:
            together = smollm2.generate_batch([Request(chat, params, drafter, length) for chat in chats])
            for expected, completion in zip(plain, together, strict=True):
                same(expected, completion)
            same(plain[1], smollm2.generate(chats[1], params, drafter=drafter, num_speculative_tokens=length))
        for threads in (1, 2):
            kernels.set_threads(threads)
            same(plain[1], smollm2.generate(chats[1], params, drafter=drafter))
