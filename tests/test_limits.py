"""Where a completion ends: EOS, stop strings, max_tokens and the context limit, at every offset of a block."""

from itertools import zip_longest
from pathlib import Path

import pytest
import tiny
import zoo

from slipstream import DRAFTER_NAMES, Engine, OptionError, Request, SamplingParams

PROMPT = "the thing in the hand: the thing in the"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return zoo.zoo_engine(tmp_path_factory.mktemp("limits"), "llama", "self")


def everywhere(engine: Engine, params: SamplingParams, lengths: tuple[int, ...] = (1, 2, 3, 4, 8, 16)) -> None:
    """Each drafter and length gives what plain gives, streamed or not, and nothing is counted that wasn't emitted."""
    plain = engine.generate(PROMPT, params, drafter="null")
    for drafter in DRAFTER_NAMES:
        for length in lengths:
            outputs = list(engine.stream(PROMPT, params, drafter=drafter, num_speculative_tokens=length))
            completion = outputs[-1].completion
            assert completion is not None
            assert (completion.token_ids, completion.text) == (plain.token_ids, plain.text)
            assert completion.finish_reason == plain.finish_reason
            pieces = [piece for output in outputs for piece in output.pieces]
            assert tuple(piece.token_id for piece in pieces) == plain.token_ids
            assert "".join(piece.text for piece in pieces) == plain.text
            stats = completion.speculation
            assert stats.drafted == stats.accepted + stats.rejected + stats.unverified
            assert plain.speculation.committed == stats.committed


@pytest.mark.parametrize("max_tokens", range(21))
def test_max_tokens(engine: Engine, max_tokens: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    completion = engine.generate(PROMPT, params, drafter="null")
    assert len(completion.token_ids) == completion.usage.completion_tokens == max_tokens
    assert completion.finish_reason == "length"
    everywhere(engine, params)


@pytest.mark.parametrize("index", range(12))
def test_eos_at_every_index(engine: Engine, monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    """The token at this index of plain's output is declared to be the end of the sequence."""
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=24)
    free = engine.generate(PROMPT, params, drafter="null").token_ids
    eos = free[index]
    monkeypatch.setattr(engine, "eos_token_ids", frozenset((260, eos)))
    ended = engine.generate(PROMPT, params, drafter="null")
    assert ended.token_ids == free[: free.index(eos)]
    assert ended.finish_reason == "stop"
    everywhere(engine, params)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 12])
def test_stop_strings_at_every_offset(engine: Engine, width: int) -> None:
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=24, ignore_eos=True)
    text = engine.generate(PROMPT, params, drafter="null").text
    for offset in range(0, len(text) - width + 1):
        stop = text[offset : offset + width]
        stopped = SamplingParams(temperature=1.0, seed=11, max_tokens=24, ignore_eos=True, stop=("never this", stop))
        completion = engine.generate(PROMPT, stopped, drafter="null")
        assert completion.text == text[: text.index(stop)]
        assert completion.finish_reason == "stop"
        assert engine.tokenizer.decode(completion.token_ids).startswith(completion.text)
        everywhere(engine, stopped, lengths=(3, 8))


def test_prompts_round_the_context_limit(engine: Engine) -> None:
    context = engine.config.context_length
    for short in range(1, 20):
        prompt = [7, 8, 9] * context
        prompt = prompt[: context - short]
        plain = engine.generate(prompt, SamplingParams(ignore_eos=True), drafter="null")
        assert len(plain.token_ids) == short
        assert plain.finish_reason == "length"
        for drafter in DRAFTER_NAMES:
            for length in (1, 3, 16):
                completion = engine.generate(
                    prompt, SamplingParams(ignore_eos=True), drafter=drafter, num_speculative_tokens=length
                )
                assert completion.token_ids == plain.token_ids
    for too_long in range(3):
        with pytest.raises(OptionError, match=f"prompt has {context + too_long} tokens and the model's context is"):
            engine.generate([7] * (context + too_long))


def test_draft_context_shorter_than_the_targets(tmp_path: Path) -> None:
    target = tiny.make(tmp_path / "target")
    draft = tiny.make(tmp_path / "draft", max_position_embeddings=32)
    engine = Engine.load(target, draft_model=draft, drafter="draft_model")
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    plain = engine.generate(PROMPT[:20], params, drafter="null")
    completion = engine.generate(PROMPT[:20], params)
    assert completion.token_ids == plain.token_ids
    assert 0 < completion.speculation.drafted < 60
    assert (
        engine.generate(PROMPT * 2, params).token_ids == engine.generate(PROMPT * 2, params, drafter="null").token_ids
    )


def test_precisions(tmp_path: Path) -> None:
    """A float draft model runs in int8, and int8 is refused where the blocks don't fit."""
    wide = tiny.make(tmp_path / "wide", intermediate_size=64)
    engine = Engine.load(wide, draft_model=wide, dtype="f32")
    assert engine.target.dtype == "f32"
    assert engine._models.draft.dtype == "int8"
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    assert engine.generate(PROMPT, params).token_ids == engine.generate(PROMPT, params, drafter="null").token_ids
    assert Engine.load(wide, dtype="int8").generate(PROMPT, params).token_ids
    narrow = tiny.make(tmp_path / "narrow")
    with pytest.raises(OptionError, match="int8 works on widths that 32 divides, and narrow has 48"):
        Engine.load(narrow, dtype="int8")
    with pytest.raises(OptionError, match="dtype is 'int3'"):
        Engine.load(narrow, dtype="int3")


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "prompt is empty"),
        ([], {}, "prompt is empty"),
        ([1, 999], {}, "token id 999"),
        ([-1], {}, "token id -1"),
        (["a", 1], {}, "not a mixture"),
        ("a", {"drafter": "magic"}, "no drafter 'magic'"),
        ("a", {"num_speculative_tokens": -1}, "num_speculative_tokens is -1"),
    ],
)
def test_bad_requests(engine: Engine, prompt: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        engine.generate(prompt, **options)
    with pytest.raises(OptionError, match=message):
        engine.stream(prompt, **options)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", float("nan")),
        ("min_p", -0.5),
        ("min_p", 2.0),
        ("seed", -1),
        ("seed", 2**64),
        ("max_tokens", -1),
        ("stop", ("fine", "")),
    ],
)
def test_bad_parameters(field: str, value: object) -> None:
    with pytest.raises(OptionError, match=field):
        SamplingParams(**{field: value})


def test_an_abandoned_stream_ends_its_requests(engine: Engine) -> None:
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    for stream in (engine.stream(PROMPT, params), engine.stream_batch([Request(PROMPT, params), Request("a", params)])):
        next(stream)
        stream.close()
        assert not engine.scheduler.running
        assert not engine.scheduler.waiting


def test_two_streams_at_once(engine: Engine) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    texts = ["", ""]
    for outputs in zip_longest(engine.stream(PROMPT, params), engine.stream("a", params)):
        for at, output in enumerate(outputs):
            texts[at] += "".join(piece.text for piece in output.pieces) if output else ""
    assert texts == [engine.generate(prompt, params).text for prompt in (PROMPT, "a")]
