"""The kernels in NumPy: slow, short, and there to check the native ones against. Agrees with them to rounding.

Every row is computed by itself, with operations whose shapes don't depend on the other rows, so that its bits can't
depend on them either.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import DTypeLike, NDArray

from slipstream.kernels.quantised import BLOCK, READERS, Quantised, quantised_product

__all__ = [
    "Layer",
    "Rows",
    "Weight",
    "attention",
    "available_isas",
    "embed",
    "isa",
    "linear",
    "pack",
    "rms_norm",
    "rope",
    "run_layers",
    "set_threads",
    "swiglu",
    "threads",
    "unpack",
    "use_isa",
]

KEY_BLOCK = 16
SOURCES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
F32 = NDArray[np.float32]

_threads = 1


def isa() -> str:
    """The instruction set in use."""
    return "reference"


def available_isas() -> list[str]:
    """The instruction sets that this machine can run, best first."""
    return ["reference"]


def use_isa(name: str) -> None:
    """Switches to another of available_isas(). Raises ValueError for any other name."""
    if name != "reference":
        raise ValueError(f"this machine has no instruction set called {name}")


def threads() -> int:
    """The number of threads that share the work."""
    return _threads


def set_threads(count: int) -> None:
    """Sets the number of threads, which is remembered and no more: NumPy has its own."""
    global _threads
    if not 1 <= count <= 1024:
        raise ValueError(f"threads must be 1 to 1024, not {count}")
    _threads = count


def _check(
    array: NDArray[Any] | None, name: str, dtype: DTypeLike, shape: Sequence[int | None] | None = None
) -> NDArray[Any]:
    """The array after checking type, shape (None matches any extent) and memory order."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be an array")
    if shape is not None and (
        array.ndim != len(shape) or any(want not in (None, have) for want, have in zip(shape, array.shape, strict=True))
    ):
        wanted = tuple("any" if extent is None else extent for extent in shape)
        raise ValueError(f"{name} must have shape {wanted}, not {array.shape}")
    if array.dtype != dtype:
        raise ValueError(f"{name} must have dtype {np.dtype(dtype)}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous")
    return array


def _dequantise(data: NDArray[np.uint8], source: str, rows: int, columns: int) -> F32:
    if source not in SOURCES:
        raise ValueError(f"source type {source} is not supported")
    if rows < 1 or columns < 1:
        raise ValueError(f"a tensor needs at least one row and one column, not {rows} × {columns}")
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[source]]
    if columns % block:
        raise ValueError(f"{source} needs a multiple of {block} columns, not {columns}")
    need = rows * columns // block * size
    if _check(data, "data", np.uint8).size != need:
        raise ValueError(f"data of {rows} × {columns} {source} must be {need} bytes, not {data.size}")
    aligned = np.array(data).reshape(rows, -1)
    values = np.empty((rows, columns), np.float32)
    values[...] = dequantize(aligned, GGMLQuantizationType[source])
    return values


