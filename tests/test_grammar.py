"""Output under a grammar: it obeys, the drafts do, and the matcher never remembers what was not emitted."""

import json
import random
import re
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import pytest
import tiny
import tokenizers
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from slipstream import DRAFTER_NAMES, DRAFTERS, Engine, OptionError, SamplingParams
from slipstream.grammar import Grammar

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5},
        "size": {"enum": ["small", "large"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "size", "count"],
    "additionalProperties": False,
}
LARK = """
start: item ("," item)*
item: "the " COLOUR
COLOUR: "red" | "green" | "blue"
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return zoo.zoo_engine(tmp_path_factory.mktemp("grammar"), "llama", "noisy", num_speculative_tokens=6)


def compiled(engine: Engine, **options: object) -> Grammar:
    grammar = engine._grammars.compile(SamplingParams(**options), 1000)
    assert grammar is not None
    return grammar


@pytest.mark.parametrize("drafter", DRAFTER_NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_output_obeys(engine: Engine, drafter: str, seed: int) -> None:
    options = {"temperature": 1.0, "seed": seed, "logit_bias": {261: 3}}  # towards an end
    regex = r"(the |thing ){2,}(in|on) [0-9]{3}"
    text = engine.generate("a", SamplingParams(regex=regex, max_tokens=200, **options), drafter=drafter)
    assert text.finish_reason == "stop"
    assert re.fullmatch(regex, text.text)
    answer = engine.generate("a", SamplingParams(json_schema=SCHEMA, max_tokens=200, **options), drafter=drafter)
    assert answer.finish_reason == "stop"
    value = json.loads(answer.text)
    assert list(value) == ["name", "size", "count"]
    assert value["size"] in ("small", "large")
    assert 0 <= value["count"] <= 99
    assert 1 <= len(value["name"]) <= 5
    same = engine.generate("a", SamplingParams(json_schema=json.dumps(SCHEMA), max_tokens=200, **options))
    assert same.token_ids == answer.token_ids
    listed = engine.generate("a", SamplingParams(grammar=LARK, max_tokens=200, **options), drafter=drafter)
    assert listed.finish_reason == "stop"
    assert re.fullmatch("the (red|green|blue)(,the (red|green|blue))*", listed.text)
    if drafter != "null":
        assert answer.speculation.accepted > 0


@pytest.mark.parametrize("options", [{"regex": "(ab|a[bc]*d)+e?"}, {"json_schema": SCHEMA}, {"grammar": LARK}])
def test_answers_depend_on_the_output_alone(engine: Engine, options: dict[str, object]) -> None:
    """Asked about outputs to and fro, one matcher says what a fresh one says."""
    rng = random.Random(3)
    roving = compiled(engine, **options)
    output: list[int] = []
    eos = set(engine.eos_token_ids)
    for _ in range(150):
        fresh = compiled(engine, **options)
        allowed = roving.allowed(output)
        assert np.array_equal(allowed, fresh.allowed(output))
        assert roving.forced(output) == compiled(engine, **options).forced(output)
        choices = [int(token) for token in np.flatnonzero(allowed) if token not in eos]
        tail = [rng.choice(choices), rng.randrange(264)] if choices else [5]
        assert roving.count_valid(output, tail) == compiled(engine, **options).count_valid(output, tail)
        ended = [*output, *eos] if rng.random() < 0.2 else [*output, rng.randrange(264), 7]
        roving.allowed(ended)  # ended, or astray: it finds back
        if choices and rng.random() < 0.75:
            output = [*output, rng.choice(choices)]
        else:
            output = output[: rng.randrange(len(output) + 1)]


def test_nothing_follows_an_end_or_a_wrong_turn(engine: Engine) -> None:
    grammar = compiled(engine, regex="ab*")
    a, b, eos = *engine.tokenizer.encode("ab"), 261
    assert grammar.allowed([a])[[b, eos]].all()
    assert not grammar.allowed([a, eos]).any()
    assert not grammar.allowed([b]).any()
    assert grammar.forced([b]) == []
    assert grammar.count_valid([b], [a]) == 0
    assert grammar.allowed([])[a]


def test_forced_text_is_drafted(engine: Engine) -> None:
    """A whole answer that the grammar dictates takes few passes, whoever drafts; plain decoding drafts nothing."""
    params = SamplingParams(regex="the thing in the hand", max_tokens=50)
    plain = engine.generate("a", params, drafter="null")
    assert plain.text == "the thing in the hand"
    assert plain.speculation.drafted == 0
    for drafter in DRAFTER_NAMES:
        if drafter != "null":
            completion = engine.generate("a", params, drafter=drafter, num_speculative_tokens=6)
            assert completion.token_ids == plain.token_ids
            assert completion.speculation.target_passes <= plain.speculation.target_passes / 3
            assert completion.speculation.rejected == 0


def test_drafts_stay_within_the_grammar(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that knows nothing of grammars: what can't follow isn't even scored."""
    monkeypatch.setitem(DRAFTERS, "oracle", zoo.Oracle)
    monkeypatch.setattr(zoo.Oracle, "wrong_every", 1)
    monkeypatch.setitem(zoo.Oracle.answers, tuple(engine.tokenizer.encode("a")), [200] * 50)
    completion = engine.generate("a", SamplingParams(regex="[a-d]{12}", max_tokens=20), drafter="oracle")
    assert len(completion.text) == 12
    assert completion.speculation.drafted == 0


