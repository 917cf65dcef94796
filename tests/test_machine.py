"""What others do on the machine, told apart from this process's own work."""

import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from slipstream import machine
from slipstream.machine import Watch, busy_seconds


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets time pass: seconds on the clock, worked by all processors, by this process and by its children."""
    clock = {"now": 100.0, "busy": 1000.0, "own": 10.0, "children": 5.0}
    monkeypatch.setattr(machine, "time", SimpleNamespace(monotonic=lambda: clock["now"]))
    monkeypatch.setattr(machine, "busy_seconds", lambda: clock["busy"])
    own = SimpleNamespace(times=lambda: (clock["own"], 1.0, clock["children"], 0.0, clock["now"]))
    monkeypatch.setattr(machine, "os", own)

    def passes(**seconds: float) -> None:
        for name, value in seconds.items():
            clock[name] += value

    return passes


def test_our_own_work_and_that_of_our_children_is_not_others(passes: Callable[..., None]) -> None:
    watch = Watch()
    assert watch.others() is None  # no time has passed
    passes(now=2.0, busy=4.0, own=3.0, children=1.0)
    assert watch.others() == 0.0
    passes(now=2.0, busy=3.0, own=0.0)
    assert watch.others() == 0.75
    passes(own=4.0)  # ticks are coarse
    assert watch.others() == 0.0


def test_a_system_that_does_not_tell(passes: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    passes(now=1.0)
    monkeypatch.setattr(machine, "busy_seconds", lambda: None)
    assert watch.others() is None
    assert Watch().others() is None


def test_the_system_s_own_figures() -> None:
    busy = busy_seconds()
    assert busy is None or busy > sum(os.times()[:2])
