"""What a drafter is: something that, given the tokens so far, guesses the next ones.

It can't change the output, only the speed: whatever it proposes is verified. So a drafter knows nothing of
verification or stopping; it reads the history and returns a draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from slipstream.cache import KVCache
from slipstream.drafters.store import Store
from slipstream.models.decoder import Decoder
from slipstream.models.tokenizer import Tokenizer
from slipstream.sampling import Sampler
from slipstream.types import Draft

__all__ = ["Drafter", "History", "Models", "ReadsLogits"]


@dataclass(frozen=True, slots=True)
class Models:
    """What was loaded, for drafters to build on. draft and draft_tokenizer are None without a draft model, store is
    without earlier texts to copy from."""

    target: Decoder
    tokenizer: Tokenizer
    draft: Decoder | None = None
    draft_tokenizer: Tokenizer | None = None
    store: Store | None = None


@dataclass(slots=True, eq=False)
class History:
    """What a drafter may read of a request.

    tokens   prompt and committed tokens; it only ever grows
    limit    most tokens that the sequence can reach
    sampler  chooses tokens as the target does: a drafter that samples uses it
    cache    the target's, for a drafter that runs the target itself and no other: behind its length, where there is
             room for a draft, such a one may write. What lies there is lost, and the length must be left as it was
    """

    tokens: list[int]
    num_prompt_tokens: int
    limit: int
    sampler: Sampler
    cache: KVCache

    @property
    def position(self) -> int:
        """Output position of the next token."""
        return len(self.tokens) - self.num_prompt_tokens


class Drafter(Protocol):
    """One object an engine, shared by its requests; what it keeps of a request is in that request's state alone.

    The constructor raises OptionError where `models` lacks what the drafter needs.
    """

    name: ClassVar[str]

    def __init__(self, models: Models) -> None: ...

    def start(self, history: History) -> Any:
        """The state of a new request, handed back at every propose and dropped when the request ends."""

    def propose(self, states: Sequence[Any], lengths: Sequence[int]) -> list[Draft]:
        """One draft for each request, of at most its length (1 or more) in nodes; an empty one is fine.

        Called once a step, with all the step's requests that use this drafter, so that a model can batch them. The
        tokens committed since the last call are simply in the history: a state that ran ahead on rejected tokens
        compares and falls back by itself.
        """


@runtime_checkable
class ReadsLogits(Protocol):
    """A drafter that learns from what the target thought."""

    def observe(self, state: Any, tokens: Sequence[int], logits: Sequence[NDArray[np.float32]]) -> None:
        """Called after each pass that gave the request tokens: logits[i], (vocab,), are those behind tokens[i]. The
        tokens are committed ones that follow one another; they end before the last committed one, whose logits the next
        pass will give."""
