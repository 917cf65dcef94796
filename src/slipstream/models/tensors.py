"""Tensors as they lie in model files: their types, names and shapes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ModelError
from slipstream.models.config import ModelConfig

__all__ = ["BLOCKS", "Tensor", "byte_size", "check_tensors", "expected_tensors", "map_file"]

BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""Tensor types by their GGML names: (elements, bytes) of a block. Rows are made of whole blocks."""


class Tensor(NamedTuple):
    """A tensor's bytes as the file has them, row-major, the last axis contiguous.

    data       the bytes, a read-only view of the mapped file, perhaps unaligned
    type       a name in BLOCKS
    shape      (rows, columns) of a matrix, (elements,) of a vector
    row_order  source row (element of a vector) that becomes row i; None leaves them as they are
    """

    data: NDArray[np.uint8]
    type: str
    shape: tuple[int, ...]
    row_order: NDArray[np.int32] | None


def byte_size(type_name: str, shape: tuple[int, ...]) -> int | None:
    """The bytes that a tensor takes, or None where its rows aren't made of whole blocks."""
    elements, size = BLOCKS[type_name]
    count = 1
    for extent in shape:
        count *= extent
    return count // elements * size if shape and shape[-1] % elements == 0 else None


def map_file(path: Path) -> NDArray[np.uint8]:
    """The file's bytes, mapped into memory and read-only. Raises ModelError for a missing, unreadable or empty one."""
    try:
        return np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        reason = "it is empty" if isinstance(error, ValueError) else error.strerror
        raise ModelError(f"{path}: can't be read: {reason}") from None


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """(name, shape, required) of each tensor that a model of this config may have, under Hugging Face's names."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "model.embed_tokens.weight", (config.vocab_size, hidden), True
    yield "model.norm.weight", (hidden,), True
    yield "lm_head.weight", (config.vocab_size, hidden), not config.tied_embeddings
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,), True
        yield prefix + "post_attention_layernorm.weight", (hidden,), True
        for name, rows, columns in (
            ("self_attn.q_proj", queries, hidden),
            ("self_attn.k_proj", keys, hidden),
            ("self_attn.v_proj", keys, hidden),
            ("self_attn.o_proj", hidden, queries),
            ("mlp.gate_proj", intermediate, hidden),
            ("mlp.up_proj", intermediate, hidden),
            ("mlp.down_proj", hidden, intermediate),
        ):
            yield f"{prefix}{name}.weight", (rows, columns), True
            if name in config.biased:
                yield f"{prefix}{name}.bias", (rows,), True
        if config.query_key_norm:
            yield prefix + "self_attn.q_norm.weight", (config.head_dim,), True
            yield prefix + "self_attn.k_norm.weight", (config.head_dim,), True


def check_tensors(source: Path, found: Mapping[str, tuple[int, ...]], config: ModelConfig) -> None:
    """Raises ModelError, naming the tensor, where one is missing, has another shape than config says, or is unknown
    and so would be left out of the computation."""
    unknown = dict(found)
    for name, shape, required in expected_tensors(config):
        if name in found and found[name] != shape:
            raise ModelError(
                f"{source}: tensor {name} has shape {found[name]}, and the model's settings make it {shape}"
            )
        if required and name not in found:
            raise ModelError(f"{source}: tensor {name} is missing: the file is incomplete, get it again")
        unknown.pop(name, None)
    if unknown:
        raise ModelError(
            f"{source}: tensor {min(unknown)} has no place in architecture {config.architecture}: "
            f"leaving it out would change results, so this model can't be used"
        )
