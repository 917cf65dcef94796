"""SentencePiece tokenizers in GGUF files: rebuilt, they encode as the sentencepiece library does."""

import io
import itertools
from pathlib import Path
from typing import Any

import gguf_files
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.cli.prompts import BUILT_IN
from slipstream.errors import ModelError
from slipstream.models.encoders import SentencePieceEncoder
from slipstream.models.tokenizer import Tokenizer

PIECES = ["▁t", "he", "▁the", "in", "▁▁", "▁▁▁▁", "aa", "aaa", "▁a", "an", "▁an"]
LETTERS = [*"▁thenia", "é", "。"]


def sentence_piece(folder: Path, **metadata: Any) -> Tokenizer:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, *LETTERS, "<|user|>", "[X]"]
    kinds = [gguf_files.UNKNOWN, gguf_files.CONTROL, gguf_files.CONTROL, *[gguf_files.BYTE] * 256]
    kinds += [gguf_files.NORMAL] * (len(PIECES) + len(LETTERS)) + [gguf_files.CONTROL, gguf_files.USER_DEFINED]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(PIECES) + len(LETTERS))] + [0.0, 0.0]
    return gguf_files.tokenizer(
        folder / "spm.gguf", gguf_files.sentence_piece_metadata(tokens, scores, kinds, **metadata)
    )


def merged_by_hand(text: str) -> list[str]:
    """SentencePiece's rule: merge the pair that makes the best-scored piece, leftmost first, until none makes one."""
    symbols = list(("▁" + text).replace(" ", "▁"))
    while True:
        found = [
            (PIECES.index(left + right), at)
            for at, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in PIECES
        ]
        if not found:
            return symbols
        at = min(found)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet=" thenia", min_size=1, max_size=24))
