"""Draft trees that are grown best first, for the drafters that know what may follow what."""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import TypeVar

import numpy as np

from slipstream.types import ROOT, Draft

__all__ = ["likeliest_tree"]

Place = TypeVar("Place")


def likeliest_tree(
    start: Place, followers: Callable[[Place, float], Iterable[tuple[float, int, Place]]], length: int
) -> Draft:
    """The `length` nodes with the likeliest paths, fewer where no more may follow; a parent comes before its children.

    followers is called with a place and the probability of the path to it, and gives what may follow there: each
    token's probability where its parent is right, the token, and the place that it leads to.
    """
    tokens: list[int] = []
    parents: list[int] = []
    shares: list[float] = []
    # By falling probability of the path, in running order on ties; with parent, token, its own probability, and place.
    waiting: list[tuple[float, int, int, int, float, Place]] = []
    order = count()

    def expand(node: int, chance: float, place: Place) -> None:
        for share, token, after in followers(place, chance):
            heappush(waiting, (-chance * share, next(order), node, token, share, after))

    expand(ROOT, 1.0, start)
    while waiting and len(tokens) < length:
        minus_chance, _, parent, token, share, place = heappop(waiting)
        tokens.append(token)
        parents.append(parent)
        shares.append(share)
        if len(tokens) < length:
            expand(len(tokens) - 1, -minus_chance, place)
    if not tokens:
        return Draft.chain(())
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), confidence=np.array(shares, np.float32))
