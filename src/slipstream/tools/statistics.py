"""Chi-square tests: do draws follow a distribution, do two sets of draws follow the same one."""

import math
from collections.abc import Hashable, Mapping

__all__ = ["chi_square_p", "same_distribution_p", "survival"]

Counts = Mapping[Hashable, float]

LEAST_EXPECTED = 5.0
"""Cells with a smaller expected count are thrown together: the test is only good above (Cochran, 1954)."""


def chi_square_p(observed: Counts, expected: Counts) -> float:
    """The probability that draws from the expected distribution are at least as far from it as the observed ones.

    observed: how often each outcome was drawn. expected: each outcome's probability, summing to 1. An outcome that was
    drawn and has no probability makes it 0.
    """
    draws = sum(observed.values())
    if any(count and not expected.get(outcome) for outcome, count in observed.items()):
        return 0.0
    cells = [(observed.get(outcome, 0), probability * draws) for outcome, probability in expected.items()]
    large = [cell for cell in cells if cell[1] >= LEAST_EXPECTED]
    small = [cell for cell in cells if cell[1] < LEAST_EXPECTED]
    if small:
        rest = (sum(count for count, _ in small), sum(mean for _, mean in small))
        if rest[1] >= LEAST_EXPECTED or not large:
            large.append(rest)
        else:
            last = large.pop(min(range(len(large)), key=lambda at: large[at][1]))
            large.append((last[0] + rest[0], last[1] + rest[1]))
    statistic = sum((count - mean) ** 2 / mean for count, mean in large if mean)
    return survival(statistic, len(large) - 1)


def same_distribution_p(one: Counts, other: Counts) -> float:
    """The probability that two sets of draws from one distribution differ at least as much as these two do."""
    draws = (sum(one.values()), sum(other.values()))
    total = sum(draws)
    cells: list[tuple[float, float]] = []
    rest = (0.0, 0.0)
    for outcome in {**one, **other}:
        cell = (one.get(outcome, 0), other.get(outcome, 0))
        if min(draws) * sum(cell) / total >= LEAST_EXPECTED:
            cells.append(cell)
        else:
            rest = (rest[0] + cell[0], rest[1] + cell[1])
    if min(draws) * sum(rest) / total >= LEAST_EXPECTED or not cells:
        cells.append(rest)
    elif sum(rest):
        last = cells.pop(min(range(len(cells)), key=lambda at: sum(cells[at])))
        cells.append((last[0] + rest[0], last[1] + rest[1]))
    statistic = 0.0
    for cell in cells:
        for count, of in zip(cell, draws, strict=True):
            mean = of * sum(cell) / total
            statistic += (count - mean) ** 2 / mean if mean else 0.0
    return survival(statistic, len(cells) - 1)


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
