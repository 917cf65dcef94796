from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def isa() -> str: ...
def available_isas() -> list[str]: ...
def use_isa(name: str) -> None: ...
def threads() -> int: ...
def set_threads(count: int) -> None: ...

class Weight:
    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...

class Rows:
    def __init__(
        self,
        cos: NDArray[np.float32],
        sin: NDArray[np.float32],
        sequence: NDArray[np.int32],
        slot: NDArray[np.int32],
        prefix: NDArray[np.int32],
        ancestors_start: NDArray[np.int32],
        ancestors: NDArray[np.int32],
        keys: Sequence[NDArray[np.float32]],
        values: Sequence[NDArray[np.float32]],
    ) -> None: ...

class Layer:
    def __init__(
        self,
        *,
        index: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        epsilon: float,
        scale: float,
        use_rope: bool,
        attention_norm: NDArray[np.float32],
        q: Weight,
        k: Weight,
        v: Weight,
        o: Weight,
        mlp_norm: NDArray[np.float32],
        gate: Weight,
        up: Weight,
        down: Weight,
        q_bias: NDArray[np.float32] | None = None,
        k_bias: NDArray[np.float32] | None = None,
        v_bias: NDArray[np.float32] | None = None,
        o_bias: NDArray[np.float32] | None = None,
        gate_bias: NDArray[np.float32] | None = None,
        up_bias: NDArray[np.float32] | None = None,
        down_bias: NDArray[np.float32] | None = None,
        q_norm: NDArray[np.float32] | None = None,
        k_norm: NDArray[np.float32] | None = None,
    ) -> None: ...

def pack(
    data: NDArray[np.uint8],
    source: str,
    out_features: int,
    in_features: int,
    dtype: str,
    row_order: NDArray[np.int32] | None = None,
) -> Weight: ...
def unpack(data: NDArray[np.uint8], source: str, rows: int, columns: int) -> NDArray[np.float32]: ...
def embed(weight: Weight, tokens: NDArray[np.int32]) -> NDArray[np.float32]: ...
def linear(x: NDArray[np.float32], weight: Weight, bias: NDArray[np.float32] | None = None) -> NDArray[np.float32]: ...
def rms_norm(x: NDArray[np.float32], weight: NDArray[np.float32], epsilon: float) -> NDArray[np.float32]: ...
def rope(x: NDArray[np.float32], cos: NDArray[np.float32], sin: NDArray[np.float32]) -> NDArray[np.float32]: ...
def swiglu(gate: NDArray[np.float32], up: NDArray[np.float32]) -> NDArray[np.float32]: ...
def attention(q: NDArray[np.float32], rows: Rows, layer: int, scale: float) -> NDArray[np.float32]: ...
def run_layers(x: NDArray[np.float32], layers: Sequence[Layer], rows: Rows) -> None: ...
def filter_logits(
    logits: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...
def gumbel_noise(token_ids: NDArray[np.int32], seed: int, position: int) -> NDArray[np.float64]: ...
def sample(
    logits: NDArray[np.float32],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    position: int,
) -> int: ...

class ReadProbe:
    def __init__(self, bytes: int) -> None: ...
    def read(self) -> int: ...
