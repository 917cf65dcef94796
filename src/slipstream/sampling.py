"""From logits to a token, as a deterministic function of the logits, the prefix, the parameters and the seed.

The processed distribution is made in this order: penalties, logit bias, bans, grammar (slipstream.processors);
temperature, top-k, top-p, min-p, typical-p, each filter on what the one before left, renormalised. The token is then
arg-max(log-probability + Gumbel noise), which draws from exactly that distribution (Gumbel-max; Yellott 1977, Maddison
et al. 2014). The noise of token t at output position i is a function of (seed, i, t) alone, out of the counter-based
generator Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11). So the token doesn't
depend on how many tokens were drawn before, by whom, or in which batch; and a drafter that samples with the same noise
is coupled to the target.

The rule "rejection" needs draws that are independent of each other: its drafts, its acceptances and its corrections
have streams of their own, which differ in the counter's highest byte.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream import kernels, processors
from slipstream.errors import ModelError
from slipstream.types import NO_TOKEN, SamplingParams, TokenLogprob

__all__ = ["Sampler", "derived_seed"]

Logits = NDArray[np.float32]  # (vocab,)
Probs = NDArray[np.float64]  # (vocab,)
Mask = Callable[[Sequence[int]], NDArray[np.bool_]]

DRAFT, ACCEPTANCE, RESIDUAL = (stream << 56 for stream in (1, 2, 3))
"""What is added to an output position to draw from a stream of its own; the target's own draws are at 0."""


