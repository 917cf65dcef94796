"""A model's shape and settings, read from config.json or from GGUF metadata.

Whatever would change results and isn't computed here is refused by name, before any weights are read.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ModelError
from slipstream.models.rotation import inverse_frequencies, logarithm

__all__ = ["ARCHITECTURES", "ModelConfig"]

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")

_QKV = frozenset({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"})
_ATTENTION = _QKV | {"self_attn.o_proj"}
_MLP = frozenset({"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
# What a config.json that doesn't name them means.
_TIED_BY_DEFAULT = {"smollm3"}
_ROPE_BASE_BY_DEFAULT = {"smollm3": 2_000_000.0}
# Far above any model in sight: a larger number is damage, and must not become an allocation.
_LARGEST = 1 << 26
_MOST_LAYERS = 4096
_LARGEST_HEAD = 1 << 16
_FLOAT_MAX = sys.float_info.max

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class ModelConfig:
    """Everything about a decoder that isn't a weight. Sizes are counts of elements.

    inverse_frequencies    (head_dim / 2,) radians per position, with the model's rope scaling applied
    rope_attention_factor  multiplies cos and sin (YaRN), else 1
    layers_without_rope    layers whose queries and keys aren't rotated (SmolLM3)
    biased                 projections that have a bias in every layer
    query_key_norm         RMSNorm on each head's query and key before rope (Qwen3)
    """

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    inverse_frequencies: NDArray[np.float64]
    rope_attention_factor: float
    layers_without_rope: frozenset[int]
    tied_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    biased: frozenset[str]

    @property
    def query_key_norm(self) -> bool:
        return self.architecture == "qwen3"

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> "ModelConfig":
        """Reads config.json as transformers 4 or 5 writes it. The end-of-sequence tokens are those of either file,
        generation_config's first."""
        return _from_hf(_Settings("config.json", config), generation_config)

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        *,
        embedding_rows: int,
        has_output: bool,
        biased: frozenset[str],
        rope_factors: NDArray[np.float32] | None = None,
    ) -> "ModelConfig":
        """Reads GGUF metadata. What the tensors alone tell comes with it: the number of embedding rows, whether there
        is an output matrix of its own, which projections have a bias, and the divisors of the rope frequencies
        (Llama 3), where the file has them."""
        return _from_gguf(_Settings("GGUF metadata", metadata), embedding_rows, has_output, biased, rope_factors)


