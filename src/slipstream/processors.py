"""What changes a target's logits before anything is drawn from them: penalties, biases, bans.

Each step is a small function of the logits and the prefix (the prompt, the output and the drafted tokens before the
position on its path). Nothing is carried from one position to the next, so nothing can remember a rejected token. The
steps run in the order in which they stand here; slipstream.sampling runs them, then the grammar, then the filters.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.vocabulary import Vocabulary

__all__ = ["BadWords", "add_bias", "ban", "ban_repeated_ngrams", "penalise"]

Logits = NDArray[np.float32]


def penalise(
    logits: Logits,
    prefix: Sequence[int],
    num_prompt_tokens: int,
    *,
    repetition: float,
    frequency: float,
    presence: float,
    window: int | None,
) -> None:
    """Penalises, in place, tokens among the last `window` of the prefix (None: all of it).

    repetition: logits of tokens in prompt or output are divided by it where positive, else multiplied (Keskar et al.,
    "CTRL", 2019). Then frequency × count and presence are subtracted from the logits of tokens in the output.
    """
    begin = 0 if window is None else max(0, len(prefix) - window)
    recent = np.asarray(prefix[begin:], np.intp)
    if repetition != 1:
        seen = np.unique(recent)
        values = logits[seen]
        logits[seen] = np.where(values > 0, values / np.float32(repetition), values * np.float32(repetition))
    if frequency or presence:
        seen, counts = np.unique(recent[max(0, num_prompt_tokens - begin) :], return_counts=True)
        logits[seen] -= (frequency * counts + presence).astype(np.float32)


def add_bias(logits: Logits, bias: Mapping[int, float]) -> None:
    """Adds, in place, each token's bias to its logit."""
    logits[list(bias)] += np.fromiter(bias.values(), np.float32, len(bias))


def ban_repeated_ngrams(logits: Logits, prefix: Sequence[int], size: int) -> None:
    """Bans, in place, every token that would complete an n-gram of `size` tokens that the prefix already holds."""
    tokens = np.asarray(prefix, np.intp)
    starts = len(tokens) - size + 1  # of n-grams in the prefix
    if starts <= 0:
        return
    same = np.ones(starts, bool)
    for offset in range(size - 1):
        same &= tokens[offset : offset + starts] == tokens[len(tokens) - size + 1 + offset]
    logits[tokens[size - 1 :][same]] = -np.inf


def ban(logits: Logits, token_ids: Collection[int]) -> None:
    """Bans these tokens, in place."""
    logits[list(token_ids)] = -np.inf


class BadWords:
    """Tokens that would complete a bad word: bytes that the output's text must never contain.

    A token is banned where the text of the output with it contains a bad word that it hadn't before, wherever the word
    begins and however it is split into tokens. Like stop strings, bad words are found inside longer words too.
    """

    def __init__(self, words: Collection[bytes], vocabulary: Vocabulary) -> None:
        self._texts = vocabulary.texts
        self._longest = max(map(len, words), default=0)
        self._inside = np.unique([token for word in words for token in vocabulary.containing(word)]).astype(np.intp)
        # Where a word began before: for each of its beginnings, the tokens that start with the rest of it.
        self._after = [
            (word[:cut], np.array(tokens, np.intp))
            for word in words
            for cut in range(1, len(word))
            if (tokens := vocabulary.starting_with(word[cut:]))
        ]

    def ban(self, logits: Logits, output: Sequence[int]) -> None:
        """Bans, in place, every token that would complete a bad word after these output tokens."""
        logits[self._inside] = -np.inf
        tail = b""
        for token in reversed(output):
            if len(tail) >= self._longest:
                break
            tail = self._texts[token] + tail
        for beginning, tokens in self._after:
            if tail.endswith(beginning):
                logits[tokens] = -np.inf
