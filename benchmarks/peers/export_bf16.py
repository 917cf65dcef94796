"""Writes a GGUF file as a safetensors directory in bf16, for systems that read no GGUF.

    python benchmarks/peers/export_bf16.py MODEL.gguf… [--to DIR]

Every tensor is dequantised and rounded to bf16, as `--dtype bf16` does on loading, so all get the very same weights.
Prints the directories that it wrote.
"""

import argparse
import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from slipstream import kernels
from slipstream.errors import ModelError
from slipstream.models.checkpoint import Checkpoint, open_checkpoint
from slipstream.models.config import ModelConfig
from slipstream.models.encoders import HuggingFaceEncoder
from slipstream.models.gguf_file import read_header
from slipstream.models.tensors import expected_tensors

MODELS = Path(__file__).parents[2] / "build" / "peers" / "models"
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}


def export(file: Path, folder: Path = MODELS) -> Path:
    """Writes the model of a GGUF file into a directory named after it in `folder`, which is returned, unless it is
    there already. Raises ModelError for a model whose settings config.json wouldn't say the same."""
    directory = folder / f"{file.stem}-bf16"
    if directory.is_dir():
        return directory
    checkpoint = open_checkpoint(file)
    settings = config_json(checkpoint)
    unfinished = folder / f".{file.stem}-bf16"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    (unfinished / "config.json").write_text(json.dumps(settings, indent=2))
    _write_tokenizer(checkpoint, unfinished)
    with (unfinished / "model.safetensors").open("wb") as weights:
        _write_weights(checkpoint, weights)
    return unfinished.rename(directory)


def config_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """The model's settings as transformers writes them. Raises ModelError where they would mean something else."""
    config = checkpoint.config
    metadata = read_header(checkpoint.files[0]).metadata
    settings = {
        "architectures": [CLASSES[config.architecture]],
        "model_type": config.architecture,
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": metadata.get(f"{config.architecture}.rope.freq_base", 10_000.0),
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": bool(config.biased) and config.architecture != "qwen2",
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }
    read_back = ModelConfig.from_hf(settings)
    for name in ModelConfig.__dataclass_fields__:
        ours, theirs = getattr(config, name), getattr(read_back, name)
        if not np.array_equal(ours, theirs):
            raise ModelError(f"{checkpoint.files[0]}: its {name} ({ours}) can't be exported: config.json says {theirs}")
    return settings


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The nearest bf16 of each value, ties to even, as its bits. No value may be NaN."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _write_weights(checkpoint: Checkpoint, file: BinaryIO) -> None:
    """The safetensors format: the size of a JSON header, the header, the tensors' bytes."""
    tensors = [(name, shape) for name, shape, _ in expected_tensors(checkpoint.config) if name in checkpoint]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, shape in tensors:
        end = position + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, end]}
        position = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    file.write(len(encoded).to_bytes(8, "little") + encoded)
    for name, shape in tensors:
        tensor = checkpoint.tensor(name)
        values = kernels.unpack(tensor.data, tensor.type, math.prod(shape[:-1]), shape[-1]).reshape(shape)
        to_bf16(values if tensor.row_order is None else values[tensor.row_order]).tofile(file)


def _write_tokenizer(checkpoint: Checkpoint, directory: Path) -> None:
    metadata = read_header(checkpoint.files[0]).metadata
    encoder = checkpoint.tokenizer().encoder
    if not isinstance(encoder, HuggingFaceEncoder):
        raise ModelError(f"{checkpoint.files[0]}: its SentencePiece tokenizer can't be exported as tokenizer.json")
    (directory / "tokenizer.json").write_text(encoder.backend.to_str(), "utf-8")
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    tokens = metadata["tokenizer.ggml.tokens"]
    for role in ("bos", "eos"):
        token_id = metadata.get(f"tokenizer.ggml.{role}_token_id")
        if token_id is not None:
            settings[f"{role}_token"] = tokens[token_id].decode()
    if "tokenizer.chat_template" in metadata:
        settings["chat_template"] = metadata["tokenizer.chat_template"]
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--to", type=Path, default=MODELS, metavar="DIR", help="[default: build/peers/models]")
    arguments = parser.parse_args()
    try:
        for model in arguments.models:
            print(export(model, arguments.to))
    except ModelError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
