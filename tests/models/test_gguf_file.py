"""GGUF files: what they hold, read right; what is wrong with them, said in one line."""

import struct
import time
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import ModelError
from slipstream.models.checkpoint import open_checkpoint
from slipstream.models.gguf_file import GgufCheckpoint, read_header
from slipstream.models.tensors import BLOCKS

Parts = tuple[dict[str, Any], dict[str, Any]]
PAIRED = ("llama", "mistral", "smollm3")


def refusal(path: Path) -> str:
    """The one line that refuses the model, which names the file."""
    with pytest.raises(ModelError) as caught:
        open_checkpoint(path).tokenizer()
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound file to damage."""
    return gguf_files.make(tmp_path_factory.mktemp("small") / "small.gguf", num_hidden_layers=1)


@pytest.fixture(scope="module")
def parts() -> Parts:
    """Metadata and tensors of a sound file, to change and write."""
    settings = tiny.config("llama", num_hidden_layers=1)
    tensors = {gguf_files.gguf_name(name): tensor for name, tensor in tiny.weights(settings, 0).items()}
    return gguf_files.model_metadata(settings) | gguf_files.byte_level_metadata(), tensors


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
def test_holds_the_same_model_as_the_safetensors_directory(tmp_path: Path, architecture: str) -> None:
    other = {"no_rope_layers": [1, 1, 1]} if architecture == "smollm3" else {}
    here = open_checkpoint(gguf_files.make(tmp_path / "model.gguf", architecture))
    there = open_checkpoint(tiny.make(tmp_path / "directory", architecture, **other))
    for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"):
        assert getattr(here.config, name) == getattr(there.config, name)
    for name in ("vocab_size", "context_length", "layers_without_rope", "tied_embeddings", "biased", "query_key_norm"):
        assert getattr(here.config, name) == getattr(there.config, name)
    assert here.config.rms_norm_eps == pytest.approx(there.config.rms_norm_eps)
    np.testing.assert_allclose(here.config.inverse_frequencies, there.config.inverse_frequencies)
    names = tiny.weights(tiny.config(architecture), 0).keys()
    for name in names:
        mine, theirs = here.tensor(name), there.tensor(name)
        assert mine.type == theirs.type == "F32"
        assert mine.shape == theirs.shape
        assert (mine.row_order is not None) == (architecture in PAIRED and ("q_proj" in name or "k_proj" in name))
        values = mine.data.view(np.float32).reshape(mine.shape)
        np.testing.assert_array_equal(
            values if mine.row_order is None else values[mine.row_order],
            theirs.data.view(np.float32).reshape(theirs.shape),
        )


def test_smollm3_rotates_three_layers_of_four(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(gguf_files.make(tmp_path / "model.gguf", "smollm3", num_hidden_layers=9))
    assert checkpoint.config.layers_without_rope == {3, 7}


@pytest.mark.parametrize("kind", BLOCKS)
def test_hands_out_the_bytes_of_every_type(tmp_path: Path, kind: str) -> None:
    elements, size = BLOCKS[kind]
    metadata, tensors = tiny_with_width(256)
    raw = np.random.default_rng(0).integers(0, 256, (270, 256 // elements * size), np.uint8)
    path = gguf_files.write(
        tmp_path / "model.gguf", metadata, tensors | {"token_embd.weight": raw}, {"token_embd.weight": kind}
    )
    tensor = GgufCheckpoint(path).tensor("model.embed_tokens.weight")
    assert tensor.type == kind
    assert tensor.shape == (270, 256)
    np.testing.assert_array_equal(tensor.data, raw.reshape(-1))


def tiny_with_width(width: int) -> Parts:
    settings = tiny.config("llama", num_hidden_layers=1, hidden_size=width)
    tensors = {gguf_files.gguf_name(name): tensor for name, tensor in tiny.weights(settings, 0).items()}
    return gguf_files.model_metadata(settings) | gguf_files.byte_level_metadata(), tensors


def test_llama3_rope_factors_come_from_their_tensor(tmp_path: Path, parts: Parts) -> None:
    metadata, tensors = parts
    factors = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
    plain = open_checkpoint(gguf_files.write(tmp_path / "plain.gguf", metadata, tensors))
    scaled = open_checkpoint(
        gguf_files.write(tmp_path / "scaled.gguf", metadata, tensors | {"rope_freqs.weight": factors})
    )
    np.testing.assert_allclose(scaled.config.inverse_frequencies * factors, plain.config.inverse_frequencies)
    assert "rope_freqs" in refusal_for(tmp_path, metadata, tensors | {"rope_freqs.weight": -factors})
    assert "rope_freqs" in refusal_for(tmp_path, metadata, tensors | {"rope_freqs.weight": factors[:2]})


def refusal_for(folder: Path, metadata: dict[str, Any], tensors: dict[str, Any]) -> str:
    return refusal(gguf_files.write(folder / "refused.gguf", metadata, tensors))


def test_agrees_with_another_reader(small: Path) -> None:
    header = read_header(small)
    theirs = gguf.GGUFReader(small)
    assert header.metadata.keys() == {key for key in theirs.fields if not key.startswith("GGUF.")}
    for key, value in header.metadata.items():
        as_strings = isinstance(value, list) and isinstance(value[0], bytes)
        assert ([item.decode() for item in value] if as_strings else value) == theirs.fields[key].contents()
    assert header.tensors.keys() == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        info = header.tensors[tensor.name]
        assert (info.type, info.start, info.size) == (tensor.tensor_type.name, tensor.data_offset, tensor.n_bytes)
        assert info.shape == tuple(int(extent) for extent in tensor.shape[::-1])


def test_reads_the_real_file_fast(smollm2_path: Path) -> None:
    start = time.perf_counter()
    header = read_header(smollm2_path)
    assert time.perf_counter() - start < 0.5  # 0.02 s alone on a core; the usual reader takes 2.4
    assert len(header.tensors) == 272
    assert len(header.metadata["tokenizer.ggml.tokens"]) == 49152
    assert header.metadata["tokenizer.ggml.tokens"][:3] == [b"<|endoftext|>", b"<|im_start|>", b"<|im_end|>"]
    assert header.metadata["llama.rope.freq_base"] == 100_000.0
    assert max(info.start + info.size for info in header.tensors.values()) == smollm2_path.stat().st_size


def test_a_model_in_several_parts_is_one_model(tmp_path: Path, parts: Parts) -> None:
    metadata, tensors = parts
    gguf_files.write_parts(tmp_path, "m", metadata, tensors, 3)
    whole = open_checkpoint(gguf_files.write(tmp_path / "whole" / "m.gguf", metadata, tensors))
    for given_path in (tmp_path / "m-00001-of-00003.gguf", tmp_path / "m-00002-of-00003.gguf", tmp_path):
        split = open_checkpoint(given_path)
        assert len(split.files) == 3
        for name in tiny.weights(tiny.config("llama", num_hidden_layers=1), 0):
            np.testing.assert_array_equal(split.tensor(name).data, whole.tensor(name).data)
    (tmp_path / "m-00003-of-00003.gguf").rename(tmp_path / "away")
    with pytest.raises(ModelError, match=r"m-00003-of-00003\.gguf.*missing"):
        open_checkpoint(tmp_path / "m-00001-of-00003.gguf")
    (tmp_path / "m-00002-of-00003.gguf").replace(tmp_path / "m-00003-of-00003.gguf")
    (tmp_path / "m-00001-of-00003.gguf").rename(tmp_path / "m-00002-of-00003.gguf")
    (tmp_path / "whole" / "m.gguf").replace(tmp_path / "m-00001-of-00003.gguf")
    with pytest.raises(ModelError, match="parts"):
        open_checkpoint(tmp_path / "m-00001-of-00003.gguf")


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"general.architecture": "mamba"}, "mamba"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.attention.sliding_window": 64}, "sliding_window"),
        ({"llama.rope.dimension_count": 4}, "dimension_count"),
        ({"llama.attention.value_length": 16}, "value_length"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "longrope"),
        ({"llama.rope.scaling.type": "linear"}, "factor"),
        ({"llama.attention.logit_softcapping": 30.0}, "logit_softcapping"),
        ({"llama.attention.head_count_kv": 3}, "3 kv heads"),
        ({"llama.attention.head_count": 0}, "head_count"),
        ({"llama.block_count": 2**31}, "block_count"),
        ({"llama.embedding_length": 64}, "shape"),
        ({"llama.feed_forward_length": 47}, "ffn_gate"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "rms_epsilon"),
        ({"tokenizer.ggml.pre": "deepseek-llm"}, "deepseek-llm"),
        ({"tokenizer.ggml.model": "t5"}, "t5"),
        ({"tokenizer.ggml.eos_token_id": 4000}, "4000"),
        ({"general.alignment": 3}, "alignment"),
    ],
)
def test_settings_that_would_change_results_are_refused_by_name(
    tmp_path: Path, parts: Parts, change: dict[str, Any], names: str
) -> None:
    metadata, tensors = parts
    if change.get("general.architecture"):
        metadata = {key.replace("llama.", "mamba."): value for key, value in metadata.items()}
    message = refusal_for(tmp_path, metadata | change, tensors)
    assert names in message or names.replace("ffn_gate", "mlp.gate_proj") in message


def test_a_window_as_long_as_the_context_hides_nothing(tmp_path: Path, parts: Parts) -> None:
    metadata, tensors = parts
    open_checkpoint(gguf_files.write(tmp_path / "m.gguf", metadata | {"llama.attention.sliding_window": 256}, tensors))


@pytest.mark.parametrize(
    "key",
    [
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
    ],
)
def test_missing_metadata_is_named(tmp_path: Path, parts: Parts, key: str) -> None:
    metadata, tensors = parts
    assert key in refusal_for(tmp_path, {name: value for name, value in metadata.items() if name != key}, tensors)


def test_missing_unknown_and_misshapen_tensors_are_named(tmp_path: Path, parts: Parts) -> None:
    metadata, tensors = parts
    for name in ("blk.0.attn_k.weight", "output_norm.weight", "token_embd.weight"):
        message = refusal_for(tmp_path, metadata, {key: value for key, value in tensors.items() if key != name})
        assert "missing" in message or "token_embd" in message
    extra = {"blk.0.attn_sub_norm.weight": np.ones(32, np.float32)}
    assert "attn_sub_norm" in refusal_for(tmp_path, metadata, tensors | extra)
    norm = {"blk.0.attn_q_norm.weight": np.ones(8, np.float32)}
    assert "q_norm" in refusal_for(tmp_path, metadata, tensors | norm)
    wrong = {"blk.0.attn_v.weight": np.ones((32, 16), np.float32)}
    assert "v_proj" in refusal_for(tmp_path, metadata, tensors | wrong)


def test_a_type_that_cannot_be_read_is_named_with_its_tensor(tmp_path: Path) -> None:
    metadata, tensors = tiny_with_width(256)
    raw = np.zeros((270, 84), np.uint8)
    gguf_files.write(tmp_path / "m.gguf", metadata, tensors | {"token_embd.weight": raw}, {"token_embd.weight": "Q2_K"})
    message = refusal(tmp_path / "m.gguf")
    assert "token_embd.weight" in message
    assert "Q2_K" in message


def test_more_tokens_than_embedding_rows(tmp_path: Path, parts: Parts) -> None:
    metadata, tensors = parts
    rows = {name: tensors[name][:200] for name in ("token_embd.weight", "output.weight")}
    metadata = {key: value for key, value in metadata.items() if "eos" not in key}
    message = refusal_for(tmp_path, metadata, tensors | rows)
    assert "264 tokens" in message
    assert "200 rows" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.merges", ["t h", "x"]),
        ("tokenizer.ggml.merges", ["t zzz"]),
        ("tokenizer.ggml.tokens", ["a"] * 264),
        ("tokenizer.ggml.token_type", [1] * 5),
        ("tokenizer.ggml.token_type", ["a"] * 264),
        ("tokenizer.ggml.add_bos_token", 7),
    ],
)
def test_contradictory_tokenizers(tmp_path: Path, parts: Parts, key: str, value: Any) -> None:
    metadata, tensors = parts
    refusal_for(tmp_path, metadata | {key: value}, tensors)


# --- damage -----------------------------------------------------------------------------------------------------------


def damaged(folder: Path, data: bytes) -> str | None:
    """What is said of a file with these bytes; None if it opens after all. Any other exception is a failure."""
    path = folder / "damaged.gguf"
    path.write_bytes(data)
    try:
        open_checkpoint(path).tokenizer()
    except ModelError as error:
        message = str(error)
    else:
        return None
    assert "\n" not in message
    return message


def test_every_truncation_is_noticed(tmp_path: Path, small: Path) -> None:
    data = small.read_bytes()
    header_end = min(info.start for info in read_header(small).tensors.values())
    for cut in [*range(0, 200), *range(200, header_end, 37), header_end, (header_end + len(data)) // 2, len(data) - 1]:
        message = damaged(tmp_path, data[:cut])
        assert message is not None
        assert "damaged.gguf" in message


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_in_the_header_never_gets_past_a_model_error(
    data: st.DataObject, small: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(small.read_bytes())
    header_end = min(info.start for info in read_header(small).tensors.values())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, header_end - 9))
        if data.draw(st.booleans()):
            content[at] = data.draw(st.integers(0, 255))
        else:  # a length or count gone wild
            content[at : at + 8] = struct.pack("<Q", data.draw(st.sampled_from([0, 2**31, 2**40, 2**63, 2**64 - 1])))
    damaged(tmp_path_factory.getbasetemp(), bytes(content))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"GG", "not a GGUF file"),
        (b"PK\x03\x04 a wheel", "not a GGUF file"),
        (b"GGUF", "past the end"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version 1"),
        (struct.pack("<4sIQQ", b"GGUF", 99, 0, 0), "version 99"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**40, 0), f"{2**40} tensors"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**60), f"{2**60} metadata values"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 2**50) + b"x" * 64, "characters"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 6, 2**61) + b"x" * 64, "values in k"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 8, 2**61) + b"x" * 64, "strings in k"),
        (struct.pack("<4sIQQQ1sII", b"GGUF", 3, 0, 1, 1, b"k", 9, 9) + b"x" * 64, "unknown type"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 77) + b"x" * 64, "unknown type 77"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + struct.pack("<Q1sIB", 1, b"k", 0, 1) * 2, "twice"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 0), "token_embd.weight"),
    ],
)
def test_says_what_is_wrong(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "wrong.gguf"
    path.write_bytes(content)
    assert says in refusal(path)


@pytest.mark.parametrize(
    ("name", "shape", "kind", "offset", "says"),
    [
        ("t", (2**40, 2**20), 0, 0, "take"),
        ("t", (2**63, 2**63), 0, 0, "take"),
        ("t", (32,), 0, 2**62, "should lie"),
        ("t", (32,), 0, 8, "should lie"),
        ("t", (0,), 0, 0, "can't have shape"),
        ("t", (33,), 8, 0, "can't have shape"),
        ("t", (), 0, 0, "0 dimensions"),
        ("t", (1,) * 5, 0, 0, "5 dimensions"),
        ("t", (32,), 12345, 0, "12345"),
    ],
)
def test_impossible_tensors(
    tmp_path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int, says: str
) -> None:
    info = struct.pack(f"<Q1sI{len(shape)}QIQ", 1, name.encode(), len(shape), *shape, kind, offset)
    path = tmp_path / "impossible.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + info + bytes(4096))
    assert says in refusal(path)


def test_asking_for_a_tensor_that_is_not_there(small: Path) -> None:
    checkpoint = open_checkpoint(small)
    assert "model.norm.bias" not in checkpoint
    with pytest.raises(ModelError, match=r"model\.norm\.bias"):
        checkpoint.tensor("model.norm.bias")
