"""Models that many tests share."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny

from slipstream import DEFAULT_MODEL, Engine, engine, profile
from slipstream.drafters import draft_model
from slipstream.models.checkpoint import open_checkpoint


@pytest.fixture(autouse=True, scope="session")
def ctrl_c() -> None:
    """Ctrl-C works here and in the commands that tests start: a shell's background jobs inherit that it is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measured costs and tuned profiles of tiny models don't go where the user's are; fetched models stay there."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        for module in (engine, profile):
            patch.setattr(module, "cache_directory", lambda: folder)
        yield


@pytest.fixture(autouse=True)
def long_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny random models are never sure of anything; their drafts are to be long all the same."""
    monkeypatch.setattr(draft_model, "MIN_CONFIDENCE", 0.0)


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
