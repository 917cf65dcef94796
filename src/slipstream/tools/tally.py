"""What came of decoding prompts in one way, and how that compares with another."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from slipstream import metrics
from slipstream.types import Completion, SpeculationStats

__all__ = ["Difference", "Tally", "first_difference", "rate_ratio"]


def rate_ratio(rate: float, plain: float) -> float:
    """The speed-up: times as many tokens a second as plain decoding; 0 where nothing was decoded."""
    return rate / plain if plain else 0.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two outputs part: index of the prompt, position in the output, both tokens there, None past an end."""

    prompt: int
    position: int
    plain: int | None
    drafted: int | None


def first_difference(prompt: int, plain: Sequence[int], drafted: Sequence[int]) -> Difference | None:
    """Where two outputs for a prompt part."""
    for position, (expected, got) in enumerate(zip_longest(plain, drafted)):
        if expected != got:
            return Difference(prompt, position, expected, got)
    return None


@dataclass(slots=True)
class Tally:
    """Totals over prompts that were decoded in one way. decoded: the tokens that decode_seconds were spent on."""

    drafter: str
    stats: SpeculationStats = field(init=False)
    completion_tokens: int = 0
    decoded: float = 0.0
    decode_seconds: float = 0.0
    difference: Difference | None = None

    def __post_init__(self) -> None:
        self.stats = SpeculationStats(self.drafter, 0)

    def add(self, completion: Completion) -> None:
        metrics.add(self.stats, completion.speculation)
        self.completion_tokens += completion.usage.completion_tokens
        self.decoded += completion.timing.tokens_per_second * completion.timing.decode_seconds
        self.decode_seconds += completion.timing.decode_seconds

    @property
    def tokens_per_second(self) -> float:
        return self.decoded / self.decode_seconds if self.decode_seconds else 0.0

    def speedup(self, plain: "Tally") -> float:
        return rate_ratio(self.tokens_per_second, plain.tokens_per_second)