class _Settings:
    """Named values of a file, each checked as it is read."""

    def __init__(self, source: str, values: Mapping[str, Any]) -> None:
        self.source = source
        self.values = values

    def error(self, name: str, reason: str) -> ModelError:
        return ModelError(f"{self.source}: {name} = {self.values.get(name)!r:.80}: {reason}")

    def get(self, name: str, kind: type[_T], default: _T | None = None) -> _T:
        """The value called name, of this kind (an int will do for a float). Raises ModelError for any other."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise ModelError(f"{self.source} has no {name}, which this model needs: the file is incomplete")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return cast(_T, float(value) if abs(value) < _FLOAT_MAX else math.inf)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(name, f"it should be of type {kind.__name__}")
        return value

    def size(self, name: str, default: int | None = None, most: int = _LARGEST) -> int:
        """A count of something: an int from 1 up to what is sensible."""
        value = self.get(name, int, default)
        if not 1 <= value <= most:
            raise self.error(name, f"it should be from 1 to {most}: the file is damaged")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        value = self.get(name, float, default)
        if not (value > 0 and math.isfinite(value)):
            raise self.error(name, "it should be a number above 0: the file is damaged")
        return value

    def refuse(self, name: str, feature: str, harmless: Sequence[object] = (None, False)) -> None:
        """Raises ModelError if name has any but a harmless value."""
        if self.values.get(name) not in harmless:
            raise self.error(name, f"{feature} can't be computed here, and leaving it out would change results")


def _finish(settings: _Settings, config: ModelConfig) -> ModelConfig:
    """Checks that hold for every source."""

    def need(holds: bool, what: str) -> None:
        if not holds:
            raise ModelError(f"{settings.source}: {what}: the file is damaged or not a model of this kind")

    need(config.num_heads % config.num_kv_heads == 0, f"{config.num_heads} heads on {config.num_kv_heads} kv heads")
    need(config.head_dim % 2 == 0, f"head size {config.head_dim} is odd")
    need(config.rms_norm_eps < 1, f"RMSNorm epsilon {config.rms_norm_eps}")
    for token_id in (*config.eos_token_ids, *([] if config.bos_token_id is None else [config.bos_token_id])):
        need(0 <= token_id < config.vocab_size, f"token id {token_id} is outside the vocabulary of {config.vocab_size}")
    return config


# --- config.json ------------------------------------------------------------------------------------------------------


def _from_hf(settings: _Settings, generation_config: Mapping[str, Any] | None) -> ModelConfig:
    architecture = settings.get("model_type", str)
    if architecture not in ARCHITECTURES:
        raise settings.error("model_type", f"this architecture isn't supported; these are: {', '.join(ARCHITECTURES)}")
    classes = settings.get("architectures", list, [])
    if classes and not any(str(name).endswith("ForCausalLM") for name in classes):
        raise settings.error("architectures", "not a model that generates text (…ForCausalLM)")
    settings.refuse("quantization_config", "this way of quantising (give the unquantised model or a GGUF file)")
    settings.refuse("hidden_act", "this activation", ("silu", None))
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        settings.refuse(name, "a mixture of experts", (None, 0))
    for name in ("partial_rotary_factor", "attention_multiplier", "embedding_multiplier", "logits_scaling"):
        settings.refuse(name, "this scaling", (None, 1))

    num_heads = settings.size("num_attention_heads")
    hidden_size = settings.size("hidden_size")
    num_layers = settings.size("num_hidden_layers", most=_MOST_LAYERS)
    # transformers gives a missing entry another meaning in each architecture; only Llama's was ever left out.
    num_kv_heads = settings.size("num_key_value_heads", num_heads if architecture == "llama" else None)
    head_dim = 128 if architecture == "qwen3" else max(1, hidden_size // num_heads)
    head_dim = settings.size("head_dim", head_dim, most=_LARGEST_HEAD)
    context_length = settings.size("max_position_embeddings")
    _refuse_sliding_windows(settings, architecture, context_length)

    rope = _Settings("config.json: rope", _hf_rope(settings, architecture))
    rope.refuse("partial_rotary_factor", "rotating a part of each head", (None, 1))
    frequencies, attention_factor, context_length = _rope(rope, head_dim, context_length)

    eos = [
        token_id
        for values in (generation_config or {}, settings.values)
        for token_id in _token_ids("eos_token_id", values.get("eos_token_id"))
    ]
    return _finish(
        settings,
        ModelConfig(
            architecture=architecture,
            num_layers=num_layers,
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=settings.size("intermediate_size"),
            vocab_size=settings.size("vocab_size"),
            context_length=context_length,
            rms_norm_eps=settings.positive("rms_norm_eps"),
            inverse_frequencies=frequencies,
            rope_attention_factor=attention_factor,
            layers_without_rope=_layers_without_rope(settings, architecture, num_layers),
            tied_embeddings=settings.get("tie_word_embeddings", bool, architecture in _TIED_BY_DEFAULT),
            bos_token_id=_bos_token_id(settings),
            eos_token_ids=_token_ids("eos_token_id", eos),
            biased=_biased(settings, architecture),
        ),
    )


def _biased(settings: _Settings, architecture: str) -> frozenset[str]:
    if architecture in ("mistral", "qwen2"):  # they have no such settings
        return _QKV if architecture == "qwen2" else frozenset()
    attention = _ATTENTION if settings.get("attention_bias", bool, False) else frozenset[str]()
    has_mlp_setting = architecture in ("llama", "smollm3")
    return attention | (_MLP if has_mlp_setting and settings.get("mlp_bias", bool, False) else frozenset[str]())


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    """One token id, several or none (null), as a tuple without repeats."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    if any(not isinstance(token_id, int) or isinstance(token_id, bool) for token_id in values):
        raise ModelError(f"config.json: {name} = {value!r:.80}: it should be a token id or a list of them")
    return tuple(dict.fromkeys(values))


def _bos_token_id(settings: _Settings) -> int | None:
    """The token that begins a text; an empty list says that there is none."""
    ids = _token_ids("bos_token_id", settings.values.get("bos_token_id"))
    if len(ids) > 1:
        raise settings.error("bos_token_id", "a text begins with one token: give one")
    return ids[0] if ids else None


def _refuse_sliding_windows(settings: _Settings, architecture: str, context_length: int) -> None:
    """A window as long as the context hides nothing. Qwen's configs carry one that is switched off."""
    window = settings.values.get("sliding_window")
    switched_off = architecture in ("qwen2", "qwen3", "smollm3") and not settings.get("use_sliding_window", bool, False)
    if window is not None and not switched_off and settings.size("sliding_window") < context_length:
        settings.refuse("sliding_window", "attention within a sliding window")
    for kind in settings.get("layer_types", list, []):
        if kind != "full_attention" and not (kind == "sliding_attention" and window is not None and not switched_off):
            settings.refuse("layer_types", f"a layer of type {kind!r:.40}")


