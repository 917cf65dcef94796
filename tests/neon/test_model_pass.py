"""What models compute on 64-bit ARM, emulated, against what they compute on the processor that runs this test."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import prepare
import pytest
import tiny

pytestmark = pytest.mark.neon
HERE = Path(__file__).parent


def results(python: Path, models: Path, default_model: Path, **environment: str) -> dict[str, np.ndarray]:
    out = models.parent / "results.npz"
    command = [python, HERE / "model_pass.py", models, default_model, out]
    environment |= {"PYTHONPATH": str(HERE.parent), "SLIPSTREAM_CACHE": str(models.parent)}
    subprocess.run(command, env=os.environ | environment, check=True)
    return dict(np.load(out))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("neon") / "models"
    for name in ("llama", "qwen2-yarn", "qwen3"):
        tiny.make(folder / name, name, intermediate_size=64)
    tiny.make(folder / "wide", hidden_size=256, intermediate_size=512)
    return folder


@pytest.fixture(scope="module")
def here(models: Path, smollm2_path: Path) -> dict[str, np.ndarray]:
    return results(Path(sys.executable), models, smollm2_path)


@pytest.mark.parametrize("isa", ["neondot", "neon"])
def test_the_bits_are_those_of_this_processor(
    isa: str, models: Path, smollm2_path: Path, here: dict[str, np.ndarray]
) -> None:
    emulated = results(prepare.PYTHON, models, smollm2_path, SLIPSTREAM_ISA=isa)
    assert list(emulated) == list(here)
    assert [name for name in here if emulated[name].tobytes() != here[name].tobytes()] == []
    assert all(np.isfinite(array).all() for array in here.values())