def _to_bf16(values: F32) -> F32:
    """Rounded to nearest even at the 16th bit, NaN kept."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    result: F32 = np.where(np.isnan(values), np.float32(np.nan), rounded.view(np.float32))
    return result


class Weight:
    """A matrix (out_features, in_features), opaque outside this module."""

    def __init__(self, values: F32, dtype: str, nbytes: int, quantised: Quantised | None = None) -> None:
        self.values = values
        self.dtype = dtype
        self.quantised = quantised
        self.out_features, self.in_features = values.shape
        self.nbytes = nbytes


def pack(
    data: NDArray[np.uint8],
    source: str,
    out_features: int,
    in_features: int,
    dtype: str,
    row_order: NDArray[np.int32] | None = None,
) -> Weight:
    """A matrix from the bytes of a tensor of GGML type `source`.

    dtype: f32, bf16 (rounded to it), int8 (rounded to what Q8_0 can hold), or auto: quantised tensors stay exactly what
    they are, as int4 (Q4_0, Q4_1, Q4_K) or int8 (the others), floats become bf16. row_order[i] is the tensor's row that
    becomes output i. Raises ValueError for unknown types and wrong sizes.
    """
    values = _dequantise(data, source, out_features, in_features)
    if dtype not in ("auto", "f32", "bf16", "int8"):
        raise ValueError(f"dtype must be auto, f32, bf16 or int8, not {dtype}")
    if row_order is not None:
        rows = _check(row_order, "row_order", np.int32, (out_features,))
        outside = rows[(rows < 0) | (rows >= out_features)]
        if outside.size:
            raise ValueError(f"row_order names row {outside[0]} of {out_features}")
        values = values[rows]
    if dtype == "f32":
        return Weight(values, "f32", values.nbytes)
    if dtype == "bf16" or (dtype == "auto" and source not in READERS):
        return Weight(_to_bf16(values), "bf16", values.nbytes // 2)
    blocks = np.array(data).reshape(out_features, -1)
    if row_order is not None:
        blocks = blocks[rows]
    if dtype == "int8" and source != "Q8_0":
        if in_features % BLOCK:
            raise ValueError(f"int8 needs a multiple of {BLOCK} columns, not {in_features}")
        source = "Q8_0"
        blocks = quantize(values, GGMLQuantizationType.Q8_0)
        values = _dequantise(blocks.reshape(-1), source, out_features, in_features)
    size = GGML_QUANT_SIZES[GGMLQuantizationType[source]][1]
    quantised = READERS[source](blocks.reshape(-1, size), out_features)
    return Weight(values, "int4" if source.startswith("Q4") else "int8", blocks.nbytes, quantised)


def unpack(data: NDArray[np.uint8], source: str, rows: int, columns: int) -> F32:
    """The values of a tensor of GGML type `source`, (rows, columns)."""
    return _dequantise(data, source, rows, columns)


def embed(weight: Weight, tokens: NDArray[np.int32]) -> F32:
    """The matrix's rows of these tokens, (tokens, in_features)."""
    _check(tokens, "tokens", np.int32, (None,))
    outside = tokens[(tokens < 0) | (tokens >= weight.out_features)]
    if outside.size:
        raise ValueError(f"token {outside[0]} is outside the embedding's {weight.out_features} rows")
    return weight.values.take(tokens, axis=0)


def linear(x: F32, weight: Weight, bias: F32 | None = None) -> F32:
    """x · weightᵀ + bias, (rows, out_features).

    With int4 and int8 weights x is quantised to int8, a row and 32 values at a time; the bits are the native kernels'.
    """
    _check(x, "x", np.float32, (None, weight.in_features))
    if bias is not None:
        _check(bias, "bias", np.float32, (weight.out_features,))
    out = np.empty((len(x), weight.out_features), np.float32)
    for row, values in enumerate(x):
        out[row] = quantised_product(values, weight.quantised) if weight.quantised else weight.values @ values.copy()
        if bias is not None:
            out[row] += bias
    return out


def rms_norm(x: F32, weight: F32, epsilon: float) -> F32:
    """x / sqrt(mean of x² + epsilon) · weight over the last axis."""
    if _check(x, "x", np.float32).ndim < 1:
        raise ValueError("x must have at least one dimension")
    _check(weight, "weight", np.float32, (x.shape[-1],))
    out = np.empty_like(x)
    for index in np.ndindex(x.shape[:-1]):
        values = x[index]
        inverse = np.float32(1) / np.sqrt(np.mean(values * values) + np.float32(epsilon))
        out[index] = values * inverse * weight
    return out


