"""Model directories as Hugging Face lays them out: config.json, tokenizer.json and safetensors.

Format of the weights: 8 bytes of header length, a JSON header, then the tensors' bytes without gaps.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from slipstream.errors import ModelError
from slipstream.models.chat_template import ChatTemplate
from slipstream.models.config import ModelConfig
from slipstream.models.encoders import HuggingFaceEncoder
from slipstream.models.tensors import Tensor, byte_size, check_tensors, map_file
from slipstream.models.tokenizer import Tokenizer, add_around

__all__ = ["SafetensorsCheckpoint", "read_config", "refuse_adapter"]

_TYPES = ("F32", "F16", "BF16")
_LARGEST_HEADER = 100_000_000  # bytes, as the format's own library has it
# Tables that old files carry along; they are computed from the settings.
_NOT_WEIGHTS = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
# What LoRA and its kin are saved as, beside the weights that they change or without them.
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")


class _Info(NamedTuple):
    data: NDArray[np.uint8]
    type: str
    shape: tuple[int, ...]


def refuse_adapter(directory: Path) -> None:
    """Raises ModelError where a directory holds an adapter: weights without it are another model."""
    for name in _ADAPTER_FILES:
        if (directory / name).is_file():
            raise ModelError(
                f"{directory}: it holds an adapter ({name}), which would be left out: merge it into its model's "
                f"weights first, or give a directory with the weights alone"
            )


def read_config(directory: Path) -> ModelConfig:
    """The settings alone. Raises ModelError for a model that can't be used."""
    refuse_adapter(directory)
    generation = directory / "generation_config.json"
    config = _read_json(directory / "config.json")
    try:
        return ModelConfig.from_hf(config, _read_json(generation) if generation.is_file() else None)
    except ModelError as error:
        raise ModelError(f"{directory}: {error}") from None


