import ctypes
import ctypes.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from material import PLAINEST, guarded, packed, same_bits, seeds, use, ways, wide

from slipstream.kernels import _native, reference

dtypes = st.sampled_from(["f32", "bf16"])


@given(seeds, ways, dtypes, st.integers(1, 64), st.integers(1, 200), st.integers(1, 80), st.booleans())
def test_a_rows_bits_depend_on_that_row_alone(seed, way, dtype, rows, in_features, out_features, with_bias):
    rng = np.random.default_rng(seed)
    weight = packed(_native, wide(rng, out_features, in_features), dtype)
    bias = guarded(wide(rng, out_features)) if with_bias else None
    x = guarded(wide(rng, rows, in_features))
    use(way)
    together = _native.linear(x, weight, bias)
    use(PLAINEST)
    for row in rng.permutation(rows)[:4]:
        assert same_bits(together[row : row + 1], _native.linear(x[row : row + 1], weight, bias))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("isa", _native.available_isas())
def test_every_number_of_rows(dtype, isa):
    """Also matrices that are cut along k, and more rows than one chunk takes."""
    rng = np.random.default_rng(7)
    weight = packed(_native, wide(rng, 83, 1100), dtype)
    x = wide(rng, 250, 1100)
    use(("avx2" if isa == "portable" and "avx2" in _native.available_isas() else isa, 2))
    single = np.concatenate([_native.linear(row[None], weight) for row in x])
    use((isa, 2))
    for rows in [*range(1, 65), 95, 96, 97, 250] if isa != "portable" else [1, 5, 13]:
        assert same_bits(_native.linear(x[:rows], weight), single[:rows]), rows


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_an_output_is_one_chain_of_fused_multiply_adds(dtype):
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    library.fmaf.restype = ctypes.c_float
    library.fmaf.argtypes = [ctypes.c_float] * 3
    rng = np.random.default_rng(3)
    weight = packed(_native, wide(rng, 21, 57), dtype)
    values = _native.embed(weight, np.arange(21, dtype=np.int32))
    x, bias = wide(rng, 3, 57), wide(rng, 21)
    expected = np.empty((3, 21), np.float32)
    for row in range(3):
        for output in range(21):
            total = 0.0
            for a, b in zip(x[row], values[output], strict=True):
                total = library.fmaf(a, b, total)
            expected[row, output] = np.float32(total) + bias[output]
    assert same_bits(_native.linear(x, weight, bias), expected)


@given(seeds, dtypes, st.integers(1, 9), st.integers(1, 300), st.integers(1, 40))
def test_error_against_float64(seed, dtype, rows, in_features, out_features):
    rng = np.random.default_rng(seed)
    values, x = wide(rng, out_features, in_features), wide(rng, rows, in_features)
    for backend in (_native, reference):
        weight = packed(backend, values, dtype)
        kept = backend.embed(weight, np.arange(out_features, dtype=np.int32))
        exact = x.astype(np.float64) @ kept.astype(np.float64).T
        size = np.abs(x).astype(np.float64) @ np.abs(kept).astype(np.float64).T
        error = np.abs(backend.linear(x, weight) - exact)
        assert (error <= in_features * 2.0**-24 * size).all()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_bad_row_leaves_its_neighbours_alone(backend, dtype):
    rng = np.random.default_rng(5)
    weight = packed(backend, wide(rng, 40, 30), dtype)
    x = wide(rng, 8, 30)
    clean = backend.linear(x, weight)
    x[3], x[6, 5] = np.nan, np.inf
    dirty = backend.linear(x, weight)
    good = [0, 1, 2, 4, 5, 7]
    assert same_bits(clean[good], dirty[good])
    assert np.isnan(dirty[3]).all()
    assert not np.isfinite(dirty[6]).any()


def test_subnormal_sums_are_kept(backend):
    weight = packed(backend, np.full((1, 2), 2.0**-75, np.float32), "f32")
    assert backend.linear(np.full((1, 2), 2.0**-70, np.float32), weight)[0, 0] == np.float32(2.0**-144)


def test_reference_rows_are_independent():
    rng = np.random.default_rng(11)
    weight = packed(reference, wide(rng, 300, 400), "bf16")
    x = wide(rng, 20, 400)
    together = reference.linear(x, weight)
    assert same_bits(together, np.concatenate([reference.linear(row[None], weight) for row in x]))


def test_no_rows(backend):
    weight = packed(backend, np.ones((3, 5), np.float32), "f32")
    assert backend.linear(np.empty((0, 5), np.float32), weight).shape == (0, 3)
    assert backend.embed(weight, np.empty(0, np.int32)).shape == (0, 5)
