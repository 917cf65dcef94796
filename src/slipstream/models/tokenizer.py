"""Text to token ids and back, exactly as the model's own tokenizer does it."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import processors

from slipstream.errors import ModelError, OptionError
from slipstream.models.chat_template import ChatTemplate
from slipstream.types import Message

__all__ = ["Tokenizer", "add_around"]

_SPACE = "▁"  # what SentencePiece writes for a space


class Tokenizer:
    """A vocabulary with its rules.

    vocab_size     number of token ids that the tokenizer knows, which may be below the model's padded number
    bos_token_id   what encode() puts first where the model's own configuration says so
    eos_token_ids  the tokens that end a completion
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        vocabulary: Mapping[str, int],
        *,
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        chat_template: ChatTemplate | None,
    ) -> None:
        """backend does the work; vocabulary is all its tokens, added ones included. Raises ModelError where backend's
        decoder is of a kind whose tokens don't each stand for fixed bytes."""
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self._backend = backend
        self._chat_template = chat_template
        self._to_bytes = _bytes_of(backend)
        self._strings: list[str | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
        for string, token_id in vocabulary.items():
            self._strings[token_id] = string
        added = backend.get_added_tokens_decoder()
        self._control = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bytes: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        return len(self._strings)

    @property
    def control_token_ids(self) -> frozenset[int]:
        """The tokens that have a meaning instead of a text."""
        return self._control

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    def encode(self, text: str) -> list[int]:
        """The token ids of text. Special tokens written in it are recognised. Raises OptionError for text that isn't
        valid Unicode."""
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of a conversation up to where the model's answer begins, by the model's own chat template.
        Raises ModelError where there is no template or it refuses the messages."""
        if self._chat_template is None:
            raise ModelError("this model has no chat template: give it plain text instead of messages (--raw)")
        return self._encode(self._chat_template.render(messages), add_special_tokens=False)

    def encode_part(self, text: str) -> list[int]:
        """The token ids of a part of a text: nothing is put before or after it."""
        return self._encode(text, add_special_tokens=False)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise OptionError(
                f"the prompt isn't valid Unicode: character {error.start} is {text[error.start]!r}, half of a "
                f"surrogate pair: remove it"
            ) from None
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to the text; none for a control token or an id that stands for nothing."""
        known = self._bytes.get(token_id)
        if known is None:
            string = self.token_string(token_id)
            known = b"" if string is None or token_id in self._control else self._to_bytes(string)
            self._bytes[token_id] = known
        return known

    def token_string(self, token_id: int) -> str | None:
        """The vocabulary's own string for the token; None for an id that stands for nothing."""
        return self._strings[token_id] if 0 <= token_id < len(self._strings) else None

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of the tokens. Bytes that don't make a character become U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def first_difference(self, other: "Tokenizer") -> tuple[int, str | None, str | None] | None:
        """The lowest token id that stands for different strings here and there, with both strings; None if all ids
        that either knows are the same."""
        if self._strings == other._strings:
            return None
        for token_id in range(max(len(self._strings), len(other._strings))):
            here, there = self.token_string(token_id), other.token_string(token_id)
            if here != there:
                return token_id, here, there
        return None


def add_around(backend: tokenizers.Tokenizer, bos_token_id: int | None, eos_token_id: int | None) -> None:
    """Makes backend put these tokens, where not None, before and after every text that it encodes."""
    pieces = [("bos", bos_token_id), ("$A", None), ("eos", eos_token_id)]
    backend.post_processor = processors.TemplateProcessing(
        single=[name for name, token_id in pieces if name == "$A" or token_id is not None],
        special_tokens=[(name, token_id) for name, token_id in pieces if token_id is not None],
    )


def _bytes_of(backend: tokenizers.Tokenizer) -> Callable[[str], bytes]:
    """How a token's string becomes its bytes, from the kind of decoder."""
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__()) if backend.decoder else {"type": "nothing"}
    kinds = [part["type"] for part in decoder.get("decoders", [decoder])]
    if kinds == ["ByteLevel"]:
        return _byte_level
    if kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and "Replace" in kinds:
        replaced = [(part["pattern"], part["content"]) for part in decoder["decoders"] if part["type"] == "Replace"]
        if replaced == [({"String": _SPACE}, " ")]:
            return _sentence_piece
    raise ModelError(f"a tokenizer that decodes by {', '.join(kinds)} isn't supported; ByteLevel and ByteFallback are")


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


def _sentence_piece(string: str) -> bytes:
    if re.fullmatch("<0x[0-9A-Fa-f]{2}>", string):
        return bytes([int(string[3:5], 16)])
    return string.replace(_SPACE, " ").encode("utf-8")
