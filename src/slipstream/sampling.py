"""From logits to a token, as a deterministic function of the logits, the parameters, the seed and the position.

The processed distribution is made in this order: temperature, top-k, top-p, min-p; each filter works on what the
one before left, renormalised. The token is then arg-max(log-probability + Gumbel noise), which draws from exactly
that distribution (Gumbel-max; Yellott 1977, Maddison et al. 2014). The noise of token t at output position i is a
function of (seed, i, t) alone, out of the counter-based generator Philox4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC11). So the token doesn't depend on how many tokens were drawn before, by whom, or in
which batch; and a drafter that samples with the same noise is coupled to the target.
"""

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ModelError
from slipstream.types import SamplingParams

__all__ = ["Sampler", "gumbel_noise", "process"]

_ROUND_FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class Sampler:
    """Chooses one request's tokens. Stateless: the same logits at the same position give the same token."""

    def __init__(self, params: SamplingParams, seed: int) -> None:
        self.params = params
        self.seed = seed

    def choose(self, logits: NDArray[np.float32], position: int) -> int:
        """The token of output position `position` (0 is the first after the prompt), given its logits (vocab,).

        Raises ModelError when a logit is not a number.
        """
        best = int(np.argmax(logits))  # lowest id on exact ties; the first NaN, if there is one
        if np.isnan(logits[best]):
            raise ModelError("the model's logits are not numbers: its weights are damaged; fetch or convert it again")
        if self.params.temperature == 0:
            return best
        token_ids, scores = process(logits, self.params)
        noise = gumbel_noise(self.seed, position, token_ids)
        return int(token_ids[np.argmax(scores + noise)])


def process(logits: NDArray[np.float32], params: SamplingParams) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The processed distribution of one position: (token ids ascending, their log-probabilities up to a constant).

    logits is (vocab,); temperature must be above 0. Exact ties at the edge of a filter go to the lowest ids.
    """
    scores = logits.astype(np.float64)
    with np.errstate(over="ignore"):  # a tiny temperature sends the others to -inf, which is what it asks for
        scores = (scores - scores.max()) / params.temperature
    token_ids = np.arange(len(scores))

    def keep(chosen: NDArray[np.int64]) -> None:
        nonlocal token_ids, scores
        chosen.sort()
        token_ids, scores = token_ids[chosen], scores[chosen]

    if 0 < params.top_k < len(scores):
        threshold = np.partition(scores, -params.top_k)[-params.top_k]
        above = np.flatnonzero(scores > threshold)
        keep(np.concatenate([above, np.flatnonzero(scores == threshold)[: params.top_k - len(above)]]))
    if params.top_p < 1:
        order = np.argsort(-scores, kind="stable")
        cumulative = np.cumsum(np.exp(scores[order]))
        enough = int(np.searchsorted(cumulative, params.top_p * cumulative[-1]))
        keep(order[: enough + 1])
    if params.min_p > 0:
        keep(np.flatnonzero(scores >= np.log(params.min_p)))  # the likeliest token's score is 0
    return token_ids, scores


def gumbel_noise(seed: int, position: int, token_ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise of these tokens at this output position, (n,): one Philox block serves four token ids."""
    words = _philox(seed, position, token_ids >> 2)
    uniform = (np.choose(token_ids & 3, words).astype(np.float64) + 0.5) * 2.0**-32
    return np.asarray(-np.log(-np.log(uniform)), np.float64)


def _philox(seed: int, position: int, blocks: NDArray[np.int64]) -> list[NDArray[np.uint64]]:
    """Philox4x32-10 with key = seed and counter = (block, 0, position): four 32-bit words for every block."""
    counter = [
        blocks.astype(np.uint64) & _LOW,
        np.zeros(len(blocks), np.uint64),
        np.full(len(blocks), position & 0xFFFFFFFF, np.uint64),
        np.full(len(blocks), position >> 32, np.uint64),
    ]
    keys = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    for _ in range(10):
        first, second = counter[0] * _ROUND_FACTORS[0], counter[2] * _ROUND_FACTORS[1]  # 32 × 32 → 64 bits
        counter = [
            (second >> _HALF) ^ counter[1] ^ keys[0],
            second & _LOW,
            (first >> _HALF) ^ counter[3] ^ keys[1],
            first & _LOW,
        ]
        keys = [np.uint64((int(key) + int(step)) & 0xFFFFFFFF) for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return counter
