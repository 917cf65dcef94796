"""How text becomes token ids, and what each token spells: the two kinds of tokenizer, behind one interface.

The `tokenizers` library does what a tokenizer.json says. The sentencepiece library does what a SentencePiece model
says: of pieces with equal scores it takes the one that comes first in the text, which no list of merges can express.
"""

import json
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import sentencepiece
import tokenizers

from slipstream.errors import ModelError

__all__ = ["SPACE", "Encoder", "HuggingFaceEncoder", "SentencePieceEncoder"]

sentencepiece.set_min_log_level(2)  # errors alone: what it finds odd in a file is no line for a user's terminal

SPACE = "▁"
"""What SentencePiece writes for a space."""


class Encoder(Protocol):
    """control_token_ids: the tokens that have a meaning instead of a text."""

    control_token_ids: frozenset[int]

    def encode(self, text: str, *, around: bool) -> list[int]:
        """The token ids of a text. Control tokens written in it are recognised. around: with what the model's
        configuration puts before and after every text."""
        ...

    def spell(self, text: str) -> list[int]:
        """Token ids for these very characters in the middle of an output: nothing is put before them, nothing is
        normalised, and what looks like a control token is text. A character that this way of encoding can't spell may
        come out as another, or not at all."""
        ...

    def to_bytes(self, string: str) -> bytes:
        """The bytes that a token adds to the text, from the vocabulary's own string for it."""
        ...


class HuggingFaceEncoder:
    """Encodes with the `tokenizers` library. See Encoder."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Raises ModelError where backend's decoder is of a kind whose tokens don't each stand for fixed bytes."""
        self.backend = backend
        self._speller: tokenizers.Tokenizer | None = None
        self._to_bytes = _bytes_of(backend)
        added = backend.get_added_tokens_decoder()
        self.control_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    def encode(self, text: str, *, around: bool) -> list[int]:
        return self.backend.encode(text, add_special_tokens=around).ids

    def spell(self, text: str) -> list[int]:
        if self._speller is None:
            self._speller = _speller(self.backend)
        return self._speller.encode(text, add_special_tokens=False).ids

    def to_bytes(self, string: str) -> bytes:
        return self._to_bytes(string)


class SentencePieceEncoder:
    """Encodes with the sentencepiece library. See Encoder."""

    def __init__(
        self,
        pieces: Sequence[tuple[str, float, int]],
        *,
        add_space_prefix: bool,
        remove_extra_whitespaces: bool = False,
        precompiled_charsmap: bytes = b"",
        before: Sequence[int] = (),
        after: Sequence[int] = (),
    ) -> None:
        """pieces: each token's string, score and type, one of SentencePiece's numbers, which are GGUF's too. before,
        after: the tokens that the configuration puts around every text. Raises ModelError for pieces that make no
        model."""
        self._pieces = pieces
        self._processor = _processor(pieces, add_space_prefix, remove_extra_whitespaces, precompiled_charsmap)
        self._speller: sentencepiece.SentencePieceProcessor | None = None
        self._before, self._after = list(before), list(after)
        self.control_token_ids = frozenset(
            token for token, (_, _, kind) in enumerate(pieces) if kind in (_UNKNOWN, _CONTROL)
        )
        self._apart = {
            string: token
            for token, (string, _, kind) in enumerate(pieces)
            if string and kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        }
        longest_first = map(re.escape, sorted(self._apart, key=len, reverse=True))
        self._at_added = re.compile(f"({'|'.join(longest_first)})") if self._apart else None

    def encode(self, text: str, *, around: bool) -> list[int]:
        """Control and user-defined tokens are found in the text before anything else is done with it. Each stretch
        between them is a text of its own, with its own space before it, as in Llama's original tokenizer."""
        tokens: list[int] = []
        for index, part in enumerate(self._at_added.split(text) if self._at_added else [text]):
            if index % 2:
                tokens.append(self._apart[part])
            elif part:
                tokens += self._processor.encode(part)
        return [*self._before, *tokens, *self._after] if around else tokens

    def spell(self, text: str) -> list[int]:
        if self._speller is None:
            self._speller = _processor(self._pieces, False, False, b"")
        return self._speller.encode(text)  # type: ignore[no-any-return]

    def to_bytes(self, string: str) -> bytes:
        return _sentence_piece(string)


