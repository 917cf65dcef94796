"""Linear layers over int4 and int8 weights. The reference does their very arithmetic, fused multiply-adds included, so
its bits are the native ones."""

import ctypes
import ctypes.util

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from material import (
    HALVES,
    PLAINEST,
    QUANTISED,
    block_of,
    guarded,
    packed,
    random_blocks,
    same_bits,
    seeds,
    use,
    ways,
    wide,
)

from slipstream.kernels import _native, quantised, reference

sources = st.sampled_from(QUANTISED)


def random_weight(backend, rng: np.random.Generator, source: str, rows: int, columns: int):
    return backend.pack(random_blocks(rng, source, rows, columns), source, rows, columns, "auto")


def columns_of(source: str, blocks: int) -> int:
    """Whole blocks of the format, about so many of 32."""
    block = block_of(source)[0]
    return -(-blocks * 32 // block) * block


@given(seeds, ways, sources, st.integers(1, 64), st.integers(1, 20), st.integers(1, 80), st.booleans())
def test_a_rows_bits_depend_on_that_row_alone(seed, way, source, rows, blocks, out_features, with_bias):
    rng = np.random.default_rng(seed)
    columns = columns_of(source, blocks)
    weight = random_weight(_native, rng, source, out_features, columns)
    bias = guarded(wide(rng, out_features)) if with_bias else None
    x = guarded(wide(rng, rows, columns))
    use(way)
    together = _native.linear(x, weight, bias)
    assert not np.isnan(together).any()
    use(PLAINEST)
    for row in rng.permutation(rows)[:4]:
        assert same_bits(together[row : row + 1], _native.linear(x[row : row + 1], weight, bias))


@pytest.mark.parametrize("source", QUANTISED)
@pytest.mark.parametrize("isa", _native.available_isas()[:-1])
def test_every_number_of_rows(source, isa):
    rng = np.random.default_rng(7)
    weight = random_weight(_native, rng, source, 83, 1280)
    x = wide(rng, 250, 1280)
    use((isa, 2))
    single = np.concatenate([_native.linear(row[None], weight) for row in x])
    for rows in [*range(1, 65), 95, 96, 97, 250]:
        assert same_bits(_native.linear(x[:rows], weight), single[:rows]), rows


@given(seeds, ways, sources, st.integers(1, 3), st.integers(1, 12), st.integers(1, 40))
def test_native_and_reference_give_the_same_bits(seed, way, source, rows, blocks, out_features):
    rng = np.random.default_rng(seed)
    columns = columns_of(source, blocks)
    data, x = random_blocks(rng, source, out_features, columns), wide(rng, rows, columns)
    bias = wide(rng, out_features)
    use(way)
    native, exact = (
        backend.linear(x, backend.pack(data, source, out_features, columns, "auto"), bias)
        for backend in (_native, reference)
    )
    assert same_bits(native, exact)


EXTREMES = {
    "largest": (255, [0x7BFF, 0x7BFF]),
    "smallest": (0, [0x7BFF, 0xFBFF]),
    "negative": (255, [0xFBFF, 0x7BFF]),
    "subnormal": (0xA5, [0x0001, 0x8001]),
    "zero": (0x5A, [0x0000, 0x0000]),
    "minus zero": (0x5A, [0x8000, 0x8000]),
    "128 of Q8_0": (0x80, [0x3C00, 0x3C00]),
    "127 of Q8_0": (0x7F, [0x3C00, 0x3C00]),
}
INPUTS = {
    "ones": np.ones(256),
    "minus ones": -np.ones(256),
    "signs in turn": (-1.0) ** np.arange(256),
    "zeros": np.zeros(256),
    "one large": np.eye(1, 256, 40)[0] * 1e30,
    "tiny": np.full(256, 2.0**-118),
    "tinier, so zeros": np.full(256, 2.0**-120),
    "subnormal": np.full(256, 2.0**-140),
    "halves, which round to even": np.r_[127, np.arange(255) % 64 - 31.5],
}


@pytest.mark.parametrize("source", QUANTISED)
@pytest.mark.parametrize(("fill", "halves"), EXTREMES.values(), ids=EXTREMES.keys())
def test_extreme_values(source, fill, halves):
    """Sums at the limits of 16 bits, scales at the limits of theirs."""
    columns = 256
    data = np.full(20 * columns // block_of(source)[0] * block_of(source)[1], fill, np.uint8)
    blocks = data.reshape(-1, block_of(source)[1])
    for at, half in zip(HALVES[source], halves, strict=False):
        blocks[:, at : at + 2] = np.array([half], np.uint16).view(np.uint8)
    x = np.stack(list(INPUTS.values())).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = reference.linear(x, reference.pack(data, source, 20, columns, "auto"))
    for isa in _native.available_isas():
        use((isa, 1))
        native = _native.linear(x, _native.pack(data, source, 20, columns, "auto"))
        assert np.array_equal(np.isnan(native), np.isnan(exact))
        assert same_bits(native[~np.isnan(exact)], exact[~np.isnan(exact)]), isa


@given(seeds, sources, st.integers(1, 12), st.booleans())
def test_error_against_float64(seed, source, blocks, exact):
    """Half a step of each activation times the weights, and rounding: no more is lost. Whole numbers up to 127 lose
    nothing in the first place."""
    rng = np.random.default_rng(seed)
    columns = columns_of(source, blocks)
    data, x = random_blocks(rng, source, 30, columns), wide(rng, 4, columns)
    if exact:
        x = rng.integers(-127, 128, x.shape).astype(np.float32)
        x[:, ::32] = 127
    kept = gguf.quants.dequantize(data.copy().reshape(30, -1), gguf.GGMLQuantizationType[source]).astype(np.float64)
    read = quantised.READERS[source](data.copy().reshape(-1, block_of(source)[1]), 30)
    minimum = 0 if read.minus_minimum is None else np.abs(read.minus_minimum.T).repeat(32, axis=1)
    step = np.abs(x).reshape(4, -1, 32).max(axis=-1).repeat(32, axis=-1) / 127
    lost = 0 if exact else (0.5001 * step) @ np.abs(kept).T
    rounding = columns * 2.0**-24 * (np.abs(x) + step) @ (np.abs(kept) + 2 * minimum).T
    result = _native.linear(x, _native.pack(data, source, 30, columns, "auto"))
    assert (np.abs(result - x.astype(np.float64) @ kept.T) <= lost + rounding).all()


@pytest.mark.parametrize("source", QUANTISED)
def test_a_bad_row_leaves_its_neighbours_alone(backend, source):
    rng = np.random.default_rng(5)
    weight = random_weight(backend, rng, source, 40, 256)
    x = wide(rng, 8, 256)
    clean = backend.linear(x, weight)
    x[3], x[6, 5], x[7, 250] = np.nan, np.inf, np.nan
    with np.errstate(invalid="ignore"):
        dirty = backend.linear(x, weight)
    assert same_bits(clean[[0, 1, 2, 4, 5]], dirty[[0, 1, 2, 4, 5]])
    assert np.isnan(dirty[[3, 6, 7]]).all()


@given(seeds, ways, st.integers(1, 9), st.integers(1, 5), st.integers(1, 40))
def test_int8_of_floats(seed, way, rows, blocks, out_features):
    rng = np.random.default_rng(seed)
    values, x = wide(rng, out_features, 32 * blocks), wide(rng, rows, 32 * blocks)
    use(way)
    native, exact = (backend.linear(x, packed(backend, values, "int8")) for backend in (_native, reference))
    assert same_bits(native, exact)


def test_the_references_fused_multiply_add():
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    library.fmaf.restype = ctypes.c_float
    library.fmaf.argtypes = [ctypes.c_float] * 3
    rng = np.random.default_rng(6)
    a, b, c = wide(rng, 3, 20_000)
    c[::3] = -(a * b)[::3]  # all but cancels
    c[1::3] *= np.float32(2) ** rng.integers(-60, 60, len(c[1::3]))
    expected = [library.fmaf(*values) for values in zip(a, b, c, strict=True)]
    assert same_bits(quantised.fma(a, b, c), np.array(expected, np.float32))
