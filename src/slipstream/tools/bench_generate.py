"""Speed of generation: every drafter against plain decoding on the same prompts, by category."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from slipstream.engine import Engine
from slipstream.models.decoder import Decoder
from slipstream.tools.bench_pass import cost_of_rows
from slipstream.tools.conditions import Conditions, peak_memory_bytes
from slipstream.tools.suites import SuitePrompt, prompt_ids
from slipstream.tools.tally import Tally, first_difference, rate_ratio
from slipstream.types import Completion, SamplingParams

__all__ = [
    "LOOP",
    "SHORTEST",
    "bench_generate",
    "cost_curve",
    "decode_in_turns",
    "loop_start",
    "quartiles",
    "rotated",
    "warm_up",
]

LOOP = 8
"""An output that has the same so many tokens twice goes round in circles, which flatters every drafter."""

SHORTEST = 16
"""Outputs of fewer tokens are too short to time."""

COST_ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
COST_CONTEXT = 256
COST_REPEATS = 3


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What came of one prompt. runs: by drafter, "null" being plain decoding; none where the output was too short."""

    place: int  # among all prompts of the benchmark
    prompt: SuitePrompt
    prompt_tokens: int
    completion_tokens: int  # of plain decoding, up to a loop
    looped: bool
    runs: Mapping[str, Completion]


def bench_generate(
    engine: Engine,
    prompts: Sequence[SuitePrompt],
    drafters: Sequence[str],
    params: SamplingParams,
    conditions: Conditions,
    *,
    tracking: Callable[[Sequence[SuitePrompt]], Iterator[SuitePrompt]] = iter,
) -> dict[str, Any]:
    """Times plain decoding and each drafter on every prompt, in turns, so that noise of the machine hits all alike.

    params      with a seed, unless greedy
    conditions  those before the engine was loaded
    tracking    is given the prompts and iterates over them, to show progress

    Plain decoding goes first. Where its output begins to repeat itself (loop_start), all are timed on what comes before
    that, plain decoding once more. An output of fewer than SHORTEST tokens is counted and left out.

    Returns {environment, temperature, seed, max_tokens, categories: {category: {drafter: figures}}, overall: {drafter:
    figures}, peak_memory_bytes, prompts}. tokens_per_second is pooled, of the tokens and seconds behind a request's
    first pass to give any. speedup is the median over prompts of its ratio to plain decoding of the same prompt,
    speedup_with_prefill that of whole requests; both are None where no prompt was timed. first_difference names its
    prompt by the place in `prompts`. Raises OptionError for a prompt that the model has no room for.
    """
    ids = prompt_ids(engine, prompts)
    warm_up(engine, ids[0], drafters)
    outcomes = [
        _outcome(engine, place, prompt, ids[place], drafters, params) for place, prompt in enumerate(tracking(prompts))
    ]
    peak = peak_memory_bytes()
    by_category = {
        category: [outcome for outcome in outcomes if outcome.prompt.category == category]
        for category in dict.fromkeys(prompt.category for prompt in prompts)
    }
    return {
        "environment": conditions.environment(_early_and_late(engine, outcomes, ids, params)),
        "temperature": params.temperature,
        "seed": params.seed,
        "max_tokens": params.max_tokens,
        "categories": {
            category: {drafter: _figures(drafter, among) for drafter in drafters}
            for category, among in by_category.items()
        },
        "overall": {drafter: _figures(drafter, outcomes) for drafter in drafters},
        "peak_memory_bytes": peak,
        "prompts": [_record(outcome) for outcome in outcomes],
    }


def cost_curve(model: Decoder, progress: Callable[[str, int, int], None] | None = None) -> list[dict[str, float]]:
    """T(r), the seconds of a pass over r rows, for the few rows that drafts have: [{rows, seconds}]."""
    context = min(COST_CONTEXT, model.config.context_length - max(COST_ROWS))
    curve = cost_of_rows(model, COST_ROWS, context, COST_REPEATS, progress)
    return [{"rows": rows, "seconds": seconds} for rows, seconds in curve.items()]


def warm_up(engine: Engine, prompt: list[int], drafters: Sequence[str]) -> None:
    """Decodes a little in every way: what only a first pass pays for is nobody's time."""
    for drafter in ("null", *drafters):
        engine.generate(prompt, SamplingParams(max_tokens=SHORTEST, ignore_eos=True), drafter=drafter)


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The names in an order in which each comes first every so many turns."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def loop_start(tokens: Sequence[int]) -> int | None:
    """Where the first run of LOOP tokens begins that were in the output before; None without one."""
    seen = set()
    for start in range(len(tokens) - LOOP + 1):
        run = tuple(tokens[start : start + LOOP])
        if run in seen:
            return start
        seen.add(run)
    return None


