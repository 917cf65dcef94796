"""What one pass means to one request: its draft within its grammar, its rows, its verdict and logprobs."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slipstream.running import Running, Turn
from slipstream.sampling import raw_logprob
from slipstream.tree import is_chain
from slipstream.types import ROOT, Draft, TokenLogprob, Verdict
from slipstream.verify import match, rejection

__all__ = ["echoed_logprobs", "take_logits", "verify", "wanted_logits", "with_top", "within_grammar"]


def within_grammar(running: Running, draft: Draft) -> Draft:
    """The draft without what the request's grammar forbids; what the grammar forces, where the draft has it wrong.

    A draft that was drawn at random is left as it is: choosing among drafts by their tokens would change the
    distribution that the rule "rejection" relies on.
    """
    if running.grammar is None or draft.probs is not None or running.drafter.name == "null":
        return draft
    tokens = draft.tokens.tolist()
    forced = running.grammar.forced(running.output)[: running.draft_limit]
    if tokens[: len(forced)] != forced:
        return Draft.chain(forced)
    if not is_chain(draft.parents):
        return draft
    return Draft.chain(tokens[: running.grammar.count_valid(running.output, tokens)])


def wanted_logits(turn: Turn) -> int:
    """How many of a segment's last rows need logits."""
    if turn.running.prompt_logprobs is not None and turn.running.pending > 1:
        return turn.rows + len(turn.draft)
    return 1 + len(turn.draft) if turn.decodes else 0


def take_logits(turn: Turn, logits: NDArray[np.float32]) -> None:
    """Gives a turn its logits out of the rows that were scored for it, and notes the logprobs of the prompt's tokens
    where they are wanted."""
    running = turn.running
    decoding = 1 + len(turn.draft) if turn.decodes else 0
    if running.prompt_logprobs is not None:
        params = running.params
        top = max(params.prompt_logprobs or 0, (params.logprobs or 0) if params.echo else 0)
        for row in logits[: min(len(logits), turn.rows)]:
            if len(running.prompt_logprobs) < running.history.num_prompt_tokens:
                token = running.history.tokens[len(running.prompt_logprobs)]
                running.prompt_logprobs.append(raw_logprob(row, token, top))
    turn.logits = logits[len(logits) - decoding :]


def verify(turn: Turn) -> None:
    """Decides what becomes of a turn's draft: row 0 of its logits is behind the last pending token, row 1 + i behind
    node i. Without a draft, what is decided is the next token."""
    running, draft, logits = turn.running, turn.draft, turn.logits
    if not turn.decodes or logits is None:
        return
    if running.stop.finish_reason is not None:  # max_tokens 0: the prompt alone was wanted
        turn.verdict = Verdict((), ())
        return
    sampler, tokens = running.history.sampler, running.history.tokens

    def choose(node: int, drafted: Sequence[int]) -> int:
        return sampler.choose(logits[node + 1], tokens, drafted)

    if turn.by_rejection:
        verdict = rejection(
            draft,
            lambda node, drafted: sampler.probs(logits[node + 1], tokens, drafted),
            lambda probability, drafted: sampler.accepts(probability, tokens, drafted),
            lambda residual, drafted: sampler.correct(residual, tokens, drafted),
            choose,
        )
    else:
        verdict = match(draft, choose)
    turn.verdict = verdict
    if sampler.params.logprobs is None:
        turn.logprobs = [None] * len(verdict.tokens)
    else:
        turn.logprobs = [
            sampler.logprob(logits[node + 1], tokens, verdict.tokens[:at], token)
            for at, (node, token) in enumerate(zip([ROOT, *verdict.accepted], verdict.tokens, strict=True))
        ]


def with_top(entries: list[TokenLogprob | None] | None, top: int | None) -> tuple[TokenLogprob | None, ...] | None:
    """The entries with no more than the `top` likeliest tokens each; None if top is."""
    if entries is None or top is None:
        return None
    return tuple(entry and replace(entry, top=entry.top[:top]) for entry in entries)


def echoed_logprobs(running: Running) -> tuple[TokenLogprob | None, ...]:
    """The prompt's part of a completion's logprobs."""
    params = running.params
    return (with_top(running.prompt_logprobs, params.logprobs) if params.echo else None) or ()
