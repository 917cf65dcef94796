"""Tokenizers: the rebuilt ones encode exactly as the original, and tokens add up to the text."""

import json
from pathlib import Path
from typing import Any

import gguf_files
import pytest
import tiny
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, trainers

from slipstream.errors import ModelError, OptionError
from slipstream.models.checkpoint import open_checkpoint
from slipstream.models.tokenizer import Tokenizer

NASTY = [
    "",
    " ",
    "\t\tif x:\n\t\t\treturn  1\n",
    "    def f(a,  b):\r\n        return a+b   \n\n\n",
    "a  b   c    d" + " " * 50,
    "\n \n\n \t \r\n\r x\r",
    "👨‍👩‍👧‍👦 🇩🇪 🤷🏽‍♀️ ✅",
    "你好，世界！日本語のテキスト 한국어 ไทย हिन्दी العربية",
    "e\u0301a\u0300\u0302o\u0308 \ufb01 \u2167 Å \u1e9b\u0323",
    "1234567890 3.14 1,000 0xFF ٣٤ १२ ²³ ①",
    "<|im_start|>user\n<|im_end|><|endoftext|><|im_start",
    "I've WE'LL don'T 'twas it's 'S'M",
    "snake_case camelCase CONST /usr/bin:$PATH && \"x\" {'a': [1]}",
    "\u00a0\u2003\u200b\ufeff\u0085\u2028\x01\x7f",
    "=" * 40 + "-" * 17,
]
TEXTS = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(
            [*"abZ09\t\n\r'._-{é你😀\u0301\u200d", "  ", "    ", "'s", "'LL", "the ", " in", *tiny.SPECIAL]
        ),
        max_size=30,
    ).map("".join),
)

# The published tokenizer.json files' own words for how they split text, by the name that GGUF has for them.
SPLIT = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}%s"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)
TEKKEN = (
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)


def by_pattern(pattern: str) -> list[dict[str, Any]]:
    return [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    ]


GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
ORIGINALS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [GPT2],
    "smollm": [{"type": "Digits", "individual_digits": True}, GPT2],
    "qwen2": by_pattern(SPLIT % ""),
    "llama-bpe": by_pattern(SPLIT % "{1,3}"),
    "tekken": by_pattern(TEKKEN),
}


def trained(pre: str) -> tokenizers.Tokenizer:
    """A tokenizer.json of this kind, trained on the nasty strings and this file."""
    blank = tokenizers.Tokenizer(models.BPE())
    settings = json.loads(blank.to_str()) | {
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": ORIGINALS[pre]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    }
    made = tokenizers.Tokenizer.from_str(json.dumps(settings))
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=tiny.SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([*NASTY * 3, *Path(__file__).read_text().splitlines()], trainer)
    if pre in ("llama-bpe", "tekken"):  # a whole word that no merge leads to
        settings = json.loads(made.to_str())
        settings["model"]["ignore_merges"] = True
        settings["model"]["vocab"]["zqzqzq"] = len(settings["model"]["vocab"])
        made = tokenizers.Tokenizer.from_str(json.dumps(settings))
    made.add_tokens([tokenizers.AddedToken("<tool_call>", special=False, normalized=False)])
    return made


def rebuilt(original: tokenizers.Tokenizer, pre: str, folder: Path) -> Tokenizer:
    """What comes back out of a GGUF file that original was written to."""
    vocabulary = original.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    padded = [*tokens, *(f"[PAD{token_id}]" for token_id in range(len(tokens), len(tokens) + 7))]
    kinds = {"<tool_call>": gguf_files.USER_DEFINED} | dict.fromkeys(tiny.SPECIAL, gguf_files.CONTROL)
    merges = json.loads(original.to_str())["model"]["merges"]
    settings = tiny.config("llama", num_hidden_layers=1, vocab_size=len(padded))
    tensors = {gguf_files.gguf_name(name): tensor for name, tensor in tiny.weights(settings, 0).items()}
    metadata = gguf_files.model_metadata(settings) | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": padded,
        "tokenizer.ggml.token_type": [kinds.get(token, gguf_files.NORMAL) for token in tokens]
        + [gguf_files.UNUSED] * 7,
        "tokenizer.ggml.merges": [" ".join(pair) if isinstance(pair, list) else pair for pair in merges],
        "tokenizer.ggml.add_bos_token": False,
    }
    return open_checkpoint(gguf_files.write(folder / f"{pre}.gguf", metadata, tensors)).tokenizer()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[tokenizers.Tokenizer, Tokenizer]]:
    """Original and rebuilt tokenizer of each kind."""
    folder = tmp_path_factory.mktemp("pairs")
    return {pre: (original := trained(pre), rebuilt(original, pre, folder)) for pre in ORIGINALS}