class SafetensorsCheckpoint:
    """A model in a directory. See Checkpoint for what it offers."""

    def __init__(self, directory: Path, name: str | None = None) -> None:
        """Reads the settings and the headers only. Raises ModelError for damage or a model that can't be used."""
        self.name = name or directory.resolve().name
        self._directory = directory
        self.config = read_config(directory)
        self.files = tuple(_weight_files(directory))
        self._tensors: dict[str, _Info] = {}
        for file in self.files:
            for tensor_name, info in _read_safetensors(file).items():
                if tensor_name in self._tensors:
                    raise ModelError(f"{file}: tensor {tensor_name} lies in another file of this model too")
                self._tensors[tensor_name] = info
        if self.config.tied_embeddings:
            self._tensors.pop("lm_head.weight", None)  # a copy: the settings say which counts
        check_tensors(directory, {key: info.shape for key, info in self._tensors.items()}, self.config)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise ModelError(f"{self._directory}: it has no tensor {name}")
        return Tensor(*self._tensors[name], row_order=None)

    def tokenizer(self) -> Tokenizer:
        """From tokenizer.json, with what tokenizer_config.json says of BOS and of the chat template."""
        path = self._directory / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{path}: missing: a model directory needs it (other tokenizer files can't be read)")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more precise
            raise ModelError(f"{path}: can't be read: {str(error)!r:.200}") from None
        backend.no_padding()
        backend.no_truncation()
        settings_file = self._directory / "tokenizer_config.json"
        settings = _read_json(settings_file) if settings_file.is_file() else {}
        special = {role: _content(settings.get(role)) for role in ("bos_token", "eos_token", "unk_token", "pad_token")}
        _apply_bos_setting(backend, settings, special["bos_token"])
        template = self._chat_template(settings)
        try:
            tokenizer = Tokenizer(
                HuggingFaceEncoder(backend),
                backend.get_vocab(with_added_tokens=True),
                bos_token_id=self.config.bos_token_id,
                eos_token_ids=self._eos_token_ids(backend, special["eos_token"]),
                chat_template=None if template is None else ChatTemplate(template, special),
            )
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from None
        if tokenizer.vocab_size > self.config.vocab_size:
            raise ModelError(
                f"{path}: it has {tokenizer.vocab_size} tokens, more than the embedding's {self.config.vocab_size} "
                f"rows: they don't belong together"
            )
        return tokenizer

    def _eos_token_ids(self, backend: tokenizers.Tokenizer, eos_token: str | None) -> tuple[int, ...]:
        """Those of config.json and generation_config.json, and the one of tokenizer_config.json."""
        named = None if eos_token is None else backend.token_to_id(eos_token)
        return (*self.config.eos_token_ids, *([] if named is None else [named]))

    def _chat_template(self, settings: dict[str, Any]) -> str | None:
        file = self._directory / "chat_template.jinja"
        if file.is_file():
            return _read_text(file)
        template = settings.get("chat_template")
        if isinstance(template, list):  # several, by name
            defaults = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
            template = defaults[-1].get("template") if defaults else None
        if template is not None and not isinstance(template, str):
            raise ModelError(f"{self._directory}/tokenizer_config.json: chat_template should be a string")
        return template


def _content(token: Any) -> str | None:
    """A special token's string, which the settings give as it is or in a record."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _apply_bos_setting(backend: tokenizers.Tokenizer, settings: dict[str, Any], bos: str | None) -> None:
    """tokenizer_config.json may say that BOS is put first, or that it isn't, against tokenizer.json."""
    wanted = settings.get("add_bos_token")
    bos_id = None if bos is None else backend.token_to_id(bos)
    if wanted is None or bos_id is None:
        return
    if wanted and bos_id not in backend.encode("").ids:
        add_around(backend, bos_id, None)
    if not wanted and bos_id in backend.encode("").ids:
        add_around(backend, None, None)


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: can't be read: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({error}): the file is damaged, get it again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: it should hold a JSON object: the file is damaged, get it again")
    return value


def _weight_files(directory: Path) -> list[Path]:
    """The one file, or all those that the index names."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ModelError(
            f"{directory}: it has no model.safetensors (nor an index of several): weights of other kinds can't be read"
        )
    names = _read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise ModelError(f"{index}: it should map tensors to files: the file is damaged, get it again")
    files = [directory / name for name in sorted(set(names.values()))]
    for file in files:
        if file.parent != directory or not file.is_file():
            raise ModelError(f"{index}: it names {file.name!r}, which isn't in this directory: get it again")
    return files


def _read_safetensors(path: Path) -> dict[str, _Info]:
    """All tensors of one file, as views of its bytes. Raises ModelError for any contradiction in its header."""

    def fail(what: str) -> ModelError:
        return ModelError(f"{path}: {what}: the file is damaged or cut short, get it again")

    data = map_file(path)
    header_size = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or header_size > min(len(data) - 8, _LARGEST_HEADER):
        raise fail(f"it claims a header of {header_size} bytes")
    try:
        header = json.loads(data[8 : 8 + header_size].tobytes(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise fail(f"its header isn't valid ({error})") from None
    if not isinstance(header, dict):
        raise fail("its header isn't an object")
    header.pop("__metadata__", None)
    body = data[8 + header_size :]
    tensors = {}
    for name, entry in header.items():
        if name.endswith(_NOT_WEIGHTS):
            continue
        if not name.isprintable():
            raise fail(f"a tensor's name is {name!r:.60}")
        try:
            type_name, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            numbers = (*shape, begin, end)
        except (TypeError, KeyError, ValueError):
            raise fail(f"tensor {name} isn't described properly") from None
        if any(not isinstance(number, int) or isinstance(number, bool) or number < 0 for number in numbers):
            raise fail(f"tensor {name} isn't described properly")
        if type_name not in _TYPES:
            raise ModelError(f"{path}: tensor {name} is of type {type_name}; these can be read: {', '.join(_TYPES)}")
        if not begin <= end <= len(body) or end - begin != byte_size(type_name, shape):
            raise fail(f"tensor {name} of shape {shape} should lie from byte {begin} to {end} of {len(body)}")
        tensors[name] = _Info(body[begin:end], type_name, shape)
    return tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)
