"""The price of a whole pass of a model over r rows, at short and long context, and of its prefill."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from slipstream.drafters.guessing import feed
from slipstream.models.decoder import Decoder, Segment
from slipstream.tools.bench_kernels import ROWS, read_bandwidth
from slipstream.tools.environment import describe
from slipstream.tools.timing import interleaved_medians

__all__ = ["CONTEXTS", "bench_pass", "cost_of_rows"]

CONTEXTS = (256, 2048)
PREFILL_TOKENS = 512
CHUNK = 256


def bench_pass(
    model: Decoder,
    repeats: int = 7,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = CONTEXTS,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, object]:
    """Times a pass over r rows of one sequence with logits for each, as verification needs them.

    Contexts that the model doesn't hold are left out. Returns {kind: "pass", environment, pass_bytes,
    read_bandwidth_gbps, contexts: [{context, passes: [{rows, seconds, ratio_to_one_row}],
    fraction_of_bandwidth_limit}], prefill_tokens_per_second}. The limit is the time to read, once, the weights and the
    keys and values of the context.
    """
    bandwidth = read_bandwidth()
    results = []
    for context in (context for context in contexts if context + max(rows) <= model.config.context_length):
        medians = cost_of_rows(model, rows, context, repeats, progress)
        one = medians[rows[0]]
        cache = model.new_cache(context)
        bytes_read = model.pass_bytes + cache.keys.nbytes + cache.values.nbytes
        results.append(
            {
                "context": context,
                "passes": [
                    {"rows": count, "seconds": seconds, "ratio_to_one_row": seconds / one}
                    for count, seconds in medians.items()
                ],
                "fraction_of_bandwidth_limit": bytes_read / (bandwidth * 1e9) / one,
            }
        )
    return {
        "kind": "pass",
        "environment": describe(),
        "pass_bytes": model.pass_bytes,
        "read_bandwidth_gbps": bandwidth,
        "contexts": results,
        "prefill_tokens_per_second": _prefill_rate(model),
    }


def cost_of_rows(
    model: Decoder,
    rows: Sequence[int],
    context: int,
    repeats: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[int, float]:
    """T(r): median seconds of a pass over r rows of one sequence, behind `context` tokens and with logits for each."""
    rng = np.random.default_rng(0)
    cache = model.new_cache(context + max(rows))
    for start in range(0, context, CHUNK):
        tokens = rng.integers(0, model.config.vocab_size, min(CHUNK, context - start))
        feed(model, [cache], [tokens.tolist()], num_logits=0)
    segments = {
        count: Segment.chain(cache, rng.integers(0, model.config.vocab_size, count).tolist(), num_logits=count)
        for count in rows
    }
    return interleaved_medians(
        {count: partial(model.forward, [segment]) for count, segment in segments.items()},
        repeats,
        partial(progress, f"context {context}") if progress else None,
    )


def _prefill_rate(model: Decoder) -> float:
    """Prompt tokens a second, chunked like the scheduler does, the best of three."""
    count = min(PREFILL_TOKENS, model.config.context_length - 1)
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, count).tolist()
    best = float("inf")
    for _ in range(3):
        cache = model.new_cache(count)
        started = time.perf_counter()
        for start in range(0, count, CHUNK):
            feed(model, [cache], [tokens[start : start + CHUNK]], num_logits=int(start + CHUNK >= count))
        best = min(best, time.perf_counter() - started)
    return count / best
