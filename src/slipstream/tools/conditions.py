"""Was the machine quiet while something was measured? What is recorded with the figures, and said where it wasn't."""

import os
import subprocess
import sys
from dataclasses import dataclass

from slipstream.tools.environment import describe

__all__ = ["Conditions", "peak_memory_bytes", "read_bandwidth_apart"]

MOST_LOAD = 0.5
MOST_BANDWIDTH_CHANGE = 0.15
MOST_SPEED_CHANGE = 0.10


@dataclass(frozen=True, slots=True)
class Conditions:
    """How busy the machine was before the model was loaded, which is work itself.

    load_average     processes that wanted to run, on average over the last minute; None where the system doesn't tell
    read_bandwidth   10^9 bytes a second
    """

    load_average: float | None
    read_bandwidth: float

    @classmethod
    def now(cls) -> "Conditions":
        load_average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        return cls(load_average, read_bandwidth_apart())

    def environment(self, speeds: tuple[float, float] | None = None) -> dict[str, object]:
        """The record of machine and conditions, once all is measured.

        speeds  tokens a second of the same piece of work early and late in the measurement

        `quiet` is whether nothing hints at other work on the machine; `warnings` says in words what does.
        """
        after = read_bandwidth_apart()
        warnings = []
        if self.load_average is not None and self.load_average > MOST_LOAD:
            warnings.append(f"the machine was busy at the start: its load average was {self.load_average:.1f}")
        if _differ(self.read_bandwidth, after, MOST_BANDWIDTH_CHANGE):
            warnings.append(f"the read bandwidth was {self.read_bandwidth:.1f} GB/s before and {after:.1f} GB/s after")
        if speeds and _differ(*speeds, MOST_SPEED_CHANGE):
            warnings.append("the same plain decoding ran at {:.1f} tokens/s early and {:.1f} late".format(*speeds))
        return {
            **describe(),
            "load_average": self.load_average,
            "read_bandwidth_gbps": {"before": self.read_bandwidth, "after": after},
            "quiet": not warnings,
            "warnings": warnings,
        }


def read_bandwidth_apart() -> float:
    """bench_kernels.read_bandwidth, from a process of its own: what it reads counts for nothing in this one's peak."""
    code = "from slipstream.tools.bench_kernels import read_bandwidth; print(read_bandwidth())"
    return float(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout)


def peak_memory_bytes() -> int | None:
    """The most memory that this process has had resident so far; None where the system doesn't tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _differ(one: float, other: float, share: float) -> bool:
    return abs(one - other) > share * max(one, other)
