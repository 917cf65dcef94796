"""Tiny models with random weights: a safetensors directory that every loader, ours or transformers', can read."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

ARCHITECTURES = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "llama3-rope": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": True,
        "mlp_bias": True,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None},
    "qwen2": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": False,
        "tie_word_embeddings": True,
    },
    "qwen2-yarn": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": False,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    },
    "qwen3": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 16,
        "use_sliding_window": False,
    },
    "smollm3": {
        "model_type": "smollm3",
        "architectures": ["SmolLM3ForCausalLM"],
        "no_rope_layers": [1, 0, 1],
        "use_sliding_window": False,
        "pad_token_id": None,
    },
}
"""What sets each architecture's configuration apart."""

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> Tokenizer:
    """A byte-level tokenizer with a few merges, 256 + 5 + 3 tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("a", "n")]
    vocab = {token: index for index, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    return made


def config(architecture: str, **overrides: object) -> dict[str, object]:
    """The config.json of a tiny model."""
    return {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": 270,  # padded: the tokenizer has 264
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 261,
        "bos_token_id": None,
        "torch_dtype": "float32",
        **ARCHITECTURES[architecture],
        **overrides,
    }


def weights(settings: dict[str, object], seed: int) -> dict[str, NDArray[np.float32]]:
    """Random tensors for a configuration; large enough that the output isn't one token over and over."""
    rng = np.random.default_rng(seed)
    number = {key: value for key, value in settings.items() if isinstance(value, int)}
    hidden, inner, vocab = number["hidden_size"], number["intermediate_size"], number["vocab_size"]
    head = number.get("head_dim", hidden // number["num_attention_heads"])
    queries, keys = number["num_attention_heads"] * head, number["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not settings["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    attention_bias = settings["model_type"] == "qwen2" or settings.get("attention_bias")
    for index in range(number["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        matrices = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for name, shape in matrices.items():
            shapes[f"{layer}{name}.weight"] = shape
            biased = settings.get("mlp_bias") if name.startswith("mlp") else attention_bias
            if biased and not (settings["model_type"] == "qwen2" and "o_proj" in name):
                shapes[f"{layer}{name}.bias"] = shape[:1]
        shapes[layer + "input_layernorm.weight"] = shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        if settings["model_type"] == "qwen3":
            shapes[layer + "self_attn.q_norm.weight"] = shapes[layer + "self_attn.k_norm.weight"] = (head,)
    made = {}
    for name, shape in shapes.items():
        spread = rng.standard_normal(shape)
        made[name] = (1 + 0.1 * spread if "norm" in name else 0.6 * spread / np.sqrt(shape[-1]) ** 0.5).astype(
            np.float32
        )
    return made


def make(folder: Path, architecture: str = "llama", seed: int = 0, noise: float = 0.0, **overrides: object) -> Path:
    """Writes a model into `folder` and returns it. noise adds that share of other random weights."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = config(architecture, **overrides)
    tensors = weights(settings, seed)
    if noise:
        other = weights(settings, seed + 1000)
        tensors = {name: tensor + np.float32(noise) * other[name] for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(settings))
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": SPECIAL[0]}))
    return folder
