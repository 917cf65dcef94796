"""Chi-square tests: do draws follow a distribution?"""

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["chi_square_p", "survival"]

Counts = Mapping[Any, float]

LEAST_EXPECTED = 5.0
"""Outcomes are thrown together until so many are expected of them: the test is only good above (Cochran, 1954)."""


def chi_square_p(observed: Counts, expected: Counts) -> float:
    """The probability that draws from the expected distribution are at least as far from it as the observed ones.

    observed: how often each outcome was drawn. expected: each outcome's probability, summing to 1. An outcome that was
    drawn and has no probability makes it 0.
    """
    draws = sum(observed.values())
    if any(count and not expected.get(outcome) for outcome, count in observed.items()):
        return 0.0
    bins: list[tuple[float, float]] = []  # (count, expected count): outcomes thrown together until they are enough
    count = mean = 0.0
    for outcome in sorted(expected, key=lambda outcome: (-expected[outcome], outcome)):
        count += observed.get(outcome, 0)
        mean += expected[outcome] * draws
        if mean >= LEAST_EXPECTED:
            bins.append((count, mean))
            count = mean = 0.0
    if bins:
        last = bins.pop()
        bins.append((last[0] + count, last[1] + mean))
    return survival(sum((count - mean) ** 2 / mean for count, mean in bins), len(bins) - 1)


def survival(statistic: float, degrees: int) -> float:
    """The probability that a chi-square variable with so many degrees of freedom is at least `statistic`: the
    regularised incomplete gamma function, by its series or its continued fraction (Lentz's method)."""
    if degrees < 1 or statistic <= 0:
        return 1.0
    a, x = degrees / 2, statistic / 2
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        step = a
        while term > total * 1e-16:
            step += 1
            term *= x / step
            total += term
        return max(0.0, 1 - total * scale)
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    fraction = d
    for step in range(1, 10_000):
        factor = -step * (step - a)
        b += 2
        d = 1 / (factor * d + b or tiny)
        c = b + factor / c or tiny
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return scale * fraction
