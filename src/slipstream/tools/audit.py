"""Is it lossless here: with this model, these prompts, on this machine? Plain decoding against every drafter.

Bits: the same prompt, options and seed give the same tokens, text, log-probabilities, ending and usage with any drafter
and draft length, alone and in a batch. Distribution: what is drawn follows the target's own distribution, which is had
from the log-probabilities of plain decoding; a chi-square test for each drafter and rule.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from slipstream.engine import Engine
from slipstream.tools.prompt_files import SourcedPrompt
from slipstream.tools.statistics import chi_square_p
from slipstream.tools.suites import prompt_ids
from slipstream.types import Completion, Request, SamplingParams, Verification

__all__ = ["ALPHA", "DRAFT_LENGTHS", "OPTIONS", "Audit", "Difference", "DistributionTest", "audit"]

ALPHA = 1e-4
"""A distribution test fails below this: one in ten thousand that are right does."""

DRAFT_LENGTHS = (1, 4, 16)

OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"logprobs": 5},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "logprobs": 5, "logprobs_of": "processed"},
    "hot": {"temperature": 1.5, "top_k": 50, "min_p": 0.02, "typical_p": 0.95},
    "penalised": {
        "temperature": 0.7,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
        "penalty_window": 64,
        "logprobs": 2,
        "logprobs_of": "processed",
    },
    "banned": {"no_repeat_ngram_size": 3, "bad_words": ("the", "\n"), "min_tokens": 8, "logprobs": 0},
    "stopped": {"temperature": 1.0, "stop": (". ", "\n\n", "e t"), "prompt_logprobs": 1, "echo": True},
    "regex": {"temperature": 1.0, "regex": r"([A-Z]?[a-z]+[ ,.])+", "logprobs": 3},
    "json": {
        "json_schema": {
            "type": "object",
            "properties": {"answer": {"type": "string"}, "sure": {"type": "boolean"}},
            "required": ["answer", "sure"],
            "additionalProperties": False,
        }
    },
}
"""What each prompt is decoded with."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a run wasn't plain decoding: what differs, and for tokens and log-probabilities at which position first."""

    prompt: int
    drafter: str
    num_speculative_tokens: int
    options: str
    seed: int
    batched: bool
    what: str
    position: int | None
    plain: Any
    drafted: Any


@dataclass(frozen=True, slots=True)
class DistributionTest:
    """How the first tokens of `samples` completions agree with the target's distribution."""

    drafter: str
    verification: Verification
    samples: int
    p_value: float
    acceptance_rate: float

    @property
    def passed(self) -> bool:
        return self.p_value >= ALPHA


@dataclass(slots=True)
class Audit:
    """What was found. runs counts speculative runs, each compared with a plain one."""

    runs: int = 0
    identical: int = 0
    differences: list[Difference] = field(default_factory=list)
    distribution: list[DistributionTest] = field(default_factory=list)
    by_options: Counter[tuple[str, str]] = field(default_factory=Counter)  # (drafter, options) → runs that differ
    accepted: Counter[str] = field(default_factory=Counter)  # drafter → drafted tokens that were kept

    @property
    def lossless(self) -> bool:
        return not self.differences and all(test.passed for test in self.distribution)


def audit(
    engine: Engine,
    prompts: Sequence[SourcedPrompt],
    drafters: Sequence[str],
    *,
    max_tokens: int = 32,
    seeds: Sequence[int] = (1,),
    samples: int = 0,
    tracking: Callable[[Sequence[Any]], Iterator[Any]] = iter,
) -> Audit:
    """Compares plain decoding with each drafter on every prompt, with every entry of OPTIONS, seed and draft length.

    samples   completions for each distribution test, on the shortest prompt; 0 leaves these tests out
    tracking  is given the work as a sequence and iterates over it, to show progress

    Raises OptionError, before anything is run, for a prompt that the model has no room for.
    """
    found = Audit()
    ids = prompt_ids(engine, prompts)
    # A grammar's end is an end-of-sequence token: without one there are no grammars to compare.
    names = [name for name in OPTIONS if engine.eos_token_ids or name not in ("json", "regex")]
    work = [(index, name, seed) for index in range(len(ids)) for name in names for seed in seeds]
    for index, name, seed in tracking(work):
        params = SamplingParams(**OPTIONS[name], seed=seed, max_tokens=max_tokens)
        _compare(engine, found, index, ids[index], name, params, drafters)
    if samples:
        _test_distributions(engine, found, min(ids, key=len), drafters, samples)
    return found


