"""Which drafted tokens are kept. Pure: no model, no cache, no generator.

*match*, the default: at every output position the target's token is a deterministic function of its own distribution,
the seed and the position (slipstream.sampling), and a drafted token is accepted if and only if it equals that token.
What is emitted is therefore the sequence that plain decoding emits, whatever was drafted.

*rejection*: a token that was drawn from q is accepted with probability min(1, p / q), so that what is emitted has the
target's distribution p. Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023);
Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling" (2023).
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.types import NO_TOKEN, ROOT, Draft, Verdict

__all__ = ["match", "rejection"]

Probs = NDArray[np.float64]  # (vocab,)


def match(draft: Draft, target_token: Callable[[int, Sequence[int]], int]) -> Verdict:
    """Walks from the root: the target's token picks the child that holds it, or ends the walk.

    target_token(node, drafted) is the target's own token after that node of the draft (after the last committed token
    for ROOT); drafted are the tokens from the root to that node. It is asked only along the accepted path.

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
        tokens.append(target_token(node, tokens))
        node = child.get((node, tokens[-1]))
        if node is not None:
            accepted.append(node)
    return Verdict(tuple(accepted), tuple(tokens))


def rejection(
    draft: Draft,
    target_probs: Callable[[int, Sequence[int]], Probs | None],
    accepts: Callable[[float, Sequence[int]], bool],
    correct: Callable[[Probs, Sequence[int]], int],
    bonus: Callable[[int, Sequence[int]], int],
) -> Verdict:
    """Walks down a chain whose tokens were drawn from draft.probs.

    Each callback gets the drafted tokens before its position. target_probs and bonus get the node before it too:

    target_probs  the target's processed distribution there; None where it has no token to go on with
    accepts       True with the given probability
    correct       a token drawn from the given distribution
    bonus         a token drawn from the target's distribution, NO_TOKEN where there is none

    All draws must be independent of each other and of the draft's.
    """
    assert draft.probs is not None, "rejection needs the distributions that the draft was drawn from"
    tokens: list[int] = []
    for node, token in enumerate(draft.tokens.tolist()):
        target, drafter = target_probs(node - 1, tokens), draft.probs[node]
        if target is None:
            return Verdict(tuple(range(node)), (*tokens, NO_TOKEN))
        if not accepts(float(target[token] / drafter[token]), tokens):
            residual = np.maximum(target - drafter, 0)
            mass = residual.sum()
            # No mass means equal distributions, up to the rounding that made the rejection possible.
            return Verdict(tuple(range(node)), (*tokens, correct(residual / mass if mass else target, tokens)))
        tokens.append(token)
    return Verdict(tuple(range(len(draft))), (*tokens, bonus(len(draft) - 1, tokens)))
