"""Does drafting pay with this model on this machine? What the textbook says, what the measured passes say, and whether
it fits into memory.

For B requests that draft g tokens each, every one accepted with probability α if the one before was: a pass gives each
request tokens(g) = 1 + α + … + α^g, and takes T(B, 1 + g) + g · t_d(B) seconds, T being the measured time of a target
pass and t_d that of a draft model's (0 for lookup). The speed-up over plain decoding is tokens(g) · T(B, 1) over that.
In a batch of different texts, a request that ends sooner spares the others little: its tokens beyond the first count as
the controller counts them (`slipstream.controller.worth`), so that both call the same batches worth drafting for.
The textbook's form, (1 - α^(g+1)) / ((1 - α)(gc + 1)) with c = t_d / T(1, 1), is the same for passes that cost the same
whatever rows they have.

Source of the formula: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from slipstream import kernels
from slipstream.controller import GAIN, worth
from slipstream.cost import CostCurve
from slipstream.engine import Engine
from slipstream.errors import OptionError
from slipstream.models.checkpoint import Checkpoint, Progress
from slipstream.models.config import ModelConfig
from slipstream.models.decoder import Decoder, Segment
from slipstream.models.tensors import byte_size, expected_tensors
from slipstream.tools.conditions import Conditions
from slipstream.tools.timing import interleaved_medians

__all__ = [
    "ACCEPTANCES",
    "BATCH_SIZES",
    "DEFAULT_CONTEXT",
    "LENGTHS",
    "Cost",
    "Memory",
    "PassCost",
    "advice",
    "available_memory",
    "best_length",
    "break_even",
    "cache_bytes",
    "check_weights_fit",
    "crossover",
    "formula",
    "measure_cost",
    "plan",
    "plan_source",
    "speedup",
    "weight_bytes",
]

ACCEPTANCES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LENGTHS = range(1, 17)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
DEFAULT_CONTEXT = 2048

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
"""Where passes are measured. Behind the last they are bound by arithmetic, so that the slope stays."""

CONTEXT_ROWS = (1, 2, 4, 8, 16)
"""Rows of one request: where it is measured what its context adds."""

REPEATS = 3

Cost = Callable[[int, int], float]
"""Seconds of a pass over (requests, rows of each)."""


# Speed ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PassCost:
    """A Cost, as measured. The weights are read once for all rows; each request's rows read a context of their own.

    rows     seconds by all rows of a pass, without a context
    context  seconds that one request's context adds, by its rows
    """

    rows: CostCurve
    context: CostCurve

    def __call__(self, requests: int, rows: int) -> float:
        return self.rows(requests * rows) + requests * self.context(rows)


def formula(acceptance: float, length: int, relative_cost: float = 0.0) -> float:
    """The textbook's speed-up. relative_cost: that of a drafted token, in target passes."""
    return _tokens(acceptance, length) / (length * relative_cost + 1)


def speedup(acceptance: float, length: int, target: Cost, draft: Cost | None = None, requests: int = 1) -> float:
    """The speed-up that passes of these costs give; draft is None where drafting costs nothing."""
    drafting = length * draft(requests, 1) if draft else 0.0
    tokens = 1 + worth(lambda count: target(count, 1), requests) * (_tokens(acceptance, length) - 1)
    return tokens * target(requests, 1) / (target(requests, 1 + length) + drafting)


def best_length(acceptance: float, target: Cost, draft: Cost | None = None, requests: int = 1) -> tuple[int, float]:
    """(length, its speed-up) of the fastest draft length; (0, 1.0), plain decoding, where none gains what `auto` asks
    for."""
    best = max(LENGTHS, key=lambda length: speedup(acceptance, length, target, draft, requests))
    gain = speedup(acceptance, best, target, draft, requests)
    return (best, gain) if gain > GAIN else (0, 1.0)


def crossover(acceptance: float, target: Cost, draft: Cost | None = None) -> int | None:
    """The smallest batch at which drafting doesn't pay; None where it does in all up to the largest of BATCH_SIZES."""
    sizes = range(1, max(BATCH_SIZES) + 1)
    return next((size for size in sizes if not best_length(acceptance, target, draft, size)[0]), None)


def break_even(target: Cost, draft: Cost | None = None, requests: int = 1) -> float | None:
    """The acceptance from which on drafting pays, to within 0.001; None where it wouldn't even at 1."""
    if not best_length(1.0, target, draft, requests)[0]:
        return None
    low, high = 0.0, 1.0
    while high - low > 0.001:
        middle = (low + high) / 2
        if best_length(middle, target, draft, requests)[0]:
            high = middle
        else:
            low = middle
    return high


