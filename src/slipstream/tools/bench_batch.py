"""Throughput of batches: where does drafting stop to pay when more requests run at once?"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from slipstream.engine import Engine
from slipstream.errors import OptionError
from slipstream.tools.bench_generate import rotated, warm_up
from slipstream.tools.conditions import Conditions
from slipstream.tools.suites import SuitePrompt, mixed, suite_ids
from slipstream.types import Request, SamplingParams

__all__ = ["SIZES", "bench_batch"]

SIZES = (1, 2, 4, 8, 16)
REPEATS = 5
TOKENS = 64


def bench_batch(
    engine: Engine,
    prompts: Sequence[SuitePrompt],
    drafters: Sequence[str],
    conditions: Conditions,
    sizes: Sequence[int] = SIZES,
    *,
    tracking: Callable[[Sequence[Any]], Iterator[Any]] = iter,
) -> dict[str, Any]:
    """Times batches of prompts of every category, in plain decoding and with each drafter in turns.

    Every request is decoded greedily to 64 tokens, past its end if need be, so that a batch stays whole in plain
    decoding. tokens_per_second is that of the whole batch: the tokens behind each request's first, by the median
    seconds less those of the same batch that stops at its first tokens, which is its prefill. speedup is the median of
    the repeats' own ratios, which a machine that becomes slower from one to the next doesn't touch.

    conditions  those before the engine was loaded
    tracking    is given the work as a sequence and iterates over it, to show progress

    Returns {environment, sizes: {size: {drafter or "null": {tokens_per_second, speedup, identical}}}}. Raises
    OptionError for a size that the engine doesn't run at once.
    """
    most = engine.scheduler.max_batch_size
    for size in sizes:
        if size > most:
            raise OptionError(f"a batch of {size} doesn't run at once: use sizes up to {most}")
    ids = suite_ids(engine, mixed(prompts)[: max(sizes)])
    warm_up(engine, ids[0], drafters)
    names = ["prefill", "null", *drafters]
    seconds: dict[tuple[int, str], list[float]] = defaultdict(list)
    outputs: dict[tuple[int, str], set[tuple[tuple[int, ...], ...]]] = defaultdict(set)  # one, unless they differ
    for repeat, size in tracking([(repeat, size) for repeat in range(REPEATS) for size in sizes]):
        batch = [ids[number % len(ids)] for number in range(size)]
        for name in rotated(names, repeat):
            drafter, tokens = ("null", 1) if name == "prefill" else (name, TOKENS)
            params = SamplingParams(max_tokens=tokens, ignore_eos=True)
            started = time.perf_counter()
            completions = engine.generate_batch([Request(prompt, params, drafter) for prompt in batch])
            seconds[size, name].append(time.perf_counter() - started)
            outputs[size, name].add(tuple(completion.token_ids for completion in completions))

    def decoding(size: int, name: str) -> list[float]:
        prefill = statistics.median(seconds[size, "prefill"])
        return [spent - prefill for spent in seconds[size, name]]

    def rate(size: int, name: str, repeats: slice = slice(None)) -> float:
        return size * (TOKENS - 1) / statistics.median(decoding(size, name)[repeats])

    def speedup(size: int, name: str) -> float:
        pairs = zip(decoding(size, "null"), decoding(size, name), strict=True)
        return statistics.median([plain / drafted for plain, drafted in pairs])

    early, late = (rate(max(sizes), "null", repeats) for repeats in (slice(1), slice(REPEATS - 1, None)))
    return {
        "environment": conditions.environment((early, late)),
        "sizes": {
            str(size): {
                name: {
                    "tokens_per_second": rate(size, name),
                    "speedup": speedup(size, name),
                    "identical": outputs[size, name] == outputs[size, "null"],
                }
                for name in ("null", *drafters)
            }
            for size in sizes
        },
    }