def _outcome(
    engine: Engine,
    place: int,
    prompt: SuitePrompt,
    ids: list[int],
    drafters: Sequence[str],
    params: SamplingParams,
) -> _Outcome:
    def run(name: str, params: SamplingParams) -> Completion:
        return engine.generate(ids, params, drafter=name)

    length, looped, runs = decode_in_turns(run, drafters, params, place)
    return _Outcome(place, prompt, len(ids), length, looped, runs)


def decode_in_turns(
    run: Callable[[str, SamplingParams], Completion], names: Sequence[str], params: SamplingParams, turn: int
) -> tuple[int, bool, dict[str, Completion]]:
    """Decodes one prompt plainly, run("null", params), then in each of the ways that names stand for, in an order that
    depends on the turn. Where the plain output loops, all are run up to there, plain decoding once more.

    Returns how many tokens of the plain output are timed, whether it loops, and the completions by name, "null" among
    them; none where it has fewer than SHORTEST tokens.
    """
    plain = run("null", params)
    loop = loop_start(plain.token_ids)
    length = len(plain.token_ids) if loop is None else loop
    runs: dict[str, Completion] = {}
    if length >= SHORTEST:
        order = ["null", *names]
        if loop is None:
            runs["null"] = plain
            order.remove("null")
        else:
            params = replace(params, max_tokens=length)
        for name in rotated(order, turn):
            runs[name] = run(name, params)
    return length, loop is not None, runs


def _early_and_late(
    engine: Engine, outcomes: Sequence[_Outcome], ids: Sequence[list[int]], params: SamplingParams
) -> tuple[float, float] | None:
    """Tokens a second of plain decoding of the first prompt that was timed: then, and now once more."""
    for outcome in outcomes:
        if outcome.runs:
            again = replace(params, max_tokens=outcome.completion_tokens)
            late = engine.generate(ids[outcome.place], again, drafter="null")
            return outcome.runs["null"].timing.tokens_per_second, late.timing.tokens_per_second
    return None


def _figures(drafter: str, outcomes: Sequence[_Outcome]) -> dict[str, Any]:
    """The figures of one drafter over some prompts."""
    plain, drafted = Tally("null"), Tally(drafter)
    speedups, speedups_with_prefill, first_tokens = [], [], []
    timed = [outcome for outcome in outcomes if outcome.runs]
    for outcome in timed:
        expected, got = outcome.runs["null"], outcome.runs[drafter]
        plain.add(expected)
        drafted.add(got)
        difference = first_difference(outcome.place, expected.token_ids, got.token_ids)
        drafted.difference = drafted.difference or difference
        if got.timing.decode_seconds:  # a first draft that holds all of a short answer leaves none
            speedups.append(rate_ratio(got.timing.tokens_per_second, expected.timing.tokens_per_second))
        speedups_with_prefill.append(rate_ratio(_seconds(expected), _seconds(got)))
        first_tokens.append(got.timing.prefill_seconds)
    lower, median, upper = quartiles(speedups)
    return {
        "speedup": median,
        "speedup_quartiles": [lower, upper] if speedups else None,
        "speedup_with_prefill": quartiles(speedups_with_prefill)[1],
        "prompts": len(timed),
        "looped": sum(outcome.looped for outcome in outcomes),
        "too_short": len(outcomes) - len(timed),
        "mean_accepted_length": drafted.stats.mean_accepted_length,
        "acceptance_rate": drafted.stats.acceptance_rate,
        "acceptance_by_position": list(drafted.stats.acceptance_by_position),
        "tokens_per_second": drafted.tokens_per_second,
        "plain_tokens_per_second": plain.tokens_per_second,
        "time_to_first_token": quartiles(first_tokens)[1],
        "identical": drafted.difference is None,
        "first_difference": asdict(drafted.difference) if drafted.difference else None,
        "completion_tokens": drafted.completion_tokens,
    }


def _seconds(completion: Completion) -> float:
    return completion.timing.prefill_seconds + completion.timing.decode_seconds


def quartiles(values: Sequence[float]) -> list[float] | list[None]:
    """The lower quartile, the median and the upper quartile; Nones without values."""
    if not values:
        return [None] * 3
    found: list[float] = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return found


def _record(outcome: _Outcome) -> dict[str, Any]:
    return {
        "category": outcome.prompt.category,
        "index": outcome.prompt.index,
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.completion_tokens,
        "looped": outcome.looped,
        "runs": {
            name: {
                "tokens_per_second": run.timing.tokens_per_second,
                "decode_seconds": run.timing.decode_seconds,
                "time_to_first_token": run.timing.prefill_seconds,
                "mean_accepted_length": run.speculation.mean_accepted_length,
            }
            for name, run in sorted(outcome.runs.items())
        },
    }
