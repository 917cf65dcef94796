"""The decoder of the Llama family: Llama, Mistral, Qwen2, Qwen3, SmolLM2 and SmolLM3.

One class for all: they differ in biases, q/k norms and rope only, which the configuration and the checkpoint say. A
pass takes any number of sequences with any number of rows each, chains or trees, and every row's result depends on that
row's own path alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from slipstream import kernels
from slipstream.cache import KVCache
from slipstream.models.checkpoint import Checkpoint, Progress
from slipstream.models.config import ModelConfig
from slipstream.models.rotation import Rotations
from slipstream.tree import depths, is_chain, path_to

__all__ = ["Decoder", "Segment"]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One sequence's rows in a pass.

    Row i holds tokens[i] and follows row parents[i], or the cache's last slot where that is ROOT. It is written to the
    cache's slot `cache.length + i`; which rows stay is said afterwards, with `cache.keep`. Logits are wanted for the
    last num_logits rows.
    """

    cache: KVCache
    tokens: NDArray[np.int32]  # (rows,)
    parents: NDArray[np.int32]  # (rows,)
    num_logits: int

    @classmethod
    def chain(cls, cache: KVCache, tokens: Sequence[int], num_logits: int) -> "Segment":
        """Rows that follow one another."""
        return cls(cache, np.asarray(tokens, np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32), num_logits)


