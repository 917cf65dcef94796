"""The drafter draft_model: how sure it is, and draft models that have a tokenizer of their own."""

import json
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import pytest
import tiny
import tokenizers
import zoo
from safetensors.numpy import load_file, save_file
from test_distributions import ALPHA, drawn, exact
from tokenizers import decoders, models
from vocabularies import OTHER, byte_level, ours

from slipstream import Engine, ModelError, Request, SamplingParams
from slipstream import engine as engine_module
from slipstream.drafters import History, draft_model
from slipstream.drafters.draft_model import DraftModelDrafter
from slipstream.models.checkpoint import open_checkpoint
from slipstream.models.decoder import Decoder, Segment
from slipstream.sampling import Sampler
from slipstream.tools.statistics import chi_square_p
from slipstream.types import Draft

GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=40, temperature=0.9, top_p=0.95, seed=7, ignore_eos=True)
REJECTION = SamplingParams(max_tokens=40, temperature=0.9, seed=7, ignore_eos=True, verification="rejection")
PROMPTS = ["the thing in the hand: the thing in the", "日本 😀", "e\u0301<|im_end|>the", [0xF0], [5, 200, 201, 7]]

CYCLE = " the 😀island"


def pair(
    folder: Path, backend: tokenizers.Tokenizer, change: Callable[..., None] | None = None, **overrides: object
) -> Engine:
    """A tiny target, and the same model with this tokenizer and these changes of its tensors as its draft model."""
    target = tiny.make(folder / "target")
    draft = tiny.make(folder / "draft", **overrides)
    backend.save(str(draft / "tokenizer.json"))
    if change is not None:
        for model in (target, draft):
            tensors = load_file(model / "model.safetensors")
            change(tensors, model == draft)
            save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return Engine.load(target, draft_model=draft, drafter="draft_model", num_speculative_tokens=4)


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return pair(tmp_path_factory.mktemp("strangers"), byte_level(OTHER), vocab_size=280)


def proposed(engine: Engine, params: SamplingParams, prompt: str, length: int) -> tuple[Draft, object]:
    """A drafter's first draft of a request, and its state."""
    drafter = DraftModelDrafter(engine._models)
    tokens = engine.tokenizer.encode(prompt)
    sampler = Sampler(params, 7, len(tokens))
    state = drafter.start(History(tokens, len(tokens), 200, sampler, engine.target.new_cache(200)))
    return drafter.propose([state], [length])[0], state


# --- Confidence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, REJECTION], ids=["greedy", "sampled", "rejection"])
def test_confidence_is_the_likeliest_tokens_probability(tmp_path: Path, params: SamplingParams) -> None:
    engine = zoo.zoo_engine(tmp_path, "llama", "noisy")
    draft, _ = proposed(engine, params, PROMPTS[0], 6)
    model = engine._models.draft
    tokens = [*engine.tokenizer.encode(PROMPTS[0]), *draft.tokens.tolist()[:-1]]
    logits = model.forward([Segment.chain(model.new_cache(len(tokens)), tokens, num_logits=6)])
    odds = np.exp(logits[:, : engine.tokenizer.vocab_size].astype(np.float64))
    np.testing.assert_allclose(draft.confidence, (odds / odds.sum(axis=1, keepdims=True)).max(axis=1), rtol=1e-5)
    assert draft.confidence.dtype == np.float32
    assert (draft.probs is not None) == (params is REJECTION)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, REJECTION], ids=["greedy", "sampled", "rejection"])
def test_a_draft_ends_where_it_is_likelier_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: SamplingParams
) -> None:
    """Tiny models are unsure, so with a threshold that they reach now and then."""
    monkeypatch.setattr(draft_model, "MIN_CONFIDENCE", 1e-4)
    engine = zoo.zoo_engine(tmp_path, "llama", "noisy")
    lengths = set()
    for start in range(8):
        draft, _ = proposed(engine, params, PROMPTS[0][start:], 16)
        confidence = draft.confidence.tolist()
        assert prod(confidence[:-1]) >= 1e-4 > prod(confidence)
        lengths.add(len(draft))
    assert len(lengths) > 1


def test_an_unsure_draft_changes_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = zoo.zoo_engine(tmp_path, "llama", "noisy", drafter="draft_model")
    for threshold in (1e-6, 1e-3, 0.1, 0.5):
        monkeypatch.setattr(draft_model, "MIN_CONFIDENCE", threshold)
        for params in (GREEDY, SAMPLED):
            completion = engine.generate(PROMPTS[0], params)
            assert completion.token_ids == engine.generate(PROMPTS[0], params, drafter="null").token_ids
            assert completion.speculation.drafted > 0


