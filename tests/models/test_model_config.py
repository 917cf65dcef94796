"""Settings: what they mean, and which of them are refused because they would change results."""

import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import tiny

from slipstream.errors import ModelError
from slipstream.models.config import _GGUF_KEYS, ModelConfig


def read(architecture: str = "llama", generation: dict[str, Any] | None = None, **overrides: Any) -> ModelConfig:
    settings = tiny.config(architecture, **overrides)
    return ModelConfig.from_hf({key: value for key, value in settings.items() if value != "absent"}, generation)


def plain_frequencies(base: float = 10_000.0, head_dim: int = 8) -> np.ndarray[Any, Any]:
    return np.array([base ** (-2 * pair / head_dim) for pair in range(head_dim // 2)])


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_reads_every_architecture(architecture: str) -> None:
    config = read(architecture)
    assert config.num_kv_heads == 2
    assert config.head_dim == (16 if architecture == "qwen3" else 8)
    assert config.query_key_norm == (architecture == "qwen3")
    assert config.layers_without_rope == ({1} if architecture == "smollm3" else set())
    assert config.tied_embeddings == (architecture == "qwen2")
    assert len(config.biased) == {"qwen2": 3, "qwen2-yarn": 3, "llama3-rope": 7}.get(architecture, 0)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"model_type": "gemma2"}, "gemma2"),
        ({"model_type": "mixtral"}, "mixtral"),
        ({"model_type": "qwen3_next"}, "qwen3_next"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"model_type": "absent"}, "model_type"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"rope_scaling": {"type": "longrope", "factor": 4.0}}, "longrope"),
        ({"rope_scaling": {"type": "mrope"}}, "mrope"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_scaling": 3}, "rope_scaling"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": "12"}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"hidden_size": 2**62}, "hidden_size"),
        ({"head_dim": 10**8}, "head_dim"),
        ({"head_dim": 7}, "7"),
        ({"num_key_value_heads": 3}, "3 kv heads"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"eos_token_id": 270}, "270"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id"),
        ({"eos_token_id": -1}, "-1"),
        ({"bos_token_id": 999}, "999"),
        ({"intermediate_size": "absent"}, "intermediate_size"),
        ({"vocab_size": "absent"}, "vocab_size"),
        ({"max_position_embeddings": "absent"}, "max_position_embeddings"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_refusals_name_the_setting(change: dict[str, Any], names: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(**change)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "change", "refused"),
    [
        ("mistral", {"sliding_window": 64}, True),
        ("mistral", {"sliding_window": 256}, False),
        ("mistral", {"sliding_window": None}, False),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": False}, False),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True}, True),
        ("qwen3", {"layer_types": ["full_attention"] * 3}, False),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3, "sliding_window": 64, "use_sliding_window": True}, True),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, True),
        ("smollm3", {"sliding_window": 64, "use_sliding_window": True}, True),
    ],
)
def test_sliding_windows_count_only_where_they_hide_something(
    architecture: str, change: dict[str, Any], refused: bool
) -> None:
    if refused:
        with pytest.raises(ModelError, match=r"sliding|layer_types"):
            read(architecture, **change)
    else:
        read(architecture, **change)


def test_defaults_of_files_that_leave_things_out() -> None:
    config = read(
        num_key_value_heads="absent", rope_theta="absent", tie_word_embeddings="absent", eos_token_id="absent"
    )
    assert config.num_kv_heads == config.num_heads
    assert not config.tied_embeddings
    assert config.eos_token_ids == ()
    np.testing.assert_allclose(config.inverse_frequencies, plain_frequencies())
    assert read("smollm3", tie_word_embeddings="absent").tied_embeddings
    assert read("smollm3", num_hidden_layers=8, no_rope_layers="absent").layers_without_rope == {3, 7}
    with pytest.raises(ModelError, match="num_key_value_heads"):  # where transformers would take 8
        read("mistral", num_key_value_heads="absent")


def test_end_of_sequence_tokens() -> None:
    assert read(eos_token_id=[3, 4]).eos_token_ids == (3, 4)
    assert read(generation={"eos_token_id": 9}).eos_token_ids == (9, 261)
    assert read(generation={"eos_token_id": [261, 9]}).eos_token_ids == (261, 9)
    assert read(generation={"eos_token_id": None}).eos_token_ids == (261,)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_old_and_new_configs_mean_the_same(scaling: dict[str, Any]) -> None:
    """transformers 4 wrote rope_theta and rope_scaling, with "type" at first; 5 writes rope_parameters."""
    new = read(rope_theta="absent", rope_parameters={"rope_theta": 5000.0, **scaling})
    old = read(rope_theta=5000.0, rope_scaling=scaling)
    oldest = read(rope_theta=5000.0, rope_scaling={"type": scaling["rope_type"], **scaling, "rope_type": None})
    for other in (old, oldest):
        np.testing.assert_array_equal(new.inverse_frequencies, other.inverse_frequencies)
        assert new.rope_attention_factor == other.rope_attention_factor


