"""What one pass means to one request: its draft within its grammar, its rows, its verdict and logprobs."""

from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slipstream.sampling import raw_logprob
from slipstream.scheduler import Scheduled, Sequence
from slipstream.tree import is_chain
from slipstream.types import ROOT, Draft, TokenLogprob, Verdict
from slipstream.verify import match, rejection

__all__ = [
    "Verified",
    "echoed_logprobs",
    "take_prompt_logprobs",
    "verified",
    "wanted_logits",
    "with_top",
    "within_grammar",
]

Verified = tuple[Verdict, list[TokenLogprob | None]]
"""A request's verdict and an entry for each of its tokens, None where it asked for none."""


def within_grammar(sequence: Sequence, draft: Draft) -> Draft:
    """The draft without what the request's grammar forbids; what the grammar forces, where the draft has it wrong.

    A draft that was drawn at random is left as it is: choosing among drafts by their tokens would change the
    distribution that the rule "rejection" relies on.
    """
    if sequence.grammar is None or draft.probs is not None or sequence.drafter.name == "null":
        return draft
    tokens = draft.tokens.tolist()
    forced = sequence.grammar.forced(sequence.output)[: sequence.draft_limit]
    if tokens[: len(forced)] != forced:
        return Draft.chain(forced)
    if not is_chain(draft.parents):
        return draft
    return Draft.chain(tokens[: sequence.grammar.count_valid(sequence.output, tokens)])


def wanted_logits(scheduled: Scheduled, draft: Draft) -> int:
    """How many of a segment's last rows need logits."""
    if scheduled.sequence.prompt_logprobs is not None and scheduled.sequence.pending > 1:
        return scheduled.rows + len(draft)
    return 1 + len(draft) if scheduled.decodes else 0


def take_prompt_logprobs(scheduled: Scheduled, draft: Draft, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Notes the logprobs of the prompt's tokens where they are wanted; returns the other rows."""
    sequence = scheduled.sequence
    decoding = 1 + len(draft) if scheduled.decodes else 0
    if sequence.prompt_logprobs is not None:
        params = sequence.params
        top = max(params.prompt_logprobs or 0, (params.logprobs or 0) if params.echo else 0)
        for row in logits[: min(len(logits), scheduled.rows)]:
            if len(sequence.prompt_logprobs) < sequence.history.num_prompt_tokens:
                token = sequence.history.tokens[len(sequence.prompt_logprobs)]
                sequence.prompt_logprobs.append(raw_logprob(row, token, top))
    return logits[len(logits) - decoding :]


def verified(sequence: Sequence, draft: Draft, logits: NDArray[np.float32]) -> Verified:
    """What becomes of a draft: row 0 of logits is behind the last committed token, row 1 + i behind node i."""
    if sequence.stop.finish_reason is not None:  # max_tokens 0: the prompt alone was wanted
        return Verdict((), ()), []
    sampler, tokens = sequence.history.sampler, sequence.history.tokens

    def choose(node: int, drafted: SequenceOf[int]) -> int:
        return sampler.choose(logits[node + 1], tokens, drafted)

    if draft.probs is not None and sampler.rejects:
        verdict = rejection(
            draft,
            lambda node, drafted: sampler.probs(logits[node + 1], tokens, drafted),
            lambda probability, drafted: sampler.accepts(probability, tokens, drafted),
            lambda residual, drafted: sampler.correct(residual, tokens, drafted),
            choose,
        )
        sequence.stats.verification = "rejection"
    else:
        verdict = match(draft, choose)
    if sampler.params.logprobs is None:
        return verdict, [None] * len(verdict.tokens)
    rows = [ROOT, *verdict.accepted]
    return verdict, [
        sampler.logprob(logits[node + 1], tokens, verdict.tokens[:at], token)
        for at, (node, token) in enumerate(zip(rows, verdict.tokens, strict=True))
    ]


def with_top(entries: list[TokenLogprob | None] | None, top: int | None) -> tuple[TokenLogprob | None, ...] | None:
    """The entries with no more than the `top` likeliest tokens each; None if top is."""
    if entries is None or top is None:
        return None
    return tuple(entry and replace(entry, top=entry.top[:top]) for entry in entries)


def echoed_logprobs(sequence: Sequence) -> tuple[TokenLogprob | None, ...]:
    """The prompt's part of a completion's logprobs."""
    params = sequence.params
    return (with_top(sequence.prompt_logprobs, params.logprobs) if params.echo else None) or ()
