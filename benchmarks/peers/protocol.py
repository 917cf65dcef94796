"""What the runner and a peer's process say to each other: one JSON record a line, over standard input and output.

    python NAME_peer.py MODE… --model PATH [--draft-model PATH] --context N --threads N

    → {"version", "load_seconds"}               once the modes' models are loaded
    ← Request                                   greedy decoding of token ids, in one of the modes
    → Answer, or {"error"}                      and so on, until standard input ends

Every mode decodes the same: "plain" without drafts, any other with the drafts that it names. This file runs in each
peer's own environment, so it needs the standard library alone.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

PLAIN = "plain"
NUM_SPECULATIVE_TOKENS = 5
"""Drafted tokens a pass for the peers that have no default of their own."""


@dataclass(frozen=True)
class Request:
    """Decode greedily up to one of the tokens `eos`, or through all that come where there are none."""

    mode: str
    prompt: list[int]
    max_tokens: int
    eos: list[int]


@dataclass(frozen=True)
class Answer:
    """What a request gave, and in what time.

    token_ids        the tokens, without a closing end-of-sequence token
    prefill_seconds  from the request's beginning to its first tokens
    decode_seconds   from there to its last
    decoded          the tokens that decode_seconds brought
    committed        all tokens, a closing end-of-sequence token included
    passes           passes of the target that gave at least one of them; None where the system doesn't tell
    """

    token_ids: list[int]
    prefill_seconds: float
    decode_seconds: float
    decoded: int
    committed: int
    passes: int | None = None


@dataclass
class Stopwatch:
    """Times a request by the moments at which its tokens come, one pass at a time."""

    started: float = field(default_factory=time.perf_counter)
    ticks: list[tuple[float, int]] = field(default_factory=list)  # (moment, tokens that came)

    def tick(self, tokens: int) -> None:
        self.ticks.append((time.perf_counter(), tokens))

    def answer(self, token_ids: Sequence[int], eos: Sequence[int]) -> Answer:
        (first, at_first), (last, _) = self.ticks[0], self.ticks[-1]
        committed = sum(tokens for _, tokens in self.ticks)
        tokens = up_to_end(token_ids, eos)
        return Answer(tokens, first - self.started, last - first, committed - at_first, committed, len(self.ticks))


def up_to_end(token_ids: Sequence[int], eos: Sequence[int]) -> list[int]:
    """The tokens before the first that ends a completion."""
    ends = [position for position, token in enumerate(token_ids) if token in eos]
    return list(token_ids[: ends[0]] if ends else token_ids)


def serve(load: Callable[[argparse.Namespace], tuple[str, Callable[[Request], Answer]]]) -> None:
    """The main program of a peer: `load` gives the system's version and what answers a request."""
    parser = argparse.ArgumentParser()
    parser.add_argument("modes", nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model")
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)  # whatever else the system prints must not come between

        def say(record: dict[str, object]) -> None:
            print(json.dumps(record), file=output, flush=True)

        started = time.perf_counter()
        version, answer = load(arguments)
        say({"version": version, "load_seconds": time.perf_counter() - started})
        for line in sys.stdin:
            try:
                say(asdict(answer(Request(**json.loads(line)))))
            except Exception as error:  # whatever it is, the other modes go on
                traceback.print_exc()
                say({"error": f"{type(error).__name__}: {error}"})
