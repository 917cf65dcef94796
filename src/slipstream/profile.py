"""Which drafter suits a model on this machine, as `slipstream tune drafters` found it and `Engine.load` takes it up."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream import cost, kernels
from slipstream.errors import OptionError
from slipstream.files import cache_directory, read_record
from slipstream.models.decoder import Decoder

__all__ = ["Profile", "identity", "key", "profile_path", "read_profile"]

VERSION = 1
"""Of the format."""

REMEDY = "delete it, and make it anew with slipstream tune drafters"


@dataclass(frozen=True, slots=True)
class Profile:
    """What requests use that ask for nothing else. num_speculative_tokens is None for the drafter's usual one."""

    drafter: str
    num_speculative_tokens: int | None


def key(target: Decoder, draft: Decoder | None) -> dict[str, object]:
    """All that a profile holds for: the models' files as they are now, their weights' precision, and what computes."""
    return {
        "version": VERSION,
        "target": identity(target),
        "draft_model": None if draft is None else identity(draft),
        "isa": kernels.isa(),
        "threads": kernels.threads(),
        "processor": cost.processor(),
    }


def profile_path(target: Decoder, draft: Decoder | None) -> Path:
    """Where the profile for these models lies, or is to be put: in the cache directory."""
    text = json.dumps(key(target, draft), sort_keys=True)
    return cache_directory() / f"drafter-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def read_profile(target: Decoder, draft: Decoder | None, drafters: Sequence[str]) -> Profile | None:
    """The profile for these models here; None where they weren't tuned. Raises OptionError for a damaged one, and for
    one that names none of these drafters."""
    path = profile_path(target, draft)
    if not path.exists():
        return None
    record = read_record(path, REMEDY)
    drafter, length = record.get("drafter"), record.get("num_speculative_tokens")
    if record.get("key") != key(target, draft) or not (length is None or (type(length) is int and length > 0)):
        raise OptionError(f"{path}: it is damaged: {REMEDY}")
    if not isinstance(drafter, str) or drafter not in drafters:
        raise OptionError(f"{path}: there is no drafter {drafter!r:.80} here: {REMEDY}")
    return Profile(drafter, length)


def identity(model: Decoder) -> dict[str, object]:
    """Which weights a model runs on."""
    file = model.file.resolve()
    status = file.stat()
    return {"file": str(file), "bytes": status.st_size, "modified": status.st_mtime_ns, "dtype": model.dtype}
