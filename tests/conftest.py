"""Models that many tests share."""

from pathlib import Path

import pytest
import tiny

from slipstream import DEFAULT_MODEL, Engine
from slipstream.models.checkpoint import open_checkpoint


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real default model's file, fetched on first use."""
    return open_checkpoint(DEFAULT_MODEL).files[0]


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Engine:
    """SmolLM2-135M-Instruct, drafting for itself where a draft model is asked for."""
    return Engine.load(smollm2_path, draft_model=smollm2_path, drafter="ngram")


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One tiny random model of each architecture."""
    folder = tmp_path_factory.mktemp("tiny")
    return {name: tiny.make(folder / name, name, seed) for seed, name in enumerate(tiny.ARCHITECTURES)}
