"""A smaller model with the same tokenizer guesses one token after the other.

Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023); Chen et al., "Accelerating
Large Language Model Decoding with Speculative Sampling" (2023).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from slipstream.cache import KVCache
from slipstream.drafters.base import History, Models
from slipstream.errors import ModelError, OptionError
from slipstream.models.decoder import Segment
from slipstream.types import NO_TOKEN, Draft

__all__ = ["DraftModelDrafter"]

PREFILL_ROWS = 256


@dataclass(slots=True, eq=False)
class _State:
    history: History
    cache: KVCache
    draft: list[int] = field(default_factory=list)  # the last one proposed
    probs: list[NDArray[np.float64]] = field(default_factory=list)  # what it was drawn from, for the rule "rejection"
    base: int = 0  # length of the history that it continued

    def roll_back(self) -> None:
        """Cuts the cache back to what was committed. The last token is always fed again: its logits are needed."""
        tokens = self.history.tokens
        end = min(self.cache.length, len(tokens) - 1)
        same = min(self.base, end)
        while same < end and self.draft[same - self.base] == tokens[same]:
            same += 1
        self.cache.truncate(same)
        self.draft, self.probs, self.base = [], [], len(tokens)

    def pending(self) -> list[int]:
        """Tokens to feed for the logits of the next guess."""
        fed = self.cache.length
        return [*self.history.tokens[fed:], *self.draft[max(0, fed - self.base) :]]

    def guess(self, logits: NDArray[np.float32]) -> bool:
        """Adds the next token to the draft; False where nothing can follow."""
        sampler, tokens = self.history.sampler, self.history.tokens
        if sampler.rejects:
            probs = sampler.probs(logits, tokens, self.draft)
            if probs is None:
                return False
            self.probs.append(probs)
            token = sampler.draft(probs, tokens, self.draft)
        else:
            token = sampler.choose(logits, tokens, self.draft)
            if token == NO_TOKEN:
                return False
        self.draft.append(token)
        return token not in sampler.end_ids

    def proposed(self) -> Draft:
        return Draft.chain(self.draft, np.array(self.probs) if self.probs else None)


class DraftModelDrafter:
    """Feeds all requests through the draft model together, once a drafted position.

    It samples like the target does, with the same options and the same noise (slipstream.sampling), which couples its
    choice to the target's and keeps acceptance high; under the rule "rejection", with noise of its own. Its context may
    be shorter than the target's: then it stops drafting.
    """

    name: ClassVar[str] = "draft_model"

    def __init__(self, models: Models) -> None:
        if models.draft is None or models.draft_tokenizer is None:
            raise OptionError(
                "the drafter draft_model needs a draft model: give one with --draft-model (draft_model=…)"
            )
        difference = models.draft_tokenizer.first_difference(models.tokenizer)
        if difference is not None:
            token_id, drafts, targets = difference
            raise ModelError(
                f"the draft model's tokenizer differs from the target's: token {token_id} is {drafts!r} there and "
                f"{targets!r} here; use a draft model of the same family"
            )
        self.model = models.draft
        self.vocab_size = models.tokenizer.vocab_size
        self.context_length = models.draft.config.context_length

    def start(self, history: History) -> _State:
        return _State(history, self.model.new_cache(min(history.limit, self.context_length)))

    def propose(self, states: Sequence[_State], lengths: Sequence[int]) -> list[Draft]:
        for state in states:
            state.roll_back()
        room = [self.context_length - len(state.history.tokens) for state in states]
        wanted = [max(0, min(length, space)) for length, space in zip(lengths, room, strict=True)]
        for state, length in zip(states, wanted, strict=True):
            while length and len(tokens := state.pending()) > PREFILL_ROWS:
                self._feed([state], [tokens[:PREFILL_ROWS]], num_logits=0)
        active = [(state, length) for state, length in zip(states, wanted, strict=True) if length]
        while active:
            feeding = [state for state, _ in active]
            logits = self._feed(feeding, [state.pending() for state in feeding], num_logits=1)  # (active, vocab)
            active = [
                (state, length)
                for (state, length), row in zip(active, logits[:, : self.vocab_size], strict=True)
                if state.guess(row) and len(state.draft) < length
            ]
        return [state.proposed() for state in states]

    def _feed(self, states: list[_State], tokens: list[list[int]], num_logits: int) -> NDArray[np.float32]:
        segments = [
            Segment.chain(state.cache, fed, num_logits=num_logits) for state, fed in zip(states, tokens, strict=True)
        ]
        logits = self.model.forward(segments)
        for segment in segments:
            segment.cache.keep(range(len(segment.tokens)))
        return logits
