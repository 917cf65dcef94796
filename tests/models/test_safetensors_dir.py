"""Model directories: weights, settings and tokenizer files, sound and damaged."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from slipstream.errors import ModelError
from slipstream.models.checkpoint import open_checkpoint
from slipstream.models.safetensors_dir import SafetensorsCheckpoint


def refusal(directory: Path) -> str:
    """The one line that refuses the model."""
    with pytest.raises(ModelError) as caught:
        open_checkpoint(directory).tokenizer()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(path: Path, **changes: Any) -> None:
    """Changes entries of a JSON file; None removes one."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def raw(header: Any, body: bytes = b"") -> bytes:
    """A safetensors file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.make(tmp_path / "model", num_hidden_layers=1)


def shard(model: Path, names: list[str]) -> None:
    """Splits model.safetensors into the named files, with an index."""
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    weight_map = {}
    for number, name in enumerate(names):
        own = {key: tensors[key] for key in sorted(tensors)[number :: len(names)]}
        save_file(own, model / name)
        weight_map |= dict.fromkeys(own, name)
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_hands_out_the_bytes_as_they_are(model: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    expected = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        size = tensor.size * (4 if kind == "F32" else 2)
        expected[name] = rng.bytes(size)
        header[name] = {"dtype": kind, "shape": tensor.shape, "data_offsets": [len(body), len(body) + size]}
        body += expected[name]
    (model / "model.safetensors").write_bytes(raw(header, body))
    checkpoint = SafetensorsCheckpoint(model)
    for name, content in expected.items():
        tensor = checkpoint.tensor(name)
        assert tensor.type == kind
        assert list(tensor.shape) == list(header[name]["shape"])
        assert tensor.data.tobytes() == content
        assert tensor.data.base is not None  # a view of the mapped file, no copy
        assert tensor.row_order is None


def test_reads_sharded_models(model: Path) -> None:
    whole = {
        name: open_checkpoint(model).tensor(name).data.tobytes() for name in load_file(model / "model.safetensors")
    }
    shard(
        model,
        ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"],
    )
    checkpoint = open_checkpoint(model)
    assert len(checkpoint.files) == 3
    assert {name: checkpoint.tensor(name).data.tobytes() for name in whole} == whole


def test_a_tied_model_has_no_output_matrix_of_its_own(model: Path) -> None:
    assert "lm_head.weight" in open_checkpoint(model)
    edit(model / "config.json", tie_word_embeddings=True)
    assert "lm_head.weight" not in open_checkpoint(model)


def test_tables_of_old_files_are_passed_over(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    save_file(tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4)}, model / "model.safetensors")
    assert "model.layers.0.self_attn.rotary_emb.inv_freq" not in open_checkpoint(model)


def test_both_configurations_say_what_ends_a_completion(model: Path) -> None:
    assert open_checkpoint(model).config.eos_token_ids == (261,)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [262, 263, 262]}))
    checkpoint = open_checkpoint(model)
    assert checkpoint.config.eos_token_ids == checkpoint.tokenizer().eos_token_ids == (262, 263, 261)


def test_name_is_that_of_the_directory(model: Path) -> None:
    assert open_checkpoint(model).name == "model"


# --- what is refused --------------------------------------------------------------------------------------------------


def test_settings_are_refused_before_the_weights_are_looked_for(model: Path) -> None:
    (model / "model.safetensors").unlink()
    edit(model / "config.json", model_type="mamba")
    assert "mamba" in refusal(model)


def test_missing_files_are_named(model: Path) -> None:
    for name in ("tokenizer.json", "model.safetensors"):
        (model / name).unlink()
        assert name in refusal(model)


def test_missing_unknown_and_misshapen_tensors_are_named(model: Path) -> None:
    path = model / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, path)
    assert f"{name} is missing" in refusal(model)
    save_file(tensors | {name: tensors[name].T.copy()}, path)
    assert name in refusal(model)
    save_file(tensors | {"model.layers.0.self_attn.q_norm.weight": np.ones(8, np.float32)}, path)
    assert "q_norm" in refusal(model)
    save_file(tensors | {"model.layers.0.self_attn.q_proj.bias": np.ones(32, np.float32)}, path)
    assert "q_proj.bias" in refusal(model)  # which transformers would leave out, as attention_bias says
    save_file(tensors | {name: tensors[name].astype(np.int8)}, path)
    assert "I8" in refusal(model)


def test_shards_that_do_not_fit_together(model: Path) -> None:
    shard(model, ["model-a.safetensors", "model-b.safetensors"])
    save_file(
        load_file(model / "model-a.safetensors") | load_file(model / "model-b.safetensors"),
        model / "model-a.safetensors",
    )
    assert "another file" in refusal(model)
    (model / "model-b.safetensors").unlink()
    assert "model-b.safetensors" in refusal(model)
    for weight_map in ({}, {"x": 3}, {"x": "../model.safetensors"}, {"x": "/etc/hostname"}, []):
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        refusal(model)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_broken_json_is_named(model: Path, name: str, content: bytes) -> None:
    (model / name).write_bytes(content)
    assert name in refusal(model)


def test_a_tokenizer_with_more_tokens_than_the_embedding_has_rows(model: Path) -> None:
    edit(model / "config.json", vocab_size=262)
    tensors = load_file(model / "model.safetensors")
    rows = {name: tensors[name][:262].copy() for name in ("model.embed_tokens.weight", "lm_head.weight")}
    save_file(tensors | rows, model / "model.safetensors")
    message = refusal(model)
    assert "264 tokens" in message
    assert "262" in message


def test_tokenizers_of_other_kinds_are_refused_by_name(model: Path) -> None:
    edit(model / "tokenizer.json", decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    assert "WordPiece" in refusal(model)


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"\x00\x00", "header"),
        (struct.pack("<Q", 2**63), f"{2**63} bytes"),
        (struct.pack("<Q", 1000) + b"{}", "1000 bytes"),
        (raw(b"{"), "header"),
        (raw([1]), "header"),
        (raw(b"[" * 100_000), "header"),
        (raw(b'{"a": {}, "a": {}}'), "twice"),
        (raw({"a": 1}), "tensor a"),
        (raw({"a\n\x1b[2J": 1}), r"a\n\x1b[2J"),
        (raw({"a": {"dtype": "F32", "shape": [1]}}), "tensor a"),
        (raw({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"), "tensor a"),
        (raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"1234"), "tensor a"),
        (raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}, b"1234"), "tensor a"),
        (raw({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"), "tensor a"),
        (raw({"a": {"dtype": "F32", "shape": [2**62], "data_offsets": [0, 2**64]}}, b"1234"), "tensor a"),
        (raw({"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, b"1234"), "F8_E4M3"),
        (raw({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, b"1234"), "tensor a"),
    ],
)
def test_says_what_is_wrong(model: Path, content: bytes, says: str) -> None:
    (model / "model.safetensors").write_bytes(content)
    message = refusal(model)
    assert "model.safetensors" in message
    assert says in message


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damage_never_gets_past_a_model_error(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    if not folder.exists():
        tiny.make(folder, num_hidden_layers=1)
        (folder / "sound").write_bytes((folder / "model.safetensors").read_bytes())
    content = bytearray((folder / "sound").read_bytes())
    header_end = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content) - 1)))
    (folder / "model.safetensors").write_bytes(content[:cut])
    try:
        open_checkpoint(folder)
    except ModelError:
        return
    assert cut == len(content)
