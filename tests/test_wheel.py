"""The wheel in dist/, as a user gets it: installed without a compiler, used far from the checkout."""

import json
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.kernels import available_isas

pytestmark = pytest.mark.wheel
ROOT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).with_name("uv")
PINNED = ["--constraint", ROOT / "constraints.txt"]
ISAS = {"x86_64": ["avx2", "avxvnni", "avx512", "avx512vnni"], "aarch64": ["neon", "neondot"], "arm64": ["neon"]}

Run = Callable[..., str]


@pytest.fixture(scope="module")
def wheel() -> Path:
    [wheel] = (ROOT / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module", params=["pip", "uv"])
def installed(
    request: pytest.FixtureRequest, wheel: Path, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """Runs a command of a new environment that the wheel was installed into, and returns what it prints."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "cache").mkdir()
    (folder / "cache" / smollm2_path.name).symlink_to(smollm2_path)
    binaries = folder / "env" / "bin"
    environment = os.environ | {
        "PATH": str(binaries),  # no compiler, no CMake
        "CC": "/bin/false",
        "CXX": "/bin/false",
        "SLIPSTREAM_CACHE": str(folder / "cache"),
    }

    def run(*command: str | Path) -> str:
        outcome = subprocess.run(
            [binaries / command[0], *command[1:]], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout

    if request.param == "pip":
        run(sys.executable, "-m", "venv", folder / "env")
        run("python", "-m", "pip", "install", *PINNED, wheel)
    else:
        run(UV, "venv", "--no-python-downloads", "--python", sys.executable, folder / "env")
        run(UV, "pip", "install", "--python", binaries / "python", *PINNED, wheel)
    return run


def test_the_demo(installed: Run) -> None:
    assert "Every answer is the same with and without the drafter." in " ".join(installed("slipstream", "demo").split())


def test_an_answer(installed: Run) -> None:
    answer = json.loads(installed("slipstream", "generate", "--max-tokens", "8", "--json", "Name three rivers."))
    assert answer["text"]


def test_it_is_the_installed_package_that_runs(installed: Run) -> None:
    code = "import slipstream.kernels as kernels; print(kernels.__file__, *kernels.available_isas())"
    path, *isas = installed("python", "-c", code).split()
    assert ROOT not in Path(path).parents
    assert isas == available_isas()


def test_its_types_are_known_to_mypy(installed: Run, tmp_path: Path) -> None:
    user = tmp_path / "user.py"
    user.write_text("from slipstream import Engine\n\ntext: int = Engine.load().generate('Hello').text\n")
    python = installed("python", "-c", "import sys; print(sys.executable)").strip()
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "--cache-dir", os.devnull, user]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert said.splitlines()[0].endswith('expression has type "str", variable has type "int")  [assignment]')
    assert "Found 1 error in 1 file" in said


def test_what_is_inside(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [extension] = [name for name in names if Path(name).suffix in (".so", ".pyd")]
        code = archive.read(extension)
    assert {"slipstream/py.typed", "slipstream/kernels/_native.pyi", "slipstream/tools/report/report.html"} <= {*names}
    assert {Path(name).parts[0].split("-")[0] for name in names} == {"slipstream"}
    assert [isa for isa in ["portable", *ISAS[platform.machine()]] if f"{isa}\0".encode() not in code] == []
    assert sys.platform != "linux" or "manylinux" in wheel.name
    assert ("abi3" in wheel.name) == (sys.version_info >= (3, 12))
