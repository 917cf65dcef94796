"""GGUF files: the header, the mapped tensors, and the tokenizer that is rebuilt from the metadata.

The reader is our own because the header of a model with 150,000 tokens must be read in a fraction of a second. It
trusts no number in the file: each count, length and offset is held against the file's size before it is used.
Format: ggml's docs/gguf.md, versions 2 and 3, little-endian.
"""

import mmap
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ModelError
from slipstream.models.config import ModelConfig
from slipstream.models.gguf_tokenizer import tokenizer_from_gguf
from slipstream.models.tensors import BLOCKS, Tensor, byte_size, check_tensors, map_file
from slipstream.models.tokenizer import Tokenizer

__all__ = ["GgufCheckpoint", "GgufHeader", "is_gguf", "read_header"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32

# Value types: struct format of a scalar; strings and arrays are read by hand.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# Tensor types by number, with names for those that can't be read so that the message can say what they are.
_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K"}
_TYPES |= {12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"}
_TYPES |= {20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
_TYPES |= {29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"}

_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"

# Files of these architectures hold query and key rows in pairs, as rope over neighbouring elements wants them.
_PAIRED_ROWS = ("llama", "smollm3")


class TensorInfo(NamedTuple):
    file: int  # index of the file that it lies in
    type: str
    shape: tuple[int, ...]  # row-major: the file lists extents the other way round
    start: int  # of its bytes in that file
    size: int


class GgufHeader(NamedTuple):
    """metadata values are str, int, float, bool, or lists of them; strings in lists are left as bytes."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def is_gguf(path: Path) -> bool:
    """Whether the file begins as a GGUF file does."""
    with path.open("rb") as file:
        return file.read(4) == _MAGIC


class _Reader:
    """Reads a header from front to back."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.position = 0

    def fail(self, what: str) -> NoReturn:
        raise ModelError(f"{self.path}: {what}: the file is damaged or cut short, get it again")

    def scalar(self, format_: str) -> Any:
        end = self.position + struct.calcsize("<" + format_)
        if end > len(self.data):
            self.fail(f"the header goes past the end of the file ({len(self.data)} bytes)")
        (value,) = struct.unpack_from("<" + format_, self.data, self.position)
        self.position = end
        return value

    def count(self, what: str, least_bytes_each: int) -> int:
        """A count of things that take at least so many bytes each, so no more than the rest of the file holds."""
        count: int = self.scalar("Q")
        if count * least_bytes_each > len(self.data) - self.position:
            self.fail(f"it claims {count} {what}, more than its {len(self.data)} bytes can hold")
        return count

    def string(self, what: str) -> str:
        length = self.count(f"characters of {what}", 1)
        value = self.data[self.position : self.position + length]
        self.position += length
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} isn't valid UTF-8")

    def name(self, what: str) -> str:
        """A string that messages may show as it is."""
        value = self.string(what)
        if not value.isprintable():
            self.fail(f"{what} is {value!r:.60}")
        return value

    def strings(self, count: int) -> list[bytes]:
        """The hot loop: hundreds of thousands of short strings, each behind its length."""
        data, position, size = self.data, self.position, len(self.data)
        length_at = struct.Struct("<Q").unpack_from
        values = []
        for _ in range(count):
            start = position + 8
            if start > size:
                self.fail("a list of strings goes past the end of the file")
            position = start + length_at(data, position)[0]
            values.append(data[start:position])
        if position > size:
            self.fail("a string goes past the end of the file")
        self.position = position
        return values

    def value(self, key: str) -> Any:
        kind = self.scalar("I")
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string(key)
        if kind != _ARRAY:
            self.fail(f"{key} has unknown type {kind}")
        kind = self.scalar("I")
        if kind == _STRING:
            return self.strings(self.count(f"strings in {key}", 8))
        if kind not in _SCALARS:
            self.fail(f"{key} is a list of unknown type {kind}")
        item = struct.calcsize(_SCALARS[kind])
        count = self.count(f"values in {key}", item)
        values = np.frombuffer(self.data, np.dtype("<" + _SCALARS[kind]), count, self.position).tolist()
        self.position += count * item
        return values


def read_header(path: Path, file_index: int = 0) -> GgufHeader:
    """Reads and checks the header of one GGUF file. Raises ModelError, which says what is wrong with it."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read_header(_Reader(path, data), file_index)
    except (OSError, ValueError) as error:
        reason = "it is empty" if isinstance(error, ValueError) else error.strerror
        raise ModelError(f"{path}: can't be read: {reason}") from None


def _read_header(reader: _Reader, file_index: int) -> GgufHeader:
    path, size = reader.path, len(reader.data)
    if reader.data[:4] != _MAGIC:
        raise ModelError(f"{path}: not a GGUF file: it begins with {reader.data[:4]!r}, not {_MAGIC!r}")
    reader.position = 4
    version = reader.scalar("I")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        kind = "a big-endian file" if swapped in _VERSIONS else f"GGUF version {version}"
        raise ModelError(f"{path}: {kind} can't be read; little-endian versions 2 and 3 can")
    tensor_count = reader.count("tensors", 24)
    value_count = reader.count("metadata values", 13)

    metadata: dict[str, Any] = {}
    for _ in range(value_count):
        key = reader.name("a metadata key")
        if key in metadata:
            reader.fail(f"metadata key {key} occurs twice")
        metadata[key] = reader.value(key)

    described: dict[str, tuple[str, tuple[int, ...], int]] = {}
    for _ in range(tensor_count):
        name = reader.name("a tensor name")
        if name in described:
            reader.fail(f"tensor {name} occurs twice")
        dimensions = reader.scalar("I")
        if not 1 <= dimensions <= 4:
            reader.fail(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(reader.scalar("Q") for _ in range(dimensions))[::-1]
        type_number = reader.scalar("I")
        type_name = _TYPES.get(type_number, f"number {type_number}")
        if type_name not in BLOCKS:
            raise ModelError(f"{path}: tensor {name} is of type {type_name}; these can be read: {', '.join(BLOCKS)}")
        described[name] = type_name, shape, reader.scalar("Q")

    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not (0 < alignment <= 1 << 20 and alignment & (alignment - 1) == 0):
        reader.fail(f"general.alignment is {alignment!r}")
    data_start = -(-reader.position // alignment) * alignment
    tensors = {}
    for name, (type_name, shape, offset) in described.items():
        tensor_size = byte_size(type_name, shape)
        if not tensor_size:
            reader.fail(f"tensor {name} of type {type_name} can't have shape {shape}")
        if offset % alignment or data_start + offset + tensor_size > size:
            reader.fail(
                f"tensor {name} should lie at byte {data_start + offset} and take {tensor_size} of {size} bytes"
            )
        tensors[name] = TensorInfo(file_index, type_name, shape, data_start + offset, tensor_size)
    return GgufHeader(metadata, tensors)


def _hugging_face_name(name: str) -> str | None:
    """The tensor's name in Hugging Face's checkpoints; None if it isn't one that a supported model has."""
    stem, _, kind = name.rpartition(".")
    if match := re.fullmatch(r"blk\.(0|[1-9]\d*)\.(\w+)", stem):
        known = _LAYER_NAMES.get(match[2])
        return known and f"model.layers.{match[1]}.{known}.{kind}"
    return f"{_NAMES[stem]}.{kind}" if stem in _NAMES else None


def _files_of(path: Path) -> list[Path]:
    """All files of a model that was split, in order; or the one."""
    match = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})(\.gguf)", path.name)
    if not match:
        return [path]
    files = [path.with_name(f"{match[1]}-{part:05}-of-{match[2]}{match[3]}") for part in range(1, int(match[2]) + 1)]
    for file in files:
        if not file.is_file():
            raise ModelError(
                f"{file}: this part of the model is missing: put all {len(files)} parts into one directory"
            )
    return files


class GgufCheckpoint:
    """A model in one GGUF file or several. See Checkpoint for what it offers."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        """Reads the headers only. Raises ModelError for a damaged file or a model that can't be used."""
        self.files = tuple(_files_of(path))
        self.name = name or path.stem
        headers = [read_header(file, index) for index, file in enumerate(self.files)]
        self._metadata = headers[0].metadata
        if self._metadata.get("general.type") == "adapter":
            raise ModelError(f"{path}: it is an adapter, not a model: merge it into its model's weights first")
        self._check_parts(headers)
        found: dict[str, TensorInfo] = {}
        for header in headers:
            for name in found.keys() & header.tensors.keys():
                raise ModelError(f"{path}: tensor {name} lies in two parts of the model: they don't belong together")
            found |= header.tensors
        self._maps: list[NDArray[np.uint8]] = [map_file(file) for file in self.files]

        factors = found.pop(_ROPE_FACTORS, None)
        embedding = found.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelError(f"{path}: it has no tensor token_embd.weight, so it isn't a language model")
        self._tensors = {_hugging_face_name(name) or name: info for name, info in found.items()}
        biased = {name.removesuffix(".bias").split(".", 3)[-1] for name in self._tensors if name.endswith(".bias")}
        try:
            self.config = ModelConfig.from_gguf(
                self._metadata,
                embedding_rows=embedding.shape[0],
                has_output="output.weight" in found,
                biased=frozenset(biased),
                rope_factors=None if factors is None else self._rope_factors(factors),
            )
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from None
        check_tensors(path, {name: info.shape for name, info in self._tensors.items()}, self.config)

    def _check_parts(self, headers: list[GgufHeader]) -> None:
        count = self._metadata.get("split.count", 1)
        if (count or 1) != len(self.files):
            raise ModelError(
                f"{self.files[0]}: one of {count} parts of a model, but {len(self.files)} found: "
                f"keep the names -00001-of-{count:05}.gguf and so on that they were made with"
            )
        for file, header, number in zip(self.files, headers, range(len(headers)), strict=True):
            if len(headers) > 1 and header.metadata.get("split.no") != number:
                raise ModelError(f"{file}: it says to be part {header.metadata.get('split.no')}, not {number} (from 0)")

    def _rope_factors(self, info: TensorInfo) -> NDArray[np.float32]:
        if info.type != "F32" or len(info.shape) != 1:
            raise ModelError(f"{_ROPE_FACTORS} should be a vector of F32")
        return self._bytes(info).view("<f4")

    def _bytes(self, info: TensorInfo) -> NDArray[np.uint8]:
        return self._maps[info.file][info.start : info.start + info.size]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise ModelError(f"{self.files[0]}: it has no tensor {name}")
        info = self._tensors[name]
        return Tensor(self._bytes(info), info.type, info.shape, self._row_order(name))

    def _row_order(self, name: str) -> NDArray[np.int32] | None:
        """From pairs (0, half), (1, half + 1), … of each head's rows back to first half, second half."""
        projection = name.split(".")[-2]
        if projection not in ("q_proj", "k_proj") or self.config.architecture not in _PAIRED_ROWS:
            return None
        heads = self.config.num_heads if projection == "q_proj" else self.config.num_kv_heads
        rows = np.arange(heads * self.config.head_dim, dtype=np.int32)
        return np.ravel(rows.reshape(heads, self.config.head_dim // 2, 2).swapaxes(1, 2))

    def tokenizer(self) -> Tokenizer:
        """Rebuilt from the metadata. Raises ModelError for a kind that can't be rebuilt exactly."""
        try:
            return tokenizer_from_gguf(self._metadata, self.config)
        except ModelError as error:
            raise ModelError(f"{self.files[0]}: {error}") from None
