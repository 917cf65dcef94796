"""A smaller model guesses one token after the other.

Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023); Chen et al., "Accelerating
Large Language Model Decoding with Speculative Sampling" (2023). A draft that ends where the draft model is unsure: Kim
et al., "Speculative Decoding with Big Little Decoder" (2023); Liu et al., "Kangaroo: Lossless Self-Speculative Decoding
via Double Early Exiting" (2024).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from slipstream.drafters.base import History, Models
from slipstream.drafters.guessing import Guesses, feed, guess_chains
from slipstream.drafters.translation import Transcript, Translator
from slipstream.errors import OptionError
from slipstream.sampling import Sampler
from slipstream.types import Draft, SamplingParams

__all__ = ["DraftModelDrafter"]

PREFILL_ROWS = 256

MIN_CONFIDENCE = 0.5
"""A draft goes on as long as the draft model thinks it at least as likely right as wrong. The token with which it falls
below is part of it: its pass is paid for, and a row more for the target costs less than such a token is worth."""

TOKENS_EACH = 4
"""For how many of its own tokens to one of the target's a draft model with another tokenizer has room."""

GREEDY = Sampler(SamplingParams(), seed=0, num_prompt_tokens=0)


@dataclass(eq=False)
class _State(Guesses):
    """A draft by a model that has the target's tokenizer.

    context_length  most tokens that the draft model can read
    confidence      the draft model's probability for its likeliest token, at each guess
    """

    context_length: int
    confidence: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        super().begin()
        self.confidence = []

    def prepare(self, length: int) -> int:
        """Begins a draft behind what was committed. Returns how many tokens to draft, of at most `length`."""
        tokens = self.history.tokens
        self.roll_back(tokens, self.base, self.draft)
        self.begin()
        return max(0, min(length, self.context_length - len(tokens)))

    def roll_back(self, tokens: Sequence[int], same: int, fed: Sequence[int]) -> None:
        """Cuts the cache back to where what it was fed begins to differ from tokens: it doesn't for the first `same`,
        behind which it was fed `fed`. The last token is always fed again: its logits are needed."""
        end = max(0, min(self.cache.length, len(tokens) - 1))
        at = min(same, end)
        while at < end and fed[at - same] == tokens[at]:
            at += 1
        self.cache.truncate(at)

    def guess(self, logits: NDArray[np.float32]) -> bool:
        can_go_on = super().guess(logits)
        if len(self.draft) > len(self.confidence):
            self.confidence.append(_confidence(logits))
        return can_go_on and self.is_confident

    @property
    def is_confident(self) -> bool:
        """Whether to go on. This looks at tokens that are in the draft, never at the one to be drawn next, so under the
        rule "rejection" every drafted token still has the distribution that it was drawn from."""
        return prod(self.confidence) >= MIN_CONFIDENCE

    def proposed(self) -> Draft:
        return replace(super().proposed(), confidence=np.array(self.confidence, np.float32))


@dataclass(eq=False)
class _TranslatedState(_State):
    """A draft by a model that has another tokenizer: what it guesses are its own tokens, and `draft` is what they are
    in the target's. It takes its likeliest token, as noise couples only choices among the same tokens; for the rule
    "rejection" that is a draft that wasn't drawn at random, and goes by "match"."""

    translator: Translator
    transcript: Transcript = field(init=False)
    guessed: list[int] = field(init=False)  # the draft model's tokens
    length: int = field(init=False)  # most tokens in the draft

    def __post_init__(self) -> None:
        super().__post_init__()
        self.transcript = Transcript(self.translator)

    def begin(self) -> None:
        super().begin()
        self.guessed = []

    def prepare(self, length: int) -> int:
        fed = [*self.transcript.tokens, *self.guessed]
        same = self.transcript.extend(self.history.tokens)
        self.roll_back(self.transcript.tokens, same, fed[same:])
        self.begin()
        self.length = length if self.transcript.tokens and self.room > 0 else 0
        return self.length

    @property
    def room(self) -> int:
        return self.context_length - len(self.transcript.tokens) - len(self.guessed)

    def pending(self) -> list[int]:
        tokens, fed = self.transcript.tokens, self.cache.length
        return [*tokens[fed:], *self.guessed[max(0, fed - len(tokens)) :]]

    def guess(self, logits: NDArray[np.float32]) -> bool:
        token = GREEDY.choose(logits, ())
        if token in self.translator.draft.control_token_ids:
            return False
        held, text = self.transcript.held, self._text([*self.guessed, token])
        if not (text.startswith(held) or held.startswith(text)):  # another character than the one that was begun
            return False
        draft = self.translator.to_target(self.history.tokens, text[len(held) :])
        if draft is None:
            return False
        self.draft = draft[: self.length]
        self.guessed.append(token)
        self.confidence.append(_confidence(logits))
        return self.is_confident and self.room > 0

    def proposed(self) -> Draft:
        """A token of the target's is right if all the draft model's tokens that begin in it are."""
        ends = len(self.transcript.held) + np.cumsum([len(self.translator.target.token_bytes(t)) for t in self.draft])
        starts = [len(self._text(self.guessed[:at])) for at in range(len(self.guessed))]
        confidence = np.ones(len(self.draft) + 1, np.float32)  # the last: what isn't part of the draft
        np.multiply.at(confidence, np.searchsorted(ends, starts, side="right"), self.confidence)
        return Draft.chain(self.draft, confidence=confidence[:-1])

    def _text(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self.translator.draft.token_bytes, tokens))


class DraftModelDrafter:
    """Feeds all requests through the draft model together, once a drafted position.

    A draft model with another tokenizer drafts through text (slipstream.drafters.translation). Its context may be
    shorter than the target's: then it stops drafting.
    """

    name: ClassVar[str] = "draft_model"

    def __init__(self, models: Models) -> None:
        """Raises ModelError where the tokenizers differ and one of them can't spell ordinary text."""
        if models.draft is None or models.draft_tokenizer is None:
            raise OptionError(
                "the drafter draft_model needs a draft model: give one with --draft-model (draft_model=…)"
            )
        self.model = models.draft
        self.vocab_size = models.draft_tokenizer.vocab_size
        self.context_length = models.draft.config.context_length
        same = models.draft_tokenizer.first_difference(models.tokenizer) is None
        self._translator = None if same else Translator(models.tokenizer, models.draft_tokenizer)

    def start(self, history: History) -> _State:
        if self._translator is None:
            return _State(history, self.model.new_cache(min(history.limit, self.context_length)), self.context_length)
        length = min(TOKENS_EACH * history.limit, self.context_length)
        return _TranslatedState(history, self.model.new_cache(length), length, self._translator)

    def propose(self, states: Sequence[_State], lengths: Sequence[int]) -> list[Draft]:
        wanted = [state.prepare(length) for state, length in zip(states, lengths, strict=True)]
        for state, length in zip(states, wanted, strict=True):
            while length and len(tokens := state.pending()) > PREFILL_ROWS:
                feed(self.model, [state.cache], [tokens[:PREFILL_ROWS]], num_logits=0)
        guess_chains(zip(states, wanted, strict=True), self._score)
        return [state.proposed() for state in states]

    def _score(self, states: list[_State]) -> NDArray[np.float32]:
        pending = [state.pending() for state in states]
        return feed(self.model, [state.cache for state in states], pending, num_logits=1)[:, : self.vocab_size]


def _confidence(logits: NDArray[np.float32]) -> float:
    """The probability of the likeliest token, without temperature or filters. Where target and draft model choose with
    the same noise, they agree about as often as this says, and more often than the chosen token's own probability."""
    return 1 / float(np.exp(logits - logits.max()).sum())
