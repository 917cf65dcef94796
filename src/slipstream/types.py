"""The records that travel through Slipstream. Plain data: no model, no cache, no I/O.

Words (see docs/structure.md): a *drafter* proposes a *draft*; the *target* scores it in one pass; *verify* gives a
*verdict*; *commit* appends the emitted tokens and rolls the cache back.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import OptionError

__all__ = [
    "ROOT",
    "Completion",
    "Draft",
    "FinishReason",
    "Message",
    "Origin",
    "Piece",
    "Prompt",
    "Request",
    "SamplingParams",
    "SpeculationStats",
    "StepOutput",
    "Timing",
    "Usage",
    "Verdict",
]

Message = Mapping[str, str]
"""One turn of a chat: {"role": "user", "content": "…"}."""

Prompt = str | Sequence[int] | Sequence[Message]
"""Text taken as it is, token ids, or chat messages (which go through the model's chat template)."""

FinishReason = Literal["stop", "length"]
Origin = Literal["draft", "target"]

ROOT = -1
"""The parent of a draft's first nodes: the last committed token."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's distribution becomes tokens, and when a completion ends.

    temperature  0 is greedy (arg-max, lowest id on exact ties)
    top_k        keep the k most likely tokens; 0 keeps all
    top_p        keep the smallest set of most likely tokens whose probability reaches top_p; 1 keeps all
    min_p        drop tokens less likely than min_p times the likeliest; 0 keeps all
    seed         0 to 2**64 - 1; None draws one, which the completion reports
    max_tokens   most tokens to emit; None is as many as the context holds
    stop         strings that end the completion; neither they nor anything after them is part of it
    ignore_eos   go on past the model's end-of-sequence tokens

    Raises OptionError at construction for a value outside these ranges.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            raise OptionError(f"stop is a tuple of strings, not the string {self.stop!r}: write stop=({self.stop!r},)")
        object.__setattr__(self, "stop", tuple(self.stop))
        checks = [
            ("temperature", self.temperature >= 0 and math.isfinite(self.temperature), "use 0 (greedy) or more"),
            ("top_k", self.top_k >= 0, "use 0 (all tokens) or more"),
            ("top_p", 0 < self.top_p <= 1, "use a value above 0 and up to 1"),
            ("min_p", 0 <= self.min_p <= 1, "use a value from 0 to 1"),
            ("seed", self.seed is None or 0 <= self.seed < 2**64, "use 0 to 2**64 - 1"),
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 0, "use 0 or more, or leave it out"),
            ("stop", all(self.stop), "a stop string can't be empty"),
        ]
        for name, holds, remedy in checks:
            if not holds:
                raise OptionError(f"{name} is {getattr(self, name)!r}: {remedy}")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to complete. None for drafter or num_speculative_tokens means the engine's own setting."""

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    drafter: str | None = None
    num_speculative_tokens: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Guessed tokens as a tree: node i holds tokens[i] and follows node parents[i] < i, or the last committed token
    where parents[i] is ROOT. A chain is the tree in which each node's parent is the one before. Children of one node
    hold different tokens."""

    tokens: NDArray[np.int32]  # (n,)
    parents: NDArray[np.int32]  # (n,)

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> "Draft":
        """The draft that guesses tokens one after the other."""
        count = len(tokens)
        return cls(np.asarray(tokens, np.int32).reshape(count), np.arange(-1, count - 1, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided for one request's draft.

    accepted  the draft's nodes that were kept, from the root down
    tokens    the tokens to commit: those of the accepted nodes, then the target's own next token (the corrected token
              after a rejection, the bonus token after a fully accepted path)
    """

    accepted: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """One emitted token with the text that it completes (empty while a character is still split across tokens)."""

    token_id: int
    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int


@dataclass(slots=True)
class SpeculationStats:
    """Counters of one request, defined in slipstream.metrics. drafted = accepted + rejected + unverified, always."""

    drafter: str
    num_speculative_tokens: int
    target_passes: int = 0
    committed: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    unverified: int = 0

    @property
    def mean_accepted_length(self) -> float:
        """Tokens committed per target pass that decoded (so it counts the corrected or bonus token); 0 without one."""
        return self.committed / self.target_passes if self.target_passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one request: prefill up to its first token, decode from there to its last."""

    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request. Decoding token_ids gives text, except that text ends exactly where a stop string begins.

    finish_reason  "stop" (end-of-sequence token or stop string, neither of which is in token_ids or text), or
                   "length" (max_tokens or the context limit)
    seed           the seed in force, drawn if the request gave none: with it the same output can be had again
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    usage: Usage
    speculation: SpeculationStats
    timing: Timing


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one pass added to one request.

    pieces      tokens now certain to be part of the completion (a possible stop string is held back)
    rejected    text of the drafted tokens that this pass turned down, in draft order
    completion  the finished request, in its last StepOutput only
    """

    request_id: int
    pieces: tuple[Piece, ...]
    rejected: tuple[str, ...]
    completion: Completion | None = None
