"""The target itself guesses, with some of its layers skipped.

Source: Zhang et al., "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative Decoding" (2024),
of which the skipped layers, here whole ones; Elhoushi et al., "LayerSkip: Enabling Early Exit Inference and
Self-Speculative Decoding" (2024), of which the shared cache.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from slipstream.drafters.base import History, Models
from slipstream.drafters.guessing import Guesses, feed, guess_chains
from slipstream.errors import OptionError
from slipstream.files import cache_directory, read_record
from slipstream.models.decoder import Decoder
from slipstream.types import Draft

__all__ = ["LayerSkipDrafter", "default_skipped", "identity", "profile_path", "read_profile"]

VERSION = 1
"""Of the profile's format."""

REMEDY = "delete it, and make it anew with slipstream tune layer-skip"


class LayerSkipDrafter:
    """Runs the layers that its profile leaves, or without one those that `default_skipped` does.

    The layers that run read the target's cache: what is committed has been through all of the model. Their keys and
    values of drafted tokens go into the slots behind the cache's length, which the target's own pass then writes anew,
    in every layer: they take no memory of their own, and none of them is ever seen by the target.
    """

    name: ClassVar[str] = "layer_skip"

    num_speculative_tokens: int | None = None
    """How many tokens pay best, where the model was tuned."""

    def __init__(self, models: Models) -> None:
        """Raises OptionError for a profile that is damaged or another model's."""
        self.model = models.target
        self.vocab_size = models.tokenizer.vocab_size
        path = profile_path(self.model.file)
        skipped = default_skipped(self.model.config.num_layers)
        if path.exists():
            skipped, self.num_speculative_tokens = read_profile(path, self.model)
        self.layers = [layer for layer in range(self.model.config.num_layers) if layer not in skipped]

    def start(self, history: History) -> Guesses:
        return Guesses(history, history.cache)

    def propose(self, states: Sequence[Guesses], lengths: Sequence[int]) -> list[Draft]:
        for state in states:
            state.begin()
        # Behind a chunk of prompt that the target hasn't seen, its cache has nothing to go on with.
        wanted = [
            (state, length)
            for state, length in zip(states, lengths, strict=True)
            if state.cache.length == state.base - 1
        ]
        try:
            guess_chains(wanted, self._score)
        finally:
            for state, _ in wanted:
                state.cache.truncate(state.base - 1)
        return [state.proposed() for state in states]

    def _score(self, states: list[Guesses]) -> NDArray[np.float32]:
        pending = [state.pending() for state in states]
        caches = [state.cache for state in states]
        return feed(self.model, caches, pending, num_logits=1, layers=self.layers)[:, : self.vocab_size]


def default_skipped(num_layers: int) -> tuple[int, ...]:
    """Every second layer of the middle half: the first and the last layers are those that a model can spare least."""
    quarter = num_layers // 4
    return tuple(range(quarter + 1, num_layers - quarter, 2))


# The profile ----------------------------------------------------------------------------------------------------------


def profile_path(model_file: Path) -> Path:
    """Where a model's profile lies, or is to be put: beside the model, or in the cache directory where that can't be
    written."""
    beside = model_file.with_name(f"{model_file.name}.layer_skip.json")
    cached = cache_directory() / f"{model_file.name}-{model_file.stat().st_size}.layer_skip.json"
    writable = os.access(model_file.parent, os.W_OK)
    return next((path for path in (beside, cached) if path.exists()), beside if writable else cached)


def identity(model: Decoder) -> dict[str, object]:
    """What a profile says of the model that it is for, and of its own format."""
    return {
        "version": VERSION,
        "file": model.file.name,
        "bytes": model.file.stat().st_size,
        "num_layers": model.config.num_layers,
    }


def read_profile(path: Path, model: Decoder) -> tuple[tuple[int, ...], int]:
    """The layers to skip and the tokens to draft, by a file that `slipstream tune layer-skip` wrote. Raises OptionError
    where it is damaged or another model's."""
    record = read_record(path, REMEDY)
    for key, value in identity(model).items():
        if record.get(key) != value:
            raise OptionError(f"{path}: its {key} is {record.get(key)!r}, and here it is {value!r}: {REMEDY}")
    skipped = record.get("skipped")
    num_layers = model.config.num_layers
    if not (
        isinstance(skipped, list)
        and all(type(layer) is int and 0 <= layer < num_layers for layer in skipped)
        and len({*skipped}) == len(skipped) < num_layers
    ):
        raise OptionError(f"{path}: it skips {skipped!r:.80}, which some of {num_layers} layers can't be: {REMEDY}")
    length = record.get("num_speculative_tokens")
    if type(length) is not int or length < 1:
        raise OptionError(f"{path}: its num_speculative_tokens is {length!r:.80}, which can't be: {REMEDY}")
    return tuple(skipped), length
