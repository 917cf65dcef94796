import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from material import PLAINEST, guarded, same_bits, seeds, use, ways, wide

from slipstream.kernels import _native, reference


def units(actual: np.ndarray, exact: np.ndarray) -> float:
    """The largest error in units in the last place of the exact result."""
    return float(np.max(np.abs(actual - exact) / np.spacing(np.abs(exact).astype(np.float32))))


@given(seeds, ways, st.integers(1, 20), st.integers(1, 200))
def test_rms_norm(seed, way, rows, width):
    rng = np.random.default_rng(seed)
    x, weight = guarded(wide(rng, rows, width)), guarded(wide(rng, width))
    use(way)
    together = _native.rms_norm(x, weight, 1e-5)
    use(PLAINEST)
    assert same_bits(together, np.concatenate([_native.rms_norm(row[None], weight, 1e-5) for row in x]))
    wide_x = x.astype(np.float64)
    exact = wide_x / np.sqrt(np.mean(wide_x**2, axis=-1, keepdims=True) + 1e-5) * weight
    assert units(together, exact) <= 4 + width / 32
    assert units(reference.rms_norm(x, weight, 1e-5), exact) <= 4 + width / 32


@given(seeds, ways, st.integers(1, 9), st.integers(1, 5), st.integers(1, 40))
def test_rope(seed, way, rows, heads, half):
    rng = np.random.default_rng(seed)
    x = guarded(wide(rng, rows, heads, 2 * half))
    angles = rng.uniform(0, 1000, (rows, half))
    cos, sin = guarded(np.cos(angles).astype(np.float32)), guarded(np.sin(angles).astype(np.float32))
    use(way)
    together = _native.rope(x, cos, sin)
    assert same_bits(together, reference.rope(x, cos, sin))
    use(PLAINEST)
    for row in range(rows):
        at = slice(row, row + 1)
        assert same_bits(together[at], _native.rope(x[at], cos[at], sin[at]))


@given(seeds, ways, st.integers(1, 5), st.integers(1, 9000))
def test_swiglu(seed, way, rows, width):
    rng = np.random.default_rng(seed)
    gate = guarded(rng.uniform(-80, 80, (rows, width)).astype(np.float32))
    up = guarded(rng.uniform(0.5, 2, (rows, width)).astype(np.float32))
    use(way)
    together = _native.swiglu(gate, up)
    use(PLAINEST)
    assert same_bits(together, np.concatenate([_native.swiglu(gate[r : r + 1], up[r : r + 1]) for r in range(rows)]))
    exact = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64))) * up
    assert units(together, exact) <= 6
    assert units(reference.swiglu(gate, up), exact) <= 6


def test_swiglu_at_the_extremes(backend):
    gate = np.array([0.0, -0.0, 1e30, np.inf, -1e4, -np.inf, np.nan, 88.0, -88.0, -104.0], np.float32)
    with np.errstate(all="ignore"):
        result = backend.swiglu(gate, np.ones_like(gate))
    assert result[0] == 0
    assert result[1] == 0
    assert result[2] == np.float32(1e30)
    assert result[3] == np.inf
    assert np.isnan(result[6])
    assert result[7] == 88
    for index in (4, 8, 9):
        assert abs(result[index]) < 1e-30


def test_leading_shapes(backend):
    rng = np.random.default_rng(2)
    x, weight = wide(rng, 2, 3, 4, 10), wide(rng, 10)
    flat = backend.rms_norm(x.reshape(-1, 10), weight, 1e-6)
    assert same_bits(backend.rms_norm(x, weight, 1e-6), flat.reshape(x.shape))
    assert same_bits(backend.rms_norm(x[0, 0, 0], weight, 1e-6), flat[0])
    assert backend.rms_norm(np.empty((0, 10), np.float32), weight, 1e-6).shape == (0, 10)