def test_where_a_draft_ends_does_not_bend_the_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the rule "rejection" a draft's length may go by the tokens in it, not by the one that would be next."""
    monkeypatch.setattr(draft_model, "MIN_CONFIDENCE", 0.01)
    engine = zoo.zoo_engine(tmp_path, "llama", "noisy", max_batch_size=64)
    options = {"temperature": 1.0, "top_k": 4}
    lengths = {len(proposed(engine, SamplingParams(**options, seed=1), PROMPTS[0] + end, 3)[0]) for end in "abcdefgh"}
    assert len(lengths) > 1
    counts = drawn(engine, {**options, "verification": "rejection"}, 3, 2000, "draft_model", PROMPTS[0])
    assert chi_square_p(counts, exact(engine, options, 3, PROMPTS[0])) > ALPHA


# --- Another tokenizer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [1, 3, 16])
def test_the_output_is_the_targets_own(strangers: Engine, params: SamplingParams, length: int) -> None:
    plain = [strangers.generate(prompt, params, drafter="null").token_ids for prompt in PROMPTS]
    for prompt, expected in zip(PROMPTS, plain, strict=True):
        assert strangers.generate(prompt, params, num_speculative_tokens=length).token_ids == expected
    together = strangers.generate_batch([Request(prompt, params, None, length) for prompt in PROMPTS])
    assert [completion.token_ids for completion in together] == plain
    for completion in together:
        stats = completion.speculation
        assert stats.drafted == stats.accepted + stats.rejected + stats.unverified
        assert len(stats.drafted_by_depth) <= length
    assert sum(completion.speculation.drafted for completion in together) > 0


def test_rejection_goes_by_match(strangers: Engine) -> None:
    completion = strangers.generate(PROMPTS[0], REJECTION)
    matched = strangers.generate(PROMPTS[0], SamplingParams(max_tokens=40, temperature=0.9, seed=7, ignore_eos=True))
    assert completion.token_ids == matched.token_ids
    assert completion.speculation.drafted > 0
    assert completion.speculation.verification == "match"


def test_the_same_model_with_other_token_ids_is_always_right(tmp_path: Path) -> None:
    """Both write byte by byte, and only what is printable, so that either spells a text in one way."""
    target, draft = byte_level([]), tiny_without_merges()
    here, there = ours(target), ours(draft)
    theirs = np.array([there.encode(text)[0] if (text := here.decode([token])) else token for token in range(259)])

    def change(tensors: dict[str, np.ndarray], drafts: bool) -> None:
        printable = np.array([len(text := here.decode([t])) == 1 and text.isascii() and text.isprintable()
                              for t in range(259)])  # fmt: skip
        tensors["lm_head.weight"][:259][~printable] = 0
        tensors["lm_head.weight"][259:] = 0
        if drafts:
            for name in ("lm_head.weight", "model.embed_tokens.weight"):
                permuted = tensors[name].copy()
                permuted[theirs[printable]] = tensors[name][:259][printable]
                tensors[name] = permuted

    engine = pair(tmp_path, draft, change)
    target.save(str(tmp_path / "target" / "tokenizer.json"))
    engine = Engine.load(tmp_path / "target", draft_model=tmp_path / "draft", drafter="draft_model")
    assert engine._models.draft_tokenizer.first_difference(engine.tokenizer) is not None
    stats = engine.generate("the hand", GREEDY, num_speculative_tokens=4).speculation
    assert stats.accepted == stats.drafted > 0
    assert stats.mean_accepted_length == 5


def tiny_without_merges() -> tokenizers.Tokenizer:
    settings = json.loads(tiny.tokenizer().to_str())
    vocabulary = settings["model"]["vocab"]
    settings["model"]["merges"] = []
    settings["model"]["vocab"] = {token: number for token, number in vocabulary.items() if number < 256}
    for number, token in enumerate(settings["added_tokens"]):
        token["id"] = 256 + number
    return tokenizers.Tokenizer.from_str(json.dumps(settings))


def cycling(folder: Path, backend: tokenizers.Tokenizer) -> Path:
    """A model that goes on with CYCLE for ever: each token alone says which is next."""
    tokens = ours(backend).encode(CYCLE)
    assert len({*tokens}) == len(tokens)
    model = tiny.make(folder, num_hidden_layers=1, hidden_size=288, vocab_size=288)
    tensors = load_file(model / "model.safetensors")
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"model.layers.0.{name}.weight"][:] = 0
    tensors["model.norm.weight"][:] = 1
    tensors["model.embed_tokens.weight"] = np.eye(288, dtype=np.float32)
    tensors["lm_head.weight"] = np.zeros((288, 288), np.float32)
    tensors["lm_head.weight"][[*tokens[1:], tokens[0]], tokens] = 1
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    backend.save(str(model / "tokenizer.json"))
    return model


TARGETS_PIECES = (" the", b" \xf0\x9f", b"\x98\x80", "isl", "and")
DRAFTS_PIECES = (" th", b" \xf0", b"\x9f\x98\x80", "island")