def test_where_nothing_is_allowed_the_completion_ends(engine: Engine) -> None:
    for drafter in DRAFTER_NAMES:
        params = SamplingParams(regex="abc", bad_words=("b",), max_tokens=20)
        completion = engine.generate("a", params, drafter=drafter)
        assert (completion.text, completion.finish_reason) == ("a", "blocked")
        early = engine.generate("a", SamplingParams(regex="ab", min_tokens=5, max_tokens=20), drafter=drafter)
        assert (early.text, early.finish_reason) == ("ab", "blocked")


NAME = {"type": "string", "maxLength": 3}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False},
    {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"], "additionalProperties": False},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
    {"type": "array", "items": {"type": "integer", "minimum": 7}, "maxItems": 1},
    {"type": "array", "items": {"type": "number", "maximum": 7}, "minItems": 1, "maxItems": 2},
    {"type": "array", "items": {"anyOf": [{"type": "integer"}, NAME, {"type": "null"}]}, "minItems": 1, "maxItems": 2},
    {
        "$defs": {"n": {"type": "integer"}},
        "type": "array",
        "items": {"$ref": "#/$defs/n"},
        "minItems": 1,
        "maxItems": 1,
    },
    {"type": "object", "patternProperties": {"^[ab]$": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 99}, "maxProperties": 1},
    {"type": "object", "properties": {"n": {}}, "required": ["n"], "additionalProperties": False},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_a_finish_reason_tells_whether_json_is_whole(engine: Engine, schema: dict[str, Any]) -> None:
    """Wherever max_tokens falls: "stop" where the text is all there, "length" where it isn't."""
    seen = set()
    digits = {token: 8.0 for token in engine.tokenizer.encode("0123456789")}
    for bias in ({}, digits):
        base = {"json_schema": json.dumps(schema), "temperature": 1.0, "seed": 3, "logit_bias": bias}
        longest = len(engine.generate("a", SamplingParams(**base, max_tokens=60)).token_ids)
        for max_tokens in {*range(max(1, longest - 2), longest + 2), 60, 12, 30}:
            params = SamplingParams(**base, max_tokens=max_tokens)
            try:
                plain = engine.generate("a", params, drafter="null")
            except OptionError:  # too few for what every text begins with
                continue
            drafted = engine.generate("a", params, drafter="ngram")
            assert (drafted.token_ids, drafted.finish_reason) == (plain.token_ids, plain.finish_reason)
            seen.add((plain.finish_reason, len(plain.token_ids) == max_tokens))
            if plain.finish_reason == "stop":
                json.loads(plain.text)
            else:
                assert plain.finish_reason == "length"
                with pytest.raises(ValueError, match="char"):
                    json.loads(plain.text)
    assert ("length", True) in seen


def test_what_is_whole_at_the_last_token_isn_t_cut_off(engine: Engine) -> None:
    params = {"json_schema": {"enum": [[1, 2, 3]]}}
    needed = len(engine.generate("a", SamplingParams(**params)).token_ids)
    for drafter in DRAFTER_NAMES:
        completion = engine.generate("a", SamplingParams(**params, max_tokens=needed), drafter=drafter)
        assert (completion.text, completion.finish_reason) == ("[1, 2, 3]", "stop")
    with pytest.raises(OptionError, match=f"needs at least {needed} tokens"):
        engine.generate("a", SamplingParams(**params, max_tokens=needed - 1))
    open_end = engine.generate("a", SamplingParams(regex="[0-9]+", max_tokens=4, bad_words=(" ",)))
    assert open_end.finish_reason == "length" or len(open_end.token_ids) < 4
    assert engine.generate("a", SamplingParams(regex="[0-9]{4}", max_tokens=4)).finish_reason == "stop"


def test_a_long_text_that_must_follow_is_counted_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token, it took 24 seconds to find out that a request is impossible."""
    asked: list[int] = []
    allowed = Grammar.allowed
    monkeypatch.setattr(
        Grammar, "allowed", lambda grammar, output: (asked.append(len(output)), allowed(grammar, output))[1]
    )
    with pytest.raises(OptionError, match="at least 1010 tokens and 9 are allowed"):
        engine.generate("b", SamplingParams(regex="a{99999}", max_tokens=9))
    assert len(asked) < 10


def test_several_end_tokens(tmp_path: Path) -> None:
    """Each of a model's end-of-sequence tokens ends a grammar, and none comes before it may."""
    engine = Engine.load(tiny.make(tmp_path / "model", eos_token_id=[261, 263]))
    assert {261, 263} <= engine.eos_token_ids
    grammar = compiled(engine, regex="a+")
    assert grammar.allowed(engine.tokenizer.encode("a"))[[261, 263]].all()
    assert not grammar.allowed([])[[261, 263]].any()
    params = SamplingParams(regex="a+", logit_bias={263: 100}, max_tokens=9)
    assert engine.generate("b", params).text == "a"


class TestSmolLM2:
    def test_a_schema(self, smollm2: Engine) -> None:
        chat = [{"role": "user", "content": "Describe a cat named Tom, age 3, as JSON."}]
        schema = {
            "type": "object",
            "properties": {"animal": {"type": "string"}, "name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["animal", "name", "age"],
            "additionalProperties": False,
        }
        params = SamplingParams(json_schema=schema, max_tokens=60, logprobs=2)
        plain = smollm2.generate(chat, params, drafter="null")
        assert set(json.loads(plain.text)) == {"animal", "name", "age"}
        for drafter in ("ngram", "draft_model"):
            completion = smollm2.generate(chat, params, drafter=drafter)
            assert completion.token_ids == plain.token_ids
            assert completion.logprobs == plain.logprobs
            assert completion.speculation.target_passes < plain.speculation.target_passes


# --- tokenizers that change a text before they split it ---------------------------------------------------------------


def prefixed() -> tokenizers.Tokenizer:
    """Llama 2's kind: a space before every text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *SPELLED, *"yesnofaltru{}:,1", "▁"]
    made = tokenizers.Tokenizer(
        models.BPE(
            {piece: number for number, piece in enumerate(pieces)},
            [("▁", "y"), ("▁", "n")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def metaspaced() -> tokenizers.Tokenizer:
    """The same, as newer files write it."""
    made = prefixed()
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    return made


def normalising() -> tokenizers.Tokenizer:
    """Qwen's kind: NFC."""
    made = tiny.tokenizer()
    made.normalizer = normalizers.NFC()
    return made


def spaced() -> tokenizers.Tokenizer:
    made = tiny.tokenizer()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return made


SPELLED = ["▁y", "▁n"]
TOKENIZERS = {"prefixed": prefixed, "metaspaced": metaspaced, "normalising": normalising, "spaced": spaced}


@pytest.fixture(scope="module", params=[*TOKENIZERS, "gguf"])
def changing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """An engine whose tokenizer changes texts."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "gguf":
        made = prefixed()
        tokens = sorted(vocabulary := made.get_vocab(), key=vocabulary.__getitem__)
        kinds = [gguf_files.UNKNOWN, gguf_files.CONTROL, gguf_files.CONTROL, *[gguf_files.BYTE] * 256]
        kinds += [gguf_files.NORMAL] * (len(tokens) - len(kinds))
        scores = [-float(rank) for rank in range(len(tokens))]
        values = gguf_files.sentence_piece_metadata(tokens, scores, kinds)
        return Engine.load(gguf_files.with_tokenizer(folder / "m.gguf", values))
    made = TOKENIZERS[request.param]()
    ends = made.token_to_id("</s>") or made.token_to_id("<|endoftext|>")
    path = tiny.make(folder / "m", vocab_size=made.get_vocab_size(), eos_token_id=ends)
    made.save(str(path / "tokenizer.json"))
    return Engine.load(path)


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"regex": "(yes|no)"}, {"yes", "no"}),
        ({"json_schema": {"type": "boolean"}}, {"true", "false"}),
        ({"json_schema": {"enum": ["yes", "no"]}}, {'"yes"', '"no"'}),
        (
            {
                "json_schema": {
                    "type": "object",
                    "properties": {"a": {"const": "yes"}},
                    "required": ["a"],
                    "additionalProperties": False,
                }
            },
            {'{"a": "yes"}'},
        ),
        ({"json_schema": {"enum": ["cafe\u0301"]}}, {'"cafe\u0301"'}),
        ({"regex": "\u212b|\u1112\u1161\u11ab"}, {"\u212b", "\u1112\u1161\u11ab"}),  # an Ångström sign; Hangul jamo
        ({"regex": "x<\\|im_end\\|>"}, {"x<|im_end|>"}),
        ({"json_schema": {"const": "</s>"}}, {'"</s>"'}),
        ({"regex": " yes  no"}, {" yes  no"}),
        ({"regex": "\u2581"}, {"\u2581"}),
    ],
)
def test_any_tokenizer_writes_what_the_grammar_says(
    changing: Engine, options: dict[str, object], texts: set[str]
) -> None:
    for drafter in ("null", "auto"):
        answer = changing.generate("a", SamplingParams(max_tokens=60, **options), drafter=drafter)
        assert answer.text in texts
        assert answer.finish_reason == "stop"


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))
def test_any_text_can_be_dictated(changing: Engine, text: str) -> None:
    answer = changing.generate("a", SamplingParams(max_tokens=200, regex=re.escape(text)), drafter="null")
    assert (answer.text, answer.finish_reason) == (text, "stop")
