"""Opens a model wherever it is: by name, as a file, as a directory, or on the Hugging Face hub."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from slipstream.errors import ModelError
from slipstream.models.config import ModelConfig
from slipstream.models.default_model import DEFAULT_MODEL, fetch_default_model
from slipstream.models.gguf_choice import gguf_models
from slipstream.models.gguf_file import GgufCheckpoint, is_gguf
from slipstream.models.hub import fetch_from_hub, has_safetensors, hub_name
from slipstream.models.safetensors_dir import SafetensorsCheckpoint, refuse_adapter
from slipstream.models.tensors import Tensor
from slipstream.models.tokenizer import Tokenizer

__all__ = ["DEFAULT_MODEL", "Checkpoint", "Progress", "Tensor", "open_checkpoint"]

Progress = Callable[[str, int, int], None]
"""Called as progress(what, done, total) during a download, in bytes; total is 0 where it isn't known yet."""


class Checkpoint(Protocol):
    """A model's files, checked and mapped but not yet loaded. Tensors go by their Hugging Face names
    ("model.layers.0.self_attn.q_proj.weight"), whatever the files call them."""

    name: str
    config: ModelConfig
    files: tuple[Path, ...]

    def tensor(self, name: str) -> Tensor:
        """The tensor's bytes. Raises ModelError, naming it, where the model has none of that name."""
        ...

    def __contains__(self, name: object) -> bool: ...

    def tokenizer(self) -> Tokenizer:
        """Built anew at each call. Raises ModelError for a kind that can't be reproduced exactly."""
        ...


def open_checkpoint(model: str | Path, progress: Progress | None = None) -> Checkpoint:
    """Opens a model: the default one by its name (DEFAULT_MODEL, fetched on first use), a .gguf file (or one of
    several parts), a directory with safetensors or with one GGUF model, or a model of the Hugging Face hub.

    On the hub, "org/name" is the model in safetensors; where there are none, the GGUF file in Q4_K_M, else the first
    in gguf_choice.PREFERRED. "org/name:Q8_0" is the GGUF file in that quantisation, "org/name/file.gguf" that file.

    Raises ModelError for anything that isn't there, is damaged, or that wouldn't be computed exactly.
    """
    report = progress or (lambda what, done, total: None)
    if str(model) == DEFAULT_MODEL:
        return GgufCheckpoint(fetch_default_model(report))
    path = Path(os.path.expanduser(model))  # ~ stays as it is where there is no home directory
    try:
        if path.is_dir():
            return _open_directory(path)
        if path.exists():
            return _open_file(path)
    except OSError as error:
        raise ModelError(f"{path}: can't be read: {error.strerror}") from None
    if isinstance(model, str) and (on_hub := hub_name(model)):
        name, path = fetch_from_hub(on_hub, report)
        return SafetensorsCheckpoint(path, name) if path.is_dir() else GgufCheckpoint(path, name)
    raise ModelError(
        f"there is no model {str(model)!r}: give the name {DEFAULT_MODEL}, the path of a .gguf file, of a directory "
        f"with config.json and model.safetensors, or a hub id such as HuggingFaceTB/SmolLM2-360M-Instruct "
        f"or org/name:Q4_K_M"
    )


def _open_directory(path: Path) -> Checkpoint:
    refuse_adapter(path)
    files = [file.name for file in path.iterdir()]
    models = gguf_models(files)
    if has_safetensors(files) or ("config.json" in files and not models):
        return SafetensorsCheckpoint(path)
    if len(models) == 1:
        return GgufCheckpoint(path / models[0].files[0])
    if models:
        raise ModelError(f"{path}: it holds {len(models)} models: name one, such as {path / models[0].files[0]}")
    raise ModelError(f"{path}: it holds no model: neither config.json nor a .gguf file")


def _open_file(path: Path) -> Checkpoint:
    if path.name.endswith((".safetensors", ".json")):
        raise ModelError(f"{path}: it is only a part of a model: give its directory, {path.parent}")
    if is_gguf(path) or path.suffix == ".gguf":
        return GgufCheckpoint(path)
    raise ModelError(f"{path}: not a model: neither a GGUF file nor a directory with config.json and safetensors")
