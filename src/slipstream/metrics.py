"""Every counter of speculation and its definition.

target_passes  passes of the target that gave the request at least one token (so plain decoding has one a token)
committed      tokens that those passes gave, a closing end-of-sequence token included
drafted        draft nodes that a pass scored, be they a drafter's or what a grammar forces
accepted       drafted nodes whose token was committed
rejected       drafted nodes that the target turned down, and those that hang from them
unverified     drafted nodes behind the point where the request stopped

drafted = accepted + rejected + unverified; mean accepted length = committed / target_passes; acceptance rate =
accepted / drafted. A token that a stop string takes back stays counted: its pass was made.
"""

from slipstream.types import Draft, SpeculationStats, Verdict

__all__ = ["count_pass"]


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