def rope(x: F32, cos: F32, sin: F32) -> F32:
    """Each head's halves a, b turned to a·cos - b·sin, b·cos + a·sin. x: (rows, heads, head_dim)."""
    rows, _, head_dim = _check(x, "x", np.float32, (None, None, None)).shape
    if head_dim % 2:
        raise ValueError(f"x must have an even head_dim, not {head_dim}")
    _check(cos, "cos", np.float32, (rows, head_dim // 2))
    _check(sin, "sin", np.float32, (rows, head_dim // 2))
    a, b = np.split(x, 2, axis=-1)
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def swiglu(gate: F32, up: F32) -> F32:
    """silu(gate) · up, element by element."""
    _check(gate, "gate", np.float32)
    _check(up, "up", np.float32)
    if gate.shape != up.shape:
        raise ValueError(f"gate and up must have the same shape, not {gate.shape} and {up.shape}")
    with np.errstate(over="ignore"):
        return np.asarray(gate / (np.float32(1) + np.exp(-gate)) * up, np.float32)


class Rows:
    """Where each row of a pass stands: its rope angles, its sequence, the slot of the cache that its key and value go
    to, and the slots that it sees: 0 … prefix-1, then ancestors[ancestors_start[row] : ancestors_start[row + 1]].
    Its own slot must be among them.

    keys: one array per sequence, (layers, kv_heads, capacity / 16, head_dim, 16); values: (layers, kv_heads, capacity,
    head_dim). Raises ValueError for any index outside them.
    """

    def __init__(
        self,
        cos: F32,
        sin: F32,
        sequence: NDArray[np.int32],
        slot: NDArray[np.int32],
        prefix: NDArray[np.int32],
        ancestors_start: NDArray[np.int32],
        ancestors: NDArray[np.int32],
        keys: Sequence[F32],
        values: Sequence[F32],
    ) -> None:
        rows, half = _check(cos, "cos", np.float32, (None, None)).shape
        _check(sin, "sin", np.float32, (rows, half))
        self.cos, self.sin = cos.copy(), sin.copy()
        self.sequence = _check(sequence, "sequence", np.int32, (rows,)).tolist()
        self.slot = _check(slot, "slot", np.int32, (rows,)).tolist()
        self.prefix = _check(prefix, "prefix", np.int32, (rows,)).tolist()
        start = _check(ancestors_start, "ancestors_start", np.int32, (rows + 1,)).tolist()
        all_ancestors = _check(ancestors, "ancestors", np.int32, (None,)).tolist()
        self.rows, self.head_dim = rows, 2 * half
        self.keys, self.values = list(keys), list(values)
        self.layers = self.kv_heads = 0
        self._check_caches()
        if start[0] != 0:
            raise ValueError(f"ancestors_start must begin with 0, not {start[0]}")
        if start[-1] != len(all_ancestors):
            raise ValueError(f"ancestors_start must end with {len(all_ancestors)}, not {start[-1]}")
        for row in range(rows):
            if not start[row] <= start[row + 1] <= len(all_ancestors):
                raise ValueError(f"ancestors_start must not decrease, as it does after row {row}")
        self.ancestors = [all_ancestors[begin:end] for begin, end in pairwise(start)]
        self._check_rows()

    def _check_caches(self) -> None:
        if len(self.keys) != len(self.values):
            raise ValueError(f"keys has {len(self.keys)} arrays and values {len(self.values)}")
        for index, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            for name, array in (("keys", key), ("values", value)):
                if not isinstance(array, np.ndarray) or not array.flags.writeable:
                    raise ValueError(f"{name}[{index}] must be a writable array")
            shape = _check(key, f"keys[{index}]", np.float32, (None, None, None, self.head_dim, KEY_BLOCK)).shape
            if index == 0:
                self.layers, self.kv_heads = shape[:2]
            elif shape[:2] != (self.layers, self.kv_heads):
                raise ValueError(f"keys[{index}] must have as many layers and heads as keys[0]")
            _check(value, f"values[{index}]", np.float32, (*shape[:2], shape[2] * KEY_BLOCK, self.head_dim))

    def _check_rows(self) -> None:
        written = set()
        for row, (sequence, slot, prefix, ancestors) in enumerate(
            zip(self.sequence, self.slot, self.prefix, self.ancestors, strict=True)
        ):
            if not 0 <= sequence < len(self.keys):
                raise ValueError(f"sequence of row {row} is {sequence}: there are {len(self.keys)}")
            capacity = self.values[sequence].shape[2]
            if not 0 <= slot < capacity:
                raise ValueError(f"slot of row {row} is {slot}: the cache has {capacity}")
            if not 0 <= prefix <= capacity:
                raise ValueError(f"prefix of row {row} is {prefix}: the cache has {capacity} slots")
            for ancestor in ancestors:
                if not 0 <= ancestor < capacity:
                    raise ValueError(f"an ancestor of row {row} is {ancestor}: the cache has {capacity} slots")
            if slot >= prefix and slot not in ancestors:
                raise ValueError(f"slot of row {row} is in neither its prefix nor its ancestors")
            if (sequence, slot) in written:
                raise ValueError(f"slot {slot} of sequence {sequence} is written by two rows")
            written.add((sequence, slot))


def attention(q: F32, rows: Rows, layer: int, scale: float) -> F32:
    """Softmax attention of each row's heads over the slots that it sees. q: (rows, heads · head_dim); head h reads
    key/value head h // (heads / kv_heads)."""
    width = _check(q, "q", np.float32, (rows.rows, None)).shape[1]
    if rows.head_dim == 0 or width % rows.head_dim:
        raise ValueError(f"q must be heads × {rows.head_dim} wide, not {width}")
    heads = width // rows.head_dim
    if rows.rows and (heads < 1 or heads % rows.kv_heads):
        raise ValueError(f"heads must be a multiple of the cache's {rows.kv_heads} key/value heads, not {heads}")
    if rows.rows and not 0 <= layer < rows.layers:
        raise ValueError(f"layer is {layer}: the cache has {rows.layers}")
    out = np.empty_like(q)
    for row in range(rows.rows):
        seen = np.array([*range(rows.prefix[row]), *rows.ancestors[row]])
        for head in range(heads):
            kv_head = head // (heads // rows.kv_heads)
            part = slice(head * rows.head_dim, (head + 1) * rows.head_dim)
            sequence = rows.sequence[row]
            keys = rows.keys[sequence][layer, kv_head, seen // KEY_BLOCK, :, seen % KEY_BLOCK]  # (seen, head_dim)
            values = rows.values[sequence][layer, kv_head, seen]  # (seen, head_dim)
            scores = keys @ q[row, part].copy() * np.float32(scale)
            weights = np.exp(scores - scores.max())
            out[row, part] = weights @ values / weights.sum()
    return out


class Layer:
    """One decoder layer's weights. q_norm and k_norm are RMSNorm weights applied to each head before rope."""

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
        attention_norm: F32,
        q: Weight,
        k: Weight,
        v: Weight,
        o: Weight,
        mlp_norm: F32,
        gate: Weight,
        up: Weight,
        down: Weight,
        q_bias: F32 | None = None,
        k_bias: F32 | None = None,
        v_bias: F32 | None = None,
        o_bias: F32 | None = None,
        gate_bias: F32 | None = None,
        up_bias: F32 | None = None,
        down_bias: F32 | None = None,
        q_norm: F32 | None = None,
        k_norm: F32 | None = None,
    ) -> None:
        if index < 0:
            raise ValueError(f"index must be 0 or more, not {index}")
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"heads ({heads}) must be a multiple of kv_heads ({kv_heads})")
        if head_dim < 2 or head_dim % 2:
            raise ValueError(f"head_dim must be even, not {head_dim}")
        self.index, self.heads, self.kv_heads, self.head_dim = index, heads, kv_heads, head_dim
        self.epsilon, self.scale, self.use_rope = epsilon, scale, use_rope
        q_width, kv_width = heads * head_dim, kv_heads * head_dim

        def matrix(weight: Weight, name: str, out_features: int | None, in_features: int | None) -> Weight:
            if not isinstance(weight, Weight):
                raise ValueError(f"{name} must be a Weight")
            wanted, shape = (out_features, in_features), (weight.out_features, weight.in_features)
            if any(want not in (None, have) for want, have in zip(wanted, shape, strict=True)):
                text = tuple("any" if extent is None else extent for extent in wanted)
                raise ValueError(f"{name} must have shape {text}, not {shape}")
            return weight

        def vector(array: F32 | None, name: str, count: int) -> F32 | None:
            return None if array is None else _check(array, name, np.float32, (count,)).copy()

        self.q = matrix(q, "q", q_width, None)
        self.hidden = hidden = self.q.in_features
        self.k = matrix(k, "k", kv_width, hidden)
        self.v = matrix(v, "v", kv_width, hidden)
        self.o = matrix(o, "o", hidden, q_width)
        self.gate = matrix(gate, "gate", None, hidden)
        wide = self.gate.out_features
        self.up = matrix(up, "up", wide, hidden)
        self.down = matrix(down, "down", hidden, wide)
        self.attention_norm = _check(attention_norm, "attention_norm", np.float32, (hidden,)).copy()
        self.mlp_norm = _check(mlp_norm, "mlp_norm", np.float32, (hidden,)).copy()
        self.q_bias = vector(q_bias, "q_bias", q_width)
        self.k_bias = vector(k_bias, "k_bias", kv_width)
        self.v_bias = vector(v_bias, "v_bias", kv_width)
        self.o_bias = vector(o_bias, "o_bias", hidden)
        self.gate_bias = vector(gate_bias, "gate_bias", wide)
        self.up_bias = vector(up_bias, "up_bias", wide)
        self.down_bias = vector(down_bias, "down_bias", hidden)
        self.q_norm = vector(q_norm, "q_norm", head_dim)
        self.k_norm = vector(k_norm, "k_norm", head_dim)


def run_layers(x: F32, layers: Sequence[Layer], rows: Rows) -> None:
    """Decoder layers over x (rows, hidden), in place; the rows' keys and values go into the cache."""
    layers = list(layers)
    if not layers:
        raise ValueError("layers must hold at least one Layer")
    for layer in layers:
        if not isinstance(layer, Layer):
            raise ValueError("layers must hold Layers only")
        if layer.hidden != layers[0].hidden:
            raise ValueError("all layers must have the same width")
        if rows.rows and (layer.head_dim, layer.kv_heads) != (rows.head_dim, rows.kv_heads):
            raise ValueError(
                f"layer {layer.index} has {layer.kv_heads} × {layer.head_dim} keys, the cache {rows.kv_heads} × "
                f"{rows.head_dim}"
            )
        if rows.rows and layer.index >= rows.layers:
            raise ValueError(f"layer {layer.index} is outside the cache's {rows.layers} layers")
    _check(x, "x", np.float32, (rows.rows, layers[0].hidden))
    if rows.rows:
        for layer in layers:
            _run_layer(x, layer, rows)


def _run_layer(x: F32, layer: Layer, rows: Rows) -> None:
    normed = rms_norm(x, layer.attention_norm, layer.epsilon)
    q = linear(normed, layer.q, layer.q_bias).reshape(rows.rows, layer.heads, layer.head_dim)
    k = linear(normed, layer.k, layer.k_bias).reshape(rows.rows, layer.kv_heads, layer.head_dim)
    v = linear(normed, layer.v, layer.v_bias).reshape(rows.rows, layer.kv_heads, layer.head_dim)
    if layer.q_norm is not None:
        q = rms_norm(q, layer.q_norm, layer.epsilon)
    if layer.k_norm is not None:
        k = rms_norm(k, layer.k_norm, layer.epsilon)
    if layer.use_rope:
        q, k = rope(q, rows.cos, rows.sin), rope(k, rows.cos, rows.sin)
    for row, (sequence, slot) in enumerate(zip(rows.sequence, rows.slot, strict=True)):
        block, lane = divmod(slot, KEY_BLOCK)
        rows.keys[sequence][layer.index, :, block, :, lane] = k[row]
        rows.values[sequence][layer.index, :, slot] = v[row]
    attended = attention(q.reshape(rows.rows, -1), rows, layer.index, layer.scale)
    x += linear(attended, layer.o, layer.o_bias)
    normed = rms_norm(x, layer.mlp_norm, layer.epsilon)
    gated = swiglu(linear(normed, layer.gate, layer.gate_bias), linear(normed, layer.up, layer.up_bias))
    x += linear(gated, layer.down, layer.down_bias)


# Sampling -----------------------------------------------------------------------------------------------------------


def filter_logits(
    logits: F32, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[NDArray[np.int32], F32]:
    """The processed distribution of one position: (token ids ascending, scores: log-probabilities up to a constant).

    logits is (vocab,). Temperature (above 0), then top-k (0: off), top-p (1: off) and min-p (0: off), each on what the
    one before left, renormalised. Exact ties at the edge of a filter go to the lowest ids; a score of -inf never
    survives.
    """
    if logits.size == 0:
        raise ValueError("logits must not be empty")
    if not temperature > 0:
        raise ValueError("temperature must be above 0")
    if top_k < 0:
        raise ValueError("top_k must be 0 or more")
    if not 0 < top_p <= 1:
        raise ValueError("top_p must be above 0 and up to 1")
    if not 0 <= min_p <= 1:
        raise ValueError("min_p must be from 0 to 1")
    if np.isnan(logits).any():
        raise ValueError("logits must be numbers")
    with np.errstate(over="ignore"):  # a tiny temperature sends the others to -inf, which is what it asks for
        scores = (logits - logits.max()) / max(np.float32(temperature), np.float32(1e-30))
    token_ids = np.arange(len(scores), dtype=np.int32)
    if 0 < top_k < len(scores):
        threshold = np.partition(scores, -top_k)[-top_k]
        above = np.flatnonzero(scores > threshold)
        kept = np.concatenate([above, np.flatnonzero(scores == threshold)[: top_k - len(above)]])
        kept.sort()
        token_ids, scores = token_ids[kept], scores[kept]
    if top_p < 1:
        order = np.argsort(-scores, kind="stable")
        cumulative = np.cumsum(np.exp(scores[order].astype(np.float64)))
        kept = order[: int(np.searchsorted(cumulative, top_p * cumulative[-1])) + 1]
        kept.sort()
        token_ids, scores = token_ids[kept], scores[kept]
    least = np.float32(math.log(min_p)) if min_p > 0 else np.finfo(np.float32).min
    alive = scores >= least  # the likeliest token's score is 0
    return token_ids[alive], scores[alive]


def sample(logits: F32, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int) -> int:
    """The token with the largest score + noise of those that filter_logits leaves, the lowest id on exact ties."""
    token_ids, scores = filter_logits(logits, temperature, top_k, top_p, min_p)
    return int(token_ids[np.argmax(scores + gumbel_noise(token_ids, seed, position))])


def gumbel_noise(token_ids: NDArray[np.int32], seed: int, position: int) -> NDArray[np.float64]:
    """Standard Gumbel noise of these tokens at this output position, (n,): a function of (seed, position, id) alone.

    One Philox block, with the counter (id // 4, 0, position), serves four ids.
    """
    words = _philox(seed, position, token_ids >> 2)
    uniform = (np.choose(token_ids & 3, words).astype(np.float64) + 0.5) * 2.0**-32
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def _philox(seed: int, position: int, blocks: NDArray[np.int32]) -> list[NDArray[np.uint64]]:
    """Philox4x32-10 with key = seed and counter = (block, 0, position): four 32-bit words for every block."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = [
        blocks.astype(np.uint64),
        np.zeros(len(blocks), np.uint64),
        np.full(len(blocks), position & 0xFFFFFFFF, np.uint64),
        np.full(len(blocks), position >> 32, np.uint64),
    ]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, second = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)  # 32 × 32 → 64 bits
        counter = [
            (second >> half) ^ counter[1] ^ np.uint64(keys[0]),
            second & low,
            (first >> half) ^ counter[3] ^ np.uint64(keys[1]),
            first & low,
        ]
        keys = [(key + step) & 0xFFFFFFFF for key, step in zip(keys, (0x9E3779B9, 0xBB67AE85), strict=True)]
    return counter


# Measuring ----------------------------------------------------------------------------------------------------------


class ReadProbe:
    """Memory to read through, with nothing else to do: the limit that the benchmarks compare with."""

    def __init__(self, bytes: int) -> None:
        self._words = np.arange(bytes // 8, dtype=np.uint64)

    def read(self) -> int:
        """Reads it all once, on all threads; the sum of its 64-bit words, modulo 2**64. Whole groups of 16 count."""
        return int(self._words[: len(self._words) // 16 * 16].sum(dtype=np.uint64))
