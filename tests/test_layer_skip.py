"""The target drafting for itself with layers skipped: its cache is left as it was, and the profile says which layers.

Identity with plain decoding is tested over all drafters, in test_identity.py, test_limits.py and test_contract.py.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from numpy.typing import NDArray

from slipstream import Engine, OptionError, Request, SamplingParams
from slipstream.drafters import History, Models
from slipstream.drafters import layer_skip as module
from slipstream.drafters.guessing import Guesses, feed
from slipstream.drafters.layer_skip import LayerSkipDrafter, default_skipped, identity, profile_path, read_profile
from slipstream.engine import DRAFT_LENGTH
from slipstream.models.decoder import Decoder, Segment
from slipstream.sampling import Sampler

PROMPT = "the thing in the hand: the thing in the"
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=40, temperature=0.9, top_k=50, seed=7, ignore_eos=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.make(tmp_path / "model", num_hidden_layers=6)


@pytest.fixture
def engine(folder: Path) -> Engine:
    return Engine.load(folder, drafter="null")


def skip(engine: Engine, skipped: Any, **changes: object) -> Path:
    """Writes the model's profile."""
    path = profile_path(engine.target.file)
    profile = {**identity(engine.target), "skipped": skipped, "num_speculative_tokens": 3, **changes}
    path.write_text(json.dumps(profile))
    return path


def drafter(engine: Engine) -> LayerSkipDrafter:
    return LayerSkipDrafter(Models(engine.target, engine.tokenizer))


def started(engine: Engine, tokens: list[int], fed: int, limit: int = 200) -> History:
    """The history of a request of which `fed` tokens are in the cache."""
    cache = engine.target.new_cache(limit)
    if fed:
        feed(engine.target, [cache], [tokens[:fed]], num_logits=0)
    return History(list(tokens), len(tokens), limit, Sampler(GREEDY, 0, len(tokens)), cache)


def proposed(drafter: LayerSkipDrafter, histories: list[History], length: int) -> list[list[int]]:
    states = [drafter.start(history) for history in histories]
    return [draft.tokens.tolist() for draft in drafter.propose(states, [length] * len(states))]


# Drafting ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_skipping_nothing_is_always_right(engine: Engine, params: SamplingParams) -> None:
    skip(engine, [])
    stats = engine.generate(PROMPT, params, drafter="layer_skip", num_speculative_tokens=4).speculation
    assert stats.accepted == stats.drafted > 0


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("left", range(6))
def test_one_layer_alone_changes_no_token(engine: Engine, left: int, params: SamplingParams) -> None:
    skip(engine, [layer for layer in range(6) if layer != left])
    prompts = [PROMPT, "a", "aaa"]
    plain = [engine.generate(prompt, params) for prompt in prompts]
    for length in (1, 5):
        drafted = engine.generate_batch([Request(prompt, params, "layer_skip", length) for prompt in prompts])
        assert [completion.token_ids for completion in drafted] == [completion.token_ids for completion in plain]
        assert all(completion.speculation.rejected for completion in drafted)


def test_drafting_leaves_no_trace_in_the_targets_cache(engine: Engine) -> None:
    tokens = engine.tokenizer.encode(PROMPT)
    skip(engine, [1, 2, 4])
    used, fresh = (started(engine, tokens, len(tokens) - 1) for _ in range(2))
    [draft] = proposed(drafter(engine), [used], 8)
    assert len(draft) == 8
    assert used.cache.length == len(tokens) - 1
    rows = [tokens[-1], *draft]
    one, other = (
        engine.target.forward([Segment.chain(history.cache, rows, len(rows))]).tobytes() for history in (used, fresh)
    )
    assert one == other
    for history in (used, fresh):
        history.cache.keep(range(len(rows)))
    length = used.cache.length
    assert np.array_equal(used.cache.values[:, :, :length], fresh.cache.values[:, :, :length])


def test_a_draft_is_what_the_layers_left_would_say(engine: Engine) -> None:
    """Behind a context of the whole model, the layers left alone, token by token."""
    tokens = engine.tokenizer.encode(PROMPT)
    skip(engine, [0, 3])
    history = started(engine, tokens, len(tokens) - 1)
    expected = [tokens[-1]]
    for _ in range(4):
        logits = feed(engine.target, [history.cache], [expected[-1:]], num_logits=1, layers=[1, 2, 4, 5])
        expected.append(int(logits[0, : engine.tokenizer.vocab_size].argmax()))
    history.cache.truncate(len(tokens) - 1)
    assert proposed(drafter(engine), [history], 4) == [expected[1:]]


def test_nothing_is_drafted_behind_a_prompt_that_the_target_has_not_seen(engine: Engine) -> None:
    tokens = engine.tokenizer.encode(PROMPT)
    histories = [started(engine, tokens, fed) for fed in (0, len(tokens) - 2, len(tokens) - 1)]
    drafts = proposed(drafter(engine), histories, 3)
    assert [len(draft) for draft in drafts] == [0, 0, 3]
    assert [history.cache.length for history in histories] == [0, len(tokens) - 2, len(tokens) - 1]