@pytest.mark.parametrize("swapped", [False, True])
def test_characters_and_words_split_otherwise(tmp_path: Path, swapped: bool) -> None:
    pieces = (DRAFTS_PIECES, TARGETS_PIECES) if swapped else (TARGETS_PIECES, DRAFTS_PIECES)
    target, draft = (cycling(tmp_path / str(at), byte_level(part)) for at, part in enumerate(pieces))
    engine = Engine.load(target, draft_model=draft, drafter="draft_model")
    tokens = engine.tokenizer.encode(CYCLE * 6)
    for length in (1, 2, 3, 4, 7):
        for start in range(1, 6):  # the prompt ends inside a word or a character, too
            params = SamplingParams(max_tokens=20, ignore_eos=True)
            completion = engine.generate(tokens[:start], params, num_speculative_tokens=length)
            assert list(completion.token_ids) == tokens[start : start + 20]
            if length > 1:  # a single token at the end of a draft may be half of one
                assert completion.speculation.mean_accepted_length > 1.8


def test_confidence_of_a_token_is_that_of_its_parts(strangers: Engine) -> None:
    """Each guess counts for the token that it begins in."""
    for prompt in (PROMPTS[0], "日本 😀", "a"):
        draft, state = proposed(strangers, GREEDY, prompt, 5)
        assert draft.confidence.shape == draft.tokens.shape
        here, there = strangers.tokenizer, strangers._models.draft_tokenizer
        expected = [1.0] * len(draft)
        ends = np.cumsum([len(here.token_bytes(token)) for token in draft.tokens.tolist()])
        start = -len(state.transcript.held)
        for token, value in zip(state.guessed, state.confidence, strict=True):
            covering = [at for at, end in enumerate(ends) if start < end]
            if covering:
                expected[covering[0]] *= value
            start += len(there.token_bytes(token))
        np.testing.assert_allclose(draft.confidence, expected, rtol=1e-6)


def test_its_context_is_shorter(tmp_path: Path) -> None:
    engine = pair(tmp_path, byte_level(OTHER), vocab_size=280, max_position_embeddings=32)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    for prompt in (PROMPTS[0][:20], PROMPTS[0] * 2):
        completion = engine.generate(prompt, params)
        assert completion.token_ids == engine.generate(prompt, params, drafter="null").token_ids
        assert (completion.speculation.drafted > 0) == (prompt == PROMPTS[0][:20])


def test_long_prompts_in_chunks(strangers: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = PROMPTS[0] * 3
    whole = strangers.generate(prompt, GREEDY)
    monkeypatch.setattr(draft_model, "PREFILL_ROWS", 5)
    chunked = strangers.generate(prompt, GREEDY)
    assert chunked.token_ids == whole.token_ids
    assert chunked.speculation.drafted == whole.speculation.drafted > 0


def test_a_pair_that_cannot_work(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    backend.decoder = decoders.ByteLevel()
    with pytest.raises(ModelError, match="the draft model's tokenizer can't spell 'c'"):
        pair(tmp_path, backend)


# --- The shortlist ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])  # an output matrix of its own, and the embedding's
def test_shortlisted_logits_are_the_models_own(tmp_path: Path, architecture: str, dtype: str) -> None:
    checkpoint = open_checkpoint(tiny.make(tmp_path / "model", architecture, intermediate_size=64))
    shortlist = np.array([0, 3, 4, 50, 200, 263])
    whole, short = Decoder(checkpoint, dtype), Decoder(checkpoint, dtype, shortlist=shortlist)
    tokens = [5, 200, 201, 7]
    expected, got = (
        model.forward([Segment.chain(model.new_cache(4), tokens, num_logits=3)]) for model in (whole, short)
    )
    assert got.shape == expected.shape
    assert got[:, shortlist].tobytes() == expected[:, shortlist].tobytes()
    others = np.setdiff1d(np.arange(got.shape[1]), shortlist)
    assert (got[:, others] == -np.inf).all()
    assert short.pass_bytes < whole.pass_bytes


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, REJECTION], ids=["greedy", "sampled", "rejection"])
def test_a_shortlist_changes_drafts_and_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: SamplingParams
) -> None:
    monkeypatch.setattr(engine_module, "SHORTLIST", 150)
    engine = pair(tmp_path, tiny.tokenizer())
    draft_model = engine.draft_model
    assert draft_model is not None
    assert draft_model.shortlist is not None
    controls = {*engine.tokenizer.control_token_ids, *engine.tokenizer.eos_token_ids, *engine.config.eos_token_ids}
    assert set(draft_model.shortlist.tolist()) == {*range(150), *controls}
    accepted = 0
    for prompt in PROMPTS[:3]:
        draft, _ = proposed(engine, params, prompt, 6)
        assert np.isin(draft.tokens, draft_model.shortlist).all()
        drafted = engine.generate(prompt, params)
        accepted += drafted.speculation.accepted
        if params is not REJECTION:
            assert drafted.token_ids == engine.generate(prompt, params, drafter="null").token_ids
    assert accepted


def test_a_small_vocabulary_has_no_shortlist(strangers: Engine) -> None:
    assert strangers.draft_model is not None
    assert strangers.draft_model.shortlist is None
