"""Plain decoding: the drafter that guesses nothing."""

from collections.abc import Sequence
from typing import ClassVar

from slipstream.drafters.base import History, Models
from slipstream.types import Draft

__all__ = ["NullDrafter"]


class NullDrafter:
    name: ClassVar[str] = "null"

    def __init__(self, models: Models) -> None:
        pass

    def start(self, history: History) -> None:
        return None

    def propose(self, states: Sequence[None], lengths: Sequence[int]) -> list[Draft]:
        return [Draft.chain(()) for _ in states]