def test_an_interrupted_draft_leaves_the_length_as_it_was(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = engine.tokenizer.encode(PROMPT)
    history = started(engine, tokens, len(tokens) - 1)
    guess = Guesses.guess

    def interrupted(guesses: Guesses, logits: NDArray[np.float32]) -> bool:
        if len(guesses.draft) == 2:
            raise KeyboardInterrupt
        return guess(guesses, logits)

    monkeypatch.setattr(Guesses, "guess", interrupted)
    with pytest.raises(KeyboardInterrupt):
        proposed(drafter(engine), [history], 5)
    assert history.cache.length == len(tokens) - 1


def test_only_the_layers_left_are_run(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    skip(engine, [2, 5])
    passes: list[object] = []
    forward = Decoder.forward
    monkeypatch.setattr(
        Decoder, "forward", lambda model, *a: passes.append(a[1] if a[1:] else None) or forward(model, *a)
    )
    engine.generate(PROMPT, GREEDY, drafter="layer_skip", num_speculative_tokens=2)
    assert [0, 1, 3, 4] in passes
    assert all(layers in (None, [0, 1, 3, 4]) for layers in passes)


# The profile ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_layers", "skipped"),
    [
        (1, ()),
        (2, (1,)),
        (3, (1,)),
        (6, (2, 4)),
        (28, (8, 10, 12, 14, 16, 18, 20)),
        (30, (8, 10, 12, 14, 16, 18, 20, 22)),
    ],
)
def test_what_is_skipped_without_a_profile(num_layers: int, skipped: tuple[int, ...]) -> None:
    assert default_skipped(num_layers) == skipped


def test_the_profile_says_which_layers(engine: Engine) -> None:
    assert drafter(engine).layers == [0, 1, 3, 5]
    assert skip(engine, [1, 4]).name == "model.safetensors.layer_skip.json"
    assert drafter(engine).layers == [0, 2, 3, 5]


def test_the_profile_says_how_many_tokens(engine: Engine) -> None:
    def drafted(length: int | None = None) -> int:
        completion = engine.generate(PROMPT, GREEDY, drafter="layer_skip", num_speculative_tokens=length)
        return completion.speculation.num_speculative_tokens

    skip(engine, [1, 4])
    assert drafted() == 3
    assert drafted(2) == 2
    assert engine.generate(PROMPT, GREEDY, drafter="ngram").speculation.num_speculative_tokens == DRAFT_LENGTH


def test_where_the_profile_lies(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = engine.target.file
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    beside = file.with_name("model.safetensors.layer_skip.json")
    cached = tmp_path / "cache" / f"model.safetensors-{file.stat().st_size}.layer_skip.json"
    assert profile_path(file) == beside
    monkeypatch.setattr(module.os, "access", lambda path, mode: False)
    assert profile_path(file) == cached
    beside.write_text("{}")
    assert profile_path(file) == beside
    beside.unlink()
    monkeypatch.undo()
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    cached.parent.mkdir()
    cached.write_text("{}")
    assert profile_path(file) == cached


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:-5], "it is damaged"),
        (lambda text: "[]", "it is damaged"),
        (lambda text: "[" * 10**5, "it is damaged"),
        (lambda text: "\xff", "it is damaged"),
        (lambda text: "{}", "its version is None, and here it is 1"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "its version is 2"),
        (lambda text: text.replace("model.safetensors", "other.gguf"), "its file is 'other.gguf'"),
        (lambda text: text.replace('"bytes": ', '"bytes": 1'), "its bytes is 1"),
        (lambda text: text.replace('"num_layers": 6', '"num_layers": 7'), "its num_layers is 7"),
        (lambda text: text.replace("[1, 4]", "[1, 6]"), "it skips [1, 6]"),
        (lambda text: text.replace("[1, 4]", "[1, -1]"), "it skips [1, -1]"),
        (lambda text: text.replace("[1, 4]", "[1, 1]"), "it skips [1, 1]"),
        (lambda text: text.replace("[1, 4]", "[true]"), "it skips [True]"),
        (lambda text: text.replace("[1, 4]", "[[1]]"), "it skips [[1]]"),
        (lambda text: text.replace("[1, 4]", "[0, 1, 2, 3, 4, 5]"), "it skips [0, 1, 2, 3, 4, 5]"),
        (lambda text: text.replace("[1, 4]", '"14"'), "it skips '14'"),
        (lambda text: text.replace('tokens": 3', 'tokens": 0'), "its num_speculative_tokens is 0"),
        (lambda text: text.replace('tokens": 3', 'tokens": true'), "its num_speculative_tokens is True"),
        (lambda text: text.replace('tokens": 3', 'tokens": [3]'), "its num_speculative_tokens is [3]"),
    ],
)
def test_a_bad_profile_is_refused_by_name(engine: Engine, damage: Callable[[str], str], words: str) -> None:
    path = skip(engine, [1, 4])
    damaged = damage(path.read_text())
    assert damaged != path.read_text()
    path.write_text(damaged, "latin-1")
    with pytest.raises(OptionError) as error:
        engine.generate("a", GREEDY, drafter="layer_skip")
    assert str(error.value).startswith(f"{path}: ")
    assert words in str(error.value)
    assert "delete it, and make it anew with slipstream tune layer-skip" in str(error.value)
    assert engine.generate("a", GREEDY, drafter="ngram").token_ids  # the others don't need it


def test_an_unreadable_profile_is_refused_by_name(engine: Engine) -> None:
    path = profile_path(engine.target.file)
    path.mkdir()
    with pytest.raises(OptionError, match=r"layer_skip.json: can't be read: Is a directory"):
        read_profile(path, engine.target)