def _compare(
    engine: Engine,
    found: Audit,
    index: int,
    prompt: list[int],
    name: str,
    params: SamplingParams,
    drafters: Sequence[str],
) -> None:
    plain = engine.generate(prompt, params, drafter="null")
    requests = [Request(prompt, params, drafter, length) for drafter in drafters for length in DRAFT_LENGTHS]
    together = engine.generate_batch(requests)
    for request, batched in zip(requests, together, strict=True):
        assert request.drafter is not None
        assert request.num_speculative_tokens is not None
        alone = engine.generate(
            prompt, params, drafter=request.drafter, num_speculative_tokens=request.num_speculative_tokens
        )
        for completion in (alone, batched):
            found.runs += 1
            found.accepted[request.drafter] += completion.speculation.accepted
            difference = _first_difference(plain, completion)
            if difference is None:
                found.identical += 1
                continue
            found.by_options[request.drafter, name] += 1
            found.differences.append(
                Difference(
                    index,
                    request.drafter,
                    request.num_speculative_tokens,
                    name,
                    plain.seed,
                    completion is batched,
                    *difference,
                )
            )


def _first_difference(plain: Completion, drafted: Completion) -> tuple[str, int | None, Any, Any] | None:
    """(what, position, plain's, the other's), None where all that a caller gets is the same."""
    for what in ("token_ids", "logprobs", "prompt_logprobs"):
        for position, (one, other) in enumerate(zip_longest(getattr(plain, what) or (), getattr(drafted, what) or ())):
            if one != other:
                return what, position, one, other
    for what in ("text", "finish_reason", "usage", "seed"):
        if getattr(plain, what) != getattr(drafted, what):
            return what, None, getattr(plain, what), getattr(drafted, what)
    return None


# Distributions --------------------------------------------------------------------------------------------------------

_DRAWN = SamplingParams(temperature=1.2, top_k=20)  # all that top-k leaves can be reported as log-probabilities
_LENGTH = 2  # tokens: both are drafted


def _test_distributions(engine: Engine, found: Audit, prompt: list[int], drafters: Sequence[str], samples: int) -> None:
    expected = _law(engine, prompt)
    for drafter in drafters:
        for rule in ("match", "rejection"):
            counts: Counter[tuple[int, ...]] = Counter()
            drafted = accepted = 0
            in_force = set()
            for first in range(0, samples, 128):
                params = replace(
                    _DRAWN,
                    n=min(128, samples - first),
                    seed=first + 1,
                    max_tokens=_LENGTH,
                    verification=rule,
                )
                for completion in engine.generate_batch([Request(prompt, params, drafter, _LENGTH)]):
                    counts[completion.token_ids] += 1
                    drafted += completion.speculation.drafted
                    accepted += completion.speculation.accepted
                    in_force.add(completion.speculation.verification)
            if rule in in_force:  # a drafter that draws nothing is verified by match whatever was asked for
                rate = accepted / drafted if drafted else 0.0
                p_value = chi_square_p(counts, expected)
                found.distribution.append(DistributionTest(drafter, rule, samples, p_value, rate))


def _law(engine: Engine, prompt: list[int]) -> dict[tuple[int, ...], float]:
    """The probability of every output of _LENGTH tokens, from the log-probabilities of plain decoding."""
    law: dict[tuple[int, ...], float] = {}
    outputs: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(_LENGTH):
        # An end-of-sequence token is only one of those whose probability is asked for here: it mustn't hide the others.
        params = replace(_DRAWN, max_tokens=1, logprobs=20, logprobs_of="processed", seed=0, ignore_eos=True)
        requests = [Request([*prompt, *output], params, "null") for output in outputs]
        longer: dict[tuple[int, ...], float] = {}
        for (output, probability), completion in zip(outputs.items(), engine.generate_batch(requests), strict=True):
            assert completion.logprobs is not None
            assert completion.logprobs[0] is not None
            for token, logprob in completion.logprobs[0].top:
                share = probability * math.exp(logprob)
                if token in engine.eos_token_ids:
                    law[output] = law.get(output, 0.0) + share
                else:
                    extended = (*output, token)
                    longer[extended] = share
        outputs = longer
    return {**law, **outputs}
