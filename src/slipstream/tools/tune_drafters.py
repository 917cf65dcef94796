"""Which drafter, drafting how many tokens at a time, is the fastest on a user's own prompts."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slipstream.controller import Controller
from slipstream.engine import Engine
from slipstream.errors import OptionError
from slipstream.files import write_record
from slipstream.profile import Profile, key, profile_path
from slipstream.tools.bench_generate import SHORTEST, decode_in_turns, warm_up
from slipstream.tools.conditions import Conditions
from slipstream.tools.prompt_files import SourcedPrompt
from slipstream.tools.suites import prompt_ids
from slipstream.tools.tally import Tally, first_difference, rate_ratio
from slipstream.types import Completion, SamplingParams

__all__ = ["LENGTHS", "Figures", "choose", "tune_drafters", "why"]

LENGTHS = (2, 3, 5, 8, 12)
"""Draft lengths that each drafter is tried with. `auto` finds its own."""

CLOSE = 1.02
"""A drafter must be so many times as fast as `auto` to be taken instead: auto adapts to other texts, it doesn't."""

PLAIN = Profile("null", None)

Work = tuple[list[int], SamplingParams]


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of one way to draft.

    num_speculative_tokens  None is the drafter's own choice
    speedup                 over plain decoding: the median over answers
    speedups                the same for each temperature; None where it had no answer to time
    pass_cost               seconds for each target pass, drafting included, over those of plain decoding
    identical               whether every answer was plain decoding's, to the token
    """

    drafter: str
    num_speculative_tokens: int | None
    speedup: float
    speedups: tuple[float | None, ...]
    mean_accepted_length: float
    acceptance_rate: float
    pass_cost: float
    identical: bool


def tune_drafters(
    engine: Engine,
    prompts: Sequence[SourcedPrompt],
    conditions: Conditions,
    *,
    max_tokens: int = 96,
    temperature: float = 0.0,
    tracking: Callable[[Sequence[Work]], Iterator[Work]] = iter,
) -> dict[str, Any]:
    """Times plain decoding and every drafter with every length of LENGTHS on the same prompts, in turns, and saves the
    fastest as the profile of the engine's models.

    temperature  answers are greedy ones and, where it isn't 0, such as are sampled at it
    conditions   those before the engine was loaded
    tracking     is given the work as a sequence and iterates over it, to show progress

    Answers are timed as bench_generate does it. Returns {kind: "drafters", environment, model, prompts, temperatures,
    timed (answers), ways: [the fields of Figures, the fastest first], winner: {drafter, num_speculative_tokens}, why,
    profile (its path)}; nothing is saved, and profile is None, where an answer wasn't plain decoding's. Raises
    OptionError for prompts that can't be used, and where no answer is long enough.
    """
    ways = {Controller.name: Profile(Controller.name, None)}
    for drafter in engine.drafter_names:
        if drafter not in (Controller.name, "null"):
            ways |= {f"{drafter} {length}": Profile(drafter, length) for length in LENGTHS}
    temperatures = [0.0, temperature] if temperature else [0.0]
    ids = prompt_ids(engine, prompts)
    work = [
        (prompt, SamplingParams(temperature=degree, seed=0, max_tokens=max_tokens))
        for prompt in ids
        for degree in temperatures
    ]
    warm_up(engine, ids[0], list(dict.fromkeys(way.drafter for way in ways.values())))
    timed: list[tuple[float, dict[str, Completion]]] = []
    for turn, (prompt, params) in enumerate(tracking(work)):

        def run(name: str, params: SamplingParams, prompt: list[int] = prompt) -> Completion:
            way = PLAIN if name == "null" else ways[name]
            return engine.generate(
                prompt, params, drafter=way.drafter, num_speculative_tokens=way.num_speculative_tokens
            )

        runs = decode_in_turns(run, list(ways), params, turn)[2]
        if runs:
            timed.append((params.temperature, runs))
    if not timed:
        raise OptionError(f"no answer has {SHORTEST} tokens before it repeats itself, to be timed: use other prompts")
    found = [_figures(name, way, timed, temperatures) for name, way in ways.items()]
    found.sort(key=lambda figures: -figures.speedup)
    winner = choose(found)
    path = None
    if all(figures.identical for figures in found):
        path = profile_path(engine.target, engine.draft_model)
        write_record(path, {"key": key(engine.target, engine.draft_model), **asdict(winner)})
    return {
        "kind": "drafters",
        "environment": conditions.environment(),
        "model": engine.model_name,
        "prompts": len(ids),
        "temperatures": temperatures,
        "timed": len(timed),
        "ways": [asdict(figures) for figures in found],
        "winner": asdict(winner),
        "why": why(winner, found),
        "profile": str(path) if path else None,
    }


def choose(found: Sequence[Figures]) -> Profile:
    """The fastest way: `auto` where nothing is clearly faster, plain decoding where that is."""
    speedups = {Profile(figures.drafter, figures.num_speculative_tokens): figures.speedup for figures in found}
    speedups[PLAIN] = 1.0
    auto = Profile(Controller.name, None)
    fastest = max(speedups, key=lambda way: speedups[way])
    return auto if speedups[fastest] <= CLOSE * speedups[auto] else fastest


def why(winner: Profile, found: Sequence[Figures]) -> str:
    """Why the winner won, in a sentence."""
    if winner == PLAIN:
        return "Plain decoding is the fastest: no drafter gains on these prompts what its drafts cost."
    figures = next(each for each in found if Profile(each.drafter, each.num_speculative_tokens) == winner)
    fastest = max(found, key=lambda each: each.speedup)
    what = (
        winner.drafter
        if winner.num_speculative_tokens is None
        else f"{winner.drafter} with {winner.num_speculative_tokens}"
    )
    reason = (
        f"{figures.acceptance_rate:.0%} of its drafts' tokens were accepted, so that a pass gave "
        f"{figures.mean_accepted_length:.2f} tokens, and took {figures.pass_cost:.2f} times as long as one of plain "
        "decoding, drafting included."
    )
    if fastest is figures:
        return f"{what} is the fastest: {reason}"
    return (
        f"{what} is taken, which adapts to other texts: {fastest.drafter} with {fastest.num_speculative_tokens}, the "
        f"fastest here, isn't 2% faster. Of {what}, {reason}"
    )


def _figures(
    name: str, way: Profile, timed: Sequence[tuple[float, dict[str, Completion]]], temperatures: Sequence[float]
) -> Figures:
    plain, drafted = Tally("null"), Tally(way.drafter)
    speedups: dict[float, list[float]] = {temperature: [] for temperature in temperatures}
    identical = True
    for temperature, runs in timed:
        expected, got = runs["null"], runs[name]
        plain.add(expected)
        drafted.add(got)
        identical = identical and first_difference(0, expected.token_ids, got.token_ids) is None
        if got.timing.decode_seconds:  # a first draft that holds all of a short answer leaves none
            speedups[temperature].append(rate_ratio(got.timing.tokens_per_second, expected.timing.tokens_per_second))
    every = [speedup for some in speedups.values() for speedup in some]
    rate = drafted.speedup(plain)
    return Figures(
        way.drafter,
        way.num_speculative_tokens,
        statistics.median(every) if every else 0.0,
        tuple(statistics.median(some) if some else None for some in speedups.values()),
        drafted.stats.mean_accepted_length,
        drafted.stats.acceptance_rate,
        drafted.stats.mean_accepted_length / rate if rate else 0.0,
        identical,
    )
