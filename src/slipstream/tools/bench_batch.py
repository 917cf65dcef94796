"""Throughput of batches: where does drafting stop to pay when more requests run at once?"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.engine import Engine
from slipstream.errors import OptionError
from slipstream.tools.bench_generate import quartiles, rotated, warm_up
from slipstream.tools.conditions import Conditions
from slipstream.tools.suites import SuitePrompt, mixed, prompt_ids
from slipstream.tools.tally import rate_ratio
from slipstream.types import Request, SamplingParams

__all__ = ["SIZES", "bench_batch"]

SIZES = (1, 2, 4, 8, 16)
REPEATS = 9
PARAMS = SamplingParams(max_tokens=64, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class _Run:
    seconds: float
    tokens_per_second: float
    outputs: list[tuple[int, ...]]


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
    decoding. tokens_per_second is that of the whole batch, of the tokens behind the pass in which its last request got
    its first, by the time from there on. speedup and speedup_with_prefill, which is that of the whole time, are medians
    of the repeats' own ratios, which a machine that becomes slower from one to the next doesn't touch.

    conditions  those before the engine was loaded
    tracking    is given the work as a sequence and iterates over it, to show progress

    Returns {environment, sizes: {size: {drafter or "null": {tokens_per_second, speedup, speedup_quartiles,
    speedup_with_prefill, identical}}}}. Raises OptionError for a size that the engine doesn't run at once.
    """
    most = engine.scheduler.max_batch_size
    for size in sizes:
        if size > most:
            raise OptionError(f"a batch of {size} doesn't run at once: use sizes up to {most}")
    ids = prompt_ids(engine, mixed(prompts)[: max(sizes)])
    warm_up(engine, ids[0], drafters)
    names = ["null", *drafters]
    runs: dict[tuple[int, str], list[_Run]] = defaultdict(list)
    for repeat, size in tracking([(repeat, size) for repeat in range(REPEATS) for size in sizes]):
        batch = [ids[number % len(ids)] for number in range(size)]
        for name in rotated(names, repeat):
            runs[size, name].append(_run(engine, [Request(prompt, PARAMS, name) for prompt in batch]))

    def rate(size: int, name: str, repeats: slice = slice(None)) -> float:
        return statistics.median(run.tokens_per_second for run in runs[size, name][repeats])

    def speedups(size: int, name: str) -> dict[str, Any]:
        pairs = [*zip(runs[size, "null"], runs[size, name], strict=True)]
        lower, median, upper = quartiles(
            [rate_ratio(run.tokens_per_second, plain.tokens_per_second) for plain, run in pairs]
        )
        return {
            "speedup": median,
            "speedup_quartiles": [lower, upper],
            "speedup_with_prefill": quartiles([rate_ratio(plain.seconds, run.seconds) for plain, run in pairs])[1],
        }

    def identical(size: int, name: str) -> bool:
        return all(run.outputs == runs[size, "null"][0].outputs for run in runs[size, name])

    early, late = (rate(max(sizes), "null", repeats) for repeats in (slice(1), slice(REPEATS - 1, None)))
    return {
        "environment": conditions.environment((early, late)),
        "sizes": {
            str(size): {
                name: {
                    "tokens_per_second": rate(size, name),
                    **speedups(size, name),
                    "identical": identical(size, name),
                }
                for name in ("null", *drafters)
            }
            for size in sizes
        },
    }


def _run(engine: Engine, requests: Sequence[Request]) -> _Run:
    """Runs a batch and times it."""
    outputs: dict[int, tuple[int, ...]] = {}
    begun: set[int] = set()
    tokens = 0
    started = decoding = ended = time.perf_counter()
    for added in engine.stream_batch(requests):
        ended = time.perf_counter()
        if len(begun) < len(requests):
            begun.update(output.request_id for output in added)
            decoding = ended
        else:
            tokens += sum(len(output.pieces) for output in added)
        outputs.update({output.request_id: output.completion.token_ids for output in added if output.completion})
    return _Run(ended - started, tokens / (ended - decoding), [outputs[number] for number in sorted(outputs)])