# --- byte level -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre", ORIGINALS)
def test_rebuilt_tokenizers_encode_nasty_text_like_the_original(
    pre: str, pairs: dict[str, tuple[tokenizers.Tokenizer, Tokenizer]]
) -> None:
    original, tokenizer = pairs[pre]
    for text in [*NASTY, "a zqzqzq<tool_call>zqzqzq"]:
        assert tokenizer.encode(text) == original.encode(text).ids
    assert tokenizer.vocab_size == original.get_vocab_size()


@settings(max_examples=300, deadline=None)
@given(pre=st.sampled_from(list(ORIGINALS)), text=TEXTS)
def test_rebuilt_tokenizers_encode_any_text_like_the_original(
    pre: str, text: str, pairs: dict[str, tuple[tokenizers.Tokenizer, Tokenizer]]
) -> None:
    original, tokenizer = pairs[pre]
    ids = tokenizer.encode(text)
    assert ids == original.encode(text).ids
    if pre != "qwen2" and not any(token in text for token in tiny.SPECIAL):
        assert tokenizer.decode(ids) == text


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_decodes_any_tokens_like_the_library(
    data: st.DataObject, pairs: dict[str, tuple[tokenizers.Tokenizer, Tokenizer]]
) -> None:
    original, tokenizer = pairs["qwen2"]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5), max_size=30))
    assert tokenizer.decode(ids) == original.decode(ids, skip_special_tokens=True)


def test_the_kinds_of_splitting_differ(pairs: dict[str, tuple[tokenizers.Tokenizer, Tokenizer]]) -> None:
    """Else the tests above would pass with any of them."""
    text = "a1234 WE'LL /\n\n x\u0301 camelCase e\u0301"
    splits = [[piece for piece, _ in original.pre_tokenizer.pre_tokenize_str(text)] for original, _ in pairs.values()]
    assert len({tuple(split) for split in splits}) == len(ORIGINALS)


def test_token_bytes(pairs: dict[str, tuple[tokenizers.Tokenizer, Tokenizer]]) -> None:
    original, tokenizer = pairs["smollm"]
    assert [tokenizer.token_bytes(token_id) for token_id in range(3)] == [b"", b"", b""]  # control tokens
    assert tokenizer.token_bytes(original.token_to_id("<tool_call>")) == b"<tool_call>"
    assert tokenizer.token_bytes(original.token_to_id("Ċ")) == b"\n"
    assert sorted(tokenizer.token_bytes(token_id) for token_id in range(3, 259)) == [bytes([b]) for b in range(256)]
    for outside in (tokenizer.vocab_size, 10**9, -1):
        assert tokenizer.token_bytes(outside) == b""
        assert tokenizer.token_string(outside) is None


def test_padding_is_no_part_of_the_vocabulary(pairs: dict[str, tuple[tokenizers.Tokenizer, Tokenizer]]) -> None:
    _, tokenizer = pairs["gpt-2"]
    assert tokenizer.token_string(tokenizer.vocab_size - 1) == "<tool_call>"
    text = f"[PAD{tokenizer.vocab_size}]"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_text_that_is_not_unicode(pairs: dict[str, tuple[tokenizers.Tokenizer, Tokenizer]]) -> None:
    with pytest.raises(OptionError, match="character 3"):
        pairs["gpt-2"][1].encode("abc\ud800")


