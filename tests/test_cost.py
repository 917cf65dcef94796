"""The cost curve: what it says between and beyond its points, how it follows what it is told, and its file."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream import Engine, cost
from slipstream.cost import CostCurve, cached


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


def test_the_file_is_used_again_for_the_same_key_alone(tmp_path: Path) -> None:
    measured: list[str] = []

    def measure(name: str) -> dict[int, float]:
        measured.append(name)
        return {1: 1.0, 2: 2.0}

    for name in ("a", "a", "b", "a", "b"):
        assert cached(tmp_path / "new", {"model": name}, lambda name=name: measure(name)).points() == {1: 1.0, 2: 2.0}
    assert measured == ["a", "b"]


@pytest.mark.parametrize(
    "damaged",
    ["", "{", "[]", "null", '{"key": {"model": "a"}}', '{"key": {"model": "a"}, "seconds": {}}']
    + [json.dumps({"key": {"model": "a"}, "seconds": seconds}) for seconds in ({"1": -1}, {"x": 1}, {"1": None}, [1])],
)
def test_a_damaged_file_is_measured_anew(tmp_path: Path, damaged: str) -> None:
    cached(tmp_path, {"model": "a"}, lambda: {1: 1.0})
    (file,) = tmp_path.iterdir()
    file.write_text(damaged)
    assert cached(tmp_path, {"model": "a"}, lambda: {1: 7.0})(1) == 7.0
    assert cached(tmp_path, {"model": "a"}, lambda: {1: 8.0})(1) == 7.0  # and written again


def test_a_directory_that_cannot_be_written_costs_a_measurement(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert cached(tmp_path / "file", {}, lambda: {1: 1.0})(1) == 1.0


def test_a_measured_model(tiny_models: dict[str, Path]) -> None:
    seconds = cost.measure(Engine.load(tiny_models["llama"], drafter="null").target)
    assert tuple(seconds) == cost.ROWS
    assert all(value > 0 for value in seconds.values())
