"""The price of a linear layer's pass over r rows, against one row and against the memory's bandwidth."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from slipstream import kernels
from slipstream.tools.environment import describe, last_level_cache_bytes
from slipstream.tools.timing import interleaved_medians

__all__ = ["ROWS", "bench_kernels", "read_bandwidth"]

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
OUTPUTS, INPUTS = 8960, 1536
TYPES = {"f32": ("F32", "f32"), "bf16": ("F32", "bf16"), "int8": ("Q8_0", "auto"), "int4": ("Q4_0", "auto")}
"""Name of the benchmark → type that the weights come in, dtype that they are packed as."""
BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18}  # of 32 weights
SMALLEST_FOOTPRINT = 512 * 2**20
CALLS = 8


def bench_kernels(
    repeats: int = 15, rows: Sequence[int] = ROWS, progress: Callable[[str, int, int], None] | None = None
) -> dict[str, object]:
    """Times `linear` on 8960 × 1536 for each weight type and number of rows, medians of interleaved repeats.

    The weights lie in as many copies as it takes to be larger than the processor's caches together, and are used in
    turn. Returns {kind: "kernels", environment, read_bandwidth_gbps, types: {name: [{rows, seconds, gbps, gmacs,
    ratio_to_one_row}]}}; gbps counts the weight bytes read, gmacs the multiply-adds, both in 10^9 a second.
    """
    footprint = uncached_footprint()
    rng = np.random.default_rng(0)
    types: dict[str, object] = {}
    bandwidths = []
    for name, (source, dtype) in TYPES.items():
        bandwidths.append(read_bandwidth())
        weight = _weight(rng, source, dtype)
        copies = [weight, *(_weight(rng, source, dtype) for _ in range(footprint // weight.nbytes))]
        turn = itertools.cycle(copies)
        medians = interleaved_medians(
            {count: partial(_calls, rng.standard_normal((count, INPUTS), np.float32), turn) for count in rows},
            repeats,
            partial(progress, name) if progress else None,
        )
        one = medians[rows[0]] / CALLS
        types[name] = [
            {
                "rows": count,
                "seconds": seconds / CALLS,
                "gbps": weight.nbytes / (seconds / CALLS) / 1e9,
                "gmacs": count * OUTPUTS * INPUTS / (seconds / CALLS) / 1e9,
                "ratio_to_one_row": seconds / CALLS / one,
            }
            for count, seconds in medians.items()
        ]
        bandwidths.append(read_bandwidth())
    return {
        "kind": "kernels",
        "environment": describe(),
        "read_bandwidth_gbps": float(np.median(bandwidths)),
        "types": types,
    }


def uncached_footprint() -> int:
    """Bytes that no processor cache holds."""
    return max(SMALLEST_FOOTPRINT, 2 * last_level_cache_bytes())


def read_bandwidth() -> float:
    """Bytes per second, in 10^9, at which all threads together read memory once."""
    footprint = uncached_footprint()
    return footprint / interleaved_medians({"read": kernels.ReadProbe(footprint).read}, 5)["read"] / 1e9


def _calls(x: NDArray[np.float32], turn: Iterator[kernels.Weight]) -> None:
    for _ in range(CALLS):
        kernels.linear(x, next(turn))


def _weight(rng: np.random.Generator, source: str, dtype: str) -> kernels.Weight:
    if source == "F32":
        data = rng.standard_normal((OUTPUTS, INPUTS), np.float32).view(np.uint8).reshape(-1)
    else:
        blocks = rng.integers(0, 256, (OUTPUTS * INPUTS // 32, BLOCK_BYTES[source]), np.uint8)
        blocks[:, :2] = np.array([0.01], np.float16).view(np.uint8)  # the scale of each block
        data = blocks.reshape(-1)
    return kernels.pack(data, source, OUTPUTS, INPUTS, dtype)
