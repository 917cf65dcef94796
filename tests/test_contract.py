"""The lossless contract over all options: whatever is asked for, drafting changes nothing but the number of passes.

Every drafter in DRAFTERS takes part, so does any that joins it; so do chains and trees of one that knows the answer.
"""

import random
from collections.abc import Iterator, Mapping
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import tiny
import zoo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream import DRAFTER_NAMES, DRAFTERS, Completion, Engine, OptionError, Request, SamplingParams
from slipstream.tools.audit import OPTIONS
from slipstream.types import StepOutput

PROMPT = "the thing in the hand: the thing in the"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["thing", "the"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}

MATRIX: dict[str, list[dict[str, Any]]] = {
    "temperature": [{}, {"temperature": 0.7}, {"temperature": 1.6}],
    "filters": [{}, {"top_k": 12}, {"top_p": 0.8}, {"min_p": 0.05}, {"typical_p": 0.7}, {"top_k": 40, "top_p": 0.9}],
    "repetition": [{}, {"repetition_penalty": 1.4}, {"repetition_penalty": 0.8}],
    "counts": [
        {},
        {"frequency_penalty": 0.8},
        {"presence_penalty": -0.6},
        {"presence_penalty": 1, "penalty_window": 7},
    ],
    "ngrams": [{}, {"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 1}],
    "bias": [{}, {"logit_bias": {40: 6, 41: -100, 261: 4, 80: 5.5}}],
    "bad_words": [{}, {"bad_words": ("the", "a", "é")}],
    "min_tokens": [{}, {"min_tokens": 9}],
    "ends": [{"ignore_eos": True}, {}, {"stop_token_ids": tuple(range(30, 45))}],
    "stop": [{}, {"stop": ("in", "b", "\ufffd\ufffd")}],
    "grammar": [
        {},
        {"json_schema": SCHEMA},
        {"regex": "(the |thing |[a-e]{2})*end"},
        {"grammar": 'start: "ab" start | "c"'},
    ],
    "logprobs": [{}, {"logprobs": 3}, {"logprobs": 2, "logprobs_of": "processed"}, {"logprobs": 0}],
    "prompt": [{}, {"prompt_logprobs": 2}, {"echo": True}],
    "length": [{"max_tokens": 24}, {"max_tokens": 13}],
}


def pairwise(matrix: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Few combinations in which every two values of different options meet: greedily, the best of some random ones."""
    names = list(matrix)
    missing = {
        (one, i, other, j)
        for one, other in combinations(names, 2)
        for i, j in product(range(len(matrix[one])), range(len(matrix[other])))
    }
    rng = random.Random(1)
    while missing:
        seeds = rng.sample(sorted(missing), min(30, len(missing)))
        rows = [
            {name: rng.randrange(len(matrix[name])) for name in names} | {one: i, other: j}
            for one, i, other, j in seeds
        ]
        pairs = [{(a, row[a], b, row[b]) for a, b in combinations(names, 2)} for row in rows]
        best = max(range(len(rows)), key=lambda at: len(pairs[at] & missing))
        missing -= pairs[best]
        yield {name: matrix[name][rows[best][name]] for name in names}


def merged(parts: Mapping[str, dict[str, Any]], **more: Any) -> SamplingParams:
    values = {name: value for part in parts.values() for name, value in part.items()} | more
    if parts["grammar"]:
        values.pop("ignore_eos", None)  # they contradict each other
    return SamplingParams(**values)


COMBINATIONS = list(pairwise(MATRIX))


@pytest.fixture(scope="module", params=zoo.DRAFT_MODELS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return zoo.zoo_engine(tmp_path_factory.mktemp("contract"), "llama", request.param)


def facts(completion: Completion) -> tuple[object, ...]:
    """All that a caller gets, without how it came about."""
    return (
        completion.token_ids,
        completion.text,
        completion.finish_reason,
        completion.logprobs,
        completion.prompt_logprobs,
        completion.usage,
        completion.seed,
    )


def streamed(outputs: list[StepOutput]) -> Completion:
    """The completion of a stream, whose pieces must spell it."""
    completion = outputs[-1].completion
    assert completion is not None
    pieces = [piece for output in outputs for piece in output.pieces]
    assert tuple(piece.token_id for piece in pieces) == completion.token_ids
    assert "".join(piece.text for piece in pieces) == completion.text
    if completion.logprobs is not None:
        assert tuple(piece.logprob for piece in pieces) == completion.logprobs
    return completion


def sound(engine: Engine, params: SamplingParams, completion: Completion) -> None:
    """What must hold of any completion by itself."""
    output = completion.token_ids[len(completion.token_ids) - completion.usage.completion_tokens :]
    assert len(completion.token_ids) - len(output) == (completion.usage.prompt_tokens if params.echo else 0)
    prompt = completion.token_ids[: len(completion.token_ids) - len(output)]  # with echo
    text = engine.tokenizer.decode(prompt) + engine.tokenizer.decode(output)
    assert text == completion.text or (params.stop and text.startswith(completion.text))
    if params.logprobs is not None:
        assert completion.logprobs is not None
        assert len(completion.logprobs) == len(completion.token_ids)
        assert [entry.token_id for entry in completion.logprobs if entry] == list(
            completion.token_ids[1 if params.echo else 0 :]
        )
    if params.prompt_logprobs is not None:
        assert completion.prompt_logprobs is not None
        assert len(completion.prompt_logprobs) == completion.usage.prompt_tokens
    text = engine.tokenizer.decode(output)
    assert not any(word.encode() in b"".join(map(engine.tokenizer.token_bytes, output)) for word in params.bad_words)
    if completion.finish_reason == "stop":
        assert len(output) >= params.min_tokens
    if params.stop and completion.finish_reason != "stop" and not params.min_tokens:
        assert not any(stop in text for stop in params.stop)
    stats = completion.speculation
    assert stats.drafted == stats.accepted + stats.rejected + stats.unverified


@pytest.mark.parametrize("number", range(len(COMBINATIONS)))
def test_every_pair_of_options(engine: Engine, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    params = merged(COMBINATIONS[number], seed=number)
    lengths = [1 + (number * 5 + at * 7) % 16 for at in range(2)]
    plain = streamed(list(engine.stream(PROMPT, params, drafter="null")))
    sound(engine, params, plain)
    assert plain.speculation.drafted == 0
    monkeypatch.setitem(DRAFTERS, "oracle", zoo.Oracle)
    output = plain.token_ids[len(plain.token_ids) - plain.usage.completion_tokens :]
    monkeypatch.setitem(zoo.Oracle.answers, tuple(engine.tokenizer.encode(PROMPT)), [*output, 261])
    requests = [Request(PROMPT, params, drafter, length) for drafter in ("auto", *DRAFTERS) for length in lengths]
    for request, together in zip(requests, engine.generate_batch(requests), strict=True):
        stream = engine.stream(
            PROMPT, params, drafter=request.drafter, num_speculative_tokens=request.num_speculative_tokens
        )
        alone = streamed(list(stream))
        assert facts(alone) == facts(plain), request
        assert facts(together) == facts(plain), request
        sound(engine, params, together)
    monkeypatch.setattr(zoo.Oracle, "tree", True)
    for length in lengths:
        tree = engine.generate(PROMPT, params, drafter="oracle", num_speculative_tokens=length)
        assert facts(tree) == facts(plain)


def test_the_matrix_is_pairwise() -> None:
    assert len(COMBINATIONS) < 60
    for one, other in combinations(MATRIX, 2):
        met = {(str(row[one]), str(row[other])) for row in COMBINATIONS}
        assert len(met) == len(MATRIX[one]) * len(MATRIX[other])


def test_strangers_in_one_batch(noisy: Engine) -> None:
    """Requests with all kinds of options, drafters and lengths together, each as if it were alone."""
    drafters = list(DRAFTER_NAMES)
    requests = [
        Request(PROMPT[at % 5 :], merged(parts, seed=at), drafters[at % len(drafters)], 1 + at % 16)
        for at, parts in enumerate(COMBINATIONS)
    ]
    for request, together in zip(requests, noisy.generate_batch(requests), strict=True):
        assert facts(together) == facts(noisy.generate(request.prompt, request.params, drafter="null"))


def test_a_batch_streams_pass_by_pass(noisy: Engine) -> None:
    requests = [Request(PROMPT[at:], SamplingParams(max_tokens=12 - at, seed=at, temperature=1.0)) for at in range(4)]
    outputs: dict[int, list[StepOutput]] = {}
    for added in noisy.stream_batch(requests):
        ids = [output.request_id for output in added]
        assert ids == sorted({*ids})
        for output in added:
            outputs.setdefault(output.request_id, []).append(output)
    together = noisy.generate_batch(requests)
    assert [facts(streamed(outputs[number])) for number in sorted(outputs)] == [*map(facts, together)]


@pytest.mark.parametrize("end", ["token", "string", "length"])
def test_every_end_in_a_block(engine: Engine, end: str) -> None:
    """Wherever a block is cut, ids, text, logprobs and usage are cut alike."""
    values: dict[str, Any] = {"temperature": 1.0, "seed": 5, "ignore_eos": True, "logprobs": 1}
    free = engine.generate(PROMPT, SamplingParams(**values, max_tokens=20), drafter="null")
    for index in range(1, 14):
        token = free.token_ids[index]
        text = engine.tokenizer.decode([token])
        ended = {"token": {"stop_token_ids": (token,)}, "string": {"stop": (text,)}, "length": {"max_tokens": index}}
        params = SamplingParams(**{**values, "max_tokens": 20, **ended[end]})
        plain = engine.generate(PROMPT, params, drafter="null")
        sound(engine, params, plain)
        assert plain.logprobs == (free.logprobs or ())[: len(plain.token_ids)]
        assert plain.token_ids == free.token_ids[: len(plain.token_ids)]
        if end == "token":
            assert len(plain.token_ids) == free.token_ids.index(token)
        for drafter in DRAFTER_NAMES:
            for length in (2, 5, 16):
                stream = engine.stream(PROMPT, params, drafter=drafter, num_speculative_tokens=length)
                assert facts(streamed(list(stream))) == facts(plain)


def test_a_model_without_an_end(tmp_path: Path) -> None:
    engine = Engine.load(tiny.make(tmp_path / "endless"))
    engine.eos_token_ids = frozenset()
    params = SamplingParams(max_tokens=30, min_tokens=30, repetition_penalty=0.5, seed=1)
    plain = engine.generate(PROMPT, params, drafter="null")
    assert len(plain.token_ids) == 30
    assert facts(engine.generate(PROMPT, params, drafter="ngram")) == facts(plain)


anything = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in MATRIX.items()})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=anything,
    seed=st.integers(0, 2**64 - 1),
    prompt=st.lists(st.integers(0, 260), min_size=1, max_size=12),
    drafter=st.sampled_from([name for name in DRAFTER_NAMES if name != "null"]),
    length=st.integers(1, 16),
)
def test_any_options(noisy: Engine, parts: Any, seed: int, prompt: list[int], drafter: str, length: int) -> None:
    params = merged(parts, seed=seed)
    plain = noisy.generate(prompt, params, drafter="null")
    sound(noisy, params, plain)
    assert facts(noisy.generate(prompt, params, drafter=drafter, num_speculative_tokens=length)) == facts(plain)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return zoo.zoo_engine(tmp_path_factory.mktemp("contract"), "llama", "noisy")


def test_every_option_does_something(noisy: Engine) -> None:
    """An option that were read and forgotten would pass every test of identity."""
    base = SamplingParams(max_tokens=24, ignore_eos=True, seed=1)
    sampled = SamplingParams(max_tokens=24, temperature=1.2, ignore_eos=True, seed=1)
    plain, drawn = noisy.generate(PROMPT, base), noisy.generate(PROMPT, sampled)
    seen = plain.token_ids
    greedy_changes: list[dict[str, Any]] = [
        {"repetition_penalty": 2.0},
        {"frequency_penalty": 5.0},
        {"presence_penalty": 5.0},
        {"no_repeat_ngram_size": 1},
        {"logit_bias": {seen[3]: -100}},
        {"bad_words": (noisy.tokenizer.decode([next(t for t in seen if t < 90)]),)},
        {"stop_token_ids": (seen[5],)},
        {"stop": (next(piece for token in seen if (piece := noisy.tokenizer.decode([token])).isascii()),)},
        {"logprobs": 0},
        {"prompt_logprobs": 0},
        {"echo": True},
    ]
    for change in greedy_changes:
        changed = noisy.generate(PROMPT, SamplingParams(max_tokens=24, ignore_eos=True, seed=1, **change))
        assert facts(changed) != facts(plain), change
    for change in [
        {"top_k": 2},
        {"top_p": 0.2},
        {"min_p": 0.9},
        {"typical_p": 0.05},
        {"temperature": 0.3},
        {"seed": 2},
    ]:
        values: dict[str, Any] = {"max_tokens": 24, "temperature": 1.2, "ignore_eos": True, "seed": 1, **change}
        assert noisy.generate(PROMPT, SamplingParams(**values)).token_ids != drawn.token_ids, change
    windowed = [
        noisy.generate(PROMPT, SamplingParams(max_tokens=24, presence_penalty=9.0, penalty_window=w, ignore_eos=True))
        for w in (1, 20)
    ]
    assert windowed[0].token_ids != windowed[1].token_ids


@pytest.mark.parametrize("name", OPTIONS)
def test_the_real_model(smollm2: Engine, name: str) -> None:
    """What `slipstream audit` runs, on SmolLM2."""
    params = SamplingParams(**OPTIONS[name], seed=3, max_tokens=20)
    chat = [{"role": "user", "content": "Repeat twice: the pears, the apples. Is the list long?"}]
    plain = streamed(list(smollm2.stream(chat, params, drafter="null")))
    sound(smollm2, params, plain)
    requests = [Request(chat, params, drafter, length) for drafter in ("ngram", "draft_model") for length in (3, 7)]
    for completion in smollm2.generate_batch(requests):
        assert facts(completion) == facts(plain)


# n ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", DRAFTER_NAMES)
def test_n_completions(noisy: Engine, drafter: str) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=5, n=3)
    several = noisy.generate_batch([Request(PROMPT, params, drafter), Request("a", SamplingParams(max_tokens=2))])
    assert [completion.index for completion in several] == [0, 1, 2, 0]
    several.pop()
    assert several[0].seed == 5
    assert len({completion.token_ids for completion in several}) == 3
    for completion in several:  # each can be had again by itself
        alone = SamplingParams(max_tokens=12, temperature=1.0, seed=completion.seed)
        assert facts(noisy.generate(PROMPT, alone, drafter="null")) == facts(completion)
    outputs = list(noisy.stream(PROMPT, params, drafter=drafter))
    for index, expected in enumerate(several):
        assert facts(streamed([output for output in outputs if output.index == index])) == facts(expected)
    with pytest.raises(OptionError, match="n is 3"):
        noisy.generate(PROMPT, params)


def test_an_unseeded_request_can_be_had_again(noisy: Engine) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0)
    first = noisy.generate(PROMPT, params)
    again = SamplingParams(max_tokens=12, temperature=1.0, seed=first.seed)
    assert noisy.generate(PROMPT, again).token_ids == first.token_ids


# Logprobs ------------------------------------------------------------------------------------------------------------


def test_logprobs_against_the_distribution(noisy: Engine) -> None:
    params = SamplingParams(max_tokens=8, temperature=0.7, top_k=5, seed=2, logprobs=20, ignore_eos=True)
    raw = noisy.generate(PROMPT, params)
    processed = noisy.generate(
        PROMPT,
        SamplingParams(0.7, 5, seed=2, max_tokens=8, logprobs=20, logprobs_of="processed", ignore_eos=True),
    )
    assert raw.token_ids == processed.token_ids
    for one, other in zip(raw.logprobs or (), processed.logprobs or (), strict=True):
        assert one is not None
        assert other is not None
        assert len(one.top) == 20
        assert len(other.top) == 5  # what top-k left
        assert [token for token, _ in other.top] == [token for token, _ in one.top[:5]]
        mass = sum(2.718281828459045**value for _, value in other.top)
        assert mass == pytest.approx(1, abs=1e-6)
        raw_of, processed_of = dict(one.top), dict(other.top)
        best = one.top[0][0]
        for token, value in other.top:  # log p = (logit - constant) / temperature
            assert value - processed_of[best] == pytest.approx((raw_of[token] - raw_of[best]) / 0.7, abs=1e-4)
        assert processed_of[other.token_id] == other.logprob


def test_prompt_logprobs_are_those_of_the_same_tokens_as_output(noisy: Engine) -> None:
    """The output's raw logprobs are had again when the output is part of a prompt, in whatever chunks it is read."""
    params = SamplingParams(max_tokens=20, logprobs=3, ignore_eos=True)
    completion = noisy.generate(PROMPT, params)
    tokens = noisy.tokenizer.encode(PROMPT)
    for rows in (256, 7, 1):
        noisy.scheduler.max_prefill_rows = rows
        scored = noisy.generate([*tokens, *completion.token_ids], SamplingParams(max_tokens=0, prompt_logprobs=3))
        assert scored.prompt_logprobs is not None
        assert scored.prompt_logprobs[0] is None
        assert scored.prompt_logprobs[len(tokens) :] == completion.logprobs
        assert (scored.token_ids, scored.finish_reason, scored.usage.completion_tokens) == ((), "length", 0)
    noisy.scheduler.max_prefill_rows = 256


@pytest.mark.parametrize("max_tokens", [0, 1, 9])
def test_echo(noisy: Engine, max_tokens: int) -> None:
    values: dict[str, Any] = {"max_tokens": max_tokens, "logprobs": 2, "ignore_eos": True}
    alone = noisy.generate(PROMPT, SamplingParams(**values))
    echoed = streamed(list(noisy.stream(PROMPT, SamplingParams(**values, echo=True))))
    assert echoed.text == PROMPT + alone.text
    assert echoed.token_ids == (*noisy.tokenizer.encode(PROMPT), *alone.token_ids)
    assert echoed.usage == alone.usage
    assert echoed.logprobs is not None
    assert len(echoed.logprobs) == len(echoed.token_ids)
    assert echoed.logprobs[echoed.usage.prompt_tokens :] == alone.logprobs
    assert echoed.prompt_logprobs is None


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty is nan"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty is inf"),
        ({"presence_penalty": "much"}, "presence_penalty is 'much'"),
        ({"penalty_window": 0, "presence_penalty": 1}, "penalty_window is 0"),
        ({"penalty_window": 5}, "there is no penalty"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1"),
        ({"typical_p": 0}, "typical_p is 0"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias is"),
        ({"bad_words": ("",)}, "bad_words"),
        ({"bad_words": "the"}, "bad_words is 'the': use a tuple: bad_words=('the',)"),
        ({"bad_words": ("\ud800",)}, "bad_words"),
        ({"stop": ("\udfff",)}, "stop"),
        ({"stop_token_ids": ("a",)}, "stop_token_ids"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5 and max_tokens 4"),
        ({"n": 0}, "n is 0"),
        ({"n": 1.5}, "n is 1.5"),
        ({"seed": True}, "seed is True"),
        ({"logprobs": 21}, "logprobs is 21"),
        ({"logprobs_of": "cooked"}, "logprobs_of is 'cooked'"),
        ({"logprobs_of": "processed"}, "logprobs None"),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1"),
        ({"verification": "hope"}, "verification is 'hope'"),
        ({"regex": ""}, "regex is ''"),
        ({"grammar": "  "}, "grammar is"),
        ({"json_schema": 7}, "json_schema is 7"),
        ({"regex": "a", "grammar": 'start: "a"'}, "regex and grammar are given"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos and regex"),
        ({"max_tokens": 2.5}, "max_tokens is 2.5"),
        ({"echo": 1}, "echo is 1"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as error:
        SamplingParams(**options)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logit_bias": {264: 1}}, "logit_bias has token id 264: use ids from 0 to 263"),
        ({"logit_bias": {-1: 1}}, "logit_bias has token id -1"),
        ({"stop_token_ids": (999,)}, "stop_token_ids has token id 999"),
        ({"min_tokens": 250}, "min_tokens is 250"),
        ({"regex": "("}, "regex is '('"),
        ({"regex": "[^\\s\\S]"}, "no text follows it"),
        ({"regex": "x{0}"}, "only the empty text"),
        ({"regex": "abcdefgh", "max_tokens": 3}, "it needs at least 8 tokens and 3 are allowed"),
        ({"grammar": "foo: bar"}, "grammar is 'foo: bar'"),
        ({"json_schema": {"type": "banana"}}, "banana"),
        ({"json_schema": False}, "json_schema is False"),
        ({"json_schema": "false"}, "json_schema is 'false'"),
        ({"json_schema": {"enum": []}}, "json_schema"),
        ({"json_schema": "{"}, "json_schema is '{'"),
        ({"json_schema": {"const": "abcdefgh"}, "max_tokens": 9}, "it needs at least 10 tokens and 9 are allowed"),
        ({"regex": "the end[a-z]", "max_tokens": 5}, "it needs at least 6 tokens"),  # the, space, e, n, d, and one more
        ({"json_schema": {"type": object}}, "json_schema"),
    ],
)
def test_bad_requests_before_any_work(noisy: Engine, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as error:
        noisy.generate(PROMPT, SamplingParams(**options))
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not noisy.scheduler.running
    assert not noisy.scheduler.waiting


def test_a_grammar_needs_an_end(tmp_path: Path) -> None:
    engine = Engine.load(tiny.make(tmp_path / "endless"))
    engine.eos_token_ids = frozenset()
    with pytest.raises(OptionError, match="end-of-sequence token"):
        engine.generate("a", SamplingParams(regex="a"))