def test_first_difference(pairs: dict[str, tuple[tokenizers.Tokenizer, Tokenizer]], tmp_path: Path) -> None:
    original, tokenizer = pairs["gpt-2"]
    assert tokenizer.first_difference(rebuilt(original, "gpt-2", tmp_path)) is None
    changed = json.loads(original.to_str())
    vocabulary = changed["model"]["vocab"]
    first, second = (next(token for token, token_id in vocabulary.items() if token_id == number) for number in (50, 60))
    vocabulary[first], vocabulary[second] = 60, 50
    other = rebuilt(tokenizers.Tokenizer.from_str(json.dumps(changed)), "gpt-2", tmp_path)
    assert tokenizer.first_difference(other) == (50, first, second)
    original.add_tokens(["<more>"])
    longer = rebuilt(original, "gpt-2", tmp_path)
    assert tokenizer.first_difference(longer) == (tokenizer.vocab_size, None, "<more>")
    assert longer.first_difference(tokenizer) == (tokenizer.vocab_size, "<more>", None)


def test_smollm3_files_bear_another_models_name(tmp_path: Path) -> None:
    metadata = gguf_files.byte_level_metadata("smaug-bpe")
    for architecture in ("smollm3", "llama"):
        settings = tiny.config(architecture, num_hidden_layers=1)
        tensors = {gguf_files.gguf_name(name): tensor for name, tensor in tiny.weights(settings, 0).items()}
        path = gguf_files.write(tmp_path / "m.gguf", gguf_files.model_metadata(settings) | metadata, tensors)
        if architecture == "smollm3":
            assert open_checkpoint(path).tokenizer().encode("the") == [tiny.tokenizer().token_to_id("the")]
        else:
            with pytest.raises(ModelError, match="smaug-bpe"):
                open_checkpoint(path).tokenizer()


