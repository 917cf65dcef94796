"""The draft sources. To add one, see docs/add_a_drafter.md: a class in a file of its own, and a line in DRAFTERS."""

from slipstream.drafters.base import Drafter, History, Models
from slipstream.drafters.draft_model import DraftModelDrafter
from slipstream.drafters.ngram import NgramDrafter
from slipstream.drafters.null import NullDrafter

__all__ = ["DRAFTERS", "Drafter", "History", "Models"]

DRAFTERS: dict[str, type[Drafter]] = {
    "null": NullDrafter,
    "ngram": NgramDrafter,
    "draft_model": DraftModelDrafter,
}
"""Every drafter by its name. The contract tests run over all of them."""
