"""The operations of a forward pass: native code, or NumPy (slow, for checking) where SLIPSTREAM_KERNELS=reference asks
for it. Both offer the same names, take the same arguments and raise the same errors; reference.py describes each.
SLIPSTREAM_ISA names one of available_isas() to run on, where the best isn't wanted.

Every output row is a function of its own input row alone, bit for bit: docs/kernels.md says why.
"""

import os
from typing import TYPE_CHECKING

from slipstream.kernels.processors import available_processors

__all__ = [
    "BACKEND",
    "KEY_BLOCK",
    "Layer",
    "ReadProbe",
    "Rows",
    "Weight",
    "attention",
    "available_isas",
    "embed",
    "filter_logits",
    "gumbel_noise",
    "isa",
    "linear",
    "pack",
    "rms_norm",
    "rope",
    "run_layers",
    "sample",
    "set_threads",
    "swiglu",
    "threads",
    "unpack",
    "use_isa",
]

BACKEND = os.environ.get("SLIPSTREAM_KERNELS", "auto")
if BACKEND not in ("auto", "native", "reference"):
    raise ImportError(f"SLIPSTREAM_KERNELS is {BACKEND!r}: use auto, native or reference")
BACKEND = "reference" if BACKEND == "reference" else "native"

KEY_BLOCK = 16
"""Keys are cached in blocks of this many slots, transposed."""

if TYPE_CHECKING or BACKEND == "native":
    try:
        from slipstream.kernels import _native as _backend
    except ImportError as error:
        raise ImportError(
            "Slipstream's native kernels are missing: build them with `pip install .` in the source directory (needs a "
            "C++17 compiler), or set SLIPSTREAM_KERNELS=reference to run without them, slowly"
        ) from error
else:
    from slipstream.kernels import reference as _backend

Layer = _backend.Layer
ReadProbe = _backend.ReadProbe
Rows = _backend.Rows
Weight = _backend.Weight
attention = _backend.attention
available_isas = _backend.available_isas
embed = _backend.embed
filter_logits = _backend.filter_logits
gumbel_noise = _backend.gumbel_noise
isa = _backend.isa
linear = _backend.linear
pack = _backend.pack
rms_norm = _backend.rms_norm
rope = _backend.rope
run_layers = _backend.run_layers
sample = _backend.sample
set_threads = _backend.set_threads
swiglu = _backend.swiglu
threads = _backend.threads
unpack = _backend.unpack
use_isa = _backend.use_isa

if BACKEND == "native":
    set_threads(min(available_processors(), 1024))
if "SLIPSTREAM_ISA" in os.environ:
    use_isa(os.environ["SLIPSTREAM_ISA"])