class Sampler:
    """Chooses one request's tokens. Stateless: the same logits after the same prefix give the same token.

    A prefix is given in two parts, prompt and committed tokens, and the drafted ones behind them on the path.
    """

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        num_prompt_tokens: int,
        *,
        end_ids: Collection[int] = (),
        bad_words: processors.BadWords | None = None,
        allowed: Mask | None = None,
    ) -> None:
        """end_ids: the tokens that end the completion. bad_words: those of params, compiled. allowed: the grammar of
        params, as the mask of the tokens that may follow an output."""
        self.params = params
        self.seed = seed
        self._num_prompt_tokens = num_prompt_tokens
        self._end_ids = end_ids
        self._bad_words = bad_words
        self._allowed = allowed
        self._penalises = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1, 0, 0)
        self._adjusts = bool(
            self._penalises
            or params.logit_bias
            or params.no_repeat_ngram_size
            or bad_words
            or (params.min_tokens and end_ids)
            or allowed
        )

    def choose(self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int] = ()) -> int:
        """The token that follows tokens + drafted, given its logits; NO_TOKEN where bans and grammar leave none.

        Raises ModelError when a logit is not a number.
        """
        best = _best(logits)
        if self._adjusts:
            logits = self._adjusted(logits, tokens, drafted)
            best = int(np.argmax(logits))
            if logits[best] == -np.inf:
                return NO_TOKEN
        params = self.params
        if params.temperature == 0:
            return best
        position = self._position(tokens, drafted)
        if params.typical_p == 1:
            return kernels.sample(
                logits, params.temperature, params.top_k, params.top_p, params.min_p, self.seed, position
            )
        return self._draw(*self._filtered(logits), position)

    def logprob(
        self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int], chosen: int
    ) -> TokenLogprob | None:
        """The log-probability of the token that was chosen after tokens + drafted; None where params ask for none."""
        params = self.params
        if params.logprobs is None or chosen == NO_TOKEN:
            return None
        if params.logprobs_of == "raw":
            return raw_logprob(logits, chosen, params.logprobs)
        token_ids, scores = self._processed(logits, tokens, drafted)
        return _logprob(token_ids, scores, chosen, params.logprobs)

    @property
    def end_ids(self) -> Collection[int]:
        """The tokens that end the completion: nothing needs to be drafted behind them."""
        return self._end_ids

    # For the rule "rejection" -----------------------------------------------------------------------------------

    @property
    def rejects(self) -> bool:
        """Whether drawn drafts are verified by that rule. (At temperature 0 both rules are the same.)"""
        return self.params.verification == "rejection" and self.params.temperature > 0

    def probs(self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int]) -> Probs | None:
        """The processed distribution after tokens + drafted; None where bans and grammar leave no token."""
        best = _best(logits)
        if self._adjusts:
            logits = self._adjusted(logits, tokens, drafted)
            best = int(np.argmax(logits))
        if logits[best] == -np.inf:
            return None
        token_ids, scores = self._filtered(logits)
        probs: Probs = np.zeros(len(logits))
        probs[token_ids] = np.exp(scores.astype(np.float64))
        probs /= probs.sum()
        return probs

    def draft(self, probs: Probs, tokens: Sequence[int], drafted: Sequence[int]) -> int:
        """A drafted token, drawn from probs."""
        return self._draw_probs(probs, DRAFT + self._position(tokens, drafted))

    def accepts(self, probability: float, tokens: Sequence[int], drafted: Sequence[int]) -> bool:
        """True with this probability."""
        position = ACCEPTANCE + self._position(tokens, drafted)
        noise = kernels.gumbel_noise(np.zeros(1, np.int32), self.seed, position)[0]
        return bool(np.exp(-np.exp(-noise)) < probability)  # back to the uniform number that it was made of

    def correct(self, residual: Probs, tokens: Sequence[int], drafted: Sequence[int]) -> int:
        """The token in place of a rejected one, drawn from the residual distribution."""
        return self._draw_probs(residual, RESIDUAL + self._position(tokens, drafted))

    # ------------------------------------------------------------------------------------------------------------

    def _position(self, tokens: Sequence[int], drafted: Sequence[int]) -> int:
        """The output position of the token that follows: 0 is the first after the prompt."""
        return len(tokens) + len(drafted) - self._num_prompt_tokens

    def _adjusted(self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int]) -> Logits:
        """A copy with penalties, biases, bans and grammar applied."""
        params = self.params
        logits = logits.copy()
        prefix = [*tokens, *drafted]
        output = prefix[self._num_prompt_tokens :]
        if self._penalises:
            processors.penalise(
                logits,
                prefix,
                self._num_prompt_tokens,
                repetition=params.repetition_penalty,
                frequency=params.frequency_penalty,
                presence=params.presence_penalty,
                window=params.penalty_window,
            )
        if params.logit_bias:
            processors.add_bias(logits, params.logit_bias)
        if params.no_repeat_ngram_size:
            processors.ban_repeated_ngrams(logits, prefix, params.no_repeat_ngram_size)
        if self._bad_words:
            self._bad_words.ban(logits, output)
        if len(output) < params.min_tokens:
            processors.ban(logits, self._end_ids)
        if self._allowed:
            logits[~self._allowed(output)] = -np.inf
        return logits

    def _filtered(self, logits: Logits) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """What the filters leave of adjusted logits: token ids ascending, and log-probabilities up to a constant."""
        params = self.params
        token_ids, scores = kernels.filter_logits(logits, params.temperature, params.top_k, params.top_p, params.min_p)
        if params.typical_p < 1:
            kept = _typical(scores, params.typical_p)
            token_ids, scores = token_ids[kept], scores[kept]
        return token_ids, scores

    def _processed(
        self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The processed distribution as _filtered gives it; at temperature 0, where all of it is one token, as at
        temperature 1 without filters."""
        if self._adjusts:
            logits = self._adjusted(logits, tokens, drafted)
        if self.params.temperature == 0:
            return kernels.filter_logits(logits, 1.0, 0, 1.0, 0.0)
        return self._filtered(logits)

    def _draw(self, token_ids: NDArray[np.int32], scores: NDArray[np.floating], position: int) -> int:
        return int(token_ids[np.argmax(scores + kernels.gumbel_noise(token_ids, self.seed, position))])

    def _draw_probs(self, probs: Probs, position: int) -> int:
        token_ids = np.flatnonzero(probs).astype(np.int32)
        return self._draw(token_ids, np.log(probs[token_ids]), position)


def _best(logits: Logits) -> int:
    """The likeliest token, the lowest id on exact ties."""
    best = int(np.argmax(logits))  # the first NaN, if there is one
    if np.isnan(logits[best]):
        raise ModelError("the model's logits are not numbers: its weights are damaged; fetch or convert it again")
    return best


def derived_seed(seed: int, index: int) -> int:
    """The seed of the index-th of n completions: the seed itself for the first, well-mixed ones for the others
    (the finaliser of SplitMix64; Steele et al., "Fast splittable pseudorandom number generators", 2014)."""
    if index == 0:
        return seed
    mask = 2**64 - 1
    z = (seed + index * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def raw_logprob(logits: Logits, chosen: int, top: int) -> TokenLogprob:
    """The log-probability of a token in the model's own distribution, and those of the `top` likeliest."""
    return _logprob(np.arange(len(logits), dtype=np.int32), logits, chosen, top)


def _logprob(token_ids: NDArray[np.int32], scores: NDArray[np.float32], chosen: int, top: int) -> TokenLogprob:
    """token_ids ascending; scores: their log-probabilities up to a constant."""
    values = scores.astype(np.float64)
    largest = float(values.max())
    total = largest + float(np.log(np.exp(values - largest).sum()))
    of_chosen = float(values[np.searchsorted(token_ids, chosen)]) - total
    likeliest: list[tuple[int, float]] = []
    if top:
        threshold = np.partition(values, -top)[-top] if top < len(values) else -np.inf
        among = np.flatnonzero(values >= threshold)
        order = among[np.argsort(-values[among], kind="stable")][:top]  # lower ids first on ties
        likeliest = [(int(token_ids[at]), float(values[at]) - total) for at in order if values[at] > -np.inf]
    return TokenLogprob(chosen, of_chosen, tuple(likeliest))


def _typical(scores: NDArray[np.float32], typical_p: float) -> NDArray[np.intp]:
    """Which tokens typical-p keeps: those whose information is nearest the distribution's entropy, until their
    probability reaches typical_p (Meister et al., "Locally typical sampling", 2023). Ties go to the lowest ids."""
    values = scores.astype(np.float64)
    probs = np.exp(values)
    probs /= probs.sum()
    logs = np.log(probs, out=np.zeros_like(probs), where=probs > 0)
    distance = np.abs(-logs - -(probs * logs).sum())
    order = np.argsort(np.where(probs > 0, distance, np.inf), kind="stable")
    count = int(np.searchsorted(np.cumsum(probs[order]), typical_p)) + 1
    return np.sort(order[:count])
