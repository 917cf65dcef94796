"""Writes GGUF files for the tests, through the `gguf` package: an implementation other than the one under test."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import tiny
from numpy.typing import NDArray

from slipstream.models.checkpoint import open_checkpoint
from slipstream.models.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The name that GGUF has for a Hugging Face tensor."""
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{_NAMES[rest]}.{kind}"
    return f"{_NAMES[stem]}.{kind}"


def paired(tensor: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of each head in pairs (0, half), (1, half + 1), …: how files for rope over neighbours hold them."""
    half = tensor.shape[0] // heads // 2
    order = [head * 2 * half + pair + side * half for head in range(heads) for pair in range(half) for side in (0, 1)]
    return tensor[order]


def model_metadata(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata for a tiny config.json."""
    architecture = "llama" if settings["model_type"] == "mistral" else settings["model_type"]
    values = {
        "block_count": settings["num_hidden_layers"],
        "context_length": settings["max_position_embeddings"],
        "embedding_length": settings["hidden_size"],
        "feed_forward_length": settings["intermediate_size"],
        "attention.head_count": settings["num_attention_heads"],
        "attention.head_count_kv": settings["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(settings["rms_norm_eps"]),
        "rope.freq_base": float(settings["rope_theta"]),
    }
    if "head_dim" in settings:
        values["attention.key_length"] = values["attention.value_length"] = settings["head_dim"]
    return {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in values.items()}


def byte_level_metadata(pre: str = "gpt-2") -> dict[str, Any]:
    """Metadata for tiny.tokenizer()."""
    vocabulary = tiny.tokenizer().get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if token in tiny.SPECIAL else NORMAL for token in tokens],
        "tokenizer.ggml.merges": ["t h", "th e", "Ġ the", "i n", "a n"],
        "tokenizer.ggml.eos_token_id": vocabulary["<|endoftext|>"],
        "tokenizer.chat_template": tiny.TEMPLATE,
    }


def sentence_piece_metadata(
    tokens: list[str], scores: list[float], kinds: list[int], **metadata: Any
) -> dict[str, Any]:
    """Metadata for a SentencePiece model whose tokens 1 and 2 begin and end a text."""
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **metadata,
    }


def tokenizer(path: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a tiny file with this tokenizer's metadata."""
    return open_checkpoint(with_tokenizer(path, metadata)).tokenizer()


def with_tokenizer(path: Path, metadata: Mapping[str, Any], **overrides: Any) -> Path:
    """A tiny Llama's file with this tokenizer's metadata."""
    settings = tiny.config(
        "llama", **{"num_hidden_layers": 1, "vocab_size": len(metadata["tokenizer.ggml.tokens"])} | overrides
    )
    tensors = {gguf_name(name): tensor for name, tensor in tiny.weights(settings, 0).items()}
    return write(path, model_metadata(settings) | dict(metadata), tensors)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kind = gguf.GGUFValueType.get_type(value[0] if isinstance(value, list) else value)
    if isinstance(value, list):
        writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, sub_type=kind)
    else:
        writer.add_key_value(key, value, gguf.GGUFValueType.UINT32 if kind == gguf.GGUFValueType.INT32 else kind)


def write(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], types: Mapping[str, str] = {}
) -> Path:
    """Writes metadata and tensors, by their GGUF names; those with a type given are the bytes of that type."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if key != "general.architecture":
            _add(writer, key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor, raw_dtype=gguf.GGMLQuantizationType[types[name]] if name in types else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_parts(
    folder: Path, stem: str, metadata: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], count: int
) -> list[Path]:
    """Writes a model in several files; the first has the metadata."""
    names = list(tensors)
    files = []
    for part in range(count):
        own = {"general.architecture": metadata["general.architecture"], "split.no": part, "split.count": count}
        path = folder / f"{stem}-{part + 1:05}-of-{count:05}.gguf"
        chosen = {name: tensors[name] for name in names[part::count]}
        files.append(write(path, (metadata if part == 0 else {}) | own, chosen))
    return files


def contents(architecture: str = "llama", seed: int = 0, **overrides: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and tensors of the model that tiny.make(…) writes as a directory with the same arguments."""
    settings = tiny.config(architecture, **overrides)
    tensors = {}
    for name, tensor in tiny.weights(settings, seed).items():
        for projection, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if projection in name and settings["model_type"] in ("llama", "mistral", "smollm3"):
                tensor = paired(tensor, settings[heads])
        tensors[gguf_name(name)] = tensor
    return model_metadata(settings) | byte_level_metadata(), tensors


def make(path: Path, architecture: str = "llama", seed: int = 0, **overrides: Any) -> Path:
    """The GGUF file of that model."""
    return write(path, *contents(architecture, seed, **overrides))
