"""The weights of a model in another type than its file has."""

from dataclasses import dataclass

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream.models.checkpoint import Checkpoint
from slipstream.models.tensors import BLOCKS, Tensor

QUANTISED = tuple(name for name in BLOCKS if name.startswith("Q"))


@dataclass
class Requantised:
    """A checkpoint whose matrices are in another type."""

    checkpoint: Checkpoint
    type: str

    def __post_init__(self) -> None:
        self.name, self.config, self.files = self.checkpoint.name, self.checkpoint.config, self.checkpoint.files
        self.kind = gguf.GGMLQuantizationType[self.type]
        self._made: dict[str, Tensor] = {}  # quantising takes longer than the passes

    def __contains__(self, name: object) -> bool:
        return name in self.checkpoint

    def tokenizer(self) -> object:
        return self.checkpoint.tokenizer()

    def tensor(self, name: str) -> Tensor:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Tensor:
        tensor = self.checkpoint.tensor(name)
        if len(tensor.shape) == 1:
            return tensor
        if self.type.endswith("_K"):
            data = self._random_blocks(tensor.shape, len(name))
        else:
            kind = gguf.GGMLQuantizationType[tensor.type]
            values = gguf.quants.dequantize(np.array(tensor.data).reshape(tensor.shape[0], -1), kind)
            data = gguf.quants.quantize(values, self.kind)
        return tensor._replace(data=data.reshape(-1).view(np.uint8), type=self.type)

    def _random_blocks(self, shape: tuple[int, ...], seed: int) -> NDArray[np.uint8]:
        """gguf can't quantise to these types: random blocks, with scales of a model's size, stand in for weights."""
        elements, size = gguf.GGML_QUANT_SIZES[self.kind]
        blocks = np.random.default_rng(seed).integers(0, 256, (shape[0] * shape[1] // elements, size), np.uint8)
        for place, scale in {"Q4_K": {0: 4e-4, 2: 1.5e-3}, "Q5_K": {0: 2e-4, 2: 1.5e-3}, "Q6_K": {size - 2: 3e-5}}[
            self.type
        ].items():
            blocks[:, place : place + 2] = np.array([scale], np.float16).view(np.uint8)
        return blocks
