"""The tokens' bytes, and which tokens begin with what."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

__all__ = ["Vocabulary"]


class Vocabulary:
    """texts: each token's bytes, none for tokens without text. What takes time is computed once, on first use."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def starting_with(self, beginning: bytes) -> list[int]:
        """The tokens that begin with this."""
        texts, tokens = self._sorted
        first = end = bisect_left(texts, beginning)
        while end < len(texts) and texts[end].startswith(beginning):
            end += 1
        return tokens[first:end]

    def containing(self, part: bytes) -> list[int]:
        """The tokens that hold this somewhere."""
        return [token for token, text in enumerate(self.texts) if part in text]

    @cached_property
    def _sorted(self) -> tuple[list[bytes], list[int]]:
        tokens = sorted(range(len(self.texts)), key=self.texts.__getitem__)
        return [self.texts[token] for token in tokens], tokens
