"""What else the machine is doing while this process works."""

import os
import time
from pathlib import Path

__all__ = ["MOST_IN_USE", "Watch", "busy_seconds"]

MOST_IN_USE = 0.2
"""A machine on which others use more processors than this isn't quiet."""


def busy_seconds() -> float | None:
    """Seconds that the machine's processors have worked since it started, all together; None off Linux."""
    try:
        of_all = Path("/proc/stat").read_text().partition("\n")[0]
        user, nice, system, _idle, _waiting, *rest = map(int, of_all.split()[1:])
        # The rest: interrupts, and what other virtual machines took.
        return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


class Watch:
    """Tells how busy others keep the machine from its making on."""

    def __init__(self) -> None:
        self._begin = self._now()

    def others(self) -> float | None:
        """Processors in use by others until now, on average; None where the system doesn't tell."""
        (before, busy_before, own_before), (now, busy, own) = self._begin, self._now()
        if busy is None or busy_before is None or now <= before:
            return None
        return max(0.0, (busy - busy_before) - (own - own_before)) / (now - before)

    @staticmethod
    def _now() -> tuple[float, float | None, float]:
        """The time, the machine's work and our own, with that of processes that we started and that have ended."""
        return time.monotonic(), busy_seconds(), sum(os.times()[:4])