# --- the default model ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2_path: Path) -> Tokenizer:
    return open_checkpoint(smollm2_path).tokenizer()


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (
            "def f(x):\n\treturn  x  # 12345\n",
            [1604, 275, 24, 104, 727, 198, 197, 5406, 216, 1792, 216, 907, 216, 33, 34, 35, 36, 37, 198],
        ),
        ("    indented\n\n\n\tmixed \t ", [333, 641, 6574, 16506, 197, 35781, 216, 197, 216]),
        (
            "😀👨\u200d👩\u200d👧 café café",
            [
                10813,
                242,
                218,
                10813,
                235,
                118,
                321,
                231,
                10813,
                235,
                119,
                321,
                231,
                10813,
                235,
                117,
                37366,
                1020,
                4565,
                151,
                219,
            ],
        ),
        (
            "你好，世界！ 日本語 한국어",
            [
                18645,
                250,
                48392,
                138,
                12831,
                7906,
                240,
                178,
                239,
                230,
                8083,
                219,
                17097,
                241,
                115,
                40993,
                179,
                120,
                248,
                216,
                33085,
                246,
                181,
                130,
                251,
                183,
                240,
                129,
            ],
        ),
        ("3.14 1000000 0xFF ²", [35, 30, 33, 36, 216, 33, 32, 32, 32, 32, 32, 32, 216, 32, 104, 10209, 216, 19133]),
        ("<|im_start|>user\nIt's WE'LL<|im_end|>", [1, 4093, 198, 1589, 506, 26587, 23, 16421, 2]),
        (" \xa0\u2003x\r\n\r\n", [3351, 250, 321, 221, 104, 18682]),
    ],
)
def test_smollm2_encodes_as_another_engine_does(smollm2_tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
    assert smollm2_tokenizer.encode(text) == ids


@pytest.fixture(scope="module")
def smollm2_single_bytes(smollm2_tokenizer: Tokenizer) -> set[bytes]:
    """Its vocabulary has no token for some bytes, most of them never found in text: the original drops them too."""
    tokens = map(smollm2_tokenizer.token_bytes, range(smollm2_tokenizer.vocab_size))
    return {token for token in tokens if len(token) == 1}


@given(text=TEXTS)
@settings(max_examples=200, deadline=None)
def test_smollm2_round_trip(smollm2_tokenizer: Tokenizer, smollm2_single_bytes: set[bytes], text: str) -> None:
    for special in tiny.SPECIAL:
        text = text.replace(special, "")
    kept = bytes(byte for byte in text.encode() if bytes([byte]) in smollm2_single_bytes)
    assert smollm2_tokenizer.decode(smollm2_tokenizer.encode(text)) == kept.decode("utf-8", "replace")


def test_smollm2_chat(smollm2_tokenizer: Tokenizer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|>"}]
    ids = smollm2_tokenizer.encode_chat(messages)
    assert ids == smollm2_tokenizer.encode(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert smollm2_tokenizer.bos_token_id == 1
    assert smollm2_tokenizer.end_tokens == {2: "settings", 0: "name"}  # <|im_end|>, <|endoftext|>


# --- tokenizer.json ---------------------------------------------------------------------------------------------------


def directory(folder: Path, original: tokenizers.Tokenizer, **config: Any) -> Tokenizer:
    path = tiny.make(folder / "model", num_hidden_layers=1, vocab_size=original.get_vocab_size(), bos_token_id=1)
    original.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return open_checkpoint(path).tokenizer()


def test_tokenizer_json_is_used_as_it_is(
    pairs: dict[str, tuple[tokenizers.Tokenizer, Tokenizer]], tmp_path: Path
) -> None:
    original, from_gguf = pairs["qwen2"]
    tokenizer = directory(tmp_path, original)
    for text in NASTY:
        assert tokenizer.encode(text) == original.encode(text).ids
    assert tokenizer.first_difference(from_gguf) is None


def test_padding_and_truncation_of_tokenizer_json_are_switched_off(tmp_path: Path) -> None:
    original = trained("gpt-2")
    plain = original.encode("the end").ids
    original.enable_truncation(1)
    original.enable_padding(length=64)
    assert directory(tmp_path, original).encode("the end") == plain


def test_bos_where_the_configuration_says_so(tmp_path: Path) -> None:
    original = trained("gpt-2")
    plain = original.encode("the").ids
    assert directory(tmp_path, original).encode("the") == plain
    bos = {"bos_token": {"content": tiny.SPECIAL[1]}}
    assert directory(tmp_path, original, add_bos_token=True, **bos).encode("the") == [1, *plain]
    assert directory(tmp_path, original, add_bos_token=False, **bos).encode("the") == plain
    original.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{tiny.SPECIAL[1]} $A", special_tokens=[(tiny.SPECIAL[1], 1)]
    )
    assert directory(tmp_path, original).encode("the") == [1, *plain]
    assert directory(tmp_path, original, add_bos_token=True, **bos).encode("the") == [1, *plain]
    assert directory(tmp_path, original, add_bos_token=False, **bos).encode("the") == plain
    chat = directory(tmp_path, original, chat_template="{{ bos_token }}{{ messages[0].content }}", **bos)
    assert chat.encode_chat([{"role": "user", "content": "the"}]) == [1, *plain]


def test_chat_templates_come_from_either_file(tmp_path: Path) -> None:
    original = trained("gpt-2")
    message = [{"role": "user", "content": "x"}]

    def written(**config: Any) -> str:
        tokenizer = directory(tmp_path, original, **config)
        return tokenizer.decode(tokenizer.encode_chat(message))

    assert written(chat_template="one {{ messages[0].content }}") == "one x"
    several = [
        {"name": "tool_use", "template": "two"},
        {"name": "default", "template": "three {{ messages[0].content }}"},
    ]
    assert written(chat_template=several) == "three x"
    with pytest.raises(ModelError, match="no chat template"):
        written()
    with pytest.raises(ModelError, match="no chat template"):
        written(chat_template=several[:1])
    with pytest.raises(ModelError, match="no chat template"):
        written(chat_template=[{"name": ["default"], "template": "x"}, 3])
    with pytest.raises(ModelError, match="chat_template"):
        written(chat_template=3)
    tiny.make(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("four {{ messages[0].content }}")
    assert written(chat_template="one") == "four x"


def test_sentence_piece_decoders_of_tokenizer_json(tmp_path: Path) -> None:
    original = trained("gpt-2")
    original.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    original.add_tokens(["▁word", "<0x41>"])
    tokenizer = directory(tmp_path, original)
    last = tokenizer.vocab_size
    assert [tokenizer.token_bytes(token_id) for token_id in (last - 2, last - 1)] == [b" word", b"A"]
    for decoder in (
        tokenizers.decoders.Metaspace(),
        tokenizers.decoders.Sequence([tokenizers.decoders.Replace("_", " "), tokenizers.decoders.Fuse()]),
        None,
    ):
        original.decoder = decoder
        with pytest.raises(ModelError, match="decodes by"):
            directory(tmp_path, original)
