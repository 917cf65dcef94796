"""Token recycling: what the target found likely behind a token, it may find likely behind that token again.

Source: Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling"
(2024).
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from slipstream.drafters.base import History, Models
from slipstream.drafters.best_first import likeliest_tree
from slipstream.types import Draft

__all__ = ["RecyclingDrafter"]

WIDTH = 4
"""How many followers of a token are kept."""

CARRIES_OVER = 0.3
"""How often what the target was sure of behind a token is right behind that token elsewhere, measured over answers to
questions of several kinds."""

BLOCK = 64
"""Logits that are looked through together for the largest."""


class RecyclingDrafter:
    """Keeps, for every token of a request, the likeliest next tokens of the last pass that fed it; a draft is the
    likeliest tree of such steps from the last token on. Costs no pass of any model.
    """

    name: ClassVar[str] = "recycling"

    def __init__(self, models: Models) -> None:
        pass

    def start(self, history: History) -> "_Followers":
        return _Followers(history)

    def observe(self, state: "_Followers", tokens: Sequence[int], logits: Sequence[NDArray[np.float32]]) -> None:
        for token, row in zip(tokens, logits, strict=True):
            state.of[token] = _likeliest(row)

    def propose(self, states: Sequence["_Followers"], lengths: Sequence[int]) -> list[Draft]:
        return [state.tree(length) for state, length in zip(states, lengths, strict=True)]


class _Followers:
    def __init__(self, history: History) -> None:
        self.history = history
        self.of: dict[int, list[tuple[float, int]]] = {}  # token → (probability, next token), the likeliest first

    def tree(self, length: int) -> Draft:
        """The `length` nodes that are reached with the greatest probability, parents before children."""
        return likeliest_tree(self.history.tokens[-1], self._followers, length)

    def _followers(self, token: int, chance: float) -> Iterator[tuple[float, int, int]]:
        return ((share, following, following) for share, following in self.of.get(token, ()))


def _likeliest(logits: NDArray[np.float32]) -> list[tuple[float, int]]:
    """The WIDTH likeliest tokens, the likeliest first, each with the probability that it follows again."""
    blocks = len(logits) // BLOCK
    # The largest values lie in the blocks with the largest maxima, or behind the last whole block.
    maxima = logits[: blocks * BLOCK].reshape(blocks, BLOCK).max(axis=1)
    first = np.argpartition(maxima, -WIDTH)[-WIDTH:] if blocks > WIDTH else np.arange(blocks)
    where = np.concatenate(
        [(first[:, None] * BLOCK + np.arange(BLOCK)).ravel(), np.arange(blocks * BLOCK, len(logits))]
    )
    values = logits[where]
    best = np.argsort(values)[: -WIDTH - 1 : -1]
    shares = np.exp(values[best] - values[best[0]])
    shares *= CARRIES_OVER / shares.sum()
    return list(zip(shares.tolist(), where[best].tolist(), strict=True))
