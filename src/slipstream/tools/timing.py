"""Medians of interleaved repeats: noise of a shared machine then falls on all that is compared alike."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

__all__ = ["interleaved_medians"]

Key = TypeVar("Key", bound=Hashable)


def interleaved_medians(
    runs: Mapping[Key, Callable[[], object]], repeats: int, progress: Callable[[int, int], None] | None = None
) -> dict[Key, float]:
    """Median seconds of each run, over `repeats` rounds that make every run once, after a round to warm up.

    progress is called with (rounds done, rounds in all).
    """
    seconds: dict[Key, list[float]] = {key: [] for key in runs}
    for number in range(repeats + 1):
        for key, run in runs.items():
            started = time.perf_counter()
            run()
            if number:
                seconds[key].append(time.perf_counter() - started)
        if progress:
            progress(number + 1, repeats + 1)
    return {key: statistics.median(times) for key, times in seconds.items()}
