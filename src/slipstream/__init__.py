"""Slipstream: lossless speculative decoding. Faster answers from the same model, bit for bit the same.

from slipstream import Engine, SamplingParams

engine = Engine.load()
completion = engine.generate([{"role": "user", "content": "Name three rivers."}], SamplingParams(max_tokens=60))
print(completion.text, completion.speculation.mean_accepted_length)
"""

from importlib import import_module

TYPE_CHECKING = False  # as `typing` has it, which takes longer to import than all else here
if TYPE_CHECKING:
    from slipstream.drafters import DRAFTERS as DRAFTERS
    from slipstream.engine import DRAFTER_NAMES as DRAFTER_NAMES
    from slipstream.engine import DTYPES as DTYPES
    from slipstream.engine import Engine as Engine
    from slipstream.errors import ModelError as ModelError
    from slipstream.errors import OptionError as OptionError
    from slipstream.errors import SlipstreamError as SlipstreamError
    from slipstream.models.default_model import DEFAULT_MODEL as DEFAULT_MODEL
    from slipstream.types import Completion as Completion
    from slipstream.types import Piece as Piece
    from slipstream.types import Request as Request
    from slipstream.types import SamplingParams as SamplingParams
    from slipstream.types import SpeculationStats as SpeculationStats
    from slipstream.types import StepOutput as StepOutput
    from slipstream.types import Timing as Timing
    from slipstream.types import TokenLogprob as TokenLogprob
    from slipstream.types import Usage as Usage

    __version__: str

_MODULES = {
    "DEFAULT_MODEL": "models.default_model",
    "DRAFTERS": "drafters",
    "DRAFTER_NAMES": "engine",
    "DTYPES": "engine",
    "Completion": "types",
    "Engine": "engine",
    "ModelError": "errors",
    "OptionError": "errors",
    "Piece": "types",
    "Request": "types",
    "SamplingParams": "types",
    "SlipstreamError": "errors",
    "SpeculationStats": "types",
    "StepOutput": "types",
    "Timing": "types",
    "TokenLogprob": "types",
    "Usage": "types",
}
"""Public name → its module, imported once the name is asked for: the command sees to Ctrl-C before such long work."""

__all__ = list(_MODULES)


if not TYPE_CHECKING:  # else every name would be taken for one of ours

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return import_module("importlib.metadata").version("slipstream")
        if name in _MODULES:
            return getattr(import_module(f"slipstream.{_MODULES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
