"""Where a model may be, and what is said where there is none."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf_files
import huggingface_hub
import numpy as np
import pytest
import tiny
from huggingface_hub import errors

from slipstream.errors import ModelError
from slipstream.models.checkpoint import DEFAULT_MODEL, open_checkpoint


def refusal(model: str | Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_paths(tmp_path: Path) -> None:
    directory = tiny.make(tmp_path / "directory")
    file = gguf_files.make(tmp_path / "files" / "model.gguf")
    renamed = gguf_files.make(tmp_path / "a name without suffix")
    assert open_checkpoint(directory).files == (directory / "model.safetensors",)
    assert open_checkpoint(str(directory)).name == "directory"
    assert open_checkpoint(file).files == (file,)
    assert open_checkpoint(file.parent).files == (file,)
    assert open_checkpoint(renamed).files == (renamed,)


def test_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    gguf_files.make(tmp_path / "model.gguf")
    assert open_checkpoint("~/model.gguf").files == (tmp_path / "model.gguf",)


@pytest.mark.parametrize(
    "model", ["no-such-model", "./org/name", "/no/such/dir", "a/b/c", "org/name.gguf", "x" * 5000, "a\0b"]
)
def test_what_is_not_there(model: str) -> None:
    message = refusal(model)
    if len(model) < 100:
        assert DEFAULT_MODEL in message
        assert ".gguf" in message
        assert "hub id" in message


def test_what_is_not_a_model(tmp_path: Path) -> None:
    assert "no model" in refusal(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    assert "not a model" in refusal(tmp_path / "notes.txt")
    directory = tiny.make(tmp_path / "directory")
    assert f"give its directory, {directory}" in refusal(directory / "model.safetensors")
    for name in ("a.gguf", "b.gguf"):
        gguf_files.make(tmp_path / name)
    assert "2 models" in refusal(tmp_path)
    (tmp_path / "fake.gguf").write_text("x")
    assert "not a GGUF file" in refusal(tmp_path / "fake.gguf")


ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")


@pytest.mark.parametrize("name", ADAPTER_FILES)
def test_an_adapter_is_refused_not_left_out(tmp_path: Path, name: str) -> None:
    beside = tiny.make(tmp_path / "beside", num_hidden_layers=1)
    quantised = gguf_files.make(tmp_path / "quantised" / "model.gguf", num_hidden_layers=1).parent
    alone = tmp_path / "alone"
    alone.mkdir()
    for directory in (beside, quantised, alone):
        (directory / name).write_text("{}")
        assert f"holds an adapter ({name}), which would be left out: merge it" in refusal(directory)


def test_a_gguf_adapter_is_refused(tmp_path: Path) -> None:
    metadata = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    gguf_files.write(tmp_path / "lora.gguf", metadata, {"blk.0.attn_q.weight.lora_a": np.ones((4, 32), np.float32)})
    assert "is an adapter, not a model: merge it" in refusal(tmp_path / "lora.gguf")


# --- the hub ----------------------------------------------------------------------------------------------------------

Snapshot = Callable[..., str]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Snapshot], list[list[str]]]:
    """Puts a function in the place of the hub's download; returns the list of what it will be asked for."""

    def put(snapshot: Snapshot) -> list[list[str]]:
        asked: list[list[str]] = []

        def download(model: str, *, allow_patterns: list[str], tqdm_class: Any, local_files_only: bool) -> str:
            asked.append(allow_patterns)
            return snapshot(model, tqdm_class)

        siblings = [SimpleNamespace(rfilename=name) for name in ("config.json", "model.safetensors")]
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda api, model: SimpleNamespace(siblings=siblings))
        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        return asked

    return put


def test_a_hub_id(
    tmp_path: Path, hub: Callable[[Snapshot], list[list[str]]], capfd: pytest.CaptureFixture[str]
) -> None:
    directory = tiny.make(tmp_path / "snapshot")

    def snapshot(model: str, tqdm_class: Any) -> str:
        written = tqdm_class(total=0, unit="B", name="huggingface_hub.snapshot_download", disable=True)
        came_in = tqdm_class(total=0, unit="B")
        written.total = came_in.total = 100
        for amount in (10, 30):
            came_in.update(amount)
            written.update(amount // 2)
            came_in.refresh()
            written.refresh()
        came_in.close()
        written.close()
        tqdm_class(total=3, unit="it").close()
        return str(directory)

    asked = hub(snapshot)
    seen: list[tuple[str, int, int]] = []
    checkpoint = open_checkpoint("org/tiny-1.0", lambda *progress: seen.append(progress))
    assert checkpoint.name == "org/tiny-1.0"
    assert checkpoint.files == (directory / "model.safetensors",)
    assert seen[-1] == ("downloading org/tiny-1.0", 40, 100)
    assert {total for _, _, total in seen} == {100}
    amounts = [done for _, done, _ in seen[len(seen) // 2 :]]  # each of the two snapshots counts anew
    assert amounts == sorted(amounts)
    assert capfd.readouterr() == ("", "")
    assert not any("safetensors" in pattern for pattern in asked[0])
    assert any("safetensors" in pattern for pattern in asked[1])


def test_a_hub_model_that_cannot_be_used_is_refused_before_its_weights_are_fetched(
    tmp_path: Path, hub: Callable[[Snapshot], list[list[str]]]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    asked = hub(lambda model, tqdm_class: str(tmp_path))
    assert "mamba" in refusal("org/mamba")
    assert len(asked) == 1


def test_an_adapter_on_the_hub_is_refused_before_its_weights_are_fetched(
    tmp_path: Path, hub: Callable[[Snapshot], list[list[str]]]
) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    asked = hub(lambda model, tqdm_class: str(tmp_path))
    assert "holds an adapter" in refusal("org/lora")
    assert len(asked) == 1
    assert "adapter_config.json" in asked[0]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (errors.LocalEntryNotFoundError("offline"), "can't be reached"),
        (errors.HFValidationError("Cannot have -- in repo_id"), "Cannot have --"),
        (OSError(28, "No space left on device"), "No space left"),
        (ConnectionError("reset\nby peer"), "reset by peer"),
    ],
)
def test_hub_failures(error: Exception, says: str, hub: Callable[[Snapshot], list[list[str]]]) -> None:
    def fail(model: str, tqdm_class: Any) -> str:
        raise error

    hub(fail)
    message = refusal("org/name")
    assert "org/name" in message
    assert says in message
