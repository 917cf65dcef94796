"""The plan: on made-up costs it says what the arithmetic does, and counts the memory that models really take."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream import Engine, OptionError
from slipstream.cli import cli, main
from slipstream.cost import CostCurve
from slipstream.models.checkpoint import open_checkpoint
from slipstream.tools import conditions as conditions_module
from slipstream.tools import plan as module
from slipstream.tools.conditions import Conditions
from slipstream.tools.plan import (
    ACCEPTANCES,
    BATCH_SIZES,
    LENGTHS,
    Memory,
    PassCost,
    advice,
    available_memory,
    best_length,
    break_even,
    cache_bytes,
    check_weights_fit,
    crossover,
    formula,
    measure_cost,
    plan,
    plan_source,
    speedup,
    weight_bytes,
)

QUIET = Conditions(processors_in_use=0.0, read_bandwidth=20.0)

acceptances = st.floats(0, 0.99)
lengths = st.sampled_from(LENGTHS)


def flat(requests: int, rows: int) -> float:
    return 2.0


def by_rows(requests: int, rows: int) -> float:
    return 3.0 * requests * rows


def nearly_by_rows(requests: int, rows: int) -> float:
    """With what 97% of all drafts being right gives."""
    return 1.0 + 0.88 * (requests * rows - 1)


def bound(requests: int, rows: int) -> float:
    """As passes are: by memory up to 16 rows, then by arithmetic."""
    return max(1.0, requests * rows / 16)


def a_cost(seconds: float) -> module.Cost:
    return lambda requests, rows: seconds


# Speed ----------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(acceptances, lengths)
def test_flat_passes_and_free_drafts_give_the_formula(acceptance: float, length: int) -> None:
    expected = (1 - acceptance ** (length + 1)) / (1 - acceptance)
    assert speedup(acceptance, length, flat) == pytest.approx(expected)
    assert formula(acceptance, length) == pytest.approx(expected)


@settings(deadline=None)
@given(acceptances, lengths, st.floats(0, 2))
def test_flat_passes_and_a_draft_model_give_the_formula(acceptance: float, length: int, relative_cost: float) -> None:
    expected = (1 - acceptance ** (length + 1)) / ((1 - acceptance) * (length * relative_cost + 1))
    assert formula(acceptance, length, relative_cost) == pytest.approx(expected)
    assert speedup(acceptance, length, flat, a_cost(2 * relative_cost)) == pytest.approx(expected)


def test_all_accepted() -> None:
    assert formula(1.0, 4) == 5
    assert formula(1.0, 4, 0.25) == 2.5


@settings(deadline=None)
@given(st.floats(0, 1), st.sampled_from(BATCH_SIZES))
def test_passes_that_cost_their_rows_gain_nothing(acceptance: float, requests: int) -> None:
    assert all(speedup(acceptance, length, by_rows, requests=requests) <= 1 + 1e-9 for length in LENGTHS)
    assert best_length(acceptance, by_rows, requests=requests) == (0, 1.0)
    assert crossover(acceptance, by_rows) == 1
    assert break_even(by_rows) is None


def test_a_speedup_by_hand() -> None:
    costs = PassCost(CostCurve({1: 1.0, 2: 1.5, 8: 4.5}), CostCurve({1: 0.25, 2: 0.5}))
    assert costs(1, 1) == 1.25
    assert costs(2, 2) == 2.5 + 2 * 0.5  # four rows through the weights, and two contexts
    # Two requests, each of one drafted token and its own, in 3.5 seconds and 0.5 for the draft. Without one of them, a
    # plain pass takes 1.25 seconds instead of 2: a drafted token is worth the mean of that, 0.75 times the half, and 1.
    assert speedup(0.5, 1, costs, a_cost(0.5), requests=2) == pytest.approx((1 + 0.875 * 0.5) * 2.0 / 4.0)


def test_the_best_length_is_the_best() -> None:
    draft = a_cost(0.1)
    length, gain = best_length(0.8, bound, draft)
    assert gain == max(speedup(0.8, other, bound, draft) for other in LENGTHS) == speedup(0.8, length, bound, draft)
    assert 1 < length < 16
    assert best_length(0.8, bound, draft, requests=16) == (0, 1.0)
    assert best_length(0.04, flat) == (0, 1.0)  # a gain, but less than auto asks for


points = st.lists(st.floats(0.1, 10), min_size=5, max_size=5)


@settings(deadline=None)
@given(points, st.floats(0, 1), st.floats(0, 1), st.none() | st.floats(0.01, 1))
def test_the_crossover_rises_with_acceptance(
    seconds: list[float], one: float, other: float, draft_seconds: float | None
) -> None:
    rows = CostCurve(dict(zip((1, 2, 4, 16, 64), seconds, strict=True)))
    target = PassCost(rows, CostCurve({1: 0.0}))
    draft = None if draft_seconds is None else a_cost(draft_seconds)
    low, high = (crossover(acceptance, target, draft) for acceptance in sorted((one, other)))
    assert high is None or (low is not None and low <= high)


def test_crossovers_by_hand() -> None:
    # A request less makes a plain pass no shorter: a drafted token is worth half a one.
    assert crossover(1.0, bound) == 12  # 11 requests: 1.5 tokens in 22 / 16 seconds; 12: in 24 / 16
    assert crossover(0.5, bound) == 10  # 9 requests: 1.25 tokens in 18 / 16 seconds; 10: in 20 / 16
    assert crossover(0.9, flat) is None


def test_the_break_even() -> None:
    assert break_even(flat) == pytest.approx(0.048, abs=0.002)  # the gain that auto asks for
    draft = a_cost(0.8)
    least = break_even(flat, draft)  # 0.4 of a pass: 1 + α must be 1.05 times 1.4
    assert least == pytest.approx(0.47, abs=0.002)
    assert best_length(least, flat, draft)[0]
    assert not best_length(least - 0.002, flat, draft)[0]
    assert break_even(flat, a_cost(2.0)) is None


def test_a_source_agrees_with_its_parts() -> None:
    source = plan_source(bound, a_cost(0.25))
    assert source["relative_cost"] == 0.25
    assert [found["acceptance"] for found in source["acceptances"]] == list(ACCEPTANCES)
    assert [batch["batch_size"] for batch in source["batches"]] == list(BATCH_SIZES)
    for at, found in enumerate(source["acceptances"]):
        alone = source["batches"][0]["acceptances"][at]
        assert alone == {key: found[key] for key in alone}
        best = max(found["lengths"], key=lambda each: each["formula"])
        assert found["formula"]["speedup"] == max(1.0, best["formula"])
    assert plan_source(flat)["relative_cost"] == 0
    assert plan_source(flat, flat)["acceptances"][0]["formula"] == {"num_speculative_tokens": 0, "speedup": 1.0}


@pytest.mark.parametrize(
    ("target", "draft", "words"),
    [
        (flat, None, ["Lookup pays from an acceptance of 0.05 on", "Lookup pays in batches up to 32"]),
        (by_rows, None, ["Lookup never pays here"]),
        (nearly_by_rows, None, ["from an acceptance of 0.97 on", "doesn't pay at any acceptance from 0.2 to 0.95"]),
        (bound, None, ["Lookup ceases to pay in batches of 9 (acceptance 0.2) to 12 (0.95)"]),
        (flat, a_cost(0.8), ["costs 0.40 of a target pass: it needs an acceptance above 0.47"]),
        (flat, flat, ["costs 1.00 of a target pass: too much"]),
    ],
)
def test_the_advice_follows_from_the_costs(target: module.Cost, draft: module.Cost | None, words: list[str]) -> None:
    sentences = " ".join(advice({"draft_model" if draft else "lookup": plan_source(target, draft)}))
    assert all(part in sentences for part in words), sentences


def test_measured_costs(tmp_path: Path) -> None:
    model = Engine.load(tiny.make(tmp_path / "model")).target
    reports: list[tuple[int, int]] = []
    cost = measure_cost(model, 200, lambda *report: reports.append(report))
    assert reports[-1][0] == reports[-1][1]
    assert 0 < cost(1, 1) <= cost(1, 17) <= cost(32, 17)
    assert measure_cost(model, 1)(1, 1) > 0


# Memory ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal: 99 kB\nMemAvailable:   2000 kB\n"}, 2000 * 1024),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, None),
        (
            {
                "proc/meminfo": "MemAvailable: 2000 kB\n",
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/memory.max": "4096\n",
            },
            4096,
        ),
        ({"proc/self/cgroup": "0::/not/seen\n", "sys/fs/cgroup/memory.max": "4096\n"}, 4096),
        (
            {
                "proc/self/cgroup": "5:cpu:/x\n4:hugetlb,memory:/a\n0::/\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "5000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            5000,
        ),
    ],
)
def test_available_memory(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert available_memory(tmp_path) == expected


def test_requests_at_once() -> None:
    assert Memory(1000, 300, 100, 150, 50).requests == 3
    assert Memory(300, 300, 100, 150, 50).requests == 0
    assert Memory(None, 300, 100, 150, 50).requests is None


@pytest.mark.parametrize("dtype", ["auto", "f32", "bf16", "int8"])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_known_before_they_are_loaded(tmp_path: Path, dtype: str, tied: bool) -> None:
    path = tiny.make(tmp_path / "model", hidden_size=64, intermediate_size=96, tie_word_embeddings=tied)
    loaded = Engine.load(path, dtype=dtype, drafter="null").target
    assert weight_bytes(open_checkpoint(path), dtype) == pytest.approx(loaded.weight_bytes, rel=0.05)


def test_the_weights_of_a_quantised_file(smollm2_path: Path, smollm2: Engine) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    assert weight_bytes(checkpoint, "auto") == pytest.approx(smollm2.target.weight_bytes, rel=0.05)
    check_weights_fit(checkpoint, "auto", None)
    check_weights_fit(checkpoint, "auto", 10**9)
    with pytest.raises(OptionError, match=r"SmolLM2.* take 0\.1 GB, and 0\.0 GB .*use a smaller model"):
        check_weights_fit(checkpoint, "auto", 10**7)


@pytest.mark.parametrize("context", [1, 100, 256])
def test_the_bytes_of_a_cache(tmp_path: Path, context: int) -> None:
    model = Engine.load(tiny.make(tmp_path / "model"), drafter="null").target
    cache = model.new_cache(context)
    assert cache_bytes(model.config, context) == cache.keys.nbytes + cache.values.nbytes


# The plan, and the command --------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Passes take no time to be measured; what for which context is listed."""
    contexts: list[int] = []

    def measured(model: Any, context: int, progress: Any = None) -> module.Cost:
        contexts.append(context)
        return bound if len(contexts) == 1 else a_cost(0.1)

    monkeypatch.setattr(module, "measure_cost", measured)
    monkeypatch.setattr(conditions_module, "read_bandwidth_apart", lambda: 20.0)
    monkeypatch.setattr(Conditions, "now", lambda: QUIET)
    return contexts


