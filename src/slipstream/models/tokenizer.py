"""Text to token ids and back, exactly as the model's own tokenizer does it."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import tokenizers
from tokenizers import processors

from slipstream.errors import ModelError, OptionError
from slipstream.models.chat_template import ChatTemplate
from slipstream.models.encoders import Encoder
from slipstream.models.end_tokens import Source, end_tokens
from slipstream.types import Message

__all__ = ["Tokenizer", "add_around"]


class Tokenizer:
    """A vocabulary with its rules.

    vocab_size     number of token ids that the tokenizer knows, which may be below the model's padded number
    encoder        what does the work
    bos_token_id   what encode() puts first where the model's own configuration says so
    end_tokens     the tokens that end a completion, with who says so
    remarks        what the user should know of how the model's files were read, a sentence each
    """

    def __init__(
        self,
        encoder: Encoder,
        vocabulary: Mapping[str, int],
        *,
        bos_token_id: int | None,
        eos_token_ids: Sequence[int],
        chat_template: ChatTemplate | None,
        remarks: Sequence[str] = (),
    ) -> None:
        """vocabulary is all tokens, added ones included; eos_token_ids are those that the model's settings name."""
        self.bos_token_id = bos_token_id
        self.remarks = tuple(remarks)
        self.encoder = encoder
        self._chat_template = chat_template
        self._strings: list[str | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
        for string, token_id in vocabulary.items():
            self._strings[token_id] = string
        self._bytes: dict[int, bytes] = {}
        controls = {string: token_id for string, token_id in vocabulary.items() if token_id in self.control_token_ids}
        self.end_tokens: dict[int, Source] = end_tokens(eos_token_ids, controls, chat_template)

    @property
    def vocab_size(self) -> int:
        return len(self._strings)

    @property
    def control_token_ids(self) -> frozenset[int]:
        """The tokens that have a meaning instead of a text."""
        return self.encoder.control_token_ids

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a completion; those that the model's settings name come first."""
        return tuple(self.end_tokens)

    def encode(self, text: str) -> list[int]:
        """The token ids of text. Special tokens written in it are recognised. Raises OptionError for text that isn't
        valid Unicode."""
        return self._encode(text, around=True)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of a conversation up to where the model's answer begins, by the model's own chat template.
        Raises ModelError where there is no template or it refuses the messages."""
        if self._chat_template is None:
            raise ModelError("this model has no chat template: give it plain text instead of messages (--raw)")
        return self._encode(self._chat_template.render(messages), around=False)

    def spell(self, text: str) -> list[int]:
        """Token ids of exactly these characters, as they may stand in the middle of an output: without the space that
        some tokenizers put before a text, without normalisation, and control tokens' names as text. Bytes that no
        token has are left out."""
        tokens = self.encoder.spell(text)
        data = text.encode("utf-8")
        return tokens if b"".join(map(self.token_bytes, tokens)) == data else self._spell_greedily(data)

    def _spell_greedily(self, data: bytes) -> list[int]:
        """Always the longest token that comes next."""
        tokens, at = [], 0
        while at < len(data):
            ends = range(min(len(data), at + self._longest), at, -1)
            end = next((end for end in ends if data[at:end] in self._token_of), None)
            if end is None:
                at += 1
            else:
                tokens.append(self._token_of[data[at:end]])
                at = end
        return tokens

    @cached_property
    def _token_of(self) -> dict[bytes, int]:
        """Of each text that a token has, the first token that has it."""
        known: dict[bytes, int] = {}
        for token_id in range(self.vocab_size):
            known.setdefault(self.token_bytes(token_id), token_id)
        known.pop(b"", None)
        return known

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._token_of), default=0)

    def _encode(self, text: str, around: bool) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise OptionError(
                f"the prompt isn't valid Unicode: character {error.start} is {text[error.start]!r}, half of a "
                f"surrogate pair: remove it"
            ) from None
        return self.encoder.encode(text, around=around)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to the text; none for a control token or an id that stands for nothing."""
        known = self._bytes.get(token_id)
        if known is None:
            string = self.token_string(token_id)
            known = b"" if string is None or token_id in self.control_token_ids else self.encoder.to_bytes(string)
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
