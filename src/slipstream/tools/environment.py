"""Where a measurement was made, for the record beside its figures."""

import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from slipstream import cost, kernels

__all__ = ["describe", "last_level_cache_bytes"]


def describe() -> dict[str, object]:
    """Processor, instruction set in use, threads, versions, date (ISO 8601, UTC) and commit (None without a
    checkout), as JSON types."""
    return {
        "processor": cost.processor(),
        "isa": kernels.isa(),
        "threads": kernels.threads(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{package: version(package) for package in ("slipstream", "numpy", "tokenizers")},
        "commit": _commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def last_level_cache_bytes() -> int:
    """Size of the largest processor cache; 32 MiB where the system doesn't tell."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes, default=32 * 2**20)


def _commit() -> str | None:
    """What `git describe` says of the checkout that this package runs from."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--tags", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git here, or not our checkout
        return None