def plan_source(target: Cost, draft: Cost | None = None) -> dict[str, Any]:
    """What to expect of a source of drafts, draft being None for lookup.

    Returns {relative_cost, acceptances: [{acceptance, num_speculative_tokens, speedup, formula: the same two of the
    formula's best length, lengths: [{num_speculative_tokens, speedup, formula}], crossover}], batches: [{batch_size,
    break_even, acceptances: [{acceptance, num_speculative_tokens, speedup}]}]}. Without `batch_size`, it is of one
    request. Best draft lengths are 0 where plain decoding is.
    """
    relative_cost = draft(1, 1) / target(1, 1) if draft else 0.0

    def best(acceptance: float, requests: int = 1) -> dict[str, Any]:
        length, gain = best_length(acceptance, target, draft, requests)
        return {"acceptance": acceptance, "num_speculative_tokens": length, "speedup": gain}

    def of_acceptance(acceptance: float) -> dict[str, Any]:
        by_formula = {length: formula(acceptance, length, relative_cost) for length in LENGTHS}
        most = max(by_formula, key=lambda length: by_formula[length])
        length, gain = (most, by_formula[most]) if by_formula[most] > 1 else (0, 1.0)
        return {
            **best(acceptance),
            "formula": {"num_speculative_tokens": length, "speedup": gain},
            "lengths": [
                {
                    "num_speculative_tokens": length,
                    "speedup": speedup(acceptance, length, target, draft),
                    "formula": by_formula[length],
                }
                for length in LENGTHS
            ],
            "crossover": crossover(acceptance, target, draft),
        }

    return {
        "relative_cost": relative_cost,
        "acceptances": [of_acceptance(acceptance) for acceptance in ACCEPTANCES],
        "batches": [
            {
                "batch_size": size,
                "break_even": break_even(target, draft, size),
                "acceptances": [best(acceptance, size) for acceptance in ACCEPTANCES],
            }
            for size in BATCH_SIZES
        ],
    }


def measure_cost(model: Decoder, context: int, progress: Callable[[int, int], None] | None = None) -> PassCost:
    """Times a model's passes: medians of repeats, over ROWS without a context, and over CONTEXT_ROWS at the end of one
    of so many tokens. What is in a cache makes no difference to the time, so it is zeros."""
    most = model.config.context_length

    def passes(length: int, rows: tuple[int, ...]) -> dict[tuple[int, int], Callable[[], object]]:
        cache = model.new_cache(length + max(rows))
        cache.keys.fill(0.0)
        cache.values.fill(0.0)
        cache.length = length
        segments = {count: Segment.chain(cache, [0] * count, num_logits=count) for count in rows if count <= most}
        return {(length, count): partial(model.forward, [segment]) for count, segment in segments.items()}

    before = max(0, context - max(CONTEXT_ROWS))
    medians = interleaved_medians({**passes(0, ROWS), **passes(before, CONTEXT_ROWS)}, REPEATS, progress)
    without = {rows: seconds for (length, rows), seconds in medians.items() if length == 0}
    added = {rows: max(0.0, seconds - without[rows]) for (length, rows), seconds in medians.items() if length == before}
    return PassCost(CostCurve(without), CostCurve(added))


def _tokens(acceptance: float, length: int) -> float:
    """Expected tokens of a pass; (1 - α^(g+1)) / (1 - α) where α isn't 1."""
    return sum(acceptance**accepted for accepted in range(length + 1))


