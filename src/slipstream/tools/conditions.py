"""Was the machine quiet while something was measured? What is recorded with the figures, and said where it wasn't."""

import subprocess
import sys
import time
from dataclasses import dataclass

from slipstream.machine import MOST_IN_USE, Watch
from slipstream.tools.environment import describe

__all__ = ["Conditions", "apart", "peak_memory_bytes", "read_bandwidth_apart"]

MOST_BANDWIDTH_CHANGE = 0.15
MOST_SPEED_CHANGE = 0.10


@dataclass(frozen=True, slots=True)
class Conditions:
    """How busy the machine was before the model was loaded, which is work itself, and what watches it from then on.

    processors_in_use  by all that ran during a second in which this process didn't; None where the system doesn't tell
    read_bandwidth     10^9 bytes a second
    watch              begun once these were known; None where nothing watches
    """

    processors_in_use: float | None
    read_bandwidth: float
    watch: Watch | None = None

    @classmethod
    def now(cls) -> "Conditions":
        return cls(processors_in_use(), read_bandwidth_apart(), Watch())

    def environment(self, speeds: tuple[float, float] | None = None) -> dict[str, object]:
        """The record of machine and conditions, once all is measured.

        speeds  tokens a second of the same piece of work early and late in the measurement

        `quiet` is whether nothing hints at other work on the machine; `warnings` says in words what does.
        """
        others = self.watch.others() if self.watch else None
        after = read_bandwidth_apart()
        warnings = []
        if self.processors_in_use is not None and self.processors_in_use > MOST_IN_USE:
            warnings.append(f"the machine was busy at the start: {self.processors_in_use:.1f} processors were in use")
        if others is not None and others > MOST_IN_USE:
            warnings.append(f"the machine was busy meanwhile: others used {others:.1f} processors")
        if _differ(self.read_bandwidth, after, MOST_BANDWIDTH_CHANGE):
            warnings.append(f"the read bandwidth was {self.read_bandwidth:.1f} GB/s before and {after:.1f} GB/s after")
        if speeds and _differ(*speeds, MOST_SPEED_CHANGE):
            warnings.append("the same plain decoding ran at {:.1f} tokens/s early and {:.1f} late".format(*speeds))
        return {
            **describe(),
            "processors_in_use": self.processors_in_use,
            "processors_in_use_by_others": others,
            "read_bandwidth_gbps": {"before": self.read_bandwidth, "after": after},
            "quiet": not warnings,
            "warnings": warnings,
        }


def read_bandwidth_apart() -> float:
    """bench_kernels.read_bandwidth, from a process of its own: what it reads counts for nothing in this one's peak."""
    return float(apart("from slipstream.tools.bench_kernels import read_bandwidth; print(read_bandwidth())"))


def apart(code: str) -> str:
    """What Python code prints in a process of its own, which imports from where this one does: of itself, python -c
    would run modules of the current directory."""
    code = f"import sys; sys.path[:] = {sys.path!r}; {code}"
    return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout


def processors_in_use(seconds: float = 1.0) -> float | None:
    """How many processors worked in the next `seconds`, on average, while this process waits; None off Linux."""
    watch = Watch()
    time.sleep(seconds)
    return watch.others()


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
