"""Slipstream: lossless speculative decoding. Faster answers from the same model, bit for bit the same.

from slipstream import Engine, SamplingParams

engine = Engine.load()
completion = engine.generate([{"role": "user", "content": "Name three rivers."}], SamplingParams(max_tokens=60))
print(completion.text, completion.speculation.mean_accepted_length)
"""

from importlib.metadata import version

from slipstream.drafters import DRAFTERS
from slipstream.engine import DRAFTER_NAMES, DTYPES, Engine
from slipstream.errors import ModelError, OptionError, SlipstreamError
from slipstream.models.default_model import DEFAULT_MODEL
from slipstream.types import (
    Completion,
    Piece,
    Request,
    SamplingParams,
    SpeculationStats,
    StepOutput,
    Timing,
    TokenLogprob,
    Usage,
)

__all__ = [
    "DEFAULT_MODEL",
    "DRAFTERS",
    "DRAFTER_NAMES",
    "DTYPES",
    "Completion",
    "Engine",
    "ModelError",
    "OptionError",
    "Piece",
    "Request",
    "SamplingParams",
    "SlipstreamError",
    "SpeculationStats",
    "StepOutput",
    "Timing",
    "TokenLogprob",
    "Usage",
]

__version__ = version("slipstream")
