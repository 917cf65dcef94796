"""Prompt lookup: what followed the last tokens earlier, in the prompt or in the output, may follow them again.

Source: Saxena, "Prompt Lookup Decoding" (2023); Yang et al., "Inference with Reference" (2023).
"""

from collections.abc import Sequence
from typing import ClassVar

from slipstream.drafters.base import History, Models
from slipstream.types import Draft

__all__ = ["NgramDrafter"]

LENGTHS = (4, 3, 2)
"""Lengths of the matched n-gram, the longest first: a longer match is a better guess, one token alone a poor one."""


class _Index:
    """Where each n-gram of a history was followed by something, most recently."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.indexed = 0  # n-grams that end before this are known
        self.after: dict[tuple[int, ...], int] = {}  # n-gram → index of the token that followed it

    def extend(self) -> None:
        """Takes in the tokens that came since the last call. What the history ends with isn't followed by any yet."""
        for end in range(self.indexed, len(self.tokens)):
            for length in LENGTHS:
                if length <= end:
                    self.after[tuple(self.tokens[end - length : end])] = end
        self.indexed = len(self.tokens)

    def find(self) -> int | None:
        """Index of the token that followed the longest known ending of the history."""
        for length in LENGTHS:
            start = self.after.get(tuple(self.tokens[-length:]))
            if start is not None:
                return start
        return None


class NgramDrafter:
    """Copies the span that followed the most recent occurrence of the longest matching ending."""

    name: ClassVar[str] = "ngram"

    def __init__(self, models: Models) -> None:
        pass

    def start(self, history: History) -> _Index:
        return _Index(history.tokens)

    def propose(self, states: Sequence[_Index], lengths: Sequence[int]) -> list[Draft]:
        return [self._copy(index, length) for index, length in zip(states, lengths, strict=True)]

    def _copy(self, index: _Index, length: int) -> Draft:
        index.extend()
        start = index.find()
        if start is None:
            return Draft.chain(())
        copied = index.tokens[start : start + length]
        period = len(index.tokens) - start
        while len(copied) < length:  # the span runs into the present: it goes on with its own beginning
            copied.append(copied[len(copied) - period])
        return Draft.chain(copied)
