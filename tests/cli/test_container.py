"""The installed command as containers run it: for a user that the system doesn't know, without a home directory."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

SLIPSTREAM = Path(sys.executable).parent / "slipstream"
UNKNOWN_USER = """
import pwd
def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(UNKNOWN_USER)
    return tmp_path


def run(folder: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command with nothing but these variables, in the folder, where it may only use `temporary`."""
    environment |= {"TMPDIR": str(folder / "temporary"), "PYTHONPATH": str(folder / "site")}
    done = subprocess.run(
        [SLIPSTREAM, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert sorted(os.listdir(folder)) == ["site", "temporary"]
    return done


@pytest.mark.parametrize("home", [{}, {"HOME": os.devnull}], ids=["no HOME", "one that can't be written"])
def test_an_answer_and_the_list_of_models(folder: Path, tiny_path: Path, home: dict[str, str]) -> None:
    done = run(folder, "generate", "hi", "--model", tiny_path, "--max-tokens", "4", **home)
    assert (done.returncode, done.stderr) == (0, "")
    done = run(folder, "models", "--json", **home)
    assert (done.returncode, done.stderr) == (0, "")
    own = folder / "temporary" / f"slipstream-{os.getuid()}"
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert [path.name[:5] for path in (own / "slipstream").iterdir()] == ["cost-"]
    assert Path(json.loads(done.stdout)["default"]["path"]).parent == own / "slipstream"


def test_nothing_is_kept_where_nothing_can_be_kept(folder: Path, tiny_path: Path) -> None:
    shared = folder / "temporary" / f"slipstream-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o777)
    done = run(folder, "generate", "hi", "--model", tiny_path, "--max-tokens", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert run(folder, "models").returncode == 0
    done = run(folder, "generate", "hi")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "SLIPSTREAM_CACHE" in done.stderr
    assert list((folder / "temporary").rglob("*")) == [shared]


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["generate", "hi", "--model", "~/model.gguf"], {}, "'~/model.gguf'"),
        (["generate", "hi", "--model", "org/name"], {"HF_HUB_OFFLINE": "1"}, "can't be reached"),
        (["models"], {"SLIPSTREAM_CACHE": "~/models"}, "SLIPSTREAM_CACHE is '~/models'"),
    ],
)
def test_a_home_directory_that_is_not_there(
    folder: Path, arguments: list[str], environment: dict[str, str], words: str
) -> None:
    done = run(folder, *arguments, **environment)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr
