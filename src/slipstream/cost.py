"""What a pass costs: seconds by its rows, measured once a model and machine, and corrected while running."""

import hashlib
import json
import platform
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import accumulate
from math import inf
from pathlib import Path

from slipstream.errors import OptionError
from slipstream.files import read_record, write_record
from slipstream.models.decoder import Decoder, Segment

__all__ = ["ROWS", "CostCurve", "cached", "measure", "processor"]

ROWS = (1, 2, 4, 6, 8, 12, 16, 32, 64)
"""Where a curve is measured. A pass over more rows than the last is taken to go on with the same slope."""

ROUNDS = 3
"""How often, the faster pass counting: a disturbed one is slower."""

FORGET = 0.2
"""Weight of a new pass in the level of the curve, which follows the context's growth and the machine's mood; that of
the first ones is as in a mean, with what was measured earlier as one of them."""

RESHAPE = 0.02
"""Weight of a new pass in the curve's shape: so little that plain decoding, whose passes are all of one row, doesn't
make one row seem cheap, and more of them dear, when the machine becomes faster."""

FARTHEST = 1.5
"""A pass that took so many times longer or shorter than expected was disturbed: it counts as this much off."""


class CostCurve:
    """Seconds of a pass over r rows, piecewise linear between measured points; call it with r, 0 included.

    In plain Python: a pass leaves cold caches behind, in which each call into NumPy takes tens of microseconds.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        """seconds: those of a pass, by its rows; at least one point."""
        self.rows = sorted(seconds)
        """The measured points."""
        # A pass over more rows isn't faster: where it was measured to be, the one over fewer was disturbed.
        self._seconds = list(accumulate((seconds[rows] for rows in reversed(self.rows)), min))[::-1]
        self.level = 1.0
        """How many times as long as was measured passes take by now."""
        self._observed = 0  # passes
        self._shape: list[float] = []  # seconds at level 1, by rows, as far as they were asked for

    def __call__(self, rows: int) -> float:
        while len(self._shape) <= rows:
            self._shape.append(self._interpolated(len(self._shape)))
        return self.level * self._shape[rows]

    def observe(self, rows: int, seconds: float) -> None:
        """Takes in what a pass over so many rows took. One far larger than was measured, as over a prompt, tells
        nothing of those that the curve is for."""
        if rows > 2 * self.rows[-1]:
            return
        ratio = min(FARTHEST, max(1 / FARTHEST, seconds / self(rows)))
        self._observed += 1
        self.level *= ratio ** max(FORGET, 1 / (1 + self._observed))
        after = bisect_left(self.rows, rows)
        for point in {max(0, after - 1), min(after, len(self.rows) - 1)}:
            near = 1 - min(1.0, abs(self.rows[point] - rows) / max(1.0, rows))
            self._seconds[point] *= ratio ** (RESHAPE * near)
        self._seconds = list(accumulate(self._seconds, max))
        self._shape.clear()

    def points(self) -> dict[int, float]:
        """The measured points as they stand, seconds by rows."""
        return {rows: seconds * self.level for rows, seconds in zip(self.rows, self._seconds, strict=True)}

    def _interpolated(self, rows: int) -> float:
        after = bisect_left(self.rows, rows)
        if after == 0 or len(self.rows) == 1:
            return self._seconds[0]
        after = min(after, len(self.rows) - 1)
        left, right = self.rows[after - 1], self.rows[after]
        slope = (self._seconds[after] - self._seconds[after - 1]) / (right - left)
        return self._seconds[after - 1] + slope * (rows - left)


def processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def measure(model: Decoder, most_logits: int = ROWS[-1]) -> dict[int, float]:
    """Seconds of a pass by its rows: takes three seconds for a model of 1.5 billion weights of 4 bits.

    Noise is no great matter: what passes take is observed all the time afterwards. most_logits: of how many rows logits
    are wanted at most. A draft model scores a row of each request; further rows are text that it reads.
    """
    rows = [count for count in ROWS if count < model.config.context_length]
    cache = model.new_cache(max(rows))
    seconds: dict[int, float] = {}
    for count in rows * ROUNDS:
        started = time.perf_counter()
        model.forward([Segment.chain(cache, [0] * count, num_logits=min(count, most_logits))])
        seconds[count] = min(seconds.get(count, inf), time.perf_counter() - started)
    return seconds


def cached(directory: Path, key: Mapping[str, object], measure: Callable[[], dict[int, float]]) -> CostCurve:
    """The curve that was measured for this key before, from a file in the directory; else measured now, and saved.

    key says all that the cost depends on: model, dtype, threads, processor, version. A file that can't be read or
    written costs a measurement, no more.
    """
    text = json.dumps(key, sort_keys=True)
    path = directory / f"cost-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    try:
        record = read_record(path, "it is measured anew")
        if record["key"] == json.loads(text):
            seconds = {int(rows): float(value) for rows, value in record["seconds"].items()}
            if seconds and all(value > 0 for value in seconds.values()):
                return CostCurve(seconds)
    except (OptionError, ValueError, KeyError, TypeError, AttributeError):
        pass
    seconds = measure()
    with suppress(OSError):
        write_record(path, {"key": key, "seconds": seconds})
    return CostCurve(seconds)
