import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from material import as_bytes, same_bits, seeds, wide

from slipstream.kernels import _native, reference

FORMATS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]


def random_tensor(seed: int, source: str, rows: int, blocks: int) -> tuple[np.ndarray, int]:
    """Random bytes at an odd address, and the number of columns. Any byte is a valid one in every format."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[source]]
    room = np.random.default_rng(seed).integers(0, 256, rows * blocks * size + 1, np.uint8)
    return room[1:], blocks * block


def expected(data: np.ndarray, source: str, rows: int) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(data.copy().reshape(rows, -1), gguf.GGMLQuantizationType[source])


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    """The same bits; any NaN for a NaN."""
    nan = np.isnan(b)
    return a.shape == b.shape and bool((np.isnan(a) == nan).all()) and same_bits(a[~nan], b[~nan])


@pytest.mark.parametrize("source", FORMATS)
@given(seed=seeds, rows=st.integers(1, 40), blocks=st.integers(1, 5))
def test_dequantisation_is_exact(source, seed, rows, blocks):
    data, columns = random_tensor(seed, source, rows, blocks)
    values = expected(data, source, rows)
    assert equal(_native.unpack(data, source, rows, columns), values)
    weight = _native.pack(data, source, rows, columns, "f32")
    assert equal(_native.embed(weight, np.arange(rows, dtype=np.int32)), values)


@pytest.mark.parametrize("source", FORMATS)
@given(seed=seeds, rows=st.integers(1, 40), blocks=st.integers(1, 5))
def test_bf16_is_the_nearest(source, seed, rows, blocks):
    data, columns = random_tensor(seed, source, rows, blocks)
    values = expected(data, source, rows)
    rounded = gguf.quants.dequantize(
        gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16), gguf.GGMLQuantizationType.BF16
    )
    for backend in (_native, reference):
        with np.errstate(all="ignore"):
            weight = backend.pack(data, source, rows, columns, "bf16")
        assert equal(backend.embed(weight, np.arange(rows, dtype=np.int32)), rounded)


def test_row_order(backend):
    rng = np.random.default_rng(0)
    values, order = wide(rng, 37, 9), rng.permutation(37).astype(np.int32)
    weight = backend.pack(as_bytes(values), "F32", 37, 9, "f32", order)
    assert same_bits(backend.embed(weight, np.arange(37, dtype=np.int32)), values[order])


def test_what_a_weight_says_of_itself(backend):
    weight = backend.pack(as_bytes(np.zeros((33, 64), np.float32)), "F32", 33, 64, "bf16")
    assert (weight.out_features, weight.in_features, weight.dtype) == (33, 64, "bf16")
    assert weight.nbytes >= 33 * 64 * 2


def test_packed_weights_outlive_their_source(backend):
    values = wide(np.random.default_rng(1), 20, 40)
    data = as_bytes(values).copy()
    weight = backend.pack(data, "F32", 20, 40, "f32")
    data[:] = 255
    assert same_bits(backend.embed(weight, np.arange(20, dtype=np.int32)), values)