def test_the_plan_of_two_models(tmp_path: Path, quick: list[int]) -> None:
    target = tiny.make(tmp_path / "target")
    draft = tiny.make(tmp_path / "draft", num_hidden_layers=1, max_position_embeddings=64)
    engine = Engine.load(target, draft_model=draft)
    result = plan(engine, QUIET, 100, 10**8)
    assert quick == [100, 64]  # the draft model holds no more
    assert (result["kind"], result["model"], result["context"]) == ("plan", "target", 100)
    memory = result["memory"]
    weights = engine.target.weight_bytes + engine.draft_model.weight_bytes
    caches = cache_bytes(engine.config, 100) + cache_bytes(engine.draft_model.config, 64)
    assert (memory["fits"], memory["requests"]) == (True, (10**8 - weights) // caches)
    assert result["sources"] == {"lookup": plan_source(bound), "draft_model": plan_source(bound, a_cost(0.1))}
    assert [point["rows"] for point in result["passes"]["target"]] == list(range(1, 18))
    assert result["advice"] == advice(result["sources"])
    assert json.loads(json.dumps(result)) == result


def test_the_context_is_what_the_model_holds(tmp_path: Path, quick: list[int]) -> None:
    engine = Engine.load(tiny.make(tmp_path / "model"))
    assert plan(engine, QUIET)["context"] == 256
    assert plan(engine, QUIET)["memory"]["fits"] is None
    for context in (0, 257):
        with pytest.raises(OptionError, match=f"context is {context}, and model holds 256"):
            plan(engine, QUIET, context)


def test_nothing_is_measured_that_does_not_fit(tmp_path: Path, quick: list[int]) -> None:
    engine = Engine.load(tiny.make(tmp_path / "model"))
    result = plan(engine, QUIET, available=engine.target.weight_bytes)
    assert quick == []
    assert (result["memory"]["fits"], result["memory"]["requests"]) == (False, 0)
    assert (result["passes"], result["sources"]) == ({}, {})
    assert "doesn't fit into memory" in result["advice"][0]


def test_the_command(tmp_path: Path, quick: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny.make(tmp_path / "model")
    plot = tmp_path / "plan.png"
    arguments = ["plan", "--model", str(path), "--draft-model", str(path)]
    outcome = CliRunner().invoke(cli, [*arguments, "--plot", str(plot), "--json"])
    assert outcome.exit_code == 0, outcome.output
    assert set(json.loads(outcome.stdout)["sources"]) == {"lookup", "draft_model"}
    assert plot.read_bytes().startswith(b"\x89PNG")
    quick.clear()
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    rows = [" ".join(line.split()) for line in printed.splitlines()]
    assert "0.50 16: 2.00 15: 2.00 7: 1.50 3: 1.44 1: 1.25 – – 10" in rows  # on one line
    text = " ".join(rows)
    assert "A target pass takes 1000.0 ms; 2 rows 1.00×, 4 rows 1.00×, 8 rows 1.00×, 16 rows 1.00×." in text
    assert all(words in text for words in ("requests fit at once", "Draft model", "Lookup ceases to pay"))


def test_a_machine_that_is_not_quiet_is_told(
    tmp_path: Path, quick: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", "--model", str(tiny.make(tmp_path / "model"))]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["environment"]["quiet"] is True
    monkeypatch.setattr(Conditions, "now", lambda: Conditions(1.6, 20.0))
    quick.clear()
    assert main([*arguments, "--json"]) == 0
    environment = json.loads(capsys.readouterr().out)["environment"]
    assert environment["quiet"] is False
    quick.clear()
    assert main(arguments) == 0
    warning = f"Not to be relied on: {environment['warnings'][0]}."
    assert "1.6 processors were in use" in warning
    assert " ".join(capsys.readouterr().out.split()).endswith(warning)


def test_a_model_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny.make(tmp_path / "model")
    command = sys.modules["slipstream.cli.plan"]
    monkeypatch.setattr(command, "available_memory", lambda: 1000)
    assert main(["plan", "--model", str(path)]) == 2
    assert "the weights of model take 0.0 GB" in capsys.readouterr().err
    engine = Engine.load(path)
    monkeypatch.setattr(command, "available_memory", lambda: engine.target.weight_bytes + 1000)
    assert main(["plan", "--model", str(path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "not even one request fits" in printed
    assert "use a shorter context" in printed