# Memory ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; caches are those of one request at full context. available_bytes is None where the system doesn't tell."""

    available_bytes: int | None
    target_weight_bytes: int
    draft_weight_bytes: int
    target_cache_bytes: int
    draft_cache_bytes: int

    @property
    def requests(self) -> int | None:
        """How many requests fit in at once."""
        if self.available_bytes is None:
            return None
        left = self.available_bytes - self.target_weight_bytes - self.draft_weight_bytes
        return max(0, left // (self.target_cache_bytes + self.draft_cache_bytes))


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still get: what is available on the machine, or its control group's limit where that
    is less; None where the system doesn't tell. root: of the system's file tree."""
    limits = [*_control_group_limits(root)]
    with suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
    return min(limits, default=None)


def _control_group_limits(root: Path) -> Iterator[int]:
    """Of the group and those above it, in version 2 of control groups or 1. Within a container, the group's own path
    may not be visible: then the container's limit is at the top."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        for path in (Path(group), *Path(group).parents):
            with suppress(OSError):
                file = top / path.relative_to("/") / ("memory.limit_in_bytes" if controllers else "memory.max")
                text = file.read_text().strip()
                if text.isdecimal():  # else "max"
                    yield int(text)


def cache_bytes(config: ModelConfig, context: int) -> int:
    """What the keys and values of one request take."""
    slots = -(-context // kernels.KEY_BLOCK) * kernels.KEY_BLOCK
    return 2 * 4 * config.num_layers * config.num_kv_heads * config.head_dim * slots


def weight_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    """What a model's matrices will take once they are loaded, to within a few percent."""
    total = 0
    for name, shape, _ in expected_tensors(checkpoint.config):
        if len(shape) == 2 and name in checkpoint:
            of_file = checkpoint.tensor(name).type
            floats = "BF16" if of_file in ("F32", "F16", "BF16") else of_file
            kind = {"f32": "F32", "bf16": "BF16", "int8": "Q8_0"}.get(dtype, floats)
            total += byte_size(kind, shape) or 0
    return total


def check_weights_fit(checkpoint: Checkpoint, dtype: str, available: int | None) -> None:
    """Raises OptionError for a model that can't be loaded here."""
    needed = weight_bytes(checkpoint, dtype)
    if available is not None and needed > available:
        raise OptionError(
            f"the weights of {checkpoint.name} take {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB of memory are "
            f"available: use a smaller model, or one with fewer bits a weight"
        )


# The plan -------------------------------------------------------------------------------------------------------------


def plan(
    engine: Engine,
    conditions: Conditions,
    context: int | None = None,
    available: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measures the passes of an engine's models, and says what to expect of drafting with them.

    conditions  those before the engine was loaded
    context     tokens of a request, prompt and answer; None is DEFAULT_CONTEXT, or all that the model holds
    available   bytes of memory before the engine was loaded

    Returns {kind: "plan", environment, model, context, memory: {the fields of Memory, fits, requests}, passes: {target
    or draft_model: [{rows, seconds, ratio_to_one_row}]} of one request at that context, sources: {lookup or
    draft_model: as plan_source has it}, advice: sentences}. Nothing is measured where not even one request fits into
    memory. Raises OptionError for a context that the model doesn't hold.
    """
    models = {"target": engine.target, **({"draft_model": engine.draft_model} if engine.draft_model else {})}
    most = engine.config.context_length
    if context is None:
        context = min(DEFAULT_CONTEXT, most)
    if not 1 <= context <= most:
        raise OptionError(f"context is {context}, and {engine.model_name} holds {most} tokens: use 1 to {most}")
    contexts = {name: min(context, model.config.context_length) for name, model in models.items()}
    caches = {name: cache_bytes(model.config, contexts[name]) for name, model in models.items()}
    memory = Memory(
        available,
        engine.target.weight_bytes,
        engine.draft_model.weight_bytes if engine.draft_model else 0,
        caches["target"],
        caches.get("draft_model", 0),
    )
    fits = memory.requests != 0
    costs = {
        name: measure_cost(model, contexts[name], partial(progress, f"timing {name}") if progress else None)
        for name, model in models.items()
        if fits
    }
    sources = {
        name: plan_source(costs["target"], None if name == "lookup" else cost)
        for name, cost in zip(("lookup", "draft_model"), costs.values(), strict=False)
    }
    return {
        "kind": "plan",
        "environment": conditions.environment(),
        "model": engine.model_name,
        "context": context,
        "memory": {**asdict(memory), "fits": None if available is None else fits, "requests": memory.requests},
        "passes": {
            name: [
                {"rows": rows, "seconds": cost(1, rows), "ratio_to_one_row": cost(1, rows) / cost(1, 1)}
                for rows in range(1, 2 + max(LENGTHS))
            ]
            for name, cost in costs.items()
        },
        "sources": sources,
        "advice": advice(sources)
        if fits
        else [
            f"A request of {context} tokens doesn't fit into memory: use a shorter "
            "context, a smaller model, or one with fewer bits a weight."
        ],
    }


def advice(sources: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """When to draft and when not, in sentences. sources: as `plan` has them."""
    sentences = []
    for name, source in sources.items():
        sentences.append(_worth(name, source))
        if source["batches"][0]["break_even"] is not None:
            sentences.append(_load(name, source))
    return sentences


def _worth(name: str, source: Mapping[str, Any]) -> str:
    """What acceptance it takes."""
    least = source["batches"][0]["break_even"]
    if name == "lookup":
        if least is None:
            return "Lookup never pays here: more rows make a pass as much dearer as they could give tokens."
        return (
            f"Lookup pays from an acceptance of {least:.2f} on. It is of no use for text that can't be guessed from "
            "the prompt and the answer so far, and auto stops then."
        )
    cost = f"A token of the draft model costs {source['relative_cost']:.2f} of a target pass"
    if least is None:
        return f"{cost}: too much, even if all that it drafts were accepted. Use a smaller one, or none."
    return f"{cost}: it needs an acceptance above {least:.2f}."


def _load(name: str, source: Mapping[str, Any]) -> str:
    """What becomes of it in batches."""
    what = "Lookup" if name == "lookup" else "The draft model"
    single = [found for found in source["acceptances"] if found["crossover"] != 1]
    ends = [(found["crossover"], found["acceptance"]) for found in single if found["crossover"] is not None]
    if not single:
        return f"{what} doesn't pay at any acceptance from {ACCEPTANCES[0]} to {ACCEPTANCES[-1]}, alone or in batches."
    if not ends:
        return f"{what} pays in batches up to {max(BATCH_SIZES)}, wherever it pays for one request."
    (first, low), (last, high) = ends[0], ends[-1]
    where = f"{first} (acceptance {low})" + (f" to {last} ({high})" if len(ends) > 1 else "")
    return (
        f"{what} ceases to pay in batches of {where}: their passes are bound by arithmetic, of which every drafted row "
        "takes its share. Under such load decode plainly, as auto does."
    )
