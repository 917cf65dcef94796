"""Guessing one token after the other with a model, for the drafters that do: those with a draft model, and layer_skip.

They sample like the target does, with the same options and the same noise (slipstream.sampling), which couples their
choice to the target's and keeps acceptance high; under the rule "rejection", with noise of their own.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.cache import KVCache
from slipstream.drafters.base import History
from slipstream.models.decoder import Decoder, Segment
from slipstream.types import NO_TOKEN, Draft

__all__ = ["Guesses", "feed", "guess_chains"]


@dataclass(slots=True, eq=False)
class Guesses:
    """One request's draft in the making, and the cache of the model that guesses it."""

    history: History
    cache: KVCache
    draft: list[int] = field(init=False, default_factory=list)
    probs: list[NDArray[np.float64]] = field(init=False, default_factory=list)  # drawn from, for the rule "rejection"
    base: int = field(init=False, default=0)  # length of the history that the draft continues

    def begin(self) -> None:
        """Begins a new draft behind what was committed."""
        self.draft, self.probs, self.base = [], [], len(self.history.tokens)

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


AnyGuesses = TypeVar("AnyGuesses", bound=Guesses)


def guess_chains(
    wanted: Iterable[tuple[AnyGuesses, int]], score: Callable[[list[AnyGuesses]], NDArray[np.float32]]
) -> None:
    """Lengthens each draft to its wanted length, all of them together, one position after the other.

    score feeds what is pending of the drafts still growing and gives the logits behind it, (drafts, vocab).
    """
    active = [(guesses, length) for guesses, length in wanted if length]
    while active:
        logits = score([guesses for guesses, _ in active])
        active = [
            (guesses, length)
            for (guesses, length), row in zip(active, logits, strict=True)
            if guesses.guess(row) and len(guesses.draft) < length
        ]


def feed(
    model: Decoder,
    caches: Sequence[KVCache],
    tokens: Sequence[Sequence[int]],
    num_logits: int,
    layers: Sequence[int] | None = None,
) -> NDArray[np.float32]:
    """One pass, of these layers or all, over more tokens for each cache, which keeps them. Returns the logits of the
    last num_logits of each."""
    segments = [Segment.chain(cache, fed, num_logits) for cache, fed in zip(caches, tokens, strict=True)]
    logits = model.forward(segments, layers)
    for segment in segments:
        segment.cache.keep(range(len(segment.tokens)))
    return logits
