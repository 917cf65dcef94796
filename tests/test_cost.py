"""The cost curve: what it says between and beyond its points, how it follows what it is told, and its file."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream import Engine, SamplingParams, cost
from slipstream.cost import CostCurve, Measurement, SavedCurve


def test_between_and_beyond_the_measured_points() -> None:
    curve = CostCurve({1: 1.0, 2: 1.5, 4: 2.0, 8: 4.0})
    assert [curve(rows) for rows in (0, 1, 2, 3, 4, 6, 8, 12)] == pytest.approx([1, 1, 1.5, 1.75, 2, 3, 4, 6])


def test_noise_never_makes_more_rows_cheaper() -> None:
    """What disturbs a pass makes it slower: the shorter time is the right one."""
    curve = CostCurve({1: 1.0, 2: 0.7, 4: 2.0})
    assert (curve(1), curve(2), curve(4)) == (0.7, 0.7, 2.0)


points = st.dictionaries(st.integers(1, 16), st.floats(1e-4, 10), min_size=1, max_size=6)


@given(points, st.lists(st.tuples(st.integers(1, 40), st.floats(1e-4, 10)), max_size=20))
def test_it_stays_positive_and_monotone(seconds: dict[int, float], passes: list[tuple[int, float]]) -> None:
    curve = CostCurve(seconds)
    for rows, took in passes:
        curve.observe(rows, took)
    seconds_by_rows = [curve(rows) for rows in range(41)]
    assert min(seconds_by_rows) > 0
    assert np.all(np.diff(seconds_by_rows) >= -1e-12)


def test_it_follows_a_slower_machine_and_forgives_one_slow_pass() -> None:
    curve = CostCurve({1: 1.0, 8: 2.0})
    curve.observe(1, 50.0)
    assert curve(1) < 1.25
    for _ in range(60):
        curve.observe(1, 3.0)
    assert curve(1) == pytest.approx(3, rel=0.02)
    assert 1.75 < curve(8) / curve(1) < 2.0  # the points that passes were seen at moved a little more


def test_a_measurement_on_a_busy_machine_is_soon_forgotten() -> None:
    curve = CostCurve({1: 0.03, 8: 0.06})
    for _ in range(3):
        curve.observe(1, 0.015)
    assert curve(1) < 0.02


def test_it_learns_another_shape() -> None:
    curve = CostCurve({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0})
    for _ in range(300):
        curve.observe(1, 1.0)
        curve.observe(8, 4.0)
    assert curve(8) / curve(1) == pytest.approx(4, rel=0.1)


def test_a_prompt_s_pass_tells_nothing() -> None:
    curve = CostCurve({1: 1.0, 8: 2.0})
    curve.observe(256, 1000.0)
    assert curve.points() == {1: 1.0, 8: 2.0}


def test_a_new_measurement_counts_in_place_of_the_old() -> None:
    curve = CostCurve({1: 1.0, 8: 2.0})
    for _ in range(9):
        curve.observe(1, 1.4)
    level = curve.level
    curve.restart({1: 1.1, 8: 1.5})
    assert curve.points() == pytest.approx({1: 1.1, 8: 1.5})
    assert (curve.level, curve(8)) == (level, pytest.approx(1.5))


# Measuring ------------------------------------------------------------------------------------------------------------


def true_seconds(rows: int) -> float:
    """What passes of the made-up model take on a quiet machine: 3.1 s for a round of all."""
    return 0.1 + 0.01 * rows if rows > 4 else 0.1 + 0.005 * rows


class Machine:
    """A machine with a clock of its own, on which passes take `slowness` times as long at a moment in seconds."""

    def __init__(self, slowness: Callable[[float], float], others: float | None = 0.0) -> None:
        self.config = SimpleNamespace(context_length=4096)
        self.now = self.worked = 0.0
        self.slowness = slowness
        self.in_use = others

    def new_cache(self, capacity: int) -> Any:
        return SimpleNamespace(length=0)

    def forward(self, segments: list[Any]) -> None:
        seconds = true_seconds(len(segments[0].tokens)) * self.slowness(self.now)
        self.now += seconds
        self.worked += seconds

    def others(self) -> float | None:
        return self.in_use

    def perf_counter(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


ROUND = sum(map(true_seconds, cost.ROWS))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], Any]:
    """Puts a machine in the place of this one; returns it as a model."""

    def on(machine: Machine) -> Any:
        monkeypatch.setattr(cost, "time", machine)
        monkeypatch.setattr(cost, "Watch", lambda: machine)
        return machine

    return on


def during(begin: float, end: float, slowness: float = 4.0) -> Callable[[float], float]:
    """A burst of load, from and to a moment in rounds of a quiet machine."""
    return lambda now: slowness if begin * ROUND <= now < end * ROUND else 1.0


def shape(seconds: Mapping[int, float]) -> dict[int, float]:
    return {rows: each / seconds[1] for rows, each in seconds.items()}


TRUE = {rows: true_seconds(rows) for rows in cost.ROWS}


def test_a_quiet_machine_is_measured_in_three_rounds(on: Callable[[Machine], Any]) -> None:
    draws = random.Random(0)
    machine = Machine(lambda now: draws.uniform(1.0, 1.08))
    found = cost.measure(on(machine))
    assert found.steady
    assert found.seconds == pytest.approx(TRUE, rel=0.09)
    assert machine.worked < 3 * 1.09 * ROUND
    assert cost.measure(on(Machine(lambda now: 1.0, others=None))).steady  # where the system doesn't tell


@pytest.mark.parametrize("begin", [0.0, 0.3, 0.6, 1.0, 1.7, 2.5])
@pytest.mark.parametrize("length", [0.2, 1.0, 4.0, 6.0])
def test_a_burst_of_load_during_a_part_of_the_measurement(
    on: Callable[[Machine], Any], begin: float, length: float
) -> None:
    """However it falls, it makes more rows no dearer than they are; that takes twice as many rounds at most."""
    found = cost.measure(on(Machine(during(begin, begin + length))))
    assert shape(found.seconds) == pytest.approx(shape(TRUE), rel=0.35)
    if length <= 1.0:
        assert found.steady
        assert found.seconds == pytest.approx(TRUE)


def test_a_burst_that_begins_in_the_midst_and_stays(on: Callable[[Machine], Any]) -> None:
    """The fastest passes are those over few rows before it and those over many rows in it: never to be compared."""
    machine = Machine(during(0.2, 1000))
    found = cost.measure(on(machine))
    assert not found.steady
    assert shape(found.seconds) == pytest.approx(shape(TRUE))
    assert machine.worked < cost.MOST_ROUNDS * 4 * ROUND


def test_load_during_all_of_it(on: Callable[[Machine], Any]) -> None:
    found = cost.measure(on(Machine(during(0, 1000), others=1.3)))
    assert not found.steady
    assert shape(found.seconds) == pytest.approx(shape(TRUE))
    curve = CostCurve(found.seconds)
    for _ in range(16):
        curve.observe(1, true_seconds(1))
    assert curve(1) == pytest.approx(true_seconds(1), rel=0.15)  # the level follows while running


def test_load_that_comes_and_goes_during_all_of_it(on: Callable[[Machine], Any]) -> None:
    draws = random.Random(3)
    found = cost.measure(on(Machine(lambda now: draws.choice([1.0, 2.0, 4.0]), others=0.8)))
    assert not found.steady
    assert shape(found.seconds)[8] < 3.5 * shape(TRUE)[8]


# The file -------------------------------------------------------------------------------------------------------------


def steady(seconds: dict[int, float]) -> Callable[[], Measurement]:
    return lambda: Measurement(seconds, steady=True)


def test_the_file_is_used_again_for_the_same_key_alone(tmp_path: Path) -> None:
    measured: list[str] = []

    def measure(name: str) -> Measurement:
        measured.append(name)
        return Measurement({1: 1.0, 2: 2.0}, steady=True)

    for name in ("a", "a", "b", "a", "b"):
        curve = SavedCurve(tmp_path / "new", {"model": name}, lambda name=name: measure(name))
        assert curve.points() == {1: 1.0, 2: 2.0}
    assert measured == ["a", "b"]


@pytest.mark.parametrize(
    "damaged",
    ["", "{", "[]", "null", '{"key": {"model": "a"}}', '{"key": {"model": "a"}, "seconds": {"1": 3}}']
    + [
        json.dumps({"key": {"model": "a"}, "steady": True, "occasions": 1, "seconds": {"1": 3}} | changes)
        for changes in (
            *({"seconds": seconds} for seconds in ({}, {"1": -1}, {"x": 1}, {"1": None}, [1])),
            {"steady": False, "occasions": "many"},
            {"key": {"model": "b"}},
        )
    ],
)
def test_a_damaged_file_is_measured_anew(tmp_path: Path, damaged: str) -> None:
    SavedCurve(tmp_path, {"model": "a"}, steady({1: 1.0}))
    (file,) = tmp_path.iterdir()
    file.write_text(damaged)
    assert SavedCurve(tmp_path, {"model": "a"}, steady({1: 7.0}))(1) == 7.0
    assert SavedCurve(tmp_path, {"model": "a"}, steady({1: 8.0}))(1) == 7.0  # and written again


def test_a_directory_that_cannot_be_written_costs_a_measurement(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert SavedCurve(tmp_path / "file", {}, steady({1: 1.0}))(1) == 1.0


def test_a_curve_of_a_busy_machine_is_measured_again_at_the_next_start(
    on: Callable[[Machine], Any], tmp_path: Path
) -> None:
    machine = Machine(during(0.2, 1000), others=1.3)
    SavedCurve(tmp_path, {}, lambda: cost.measure(on(machine)))
    machine = Machine(lambda now: 1.0)
    assert SavedCurve(tmp_path, {}, lambda: cost.measure(on(machine))).points() == pytest.approx(TRUE)
    machine = Machine(lambda now: 9.0)
    assert SavedCurve(tmp_path, {}, lambda: cost.measure(on(machine))).points() == pytest.approx(TRUE)
    assert machine.worked == 0


def test_a_machine_that_is_always_busy_is_not_measured_for_ever(tmp_path: Path) -> None:
    measured = []

    def measure() -> Measurement:
        measured.append(1)
        return Measurement({1: float(len(measured))}, steady=False)

    for _ in range(9):
        curve = SavedCurve(tmp_path, {}, measure)
    assert len(measured) == curve(1) == cost.MOST_OCCASIONS


def test_a_process_that_began_on_a_busy_machine_measures_again_later(
    on: Callable[[Machine], Any], tmp_path: Path
) -> None:
    machine = Machine(during(0.2, 20), others=1.3)
    curve = SavedCurve(tmp_path, {}, lambda: cost.measure(on(machine)))
    worked = machine.worked
    curve.measure_again()
    assert machine.worked == worked  # not at once
    machine.now += cost.AGAIN
    machine.in_use = 0.0
    curve.measure_again()
    assert curve.points() == pytest.approx(TRUE)
    machine.now += cost.AGAIN
    worked = machine.worked
    curve.measure_again()
    assert machine.worked == worked
    assert SavedCurve(tmp_path, {}, steady({1: 9.0})).points() == pytest.approx(TRUE)


def test_a_process_on_a_machine_that_stays_busy_keeps_what_it_observed(
    tmp_path: Path, on: Callable[[Machine], Any]
) -> None:
    machine = on(Machine(lambda now: 1.0))
    curve = SavedCurve(tmp_path, {}, lambda: Measurement({1: 1.0, 8: 4.0}, steady=False))
    curve.observe(1, 0.8)
    observed = curve.points()
    for _ in range(9):
        machine.now += cost.AGAIN
        curve.measure_again()
    assert curve.points() == observed


def test_an_engine_measures_again_only_while_nothing_runs(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.load(tiny_models["llama"])
    running: list[int] = []
    monkeypatch.setattr(SavedCurve, "measure_again", lambda curve: running.append(len(engine.scheduler.running)))
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    outer = engine.stream("one", params)
    next(outer)
    assert running == [0]
    engine.generate("two", params)  # beside the first
    assert running == [0]
    list(outer)
    engine.generate("three", params)
    assert running == [0, 0]


def test_a_measured_model(tiny_models: dict[str, Path]) -> None:
    seconds = cost.measure(Engine.load(tiny_models["llama"], drafter="null").target).seconds
    assert tuple(seconds) == cost.ROWS
    assert all(value > 0 for value in seconds.values())
