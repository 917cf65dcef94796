"""A tiny model that is loaded in no time and has room for the built-in prompts, whose tokens are mostly bytes."""

from pathlib import Path

import pytest
import tiny


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("cli") / "tiny", max_position_embeddings=1024)
