import math
import os
import subprocess
import sys

import numpy as np
import pytest

from slipstream.models.rotation import Rotations, cos_and_sin, inverse_frequencies, logarithm

BITS = """
import hashlib
import numpy as np
from slipstream.models.rotation import Rotations, inverse_frequencies
bits = hashlib.sha256()
for base, head_dim in ((1e4, 64), (1e6, 128), (130_000.0, 80)):
    for part in Rotations(inverse_frequencies(base, head_dim), 1.1).at(np.arange(20_000, dtype=np.int32)):
        bits.update(part.tobytes())
print(bits.hexdigest())
"""


def test_the_instruction_set_that_numpy_uses_changes_no_bit():
    """Without these features NumPy computes as on a machine that has AVX2 only."""
    wide = ["X86_V4", "AVX512_SKX", "AVX512_CLX", "AVX512_CNL", "AVX512_ICL", "AVX512_SPR"]
    seen = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", BITS],
            env=os.environ | {"NPY_DISABLE_CPU_FEATURES": " ".join(without)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for without in ([], wide)
    }
    assert len(seen) == 1


def test_the_nearest_floats():
    for base in (1e4, 5e5, 1e6):
        exact = np.power(np.longdouble(base), -np.arange(0, 128, 2, dtype=np.longdouble) / 128)
        np.testing.assert_allclose(inverse_frequencies(base, 128), exact, rtol=2**-53)
        assert logarithm(base) == pytest.approx(math.log(base), rel=2**-52)


@pytest.mark.parametrize("largest", [1, 1e3, 1e6])
def test_cos_and_sin(largest):
    angles = np.concatenate([[0.0], np.random.default_rng(0).uniform(0, largest, 100_000)])
    cos, sin = cos_and_sin(angles)
    np.testing.assert_allclose(cos, np.cos(angles), rtol=0, atol=1e-15)
    np.testing.assert_allclose(sin, np.sin(angles), rtol=0, atol=1e-15)
    assert np.array_equal(cos.astype(np.float32), np.cos(angles).astype(np.float32))


def test_positions_in_any_order_and_any_number():
    frequencies = inverse_frequencies(1e4, 16)
    order = np.array([5, 3000, 0, 3000, 1023, 1024], np.int32)
    one_by_one = Rotations(frequencies, 1.5)
    together = Rotations(frequencies, 1.5).at(order)
    for row, position in enumerate(order):
        cos, sin = one_by_one.at(order[row : row + 1])
        assert np.array_equal(cos[0], together[0][row])
        assert np.array_equal(sin[0], together[1][row])
        np.testing.assert_allclose(cos[0], 1.5 * np.cos(position * frequencies), atol=1e-6)
    empty = Rotations(frequencies, 1.0).at(order[:0])
    assert empty[0].shape == empty[1].shape == (0, 8)
