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

from slipstream import kernels
from slipstream.errors import ModelError
from slipstream.types import SamplingParams

__all__ = ["Sampler"]


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
        params = self.params
        if params.temperature == 0:
            return best
        return kernels.sample(logits, params.temperature, params.top_k, params.top_p, params.min_p, self.seed, position)
