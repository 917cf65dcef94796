"""Quantised matrices for the reference kernels: reading the formats, and products with the native kernels' bits."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK", "READERS", "Quantised", "fma", "quantised_product"]

F32 = NDArray[np.float32]

BLOCK = 32
"""Values that share a scale in the quantised formats, and in quantised activations."""


@dataclass(frozen=True)
class Quantised:
    """The integers of a matrix and what scales them. A block's halves have a scale each, 1 but for Q6_K."""

    values: F32  # (blocks, 2, out_features, 16): whole numbers
    half_scale: F32  # (blocks, 2, out_features): whole numbers
    scale: F32  # (blocks, out_features)
    minus_minimum: F32 | None  # likewise


def _half(columns: NDArray[np.uint8]) -> F32:
    return np.ascontiguousarray(columns).view(np.float16).astype(np.float32)


def _quantised(values: NDArray[Any], out: int, scale: F32, minus_minimum: F32 | None = None) -> Quantised:
    """values: (out · blocks, 32); scale and minimum: (out · blocks, 1)."""
    halves = values.reshape(out, -1, 2, BLOCK // 2).transpose(1, 2, 0, 3).astype(np.float32)
    return Quantised(
        values=np.ascontiguousarray(halves),
        half_scale=np.ones(halves.shape[:3], np.float32),
        scale=scale.reshape(out, -1).T.copy(),
        minus_minimum=None if minus_minimum is None else minus_minimum.reshape(out, -1).T.copy(),
    )


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Low halves, then high halves, along the last axis."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    bits: NDArray[np.uint8] = np.unpackbits(packed, axis=-1, bitorder="little") << np.uint8(4)
    return bits


def _read_q8_0(blocks: NDArray[np.uint8], out: int) -> Quantised:
    return _quantised(blocks[:, 2:].view(np.int8), out, _half(blocks[:, :2]))


def _read_q4_0(blocks: NDArray[np.uint8], out: int) -> Quantised:
    return _quantised(_nibbles(blocks[:, 2:]).astype(np.int8) - 8, out, _half(blocks[:, :2]))


def _read_q4_1(blocks: NDArray[np.uint8], out: int) -> Quantised:
    return _quantised(_nibbles(blocks[:, 4:]), out, _half(blocks[:, :2]), _half(blocks[:, 2:4]))


def _read_q5_0(blocks: NDArray[np.uint8], out: int) -> Quantised:
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _quantised(values.astype(np.int8) - 16, out, _half(blocks[:, :2]))


def _read_q5_1(blocks: NDArray[np.uint8], out: int) -> Quantised:
    values = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _quantised(values, out, _half(blocks[:, :2]), _half(blocks[:, 2:4]))


def _read_k(blocks: NDArray[np.uint8], out: int, nibbles: NDArray[np.uint8], fifth: int | NDArray[Any]) -> Quantised:
    """Q4_K and Q5_K: d, dmin, and eight 6-bit scales and minimums in 12 bytes."""
    packed = blocks[:, 4:16]
    low, high = packed[:, :8] & 63, packed[:, 8:]
    top = packed[:, :8] >> 6 << np.uint8(4)
    scales = np.concatenate([low[:, :4], (high & 15) | top[:, :4]], axis=1).astype(np.float32)
    minimums = np.concatenate([low[:, 4:], (high >> 4) | top[:, 4:]], axis=1).astype(np.float32)
    values = _nibbles(nibbles.reshape(-1, 4, BLOCK)).reshape(-1, 8, BLOCK) | fifth
    return _quantised(values, out, _half(blocks[:, :2]) * scales, -_half(blocks[:, 2:4]) * minimums)


def _read_q4_k(blocks: NDArray[np.uint8], out: int) -> Quantised:
    return _read_k(blocks, out, blocks[:, 16:], 0)


def _read_q5_k(blocks: NDArray[np.uint8], out: int) -> Quantised:
    group = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (blocks[:, None, 16:48] >> group & 1) << np.uint8(4)  # (blocks, 8, 32)
    return _read_k(blocks, out, blocks[:, 48:], fifth)


def _read_q6_k(blocks: NDArray[np.uint8], out: int) -> Quantised:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, BLOCK)
    pair = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, BLOCK) >> pair & 3
    values = (low | high << np.uint8(4)).astype(np.int8) - 32
    quantised = _quantised(values.reshape(-1, BLOCK), out, np.repeat(_half(blocks[:, 208:]), 8, axis=1))
    scales = blocks[:, 192:208].view(np.int8).reshape(out, -1, 2).transpose(1, 2, 0)
    return replace(quantised, half_scale=scales.astype(np.float32))


READERS: dict[str, Callable[[NDArray[np.uint8], int], Quantised]] = {
    "Q8_0": _read_q8_0,
    "Q4_0": _read_q4_0,
    "Q4_1": _read_q4_1,
    "Q5_0": _read_q5_0,
    "Q5_1": _read_q5_1,
    "Q4_K": _read_q4_k,
    "Q5_K": _read_q5_k,
    "Q6_K": _read_q6_k,
}
"""Format → from (blocks of the whole matrix, their bytes) and out_features, its integers and scales."""


def _quantise(x: F32) -> tuple[F32, F32, F32]:
    """One row's activations as int8 a block of 32: scale · value. (values (blocks, 32), scale, scale · Σ values).

    Blocks of numbers below 2^-119 count as zeros; one that holds infinity or NaN makes all outputs NaN.
    """
    x = x.reshape(-1, BLOCK)
    largest = np.abs(x).max(axis=1)
    finite = np.isfinite(largest)
    normal = finite & (largest >= np.float32(2.0**-119))
    scale = np.where(normal, largest / np.float32(127), np.where(finite, np.float32(0), np.float32(np.nan)))
    inverse = np.where(normal, np.float32(127) / np.where(normal, largest, np.float32(1)), np.float32(0))
    values = np.rint(np.where(normal[:, None], x, np.float32(0)) * inverse[:, None])
    return values, scale, scale * values.sum(axis=1)


def fma(a: F32, b: F32, c: F32) -> F32:
    """a · b + c, rounded once: the product is exact in float64, and a sum that isn't is rounded to odd there first."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    even = total.view(np.int64) % 2 == 0
    total = np.where((error != 0) & even, np.nextafter(total, np.copysign(np.inf, error)), total)
    with np.errstate(over="ignore"):
        return total.astype(np.float32)


def quantised_product(x: F32, weight: Quantised) -> F32:
    """One row. Sums within a block are whole numbers below 2^24, so exact in any order."""
    values, scale, total = _quantise(x)
    halves = np.matmul(weight.values, values.reshape(-1, 2, BLOCK // 2, 1))[..., 0]  # (blocks, 2, out)
    sums = (halves * weight.half_scale).sum(axis=1)  # (blocks, out)
    out = np.zeros(sums.shape[1], np.float32)
    for block in range(len(sums)):
        out = fma(sums[block], weight.scale[block] * scale[block], out)
        if weight.minus_minimum is not None:
            out = fma(weight.minus_minimum[block], total[block], out)
    return out
