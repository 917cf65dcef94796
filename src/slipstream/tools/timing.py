"""Medians of interleaved repeats: noise of a shared machine then falls on all that is compared alike."""

import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

__all__ = ["interleaved_medians"]

Key = TypeVar("Key", bound=Hashable)


def interleaved_medians(
    runs: Mapping[Key, Callable[[], object]], repeats: int, progress: Callable[[int, int], None] | None = None
) -> dict[Key, float]:
    """Median seconds of each run, over `repeats` rounds of all runs, after a round to warm up.

    Each round makes every run twice, in an order of its own, and times the second: what came before, a pause included,
    leaves the processor's caches and clocks in a state that slows the first one down (by 60% where measured), as it
    doesn't in a stream of passes.
    progress is called with (rounds done, rounds in all).
    """
    seconds: dict[Key, list[float]] = {key: [] for key in runs}
    for number in range(repeats + 1):
        for key, run in random.Random(number).sample(list(runs.items()), len(runs)):
            run()
            started = time.perf_counter()
            run()
            if number:
                seconds[key].append(time.perf_counter() - started)
        if progress:
            progress(number + 1, repeats + 1)
    return {key: statistics.median(times) for key, times in seconds.items()}
