"""Which layers the drafter layer_skip should leave out: a search over sets, by what each would gain.

A set is tried on the model's own greedy answers, which it would have to guess. At every MOST_DRAFTED-th token of an
answer it drafts from there, in one pass: the rows are fed the answer's own tokens, and as many as it has right before
the first that is wrong would have been accepted. The keys and values of the context are the whole model's, as they are
when it drafts, so this is the acceptance itself and no approximation. What passes take is measured, and both together
give the speed-up to expect of each draft length: mean accepted length over the time of a draft and a target pass.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from slipstream import kernels
from slipstream.cache import KVCache
from slipstream.drafters.guessing import feed
from slipstream.drafters.layer_skip import REMEDY, identity, profile_path
from slipstream.engine import Engine
from slipstream.errors import OptionError
from slipstream.files import read_record, write_record
from slipstream.models.checkpoint import Progress
from slipstream.models.decoder import Decoder, Segment
from slipstream.tools.bench_pass import cost_of_rows
from slipstream.tools.conditions import Conditions
from slipstream.tools.prompt_files import SourcedPrompt
from slipstream.tools.suites import prompt_ids
from slipstream.tools.timing import interleaved_medians
from slipstream.types import SamplingParams

__all__ = ["MOST_DRAFTED", "Costs", "Estimate", "Trials", "search", "tune_layer_skip"]

MOST_DRAFTED = 8
"""Longest draft that is considered."""

BREADTH = 6
"""Layers that are tried as the next one to skip: of those left, the ones that were missed least alone."""

PATIENCE = 5
"""The search ends when so many layers more haven't made a better set."""

CONTEXT = 256
"""Tokens before the passes whose time is measured."""

REPEATS = 5
CHUNK = 256

Skipped = tuple[int, ...]
Reached = list[int]
"""For j = 1 to MOST_DRAFTED: how many drafts had their first j tokens right."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that passes take."""

    passes: list[float]  # (1 + MOST_DRAFTED,): a target pass over 1, 2, … rows
    one_layer: float  # a pass of one row through one layer and the output projection

    def draft(self, layers: int, num_layers: int) -> float:
        """Seconds of one drafted token by so many of the model's layers."""
        each = (self.passes[0] - self.one_layer) / (num_layers - 1)
        return self.one_layer + (layers - 1) * each


@dataclass(frozen=True, slots=True)
class Estimate:
    """What to expect of a set of skipped layers at its best draft length. The speed-up is over plain decoding, 1."""

    skipped: Skipped
    num_speculative_tokens: int
    acceptance_rate: float
    mean_accepted_length: float
    speedup: float

    @classmethod
    def of(cls, skipped: Skipped, reached: Reached, drafts: int, costs: Costs, num_layers: int) -> "Estimate":
        drafted_token = costs.draft(num_layers - len(skipped), num_layers)
        estimates = []
        for length in range(1, MOST_DRAFTED + 1):
            accepted = sum(reached[:length]) / drafts  # a draft
            seconds = costs.passes[length] + length * drafted_token
            speedup = (1 + accepted) * costs.passes[0] / seconds
            estimates.append(cls(skipped, length, accepted / length, 1 + accepted, speedup))
        return max(estimates, key=lambda estimate: estimate.speedup)


