"""Which requests take part in the next pass, and with how many rows. Pure Python: it never touches an array."""

import time
from collections import deque
from dataclasses import dataclass, field

from slipstream.cache import KVCache
from slipstream.drafters.base import Drafter, History
from slipstream.grammar import Grammar
from slipstream.stopping import StopChecker
from slipstream.types import SamplingParams, SpeculationStats, Timing, TokenLogprob

__all__ = ["Clock", "Scheduled", "Scheduler", "Sequence"]


@dataclass(slots=True)
class Clock:
    """When a request reached its marks, in seconds of time.perf_counter; 0 until then."""

    started: float = 0.0  # its first pass
    first_token: float = 0.0
    last_token: float = 0.0
    tokens_at_first: int = 0  # tokens that the first pass to give any gave at once

    def start(self) -> None:
        """Marks the beginning of the first pass, at that one only."""
        self.started = self.started or time.perf_counter()

    def tick(self, committed: int) -> None:
        """Marks the end of a pass that gave tokens."""
        self.last_token = time.perf_counter()
        if not self.first_token:
            self.first_token, self.tokens_at_first = self.last_token, committed

    def timing(self, committed: int) -> Timing:
        """The times of a request that got `committed` tokens in all."""
        decode = self.last_token - self.first_token
        rate = (committed - self.tokens_at_first) / decode if decode else 0.0
        return Timing(self.first_token - self.started, decode, rate)


@dataclass(slots=True, eq=False)
class Sequence:
    """The one record of a running request."""

    request_id: int
    history: History
    drafter: Drafter
    draft_state: object
    num_speculative_tokens: int
    cache: KVCache
    stop: StopChecker
    stats: SpeculationStats
    index: int = 0  # which of its request's n completions it is
    grammar: Grammar | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None  # as far as the prompt has been fed; None if not wanted
    clock: Clock = field(default_factory=Clock)

    @property
    def params(self) -> SamplingParams:
        return self.history.sampler.params

    @property
    def pending(self) -> int:
        """Tokens that the target's cache lacks: the whole prompt at first, one between decoding steps."""
        return len(self.history.tokens) - self.cache.length

    @property
    def draft_limit(self) -> int:
        """Most tokens worth drafting: the target adds one of its own, and nothing past the last one counts."""
        return max(0, min(self.num_speculative_tokens, self.history.limit - len(self.history.tokens) - 1))

    @property
    def output(self) -> list[int]:
        """The committed tokens behind the prompt."""
        return self.history.tokens[self.history.num_prompt_tokens :]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A request's part in one pass: `rows` of its pending tokens. It drafts once none of them is left behind."""

    sequence: Sequence
    rows: int

    @property
    def decodes(self) -> bool:
        return self.rows == self.sequence.pending


class Scheduler:
    """First come, first served. Prompts are fed in chunks, so that a long one doesn't hold up those that decode.

    max_batch_size    most requests that run at once
    max_prefill_rows  most prompt tokens in one pass, over all requests
    """

    def __init__(self, max_batch_size: int, max_prefill_rows: int = 256) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.max_batch_size = max_batch_size
        self.max_prefill_rows = max_prefill_rows

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def next_batch(self) -> list[Scheduled]:
        """Admits what fits and gives every running request its rows; one that gets no room this time is left out."""
        while self.waiting and len(self.running) < self.max_batch_size:
            self.running.append(self.waiting.popleft())
        batch = []
        room = self.max_prefill_rows
        for sequence in self.running:
            rows = sequence.pending if sequence.pending == 1 else min(sequence.pending, room)
            if sequence.pending > 1:
                room -= rows
            if rows:
                batch.append(Scheduled(sequence, rows))
        return batch

    def retire(self, request_id: int) -> None:
        """Forgets a request, finished or not, running or waiting."""
        self.running = [sequence for sequence in self.running if sequence.request_id != request_id]
        self.waiting = deque(sequence for sequence in self.waiting if sequence.request_id != request_id)
