"""A text in two vocabularies: what a draft model needs that has another tokenizer than the target.

The draft model reads the text so far in its own tokens, and what it drafts is tokenised as the target would write it
there. Only the ends are tokenised again: the draft model's last tokens together with what was committed since, and the
drafted text together with the target's last tokens. All of it is a guess at how the target goes on, and verified.

Source: Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
Vocabularies" (2025), whose string-level exact match (SLEM) this is. Their other way, to draft shared tokens alone, is
simpler and guesses less: what a vocabulary has for code, such as "):" with its line end, is often not shared.
"""

import codecs
import string
from collections.abc import Sequence

from slipstream.errors import ModelError
from slipstream.models.tokenizer import Tokenizer

__all__ = ["Transcript", "Translator"]

SEAM = 8
"""How many of the draft model's last tokens are tokenised again with what follows: more than a word usually has. Where
tokens meet and no merge crosses, either side is what it would be alone, so the text before needs no second look."""

CONTEXT = 4
"""How many of the target's last tokens drafted text is tokenised with: as many as a character can have bytes."""


class Translator:
    """Knows both tokenizers. Raises ModelError where one of them can't spell ordinary text."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self.target = target
        self.draft = draft
        _check_spelling(target, "the model's")
        _check_spelling(draft, "the draft model's")
        self._controls = {draft.token_string(token): token for token in draft.control_token_ids}

    def control_to_draft(self, token: int) -> list[int]:
        """One of the target's control tokens as the draft model reads it: its own of the same name, or the name as
        text."""
        name = self.target.token_string(token) or ""
        return [self._controls[name]] if name in self._controls else self.draft.spell(name)

    def to_target(self, before: Sequence[int], drafted: bytes) -> list[int] | None:
        """Drafted text as the target would write it behind the tokens before it, without an incomplete character at its
        end. None where the bytes are no text."""
        context = self._context(before)
        tokens = self._encoded(b"".join(map(self.target.token_bytes, context)) + drafted)
        if tokens is not None and tokens[: len(context)] == context:
            return tokens[len(context) :]
        return self._encoded(drafted)  # together they would be written otherwise than what is committed

    def _encoded(self, text: bytes) -> list[int] | None:
        try:
            return self.target.spell(codecs.utf_8_decode(text, "strict", False)[0])  # as far as characters are complete
        except UnicodeDecodeError:
            return None

    def _context(self, before: Sequence[int]) -> list[int]:
        """The last tokens behind any control token, from one on that begins with a whole character."""
        context = list(before[-CONTEXT:])
        texts = [self.target.token_bytes(token) for token in context]
        start = max((at + 1 for at, text in enumerate(texts) if not text), default=0)
        while start < len(context) and _continues(texts[start]):
            start += 1
        return context[start:]


class Transcript:
    """A text that comes in the target's tokens and only grows, in the draft model's tokens.

    tokens  they spell whole characters; U+FFFD stands for what is no text
    """

    def __init__(self, translator: Translator) -> None:
        self.tokens = _opening(translator.draft)
        self._translator = translator
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._taken = 0  # of the target's tokens
        self._settled = len(self.tokens)  # these tokens are never tokenised again

    @property
    def held(self) -> bytes:
        """The beginning of a character that the text ends in the middle of: it isn't in the tokens."""
        return self._decoder.getstate()[0]

    def extend(self, text: Sequence[int]) -> int:
        """Takes in what is new in the text, given whole. Returns how many tokens are sure to be what they were."""
        target = self._translator.target
        unchanged = len(self.tokens)
        if not self._taken and [*text[:1]] == _opening(target):
            self._taken = 1  # the draft model has an opening of its own, or needs none
        part: list[bytes] = []
        for token in text[self._taken :]:
            if token in target.control_token_ids:
                unchanged = min(unchanged, self._append(b"".join(part), final=True))
                self.tokens += self._translator.control_to_draft(token)
                self._settled = len(self.tokens)
                part = []
            else:
                part.append(target.token_bytes(token))
        self._taken = len(text)
        return min(unchanged, self._append(b"".join(part)))

    def _append(self, text: bytes, final: bool = False) -> int:
        """Returns how many tokens were left as they were. final: no character goes on behind this."""
        characters = self._decoder.decode(text, final)
        if final:
            self._decoder.reset()
        if not characters:
            return len(self.tokens)
        draft = self._translator.draft
        seam = max(self._settled, len(self.tokens) - SEAM)
        while seam > self._settled and _continues(draft.token_bytes(self.tokens[seam])):
            seam -= 1
        self.tokens[seam:] = draft.spell(draft.decode(self.tokens[seam:]) + characters)
        return seam


def _check_spelling(tokenizer: Tokenizer, whose: str) -> None:
    for character in string.ascii_letters + string.digits + string.punctuation + " \n":
        if tokenizer.decode(tokenizer.spell(character)) != character:
            raise ModelError(
                f"{whose} tokenizer can't spell {character!r}, so texts can't be translated between it and the other "
                f"one: use a draft model of the same family"
            )


def _opening(tokenizer: Tokenizer) -> list[int]:
    """What the tokenizer puts before every text."""
    return [token for token in tokenizer.encode("")[:1] if token == tokenizer.bos_token_id]


def _continues(text: bytes) -> bool:
    """Whether this begins inside a character."""
    return bool(text) and text[0] & 0xC0 == 0x80
