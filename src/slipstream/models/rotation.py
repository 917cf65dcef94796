"""The angles by which rope turns queries and keys, with the same bits on every machine.

The last place of NumPy's powers, sines and cosines depends on the instruction set, and that of libm's on the C library.
IEEE 754 fixes addition, multiplication and rounding alone, so everything here is made of those, or of decimals.
"""

import math
from collections.abc import Sequence
from decimal import Context, Decimal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rotations", "cos_and_sin", "inverse_frequencies", "logarithm"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_DIGITS = Context(prec=40)  # a float has 17: rounding to one gives the float that is nearest to the exact value

# pi / 2 is the sum of these. The first two have 33 bits each: their products with whole numbers below 2^20 are exact.
_HALF_PI = (float.fromhex("0x1.921fb544p+0"), float.fromhex("0x1.0b4611a6p-34"), float.fromhex("0x1.3198a2e037073p-69"))
# Taylor series in x² up to pi / 4: what is left out is below 1e-16, and the results are rounded to 6e-8.
_COS = [(-1) ** k / math.factorial(2 * k) for k in range(9)]
_SIN = [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)]

_BLOCK = 1024  # positions that are computed together


def inverse_frequencies(base: float, head_dim: int) -> F64:
    """base ** (-2 i / head_dim) for each pair i of a head, (head_dim / 2,): radians per position."""
    step = _DIGITS.divide(Decimal(base).ln(_DIGITS), Decimal(-head_dim))
    return np.array([float(_DIGITS.multiply(step, Decimal(i)).exp(_DIGITS)) for i in range(0, head_dim, 2)])


def logarithm(x: float) -> float:
    """The natural logarithm."""
    return float(Decimal(x).ln(_DIGITS))


def _polynomial(coefficients: Sequence[float], x: F64) -> F64:
    value = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value *= x
        value += coefficient
    return value


def cos_and_sin(angles: F64) -> tuple[F64, F64]:
    """Of angles in radians, from 0 to about a million: within 1e-15."""
    quarters = np.rint(angles * (2 / math.pi))
    rest = angles
    for part in _HALF_PI:
        rest = rest - quarters * part
    square = rest * rest
    cos, sin = _polynomial(_COS, square), _polynomial(_SIN, square) * rest
    quarter = quarters.astype(np.int64) & 3
    odd = (quarter & 1).astype(bool)
    return (
        np.where(odd, sin, cos) * np.where((quarter == 1) | (quarter == 2), -1.0, 1.0),
        np.where(odd, cos, sin) * np.where(quarter >= 2, -1.0, 1.0),
    )


class Rotations:
    """Cosines and sines by position, computed as far as positions were asked for, and kept."""

    def __init__(self, inverse_frequencies: F64, factor: float) -> None:
        """factor multiplies both."""
        self._inverse_frequencies = inverse_frequencies
        self._factor = factor
        self._cos = self._sin = np.empty((0, len(inverse_frequencies)), np.float32)

    def at(self, positions: NDArray[np.int32]) -> tuple[F32, F32]:
        """Cosines and sines, (positions, head_dim / 2) each."""
        if (needed := int(positions.max(initial=0)) + 1) > len(self._cos):
            self._extend(-(-needed // _BLOCK) * _BLOCK)
        return self._cos[positions], self._sin[positions]

    def _extend(self, length: int) -> None:
        angles = np.multiply.outer(np.arange(len(self._cos), length, dtype=np.float64), self._inverse_frequencies)
        cos, sin = cos_and_sin(angles)
        self._cos = np.concatenate([self._cos, (cos * self._factor).astype(np.float32)])
        self._sin = np.concatenate([self._sin, (sin * self._factor).astype(np.float32)])
