"""A running request: its record, its clock, and its part in one pass."""

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipstream.cache import KVCache
from slipstream.drafters.base import Drafter, History
from slipstream.grammar import Grammar
from slipstream.stopping import StopChecker
from slipstream.types import Draft, SamplingParams, SpeculationStats, Timing, TokenLogprob, Verdict

__all__ = ["NO_DRAFT", "Clock", "Running", "Turn"]

NO_DRAFT = Draft.chain(())
"""Nothing is guessed."""


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
class Running:
    """The one record of a request that runs or waits to."""

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


@dataclass(slots=True, eq=False)
class Turn:
    """A request's part in one pass. It is filled on its way: draft, logits, verdict.

    rows      pending tokens that the pass feeds, at least 1
    decodes   whether none is left behind them: then the request drafts, and gets tokens. It is kept, since commit
              changes what is pending
    draft     what is guessed behind the pending tokens
    logits    behind the last pending token and behind each node of the draft, (1 + drafted, vocab); none, (0, vocab),
              where the request doesn't decode
    verdict   what becomes of the draft; None where the request doesn't decode
    logprobs  one entry for each of the verdict's tokens; None where the request asked for none
    """

    running: Running
    rows: int
    draft: Draft = NO_DRAFT
    logits: NDArray[np.float32] | None = None
    verdict: Verdict | None = None
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    decodes: bool = field(init=False)

    def __post_init__(self) -> None:
        self.decodes = self.rows == self.running.pending

    @property
    def by_rejection(self) -> bool:
        """Whether the draft is verified by the rule "rejection": it was drawn at random, and so are the tokens."""
        return self.draft.probs is not None and self.running.history.sampler.rejects