def _layers_without_rope(settings: _Settings, architecture: str, num_layers: int) -> frozenset[int]:
    if architecture != "smollm3":
        return frozenset()
    interval = settings.size("no_rope_layer_interval", 4)
    by_interval = [int((layer + 1) % interval != 0) for layer in range(num_layers)]
    uses_rope = settings.get("no_rope_layers", list, by_interval)  # despite its name: 1 where rope is used
    if len(uses_rope) != num_layers:
        raise settings.error("no_rope_layers", f"it should have an entry for each of the {num_layers} layers")
    return frozenset(layer for layer, used in enumerate(uses_rope) if not used)


def _hf_rope(settings: _Settings, architecture: str) -> dict[str, Any]:
    """transformers 5's rope_parameters, made up from rope_theta and rope_scaling where version 4 wrote the file."""
    parameters = settings.get("rope_parameters", dict, {}) or settings.get("rope_scaling", dict, {})
    base = _ROPE_BASE_BY_DEFAULT.get(architecture, 10_000.0)
    rope = {"rope_theta": settings.positive("rope_theta", base)} | parameters
    rope["rope_type"] = parameters.get("rope_type") or parameters.get("type") or "default"
    for name, value in parameters.items():
        if isinstance(value, dict):
            raise ModelError(
                f"config.json: rope has settings for {name!r:.40} alone: one kind for all layers is needed"
            )
    return rope


# --- GGUF metadata ----------------------------------------------------------------------------------------------------

# Keys under "<architecture>." that are read below or change nothing.
_GGUF_KEYS = {
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_used_count",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "tensor_data_layout",
    "vocab_size",
}


