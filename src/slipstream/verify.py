"""Which drafted tokens the target would have produced itself. Pure: no model, no cache.

The rule is *match*: at every output position the target's token is a deterministic function of its own distribution,
the seed and the position (slipstream.sampling), and a drafted token is accepted if and only if it equals that token.
What is emitted is therefore the sequence that plain decoding emits, whatever was drafted.
"""

from collections.abc import Callable

from slipstream.types import ROOT, Draft, Verdict

__all__ = ["match"]


def match(draft: Draft, target_token: Callable[[int, int], int]) -> Verdict:
    """Walks from the root: the target's token picks the child that holds it, or ends the walk.

    target_token(node, depth) is the target's own token after that node of the draft (after the last committed token for
    ROOT), `depth` output positions behind the next one. It is asked only along the accepted path.

    A chain 5 6 7 where the target says 5, 6, 9: accepted (0, 1), tokens (5, 6, 9), 9 being the corrected token. Had it
    said 5, 6, 7, 8: accepted (0, 1, 2), tokens (5, 6, 7, 8), 8 being the bonus token.
    """
    child = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))
    }
    accepted: list[int] = []
    tokens: list[int] = []
    node: int | None = ROOT
    while node is not None:
        tokens.append(target_token(node, len(tokens)))
        node = child.get((node, tokens[-1]))
        if node is not None:
            accepted.append(node)
    return Verdict(tuple(accepted), tuple(tokens))