class Decoder:
    """A loaded model. The checkpoint has checked that its tensors are there, with the right shapes.

    file is the (first) one that it was loaded from, weight_bytes what its matrices take in memory, pass_bytes what
    every pass reads of them.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: str,
        progress: Progress | None = None,
        shortlist: NDArray[np.int64] | None = None,
    ) -> None:
        """shortlist: ids of the only tokens that passes compute logits of, the others' being -inf; None is all."""
        self.config: ModelConfig = checkpoint.config
        self.shortlist = shortlist
        self.file = checkpoint.files[0]
        self.dtype = dtype
        self.weight_bytes = 0
        config = self.config
        self.rotations = Rotations(config.inverse_frequencies, config.rope_attention_factor)
        self.embedding = self._matrix(checkpoint, "model.embed_tokens.weight")
        self.norm = self._vector(checkpoint, "model.norm.weight")
        if config.tied_embeddings and shortlist is None:
            self.output = self.embedding
        else:
            name = "model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"
            self.output = self._matrix(checkpoint, name, shortlist)
        self.layers = []
        for index in range(config.num_layers):
            self.layers.append(self._load_layer(checkpoint, index))
            if progress:
                progress("loading", index + 1, config.num_layers)

    @property
    def pass_bytes(self) -> int:
        return self.weight_bytes if self.output is self.embedding else self.weight_bytes - self.embedding.nbytes

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for one sequence of up to `capacity` rows, those of a draft included."""
        return KVCache(self.config.num_layers, self.config.num_kv_heads, self.config.head_dim, capacity)

    def forward(self, segments: Sequence[Segment], layers: Sequence[int] | None = None) -> NDArray[np.float32]:
        """One pass over all rows of all segments, which must have different caches.

        layers  indices of those that are run, one or more and ascending; None is all. The others neither read nor write
                their part of the caches

        Returns the wanted logits, (sum of num_logits, vocab_size), segment after segment.
        """
        tokens = np.concatenate([segment.tokens for segment in segments])  # (rows,)
        x = kernels.embed(self.embedding, tokens)  # (rows, hidden)
        run = self.layers if layers is None else [self.layers[index] for index in layers]
        kernels.run_layers(x, run, self._rows(segments))
        wanted: list[int] = []
        rows = 0
        for segment in segments:
            rows += len(segment.tokens)
            wanted.extend(range(rows - segment.num_logits, rows))
        if not wanted:
            return np.empty((0, self.config.vocab_size), np.float32)
        x = kernels.rms_norm(x if len(wanted) == rows else x[wanted], self.norm, self.config.rms_norm_eps)
        logits = kernels.linear(x, self.output)
        if self.shortlist is None:
            return logits
        full = np.full((len(logits), self.config.vocab_size), -np.inf, np.float32)
        full[:, self.shortlist] = logits
        return full

    def _rows(self, segments: Sequence[Segment]) -> kernels.Rows:
        """Where each row stands: its position, its slot, and the slots that it may see, in the order of its path."""
        positions: list[NDArray[np.int32]] = []
        slots: list[NDArray[np.int32]] = []
        prefixes: list[NDArray[np.int32]] = []
        ancestors: list[tuple[int, ...]] = []
        for segment in segments:
            length, count = segment.cache.length, len(segment.tokens)
            slot = length + np.arange(count, dtype=np.int32)
            slots.append(slot)
            if is_chain(segment.parents):
                positions.append(slot)
                prefixes.append(slot + 1)
                ancestors.extend([()] * count)
                continue
            positions.append(length + depths(segment.parents))
            prefix = np.empty(count, np.int32)
            for row in range(count):
                path = path_to(segment.parents, row)
                in_place = next((at for at, node in enumerate(path) if node != at), len(path))
                prefix[row] = length + in_place
                ancestors.append(tuple(length + node for node in path[in_place:]))
            prefixes.append(prefix)
        cos, sin = self.rotations.at(np.concatenate(positions))  # (rows, head_dim / 2) each
        counts = [len(segment.tokens) for segment in segments]
        return kernels.Rows(
            cos=cos,
            sin=sin,
            sequence=np.repeat(np.arange(len(segments), dtype=np.int32), counts),
            slot=np.concatenate(slots),
            prefix=np.concatenate(prefixes),
            ancestors_start=np.cumsum([0, *map(len, ancestors)], dtype=np.int32),
            ancestors=np.fromiter(chain.from_iterable(ancestors), np.int32),
            keys=[segment.cache.keys for segment in segments],
            values=[segment.cache.values for segment in segments],
        )

    def _load_layer(self, checkpoint: Checkpoint, index: int) -> kernels.Layer:
        config = self.config
        prefix = f"model.layers.{index}."

        def matrix(name: str) -> kernels.Weight:
            return self._matrix(checkpoint, f"{prefix}{name}.weight")

        def vector(name: str) -> NDArray[np.float32] | None:
            name = prefix + name
            return self._vector(checkpoint, name) if name in checkpoint else None

        return kernels.Layer(
            index=index,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            epsilon=config.rms_norm_eps,
            scale=config.head_dim**-0.5,
            use_rope=index not in config.layers_without_rope,
            attention_norm=self._vector(checkpoint, prefix + "input_layernorm.weight"),
            q=matrix("self_attn.q_proj"),
            k=matrix("self_attn.k_proj"),
            v=matrix("self_attn.v_proj"),
            o=matrix("self_attn.o_proj"),
            mlp_norm=self._vector(checkpoint, prefix + "post_attention_layernorm.weight"),
            gate=matrix("mlp.gate_proj"),
            up=matrix("mlp.up_proj"),
            down=matrix("mlp.down_proj"),
            q_bias=vector("self_attn.q_proj.bias"),
            k_bias=vector("self_attn.k_proj.bias"),
            v_bias=vector("self_attn.v_proj.bias"),
            o_bias=vector("self_attn.o_proj.bias"),
            gate_bias=vector("mlp.gate_proj.bias"),
            up_bias=vector("mlp.up_proj.bias"),
            down_bias=vector("mlp.down_proj.bias"),
            q_norm=vector("self_attn.q_norm.weight"),
            k_norm=vector("self_attn.k_norm.weight"),
        )

    def _matrix(self, checkpoint: Checkpoint, name: str, rows: NDArray[np.int64] | None = None) -> kernels.Weight:
        """A weight matrix, or these rows of one that isn't reordered."""
        tensor = checkpoint.tensor(name)
        outputs, inputs = tensor.shape
        data = tensor.data
        if rows is not None:
            data, outputs = data.reshape(outputs, -1)[rows].ravel(), len(rows)
        weight = kernels.pack(data, tensor.type, outputs, inputs, self.dtype, tensor.row_order)
        self.weight_bytes += weight.nbytes
        return weight

    def _vector(self, checkpoint: Checkpoint, name: str) -> NDArray[np.float32]:
        tensor = checkpoint.tensor(name)
        (size,) = tensor.shape
        vector = kernels.unpack(tensor.data, tensor.type, 1, size)[0]
        return vector if tensor.row_order is None else np.ascontiguousarray(vector[tensor.row_order])