def test_sentence_piece_merges_by_score(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    tokenizer = shared_sentence_piece(tmp_path_factory)
    strings = [tokenizer.token_string(token_id) for token_id in tokenizer.encode(text)]
    assert strings == ["<s>", *merged_by_hand(text)]
    assert tokenizer.decode(tokenizer.encode(text)) == " " + text


_SHARED: list[Tokenizer] = []


def shared_sentence_piece(factory: pytest.TempPathFactory) -> Tokenizer:
    if not _SHARED:
        _SHARED.append(sentence_piece(factory.mktemp("spm")))
    return _SHARED[0]


def test_sentence_piece_falls_back_to_bytes(tmp_path: Path) -> None:
    tokenizer = sentence_piece(tmp_path)
    ids = tokenizer.encode("é😀\n")
    strings = [tokenizer.token_string(token_id) for token_id in ids]
    assert strings == ["<s>", "▁", "é", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0x0A>"]
    assert tokenizer.decode(ids) == " é😀\n"
    assert tokenizer.token_bytes(ids[3]) == b"\xf0"
    assert tokenizer.token_bytes(ids[0]) == b""


def test_sentence_piece_settings(tmp_path: Path) -> None:
    tokenizer = sentence_piece(tmp_path, **{"tokenizer.ggml.add_space_prefix": False})
    assert tokenizer.decode(tokenizer.encode("the end")) == "the end"
    tokenizer = sentence_piece(
        tmp_path, **{"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    )
    assert tokenizer.encode("the")[-1] == 2
    assert 1 not in tokenizer.encode("the")
    # Every stretch between special tokens begins with a space, as in the original Llama tokenizer.
    strings = [tokenizer.token_string(token_id) for token_id in tokenizer.encode("a<|user|>a[X]a")]
    assert strings == ["▁a", "<|user|>", "▁a", "[X]", "▁a", "</s>"]
    tokenizer = sentence_piece(tmp_path, **{"tokenizer.ggml.remove_extra_whitespaces": True})
    assert tokenizer.decode(tokenizer.encode("  the   end ")) == " the end"


# --- against the sentencepiece library itself -------------------------------------------------------------------------

NASTY = [
    *(
        "",
        " ",
        "  a  ",
        "\t\tif x:\n\t\t\treturn  1\n",
        "a\u2581b",
        "\0",
        "e\u0301 \ufb01 \u212b",
        "日本 ไทย 👨‍👩‍👧",
    ),
    *(f"{' ' * count}x{' ' * count}\n{' ' * (count + 3)}y" for count in range(1, 50)),
]
ALPHABET = st.one_of(st.characters(), st.sampled_from([*" enatir\n\t\u2581é", " " * 4, " " * 16, "def ", "return "]))


@pytest.fixture(scope="module")
def trained() -> sentencepiece.SentencePieceProcessor:
    """A model of the library's own: pieces of white space of any length, as Mistral's has them."""
    model = io.BytesIO()
    lines = [line for prompt in BUILT_IN for line in prompt.text.splitlines() if line.strip()]
    lines += [" " * (4 * indent) + line.strip() for indent in range(1, 13) for line in lines]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def in_gguf(original: sentencepiece.SentencePieceProcessor, path: Path) -> Tokenizer:
    """What comes back out of a GGUF file that a model was written to."""
    ids = range(original.get_piece_size())
    tokens = [original.id_to_piece(token) for token in ids]
    scores = [original.get_score(token) for token in ids]
    kinds = [
        gguf_files.UNKNOWN
        if original.is_unknown(token)
        else gguf_files.CONTROL
        if original.is_control(token)
        else gguf_files.BYTE
        if original.is_byte(token)
        else gguf_files.NORMAL
        for token in ids
    ]
    return gguf_files.tokenizer(path, gguf_files.sentence_piece_metadata(tokens, scores, kinds))


@pytest.fixture(scope="module")
def rebuilt(trained: sentencepiece.SentencePieceProcessor, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return in_gguf(trained, tmp_path_factory.mktemp("trained") / "spm.gguf")


def test_nasty_texts_encode_as_in_the_library(
    trained: sentencepiece.SentencePieceProcessor, rebuilt: Tokenizer
) -> None:
    assert sum(set(rebuilt.token_string(token) or "") == {"▁"} for token in range(rebuilt.vocab_size)) > 5
    for text in NASTY:
        assert rebuilt.encode(text) == [1, *trained.encode(text)]


@settings(max_examples=300, deadline=None)
@given(text=st.lists(ALPHABET, max_size=40).map("".join))
def test_any_text_encodes_as_in_the_library(
    trained: sentencepiece.SentencePieceProcessor, rebuilt: Tokenizer, text: str
) -> None:
    if not any("\ud800" <= character <= "\udfff" for character in text) and not any(
        name in text for name in ("<unk>", "<s>", "</s>")
    ):
        assert rebuilt.encode(text) == [1, *trained.encode(text)]


def test_equal_scores_go_from_left_to_right(tmp_path: Path) -> None:
    """Mistral's pieces of spaces, which all have one score: 17 spaces are the piece of 16, and one more."""
    runs = [*range(1, 15), 16]
    tokens = ["<unk>", "<s>", "</s>", "x", "▁x", *("▁" * length for length in runs)]
    scores = [0.0, 0.0, 0.0, -2.0, -1.0, *[-1e9] * len(runs)]
    kinds = [gguf_files.UNKNOWN, gguf_files.CONTROL, gguf_files.CONTROL, *[gguf_files.NORMAL] * (2 + len(runs))]
    tokenizer = gguf_files.tokenizer(tmp_path / "ties.gguf", gguf_files.sentence_piece_metadata(tokens, scores, kinds))

    def pieces(spaces: int) -> list[int]:
        begin, x, *rest = tokenizer.encode("x" + " " * spaces)
        assert (begin, x) == (1, 4)
        return [len(tokens[token]) for token in rest]

    assert [pieces(spaces) for spaces in (1, 2, 13, 14, 16)] == [[1], [2], [13], [14], [16]]
    assert pieces(17) == [16, 1]
    assert pieces(35) == [16, 16, 3]


def test_scores_that_are_all_equal_are_refused(tmp_path: Path) -> None:
    """A converter that found no scores writes -1000 for each: the order of merges is lost."""
    tokens = ["<unk>", "<s>", "</s>", *"▁abc", "ab", "bc"]
    kinds = [gguf_files.UNKNOWN, gguf_files.CONTROL, gguf_files.CONTROL, *[gguf_files.NORMAL] * 6]
    equal = gguf_files.sentence_piece_metadata(tokens, [-1000.0] * 9, kinds)
    with pytest.raises(ModelError, match="all tokens of the tokenizer have the score -1000"):
        gguf_files.tokenizer(tmp_path / "equal.gguf", equal)
    ranked = gguf_files.sentence_piece_metadata(tokens, [-1000.0] * 7 + [-1.0, -2.0], kinds)
    assert gguf_files.tokenizer(tmp_path / "ranked.gguf", ranked).encode("abc") == [1, 3, 7, 6]


def test_tokens_that_make_no_model_are_refused(tmp_path: Path) -> None:
    kinds = [gguf_files.CONTROL, *[gguf_files.NORMAL] * 2]  # no unknown token
    with pytest.raises(ModelError, match="make no SentencePiece model"):
        gguf_files.tokenizer(
            tmp_path / "none.gguf", gguf_files.sentence_piece_metadata(["<s>", "a", "b"], [0.0, -1.0, -2.0], kinds)
        )


@pytest.mark.parametrize("charsmap", ["text", [1.5], [True]])
def test_a_damaged_table_of_normalisation_is_refused(tmp_path: Path, charsmap: object) -> None:
    kinds = [gguf_files.UNKNOWN, gguf_files.CONTROL, gguf_files.CONTROL, gguf_files.NORMAL]
    values = gguf_files.sentence_piece_metadata(["<unk>", "<s>", "</s>", "a"], [0.0, 0.0, 0.0, -1.0], kinds)
    with pytest.raises(ModelError, match="precompiled_charsmap"):
        gguf_files.tokenizer(tmp_path / "m.gguf", values | {"tokenizer.ggml.precompiled_charsmap": charsmap})


@pytest.mark.parametrize("text", ["the end", "a", " a", "a  b\n", "\u2581", "</s>", "cafe\u0301", "\u212b", "한", "😀"])
def test_spelling_is_exact(rebuilt: Tokenizer, text: str) -> None:
    assert rebuilt.decode(rebuilt.spell(text)) == text
    assert not rebuilt.control_token_ids & set(rebuilt.spell(text))


PIECE = st.tuples(
    st.sampled_from(["", "a", "b", "ab", "▁", "▁a", "é", "\0", "<s>", "<0x41>", "x" * 3000]),
    st.floats(width=32),
    st.integers(0, 9),
)


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(PIECE, max_size=8), charsmap=st.binary(max_size=30), flag=st.booleans())
def test_no_file_brings_the_library_down(pieces: list[tuple[str, float, int]], charsmap: bytes, flag: bool) -> None:
    pieces = [("<unk>", 0.0, gguf_files.UNKNOWN), *pieces]
    for normalised in (b"", charsmap):
        try:
            encoder = SentencePieceEncoder(
                pieces, add_space_prefix=flag, remove_extra_whitespaces=flag, precompiled_charsmap=normalised
            )
        except ModelError:
            continue
        for text in ("", "a b  é\0", "<s>ab▁"):
            assert set(encoder.encode(text, around=True)) <= set(range(len(pieces)))
