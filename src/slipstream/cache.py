"""The key/value cache of one sequence.

Invariant between steps: a cache may lag behind its sequence, never lead it: `cache.length <= len(tokens) - 1`. Whoever
runs a model first feeds `tokens[cache.length:]`, so no case is special.
"""

from collections.abc import Iterable

import numpy as np

from slipstream import kernels

__all__ = ["KVCache"]


class KVCache:
    """Keys and values of one sequence, one slot a token, in the layout that the attention kernel reads.

    A pass writes its rows into the slots from `length` on; until `keep` says which of them stay, they count for
    nothing. Slots are in the order of the tokens, so dropping a suffix costs nothing, and keeping one path of a draft
    tree moves only the slots that aren't in place already.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, capacity: int) -> None:
        blocks = -(-capacity // kernels.KEY_BLOCK)
        self.capacity = blocks * kernels.KEY_BLOCK
        self.length = 0
        # Untouched pages take no memory, so a request can reserve all that it may need at once.
        self.keys = np.empty((num_layers, num_kv_heads, blocks, head_dim, kernels.KEY_BLOCK), np.float32)
        self.values = np.empty((num_layers, num_kv_heads, self.capacity, head_dim), np.float32)

    def keep(self, rows: Iterable[int]) -> None:
        """Keeps these rows of the last pass (counted from its first, ascending) and drops the others."""
        start = self.length
        for row in rows:
            if start + row != self.length:
                self._move(start + row, self.length)
            self.length += 1

    def truncate(self, length: int) -> None:
        """Drops every slot from `length` on."""
        assert 0 <= length <= self.length, f"can't truncate a cache of {self.length} slots to {length}"
        self.length = length

    def _move(self, source: int, target: int) -> None:
        source_block, source_lane = divmod(source, kernels.KEY_BLOCK)
        target_block, target_lane = divmod(target, kernels.KEY_BLOCK)
        self.keys[:, :, target_block, :, target_lane] = self.keys[:, :, source_block, :, source_lane]
        self.values[:, :, target] = self.values[:, :, source]
