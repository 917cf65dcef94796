"""What a pass costs: seconds by its rows, measured once a model and quiet machine, and corrected while running."""

import hashlib
import json
import platform
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import median

from slipstream.errors import OptionError
from slipstream.files import read_record, write_record
from slipstream.machine import MOST_IN_USE, Watch
from slipstream.models.decoder import Decoder, Segment

__all__ = ["ROWS", "CostCurve", "Measurement", "SavedCurve", "measure", "processor"]

ROWS = (1, 2, 4, 6, 8, 12, 16, 32, 64)
"""Where a curve is measured. A pass over more rows than the last is taken to go on with the same slope."""

ROUNDS, MOST_ROUNDS = 3, 6
"""How often, the fastest pass counting: a disturbed one is slower. The more rounds are for passes that don't agree."""

AGREE = 1.15
"""The fastest two passes over some rows agree if the slower takes at most this many times as long as the faster."""

MOST_OCCASIONS = 5
"""How often a curve is measured on a machine that isn't quiet; then it is taken as it is."""

AGAIN = 60.0
"""Seconds from such a measurement to the next, while the curve is in use."""

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
        self._seconds = _rising(seconds)
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

    def restart(self, seconds: Mapping[int, float]) -> None:
        """Takes the seconds of passes as they are now, at the same points, for what was known before."""
        self._seconds = [each / self.level for each in _rising(seconds)]
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


def _rising(seconds: Mapping[int, float]) -> list[float]:
    """The seconds in the order of their rows. A pass over more rows isn't faster: where it was measured to be, the one
    over fewer was disturbed."""
    return list(accumulate((seconds[rows] for rows in sorted(seconds, reverse=True)), min))[::-1]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of a pass by its rows; whether nothing hints at a disturbance; how often it took to come by it."""

    seconds: dict[int, float]
    steady: bool
    occasions: int = 1

    @property
    def settled(self) -> bool:
        return self.steady or self.occasions >= MOST_OCCASIONS


def measure(model: Decoder, most_logits: int = ROWS[-1]) -> Measurement:
    """Times passes: takes three seconds for a model of 1.5 billion weights of 4 bits, at most twice that where passes
    don't agree.

    On a machine that isn't quiet, what passes of one round take in proportion to each other is more to be relied on
    than the fastest of each: a burst of load may have slowed down all that go over many rows, and no other.

    most_logits: of how many rows logits are wanted at most. A draft model scores a row of each request; further rows
    are text that it reads.
    """
    rows = [count for count in ROWS if count < model.config.context_length]
    cache = model.new_cache(max(rows))
    rounds: list[dict[int, float]] = []
    watch = Watch()
    while len(rounds) < ROUNDS or (len(rounds) < MOST_ROUNDS and not _agree(rounds)):
        rounds.append({})
        for count in rows:
            started = time.perf_counter()
            model.forward([Segment.chain(cache, [0] * count, num_logits=min(count, most_logits))])
            rounds[-1][count] = time.perf_counter() - started
    fastest = {count: min(seconds[count] for seconds in rounds) for count in rows}
    others = watch.others()
    if _agree(rounds) and (others is None or others <= MOST_IN_USE):
        return Measurement(fastest, steady=True)
    one = rows[0]
    shape = {count: median(seconds[count] / seconds[one] for seconds in rounds) for count in rows}
    return Measurement({count: fastest[one] * shape[count] for count in rows}, steady=False)


def _agree(rounds: Sequence[Mapping[int, float]]) -> bool:
    """Whether the fastest two passes over every number of rows do."""
    for rows in rounds[0]:
        fastest, second, *_ = sorted(seconds[rows] for seconds in rounds)
        if second > AGREE * fastest:
            return False
    return True


class SavedCurve(CostCurve):
    """A curve that is measured once and kept in a file, or more often where the machine wasn't quiet.

    A file that can't be read or written costs a measurement, no more.
    """

    def __init__(self, directory: Path, key: Mapping[str, object], measure: Callable[[], Measurement]) -> None:
        """Reads what was measured for this key before, from a file in the directory; else measures, and saves it.

        key says all that the cost depends on: model, dtype, threads, processor, version.
        """
        text = json.dumps(key, sort_keys=True)
        self._key = json.loads(text)
        self._path = directory / f"cost-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        self._measure = measure
        found = self._read()
        if found is None or not found.settled:
            found = self._measured(0 if found is None else found.occasions)
        self._found = found
        self._due = time.monotonic() + AGAIN
        super().__init__(found.seconds)

    def measure_again(self) -> None:
        """Measures anew if the machine wasn't quiet before, at most once in AGAIN seconds. Nothing else may run."""
        if self._found.settled or time.monotonic() < self._due:
            return
        self._found = self._measured(self._found.occasions)
        self._due = time.monotonic() + AGAIN
        if self._found.steady:  # else what was observed of real passes is as good
            self.restart(self._found.seconds)

    def _measured(self, occasions: int) -> Measurement:
        found = replace(self._measure(), occasions=occasions + 1)
        record = {"key": self._key, "seconds": found.seconds, "steady": found.steady, "occasions": found.occasions}
        with suppress(OSError):
            write_record(self._path, record)
        return found

    def _read(self) -> Measurement | None:
        try:
            record = read_record(self._path, "it is measured anew")
            seconds = {int(rows): float(value) for rows, value in record["seconds"].items()}
            found = Measurement(seconds, record["steady"] is True, int(record["occasions"]))
        except (OptionError, ValueError, KeyError, TypeError, AttributeError):
            return None
        is_sound = record.get("key") == self._key and seconds and all(value > 0 for value in seconds.values())
        return found if is_sound else None
