import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from material import QUANTISED, as_bytes, block_of, packed, random_blocks, same_bits, seeds, wide

from slipstream.kernels import _native, reference

FORMATS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]


def random_tensor(seed: int, source: str, rows: int, blocks: int) -> tuple[np.ndarray, int]:
    """Random bytes at an odd address, and the number of columns. Any byte is a valid one in every format."""
    block, size = block_of(source)
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


@pytest.mark.parametrize("source", QUANTISED)
@given(seed=seeds, rows=st.integers(1, 40), blocks=st.integers(1, 20))
def test_quantised_weights_stay_what_they_are(source, seed, rows, blocks):
    data, columns = random_tensor(seed, source, rows, blocks)
    values = expected(data, source, rows)
    for backend in (_native, reference):
        with np.errstate(all="ignore"):
            weight = backend.pack(data, source, rows, columns, "auto")
        assert weight.dtype == ("int4" if source in ("Q4_0", "Q4_1", "Q4_K") else "int8")
        assert equal(backend.embed(weight, np.arange(rows, dtype=np.int32)), values)


@pytest.mark.parametrize("source", QUANTISED)
def test_quantised_weights_take_little_more_room_than_the_file(source):
    columns = 5 * 256
    data = random_blocks(np.random.default_rng(2), source, 64, columns)
    assert _native.pack(data, source, 64, columns, "auto").nbytes <= data.size * 1.03


@pytest.mark.parametrize("source", ["F32", "F16", "BF16"])
def test_floats_are_bf16_unless_told_otherwise(backend, source):
    data, columns = random_tensor(1, source, 3, 32)
    with np.errstate(all="ignore"):
        assert backend.pack(data, source, 3, columns, "auto").dtype == "bf16"


@given(seeds, st.integers(1, 40), st.integers(1, 20), st.integers(-30, 10))
def test_int8_rounds_as_q8_0(seed, rows, blocks, exponent):
    rng = np.random.default_rng(seed)
    values = (wide(rng, rows, 32 * blocks) * 2.0**exponent).astype(np.float32)
    values[rng.random(values.shape) < 0.1] = 0
    values[0, :32] = 0
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    rounded = gguf.quants.dequantize(gguf.quants.quantize(values, q8_0), q8_0)
    for backend in (_native, reference):
        weight = packed(backend, values, "int8")
        assert weight.dtype == "int8"
        assert np.array_equal(backend.embed(weight, np.arange(rows, dtype=np.int32)), rounded)


@given(seeds)
def test_int8_of_q8_0_is_q8_0(seed):
    data = random_blocks(np.random.default_rng(seed), "Q8_0", 20, 64)
    for backend in (_native, reference):
        weight = backend.pack(data, "Q8_0", 20, 64, "int8")
        assert equal(backend.embed(weight, np.arange(20, dtype=np.int32)), expected(data, "Q8_0", 20))


def test_row_order(backend):
    rng = np.random.default_rng(0)
    values, order = wide(rng, 37, 9), rng.permutation(37).astype(np.int32)
    weight = backend.pack(as_bytes(values), "F32", 37, 9, "f32", order)
    assert same_bits(backend.embed(weight, np.arange(37, dtype=np.int32)), values[order])


@pytest.mark.parametrize("source", QUANTISED)
def test_row_order_of_quantised_weights(backend, source):
    rng = np.random.default_rng(0)
    data, order = random_blocks(rng, source, 37, 256), rng.permutation(37).astype(np.int32)
    weight = backend.pack(data, source, 37, 256, "auto", order)
    assert same_bits(backend.embed(weight, np.arange(37, dtype=np.int32)), expected(data, source, 37)[order])
    x = wide(rng, 2, 256)
    in_order = backend.linear(x, backend.pack(data, source, 37, 256, "auto"))
    assert same_bits(backend.linear(x, weight), np.ascontiguousarray(in_order[:, order]))


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
