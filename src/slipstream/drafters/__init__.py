"""The draft sources. To add one, see docs/add_a_drafter.md: a class in a file of its own, and a line in DRAFTERS."""

from slipstream.drafters.base import Drafter, History, Models, ReadsLogits
from slipstream.drafters.draft_model import DraftModelDrafter
from slipstream.drafters.layer_skip import LayerSkipDrafter
from slipstream.drafters.ngram import NgramDrafter
from slipstream.drafters.null import NullDrafter
from slipstream.drafters.recycling import RecyclingDrafter

__all__ = ["DRAFTERS", "Drafter", "History", "Models", "ReadsLogits"]

DRAFTERS: dict[str, type[Drafter]] = {
    "null": NullDrafter,
    "ngram": NgramDrafter,
    "recycling": RecyclingDrafter,
    "draft_model": DraftModelDrafter,
    "layer_skip": LayerSkipDrafter,
}
"""Every drafter by its name. The contract tests run over all of them."""
