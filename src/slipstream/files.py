"""Files of Slipstream's own: there whole or not at all; and the JSON records among them."""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.errors import OptionError

__all__ = ["read_record", "write_record", "write_whole"]


def write_whole(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Writes a file with these permissions, less the user's mask; what was there stays until all of it is written.
    Raises OSError."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


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