class Trials:
    """Tries sets of skipped layers on answers."""

    def __init__(self, engine: Engine, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> None:
        """prompts and answers are token ids. Raises OptionError where no answer has room for a draft."""
        self.model = engine.target
        self.vocab_size = engine.tokenizer.vocab_size
        self.texts: list[list[int]] = []
        self.starts: list[list[int]] = []  # of each text: indices of the tokens behind which it is drafted, ascending
        self.caches: list[KVCache] = []
        for prompt, answer in zip(prompts, answers, strict=True):
            if len(answer) <= MOST_DRAFTED:
                continue
            text = [*prompt, *answer]
            cache = self.model.new_cache(len(text))
            for first in range(0, len(text), CHUNK):
                feed(self.model, [cache], [text[first : first + CHUNK]], num_logits=0)
            self.texts.append(text)
            self.starts.append([*range(len(prompt), len(text) - MOST_DRAFTED, MOST_DRAFTED)])
            self.caches.append(cache)
        self.drafts = sum(map(len, self.starts))
        if not self.drafts:
            raise OptionError(
                f"no answer has {MOST_DRAFTED + 1} tokens, to draft {MOST_DRAFTED} behind one: use other prompts"
            )

    def __call__(self, skipped: Skipped) -> Reached:
        layers = [layer for layer in range(self.model.config.num_layers) if layer not in skipped]
        caches = deepcopy(self.caches)
        reached = np.zeros(MOST_DRAFTED, int)
        # From the last start to the first: what is written behind one isn't read from those before it.
        for turn in range(1, max(map(len, self.starts)) + 1):
            segments, expected = [], []
            for text, starts, cache in zip(self.texts, self.starts, caches, strict=True):
                if turn <= len(starts):
                    start = starts[-turn]
                    cache.truncate(start)
                    segments.append(Segment.chain(cache, text[start : start + MOST_DRAFTED], MOST_DRAFTED))
                    expected.append(text[start + 1 : start + 1 + MOST_DRAFTED])
            guessed = self.model.forward(segments, layers)[:, : self.vocab_size].argmax(axis=1)
            right = guessed.reshape(-1, MOST_DRAFTED) == np.array(expected)  # (segments, MOST_DRAFTED)
            reached += np.logical_and.accumulate(right, axis=1).sum(axis=0)
        return [int(count) for count in reached]


def search(num_layers: int, estimate: Callable[[Skipped], Estimate]) -> list[Estimate]:
    """The best set found of each size, from one layer on. Each layer is tried alone; then they are added one by one, of
    those that were missed least the one that gains most, the lowest on ties."""
    alone = [estimate((layer,)) for layer in range(num_layers)]
    spare = [found.skipped[0] for found in sorted(alone, key=lambda found: -found.speedup)]
    best_of_size = [max(alone, key=lambda found: found.speedup)]
    best = best_of_size[0]
    while len(best_of_size) < min(num_layers - 1, len(best.skipped) + PATIENCE):
        skipped = best_of_size[-1].skipped
        left = [layer for layer in spare if layer not in skipped][:BREADTH]
        found = [estimate(tuple(sorted((*skipped, layer)))) for layer in left]
        best_of_size.append(max(found, key=lambda each: each.speedup))
        best = max(best, best_of_size[-1], key=lambda each: each.speedup)
    return best_of_size


def tune_layer_skip(
    engine: Engine,
    prompts: Sequence[SourcedPrompt],
    conditions: Conditions,
    *,
    max_tokens: int = 64,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Searches the layers to skip on greedy answers to these prompts, and saves the best set as the model's profile,
    even where it doesn't pay.

    What was tried is kept in a file beside the profile's place until the search is through: stopped and called again
    with the same arguments, it goes on from there; with others it starts anew.

    Returns {kind: "layer_skip", environment, model, num_layers, prompts, drafts (that each set was tried on), costs:
    {passes, one_layer} in seconds, sets: [the best of each size: skipped, num_speculative_tokens, acceptance_rate,
    mean_accepted_length, speedup], best, profile (its path)}.

    Raises OptionError for a model of one layer, prompts that can't be used, and a damaged file of an earlier search.
    """
    model = engine.target
    num_layers = model.config.num_layers
    if num_layers < 2:
        raise OptionError(f"{engine.model_name} has {num_layers} layer: there is none to skip")
    report = progress or (lambda what, done, total: None)
    ids = prompt_ids(engine, prompts)
    path = profile_path(model.file)
    state = _State.open(path.with_name(path.name + ".unfinished"), _settings(model, ids, max_tokens))
    params = SamplingParams(max_tokens=max_tokens)
    for number, prompt in enumerate(ids):
        report("answering", number, len(ids))
        if number == len(state.answers):
            state.answers.append(list(engine.generate(prompt, params).token_ids))
            state.save()
    report("answering", len(ids), len(ids))
    trials = Trials(engine, ids, state.answers)
    costs = measure_costs(model, report)  # anew in every run: the machine may be quieter now
    most = num_layers + BREADTH * (num_layers - 2)
    tried = 0

    def estimate(skipped: Skipped) -> Estimate:
        nonlocal tried
        reached = state.reached.get(skipped)
        if reached is None:
            reached = state.reached[skipped] = trials(skipped)
            state.save()
        tried += 1
        report("trying sets of layers, at most", tried, most)
        return Estimate.of(skipped, reached, trials.drafts, costs, num_layers)

    sets = search(num_layers, estimate)
    best = max(sets, key=lambda found: found.speedup)
    write_record(path, {**identity(model), **asdict(best)})
    state.path.unlink(missing_ok=True)
    return {
        "kind": "layer_skip",
        "environment": conditions.environment(),
        "model": engine.model_name,
        "num_layers": num_layers,
        "prompts": len(ids),
        "drafts": trials.drafts,
        "costs": asdict(costs),
        "sets": [asdict(found) for found in sets],
        "best": asdict(best),
        "profile": str(path),
    }


def measure_costs(model: Decoder, progress: Progress | None = None) -> Costs:
    """Times target passes at a context of CONTEXT tokens or what the model has, and the smallest pass of a draft."""
    rows = range(1, MOST_DRAFTED + 2)
    context = min(CONTEXT, model.config.context_length - len(rows))
    passes = cost_of_rows(model, rows, context, REPEATS, progress)
    segment = Segment.chain(model.new_cache(1), [0], num_logits=1)
    shallow = interleaved_medians({1: partial(model.forward, [segment], [0])}, REPEATS)
    return Costs([*accumulate(passes.values(), max)], shallow[1])  # where more rows were faster, that was noise


# What an unfinished search knows --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _State:
    path: Path
    settings: dict[str, object]
    answers: list[list[int]]
    reached: dict[Skipped, Reached]

    @classmethod
    def open(cls, path: Path, settings: dict[str, object]) -> "_State":
        """That of an earlier search with the same settings, else an empty one."""
        record = read_record(path, REMEDY) if path.exists() else {}
        if record.get("settings") != settings:
            return cls(path, settings, [], {})
        try:
            return cls(path, settings, record["answers"], {tuple(k): v for k, v in record["reached"]})
        except (KeyError, TypeError, ValueError):
            raise OptionError(f"{path}: it is damaged: {REMEDY}") from None

    def save(self) -> None:
        record = {
            "settings": self.settings,
            "answers": self.answers,
            "reached": list(self.reached.items()),
        }
        write_record(self.path, record)


def _settings(model: Decoder, prompts: list[list[int]], max_tokens: int) -> dict[str, object]:
    """All that answers and acceptance depend on."""
    return {
        **identity(model),
        "dtype": model.dtype,
        "isa": kernels.isa(),
        "max_tokens": max_tokens,
        "prompts": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
    }
