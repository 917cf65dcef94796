"""Rolling a cache back to a path."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slipstream import kernels
from slipstream.cache import KVCache


def fill(cache: KVCache, slots: range) -> None:
    """Writes each slot's own number into it."""
    for slot in slots:
        block, lane = divmod(slot, kernels.KEY_BLOCK)
        cache.keys[:, :, block, :, lane] = slot
        cache.values[:, :, slot] = slot


def contents(cache: KVCache) -> list[int]:
    flat = cache.keys.transpose(0, 1, 2, 4, 3).reshape(*cache.values.shape)
    assert np.array_equal(flat[:, :, : cache.length], cache.values[:, :, : cache.length])
    return cache.values[0, 0, : cache.length, 0].astype(int).tolist()


@given(st.integers(0, 40), st.sets(st.integers(0, 23)))
def test_keep_moves_the_path_into_place(length: int, path: set[int]) -> None:
    cache = KVCache(2, 2, 4, length + 24)
    fill(cache, range(length + 24))
    cache.keep(range(length))
    cache.keep(sorted(path))
    assert contents(cache) == [*range(length), *(length + row for row in sorted(path))]
    cache.truncate(length)
    assert contents(cache) == list(range(length))