def _from_gguf(
    settings: _Settings,
    embedding_rows: int,
    has_output: bool,
    biased: frozenset[str],
    rope_factors: NDArray[np.float32] | None,
) -> ModelConfig:
    architecture = settings.get("general.architecture", str)
    known = [name for name in ARCHITECTURES if name != "mistral"]  # Mistral's files say "llama": it is the same decoder
    if architecture not in known:
        raise settings.error(
            "general.architecture", f"this architecture isn't supported; these are: {', '.join(known)}"
        )
    prefix = architecture + "."
    for name in settings.values:
        if name.startswith(prefix) and name.removeprefix(prefix) not in _GGUF_KEYS:
            raise settings.error(name, "an unknown setting, which may change results")
    settings.refuse(prefix + "expert_count", "a mixture of experts", (None, 0))
    settings.refuse(prefix + "attention.causal", "attention that isn't causal", (None, True))

    num_heads = settings.size(prefix + "attention.head_count")
    hidden_size = settings.size(prefix + "embedding_length")
    num_layers = settings.size(prefix + "block_count", most=_MOST_LAYERS)
    context_length = settings.size(prefix + "context_length")
    head_dim = settings.size(prefix + "attention.key_length", max(1, hidden_size // num_heads), _LARGEST_HEAD)
    settings.refuse(prefix + "attention.value_length", "a value size other than the key size", (None, head_dim))
    settings.refuse(prefix + "rope.dimension_count", "rotating a part of each head", (None, head_dim))
    if settings.values.get(prefix + "attention.sliding_window") not in (None, 0):
        if settings.size(prefix + "attention.sliding_window") < context_length:
            settings.refuse(prefix + "attention.sliding_window", "attention within a sliding window")

    rope = _Settings("GGUF metadata: rope", _gguf_rope(settings, prefix))
    frequencies, attention_factor, context_length = _rope(rope, head_dim, context_length)
    if rope_factors is not None:
        if rope_factors.shape != frequencies.shape or not (np.isfinite(rope_factors) & (rope_factors > 0)).all():
            raise ModelError("GGUF tensor rope_freqs.weight: it should hold a number above 0 for each pair of a head")
        frequencies = frequencies / rope_factors

    bos = settings.values.get("tokenizer.ggml.bos_token_id")
    eos = [settings.values.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return _finish(
        settings,
        ModelConfig(
            architecture=architecture,
            num_layers=num_layers,
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=settings.size(prefix + "attention.head_count_kv", num_heads),
            head_dim=head_dim,
            intermediate_size=settings.size(prefix + "feed_forward_length"),
            vocab_size=embedding_rows,
            context_length=context_length,
            rms_norm_eps=settings.positive(prefix + "attention.layer_norm_rms_epsilon"),
            inverse_frequencies=frequencies,
            rope_attention_factor=attention_factor,
            # Not in the metadata: every fourth, as in the only model of this kind.
            layers_without_rope=frozenset(range(3, num_layers, 4) if architecture == "smollm3" else ()),
            tied_embeddings=not has_output,
            bos_token_id=None if bos is None else settings.get("tokenizer.ggml.bos_token_id", int),
            eos_token_ids=_token_ids("eos_token_id", [token_id for token_id in eos if token_id is not None]),
            biased=biased | (_QKV if architecture == "qwen2" else frozenset[str]()),
        ),
    )


def _gguf_rope(settings: _Settings, prefix: str) -> dict[str, Any]:
    """The rope keys of GGUF under transformers' names."""

    def value(name: str) -> Any:
        return settings.values.get(f"{prefix}rope.{name}")

    factor = value("scaling.factor") or value("scale_linear")
    kind = value("scaling.type") or ("linear" if factor else "none")
    settings.refuse(prefix + "rope.scaling.yarn_ext_factor", "this extrapolation", (None, 1.0, -1.0))
    rope = {
        "rope_theta": settings.positive(prefix + "rope.freq_base", 10_000.0),
        "rope_type": "default" if kind == "none" else kind,
        "factor": factor,
        "original_max_position_embeddings": value("scaling.original_context_length"),
        "beta_fast": value("scaling.yarn_beta_fast"),
        "beta_slow": value("scaling.yarn_beta_slow"),
    }
    for name in ("attn_factor", "yarn_attn_factor"):  # here they multiply what YaRN computes for itself
        settings.refuse(f"{prefix}rope.scaling.{name}", "this scaling", (None, 0, 1))
    return rope


# --- rope -------------------------------------------------------------------------------------------------------------


def _rope(rope: _Settings, head_dim: int, context_length: int) -> tuple[NDArray[np.float64], float, int]:
    """Inverse frequencies (head_dim / 2,), the factor on cos and sin, and the context that they serve.

    Linear interpolation: Chen et al. 2023. YaRN: Peng et al. 2023. Llama 3's: the model's reference code. Dynamic
    scaling begins past the context that the model was trained with, which is where this stops.
    """
    kind = rope.get("rope_type", str)
    base = rope.positive("rope_theta")
    if base <= 1:
        raise rope.error("rope_theta", "it should be above 1: the file is damaged")
    frequencies = inverse_frequencies(base, head_dim)
    if kind == "default":
        return frequencies, 1.0, context_length
    if kind == "dynamic":
        return frequencies, 1.0, min(context_length, rope.size("original_max_position_embeddings", context_length))
    if kind == "linear":
        return frequencies / rope.positive("factor"), 1.0, context_length
    if kind == "llama3":
        return _llama3(rope, frequencies), 1.0, context_length
    if kind == "yarn":
        factor = rope.positive("factor")
        original = rope.size("original_max_position_embeddings", context_length)
        if factor * original > _LARGEST:
            raise rope.error("factor", f"a context of {factor * original:.0f} tokens: the file is damaged")
        scaled = _yarn(rope, frequencies, base, factor, original)
        return scaled, _yarn_attention_factor(rope, factor), max(context_length, int(factor * original))
    raise rope.error("rope_type", "this scaling isn't supported; default, linear, dynamic, llama3 and yarn are")


def _llama3(rope: _Settings, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Long wavelengths are stretched by factor, short ones kept, those between blended."""
    factor, low, high = (rope.positive(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise rope.error("low_freq_factor", f"it should be below high_freq_factor ({high})")
    turns = rope.size("original_max_position_embeddings") * frequencies / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return kept * frequencies + (1 - kept) * frequencies / factor


def _yarn(
    rope: _Settings, frequencies: NDArray[np.float64], base: float, factor: float, original: int
) -> NDArray[np.float64]:
    """Dimensions that turn often within the original context are kept, those that turn seldom stretched by factor."""
    head_dim = 2 * len(frequencies)

    def dimension(name: str, default: float) -> float:
        turns = rope.positive(name, default)
        if not 1 / _LARGEST <= turns <= _LARGEST:
            raise rope.error(name, "it should be a number of turns: the file is damaged")
        return head_dim * logarithm(original / (turns * 2 * math.pi)) / (2 * logarithm(base))

    low, high = dimension("beta_fast", 32.0), dimension("beta_slow", 1.0)
    if rope.get("truncate", bool, True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    stretched = np.clip((np.arange(len(frequencies), dtype=np.float64) - low) / max(high - low, 0.001), 0, 1)
    return (1 - stretched) * frequencies + stretched * frequencies / factor


def _yarn_attention_factor(rope: _Settings, factor: float) -> float:
    def magnitude(scale: float) -> float:
        return 0.1 * scale * logarithm(factor) + 1.0 if factor > 1 else 1.0

    mscale, mscale_all = (rope.values.get(name) for name in ("mscale", "mscale_all_dim"))
    if rope.values.get("attention_factor") is not None:
        return rope.positive("attention_factor")
    if mscale and mscale_all:
        return magnitude(rope.positive("mscale")) / magnitude(rope.positive("mscale_all_dim"))
    return magnitude(1.0)
