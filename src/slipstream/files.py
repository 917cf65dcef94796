"""Files of Slipstream's own: where they are kept; there whole or not at all; JSON records among them; locks."""

import errno
import json
import os
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from slipstream.errors import OptionError

__all__ = ["NOWHERE", "cache_directory", "locked", "read_record", "user_cache", "write_record", "write_whole"]

LOCK_SECONDS = 60
"""Longest wait for a lock: writing takes far less."""

NOWHERE = Path(os.devnull, "slipstream")
"""A directory that can't be: no file is found in it, and none can be written there."""


def cache_directory() -> Path:
    """Where Slipstream keeps what can be had again: $SLIPSTREAM_CACHE, else user_cache("slipstream").

    Raises OptionError where SLIPSTREAM_CACHE begins with the home directory of a user who has none.
    """
    own = os.environ.get("SLIPSTREAM_CACHE")
    if not own:
        return user_cache("slipstream")
    directory = Path(os.path.expanduser(own))
    if directory.parts[:1] == ("~",):
        raise OptionError(f"SLIPSTREAM_CACHE is {own!r}, and this user has no home directory: give a path without ~")
    return directory


def user_cache(name: str) -> Path:
    """The directory of this name under $XDG_CACHE_HOME, else under ~/.cache.

    Where that isn't there and can't be made, as in a container without a home directory, it is the one under
    slipstream-UID in the system's temporary directory, which is made here for this user alone; NOWHERE if even that
    can't be had, or if it is somebody else's.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    usual = Path(base, name)
    if os.path.isabs(base) and (os.access(usual, os.R_OK | os.X_OK) or _can_be_made(usual)):
        return usual
    temporary = _temporary_directory()
    return temporary / name if temporary else NOWHERE


def _can_be_made(directory: Path) -> bool:
    parent = next((parent for parent in directory.parents if os.path.exists(parent)), directory)
    return os.path.isdir(parent) and os.access(parent, os.W_OK | os.X_OK)


def _temporary_directory() -> Path | None:
    """This user's own; others can make theirs there too, so who owns it is looked at."""
    user = os.getuid() if hasattr(os, "getuid") else None  # on Windows the temporary directory is the user's own
    try:
        directory = Path(tempfile.gettempdir(), "slipstream" if user is None else f"slipstream-{user}")
        directory.mkdir(mode=0o700, exist_ok=True)
        state = directory.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(state.st_mode) and (user is None or (state.st_uid == user and not state.st_mode & 0o077))
    return directory if is_own else None


def write_whole(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Writes a file; what was there stays until all of it is written. Raises OSError.

    A new file gets these permissions, less the user's mask; one that was there keeps its own, and its owner where this
    process may set one. A symbolic link stays and leads to the new content. What isn't a regular file, such as a pipe,
    or what standard output or error go to already, gets the data at its end.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        status = None
    if status and (not stat.S_ISREG(status.st_mode) or _is_standard_stream(status)):
        with path.open("ab") as stream:
            stream.write(data)
        return
    target = path.resolve()
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
        if status:
            if hasattr(os, "chown"):
                with suppress(PermissionError):
                    os.chown(unfinished, status.st_uid, status.st_gid)
            unfinished.chmod(stat.S_IMODE(status.st_mode))
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps out other processes that lock the same file, by a lock file beside it, which stays. Raises OSError."""
    from filelock import FileLock, Timeout  # slow to import

    target = path.resolve()
    target.parent.stat()  # the lock's own library would make the directory
    try:
        with FileLock(target.with_name(f"{target.name}.lock"), timeout=LOCK_SECONDS):
            yield
    except Timeout:
        raise TimeoutError(errno.ETIMEDOUT, f"another process has kept it locked for {LOCK_SECONDS} s") from None


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a JSON object, and the directory that it is to be in. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(record).encode())


def read_record(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in a file. Raises OptionError, naming the file and the remedy, where there is none."""
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise OptionError(f"{path}: can't be read: {error.strerror}: {remedy}") from None
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise OptionError(f"{path}: it is damaged: {remedy}")
    return record


def _is_standard_stream(status: os.stat_result) -> bool:
    for descriptor in (1, 2):
        with suppress(OSError):  # closed
            if os.path.samestat(status, os.fstat(descriptor)):
                return True
    return False
