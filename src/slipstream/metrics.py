"""Every counter of speculation and its definition.

target_passes  passes of the target that gave the request at least one token (so plain decoding has one a token)
committed      tokens that those passes gave, a closing end-of-sequence token included
drafted        draft nodes that a pass scored, be they a drafter's or what a grammar forces
accepted       drafted nodes whose token was committed
rejected       drafted nodes that the target turned down, and those that hang from them
unverified     drafted nodes behind the point where the request stopped

drafted_by_depth   for each position of a draft (a node's depth in its tree, the root's children being position 1), the
                   passes that verified a node there: its parent was accepted or is the root, and the request went on
accepted_by_depth  those of them that accepted one

drafted = accepted + rejected + unverified; mean accepted length = committed / target_passes; acceptance rate =
accepted / drafted; acceptance by position = accepted_by_depth / drafted_by_depth, an estimate of the probability that
position j is accepted given that j - 1 was. A token that a stop string takes back stays counted: its pass was made.
"""

from itertools import zip_longest

from slipstream.types import ROOT, Draft, SpeculationStats, Verdict

__all__ = ["add", "count_pass"]


def count_pass(stats: SpeculationStats, draft: Draft, verdict: Verdict, committed: int) -> None:
    """Counts one pass, of whose verdict the first `committed` tokens were committed (fewer than all after a stop)."""
    if not verdict.tokens:  # a prompt that was only read
        return
    accepted = min(committed, len(verdict.accepted))
    stopped_early = committed < len(verdict.tokens)
    stats.target_passes += 1
    stats.committed += committed
    stats.drafted += len(draft)
    stats.accepted += accepted
    if stopped_early:
        stats.unverified += len(draft) - accepted
    else:
        stats.rejected += len(draft) - accepted
    last = verdict.accepted[accepted - 1] if accepted else ROOT
    refused = not stopped_early and bool((draft.parents == last).any())
    stats.accepted_by_depth = _sums(stats.accepted_by_depth, [1] * accepted + [0] * refused)
    stats.drafted_by_depth = _sums(stats.drafted_by_depth, [1] * (accepted + refused))


def add(total: SpeculationStats, stats: SpeculationStats) -> None:
    """Adds a request's counters to a total."""
    for counter in ("target_passes", "committed", "drafted", "accepted", "rejected", "unverified"):
        setattr(total, counter, getattr(total, counter) + getattr(stats, counter))
    for counter in ("drafted_by_depth", "accepted_by_depth"):
        setattr(total, counter, _sums(getattr(total, counter), getattr(stats, counter)))


def _sums(some: list[int], others: list[int]) -> list[int]:
    return [one + other for one, other in zip_longest(some, others, fillvalue=0)]