def test_linear_and_dynamic_scaling() -> None:
    linear = read(rope_scaling={"rope_type": "linear", "factor": 4.0})
    np.testing.assert_allclose(linear.inverse_frequencies, plain_frequencies() / 4)
    dynamic = read(rope_scaling={"rope_type": "dynamic", "factor": 4.0})
    np.testing.assert_allclose(dynamic.inverse_frequencies, plain_frequencies())
    assert dynamic.context_length == 256


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = read(head_dim=128, rope_theta=500_000.0, rope_scaling=scaling | {"original_max_position_embeddings": 8192})
    plain = plain_frequencies(500_000.0, 128)
    turns = 8192 * plain / (2 * math.pi)
    ratio = config.inverse_frequencies / plain
    np.testing.assert_allclose(ratio[turns > 4], 1)
    np.testing.assert_allclose(ratio[turns < 1], 1 / 8)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert ((ratio[between] > 1 / 8) & (ratio[between] < 1)).all()
    assert (np.diff(ratio) <= 1e-12).all()


def test_yarn_scaling() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = read(head_dim=64, rope_theta=1e6, rope_scaling=scaling, max_position_embeddings=32768)
    assert config.context_length == 131_072
    assert config.rope_attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    ratio = config.inverse_frequencies / plain_frequencies(1e6, 64)
    assert ratio[0] == pytest.approx(1)
    assert ratio[-1] == pytest.approx(1 / 4)
    # Dimensions by their number of turns in the original context: 32 and more are kept, 1 and fewer stretched.
    low = math.floor(64 * math.log(32768 / (32 * 2 * math.pi)) / (2 * math.log(1e6)))
    high = math.ceil(64 * math.log(32768 / (2 * math.pi)) / (2 * math.log(1e6)))
    np.testing.assert_allclose(ratio[: low + 1], 1)
    np.testing.assert_allclose(ratio[high:], 1 / 4)
    assert read(rope_scaling=scaling | {"attention_factor": 1.25}).rope_attention_factor == 1.25
    both = read(rope_scaling=scaling | {"mscale": 0.5, "mscale_all_dim": 1.0})
    assert both.rope_attention_factor == pytest.approx((0.05 * math.log(4) + 1) / (0.1 * math.log(4) + 1))


# Anything that JSON or GGUF metadata can hold ------------------------------------------------------------------------

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 2**31, 10**30, 10**400, 0.0, 0.5, -1.5, 1e308, 1e-308, math.inf, math.nan),
    *(
        "",
        "x",
        "llama",
        "yarn",
        [],
        [0],
        [1, 2],
        [[]],
        [None],
        ["a"],
        [1.5],
        {},
        {"a": 1},
        {"a": {}},
        {"rope_type": []},
    ),
]
ROPE = {
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "truncate": True,
    },
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0, "original_max_position_embeddings": 64},
}
MORE = {"layer_types": None, "generation": None, "num_experts": None, "quantization_config": None, "sliding_window": 8}


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
def test_any_config_is_read_or_refused(architecture: str) -> None:
    for name in {**tiny.config(architecture), **MORE, "rope_scaling": None, "rope_parameters": None}:
        for value in ODD:
            with suppress(ModelError):
                read(architecture, **{name: {"eos_token_id": value} if name == "generation" else value})


@pytest.mark.parametrize("kind", ROPE)
def test_any_rope_is_read_or_refused(kind: str) -> None:
    for name in ("rope_type", "type", "rope_theta", *ROPE[kind]):
        for value in ODD:
            with suppress(ModelError):
                read(rope_parameters={"rope_type": kind, **ROPE[kind], name: value})
            with suppress(ModelError):
                read(rope_theta=value, rope_scaling={"rope_type": kind, **ROPE[kind], "attention_factor": value})


def test_any_metadata_is_read_or_refused() -> None:
    metadata = {
        "general.architecture": "llama",
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.block_count": 3,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 48,
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 2.0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    optional = dict.fromkeys((f"llama.{name}" for name in _GGUF_KEYS), None)
    for name in {**metadata, **optional, "tokenizer.ggml.eot_token_id": None}:
        for value in ODD:
            with suppress(ModelError):
                ModelConfig.from_gguf(
                    {**metadata, name: value}, embedding_rows=270, has_output=True, biased=frozenset()
                )


@pytest.mark.parametrize(("bos", "read_as"), [(None, None), (5, 5), ([5], 5), ([], None)])
def test_a_beginning_of_sequence_token(bos: object, read_as: int | None) -> None:
    assert read(bos_token_id=bos).bos_token_id == read_as


@pytest.mark.parametrize("bos", [[5, 6], "5", 5.0, [[5]], True, {}])
def test_one_beginning_or_none(bos: object) -> None:
    with pytest.raises(ModelError, match="bos_token_id"):
        read(bos_token_id=bos)
