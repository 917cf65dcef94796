"""How many processors this process may use: its affinity, and the CPU quota of its control groups on Linux."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

__all__ = ["available_processors"]


def available_processors(root: Path = Path("/")) -> int:
    """How many threads can run at once and go on running: at least 1.

    A quota is rounded to the nearest number, 1.5 up. Threads wait for each other, so some wait while the kernel has
    stopped others that are over the quota: on a quota of one processor, two threads decoded at 0.69 times the speed of
    one. At that rate another thread pays from about half a processor more.

    root  the directory that holds /proc and the control groups
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # neither macOS nor Windows has it
        count = os.cpu_count() or 1
    quota = min(_quotas(root), default=float(count))
    return max(1, int(min(quota, count) + 0.5))


def _quotas(root: Path) -> Iterator[float]:
    """The quota, in processors, of every control group that holds this process and has one."""
    for group in dict.fromkeys(_groups(root)):
        for read in (_quota_of_version_2, _quota_of_version_1):
            with suppress(OSError, ValueError):
                quota, period = read(group)
                if quota > 0 and period > 0:  # version 1 has -1 where there is no limit
                    yield quota / period


def _quota_of_version_2(group: Path) -> tuple[float, float]:
    quota, period = (group / "cpu.max").read_text().split()
    return float(quota.replace("max", "-1")), float(period)


def _quota_of_version_1(group: Path) -> tuple[float, float]:
    return float((group / "cpu.cfs_quota_us").read_text()), float((group / "cpu.cfs_period_us").read_text())


def _groups(root: Path) -> Iterator[Path]:
    """The directories of the control groups that hold this process, as far up as they are mounted here."""
    own = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if not controllers:
            own["cgroup2"] = PurePosixPath(name)
        elif "cpu" in controllers.split(","):
            own["cgroup"] = PurePosixPath(name)
    for kind, path in own.items():
        mounts = list(_mounts(root, kind))
        # In a container /proc may name a path that isn't mounted: what is mounted there then is the container's own.
        below = [(top, point) for top, point in mounts if path.is_relative_to(top) and ".." not in path.parts]
        for top, point in below or ((path, point) for _, point in mounts):
            inner = path.relative_to(top)
            for group in (inner, *inner.parents):
                yield root / point / group


def _mounts(root: Path, kind: str) -> Iterator[tuple[PurePosixPath, str]]:
    """Where control groups of this kind are mounted: which group is at the top of the mount, and the mount's place."""
    for line in _lines(root / "proc/self/mountinfo"):
        place, _, source = line.partition(" - ")
        with suppress(ValueError):
            _, _, _, top, point, *_ = place.split(" ")
            found, _, options = source.split(" ", 2)
            if found == kind and (kind == "cgroup2" or "cpu" in options.split(",")):
                yield PurePosixPath(_unescaped(top)), _unescaped(point).lstrip("/")


def _unescaped(text: str) -> str:
    """Text of mountinfo, in which a space is \\040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _lines(path: Path) -> Iterable[str]:
    with suppress(OSError, ValueError):
        return path.read_text().splitlines()
    return ()
