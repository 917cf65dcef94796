"""Draft trees: from parents to depths, paths and what each row may see. Parents come before their children."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.types import ROOT

__all__ = ["depths", "is_chain", "path_to"]


def is_chain(parents: NDArray[np.int32]) -> bool:
    """Whether each node's parent is the node before it."""
    return bool(np.array_equal(parents, np.arange(ROOT, len(parents) + ROOT, dtype=np.int32)))


def depths(parents: Sequence[int] | NDArray[np.int32]) -> NDArray[np.int32]:
    """Depth of every node, (n,); 0 for the children of the root."""
    depth = np.zeros(len(parents), np.int32)
    for node, parent in enumerate(parents):
        if parent != ROOT:
            depth[node] = depth[parent] + 1
    return depth


def path_to(parents: Sequence[int] | NDArray[np.int32], node: int) -> list[int]:
    """The nodes from a child of the root down to `node`, itself included."""
    path = []
    while node != ROOT:
        path.append(int(node))
        node = int(parents[node])
    return path[::-1]
