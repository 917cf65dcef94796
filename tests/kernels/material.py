"""What the kernel tests share: random data, bit comparison, weights, caches, and the ways in which a pass may run."""

from collections.abc import Iterator

import gguf
import numpy as np
from hypothesis import strategies as st

from slipstream.kernels import KEY_BLOCK, _native

seeds = st.integers(0, 2**32 - 1)
ways = st.tuples(st.sampled_from(_native.available_isas()), st.integers(1, 4))
"""Instruction set and number of threads: none of them may change a bit."""


def use(way: tuple[str, int]) -> None:
    _native.use_isa(way[0])
    _native.set_threads(way[1])


PLAINEST = ("portable", 1)


def wide(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Floats of very different sizes, so that any change in the order of additions shows."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 12, shape)).astype(np.float32)


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy with NaN right before and after it: a kernel that uses what lies beside its input gives NaN."""
    room = np.full(array.size + 64, np.nan, array.dtype)
    inside = room[32 : 32 + array.size].reshape(array.shape)
    inside[...] = array
    return inside


def guards(array: np.ndarray) -> np.ndarray:
    """What lies beside a guarded array."""
    return np.concatenate([array.base[:32], array.base[32 + array.size :]])


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def as_bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), np.uint8)


def packed(backend, values: np.ndarray, dtype: str):
    return backend.pack(as_bytes(values), "F32", *values.shape, dtype)


QUANTISED = ["Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0"]
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q4_K": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q5_K": (0, 2),
    "Q6_K": (208,), "Q8_0": (0,),
}  # fmt: skip
"""Where the 16-bit floats of a block lie."""


def block_of(source: str) -> tuple[int, int]:
    """Values in a block of that format, and its bytes."""
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[source]]


def random_blocks(rng: np.random.Generator, source: str, rows: int, columns: int, even: bool = False) -> np.ndarray:
    """A quantised tensor of random bytes at an odd address. Its scales and minimums are of very different sizes; even,
    they are such that a product with it keeps the size of what it is multiplied with."""
    block, size = block_of(source)
    room = rng.integers(0, 256, rows * columns // block * size + 1, np.uint8)
    blocks = room[1:].reshape(-1, size)
    for at in HALVES[source]:
        halves = rng.standard_normal(len(blocks))
        if even:
            halves *= (
                {"4": 0.2, "5": 0.1, "6": 0.05, "8": 0.01}[source[1]]
                / (64 if source.endswith("K") else 1)
                / columns**0.5
            )
        else:
            halves *= 2.0 ** rng.integers(-16, 8, len(blocks))
        blocks[:, at : at + 2] = halves.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return room[1:]


def i32(values) -> np.ndarray:
    return np.array(list(values), np.int32)


class Cache:
    """A key/value cache whose unused slots are NaN."""

    def __init__(self, layers: int, kv_heads: int, blocks: int, head_dim: int) -> None:
        self.keys = np.full((layers, kv_heads, blocks, head_dim, KEY_BLOCK), np.nan, np.float32)
        self.values = np.full((layers, kv_heads, blocks * KEY_BLOCK, head_dim), np.nan, np.float32)

    def put(self, slot: int, key: np.ndarray, value: np.ndarray) -> None:
        """key, value: (layers, kv_heads, head_dim)."""
        self.keys[:, :, slot // KEY_BLOCK, :, slot % KEY_BLOCK] = key
        self.values[:, :, slot] = value


def rows_of(backend, caches: list[Cache], rows: list[dict], cos: np.ndarray, sin: np.ndarray):
    """Rows from one dict a row: sequence, slot, prefix, ancestors."""
    counts = [len(row["ancestors"]) for row in rows]
    return backend.Rows(
        cos=cos,
        sin=sin,
        sequence=i32(row["sequence"] for row in rows),
        slot=i32(row["slot"] for row in rows),
        prefix=i32(row["prefix"] for row in rows),
        ancestors_start=i32(np.concatenate([[0], np.cumsum(counts)])),
        ancestors=i32(slot for row in rows for slot in row["ancestors"]),
        keys=[cache.keys for cache in caches],
        values=[cache.values for cache in caches],
    )


def pieces(rng: np.random.Generator, total: int) -> Iterator[slice]:
    """0 … total-1 cut at random places."""
    begin = 0
    while begin < total:
        end = min(total, begin + int(rng.integers(1, total + 1)))
        yield slice(begin, end)
        begin = end