# --- tokenizers -------------------------------------------------------------------------------------------------------


def _bytes_of(backend: tokenizers.Tokenizer) -> Callable[[str], bytes]:
    """How a token's string becomes its bytes, from the kind of decoder."""
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__()) if backend.decoder else {"type": "nothing"}
    kinds = [part["type"] for part in decoder.get("decoders", [decoder])]
    if kinds == ["ByteLevel"]:
        return _byte_level
    if kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and "Replace" in kinds:
        replaced = [(part["pattern"], part["content"]) for part in decoder["decoders"] if part["type"] == "Replace"]
        if replaced == [({"String": SPACE}, " ")]:
            return _sentence_piece
    raise ModelError(f"a tokenizer that decodes by {', '.join(kinds)} isn't supported; ByteLevel and ByteFallback are")


def _speller(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same tokenizer without what changes a text before it is split."""
    settings = json.loads(backend.to_str())
    normalizer = settings["normalizer"] or {}
    settings["normalizer"] = next(filter(_writes_spaces, normalizer.get("normalizers", [normalizer])), None)
    pre_tokenizer = settings["pre_tokenizer"] or {}
    for part in pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        part |= {name: value for name, value in _NO_PREFIX.items() if name in part}
    speller = tokenizers.Tokenizer.from_str(json.dumps(settings))
    speller.encode_special_tokens = True
    return speller


_NO_PREFIX = {"add_prefix_space": False, "prepend_scheme": "never"}
"""The settings by which pre-tokenizers put a space before a text, switched off."""


def _writes_spaces(normalizer: dict[str, Any]) -> bool:
    """Whether this only writes spaces as the vocabulary does."""
    return (normalizer.get("pattern"), normalizer.get("content")) == ({"String": " "}, SPACE)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for the 256 bytes: printable Latin-1 stands for itself, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level(string: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in string])
    except KeyError:  # an added token, written as itself
        return string.encode("utf-8")


# --- SentencePiece ----------------------------------------------------------------------------------------------------

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_BPE = 2


def _sentence_piece(string: str) -> bytes:
    if re.fullmatch("<0x[0-9A-Fa-f]{2}>", string):
        return bytes([int(string[3:5], 16)])
    return string.replace(SPACE, " ").encode("utf-8")


def _processor(
    pieces: Sequence[tuple[str, float, int]],
    add_space_prefix: bool,
    remove_extra_whitespaces: bool,
    precompiled_charsmap: bytes,
) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece BPE model of these pieces.

    Format: sentencepiece_model.proto of the library, whose field numbers these are.
    """
    has_bytes = any(kind == _BYTE for _, _, kind in pieces)
    model = bytearray()
    for string, score, kind in pieces:
        piece = _field(1, string.encode()) + _tag(2, 5) + struct.pack("<f", score) + _field(3, kind)
        model += _field(1, piece)
    model += _field(2, _field(3, _BPE) + _field(4, len(pieces)) + _field(35, int(has_bytes)))
    model += _field(
        3,
        _field(2, precompiled_charsmap)
        + _field(3, int(add_space_prefix))
        + _field(4, int(remove_extra_whitespaces))
        + _field(5, 1),
    )
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=bytes(model))
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"the tokenizer's tokens make no SentencePiece model: {str(error)!r:.200}") from None


def _field(number: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer: an integer, or bytes behind their length."""
    if isinstance(value, int):
        return _tag(number, 0) + _varint(value)
    return _tag(number, 2) + _varint(len(value)) + value


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
