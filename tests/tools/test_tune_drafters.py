"""Tuning finds the fastest drafter of made-up speeds, and engines take up what it found, only where nothing is said."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from click.testing import CliRunner

from slipstream import Engine, OptionError, Request, SamplingParams, kernels
from slipstream.cli import cli, main
from slipstream.profile import Profile, key, profile_path, read_profile
from slipstream.tools import conditions as conditions_module
from slipstream.tools import tune_drafters as module
from slipstream.tools.conditions import Conditions
from slipstream.tools.prompt_files import SourcedPrompt
from slipstream.tools.tune_drafters import LENGTHS, Figures, choose, tune_drafters, why
from slipstream.types import Completion, SpeculationStats, Timing

QUIET = Conditions(0.0, 20.0)
PROMPTS = [SourcedPrompt("the thing in the hand", "line 1"), SourcedPrompt("an island", "line 2")]
SHORT = SamplingParams(max_tokens=4)
AUTO = Profile("auto", None)


@pytest.fixture(autouse=True)
def a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(conditions_module, "read_bandwidth_apart", lambda: 20.0)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models as tiny as these gain nothing from more, and lose much where other tests keep the processor busy."""
    before = kernels.threads()
    kernels.set_threads(1)
    yield
    kernels.set_threads(before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny.make(tmp_path / "model", max_position_embeddings=512)


Speeds = Callable[[str, int | None, float], float]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Speeds], list[tuple[str, int | None]]]:
    """Makes answers without loops, at speeds by drafter, length and temperature; returns the list of what is run."""

    def timed(speed: Speeds) -> list[tuple[str, int | None]]:
        calls: list[tuple[str, int | None]] = []

        def generate(
            engine: Engine,
            prompt: Any,
            params: SamplingParams,
            *,
            drafter: str = "auto",
            num_speculative_tokens: Any = None,
        ) -> Completion:
            completion = original(engine, prompt, replace(params, max_tokens=0, echo=True))
            if params.echo:
                return completion
            if not params.ignore_eos:  # which warming up does
                calls.append((drafter, num_speculative_tokens))
            count = params.max_tokens or 0
            rate = speed(drafter, num_speculative_tokens, params.temperature)
            stats = SpeculationStats(drafter, 1, target_passes=count // 2, committed=count, drafted=20, accepted=5)
            timing = Timing(1.0, (count - 1) / rate, rate)
            return replace(completion, token_ids=tuple(range(count)), speculation=stats, timing=timing)

        original = Engine.generate
        monkeypatch.setattr(Engine, "generate", generate)
        return calls

    return timed


def steady(drafter: str, length: int | None, temperature: float) -> float:
    """ngram with 8 is the fastest."""
    if drafter == "ngram":
        return 30.0 - abs((length or 0) - 8)
    return {"null": 10.0, "auto": 20.0}.get(drafter, 5.0)


def test_the_fastest_is_found_and_saved(path: Path, timed: Any) -> None:
    engine = Engine.load(path)
    calls = timed(steady)
    result = tune_drafters(engine, PROMPTS, QUIET, max_tokens=20)
    others = [name for name in engine.drafter_names if name not in ("auto", "null")]
    ways = {("null", None), ("auto", None), *((name, length) for name in others for length in LENGTHS)}
    assert len(calls) == 2 * len(ways)  # each way once a prompt, in another order
    assert set(calls[: len(ways)]) == set(calls[len(ways) :]) == ways
    assert calls[: len(ways)] != calls[len(ways) :]

    assert (result["kind"], result["model"], result["prompts"], result["timed"]) == ("drafters", "model", 2, 2)
    assert result["winner"] == {"drafter": "ngram", "num_speculative_tokens": 8}
    best = result["ways"][0]
    assert (best["drafter"], best["num_speculative_tokens"], best["speedup"]) == ("ngram", 8, 3.0)
    assert best["speedups"] == (3.0,)
    assert (best["mean_accepted_length"], best["acceptance_rate"]) == (2.0, 0.25)
    assert best["pass_cost"] == pytest.approx(2.0 / 3.0)
    speedups = [way["speedup"] for way in result["ways"]]
    assert speedups == sorted(speedups, reverse=True)
    assert result["profile"] == str(profile_path(engine.target, None))
    assert read_profile(engine.target, None, engine.drafter_names) == Profile("ngram", 8)
    assert "ngram with 8 is the fastest: 25% of its drafts' tokens were accepted" in result["why"]
    json.dumps(result)


def test_both_temperatures_count(path: Path, timed: Any) -> None:
    timed(
        lambda drafter, length, temperature: steady(drafter, length, 0.0) / (1 + 2 * temperature * (drafter != "null"))
    )
    result = tune_drafters(Engine.load(path), PROMPTS[:1], QUIET, max_tokens=20, temperature=0.5)
    assert (result["temperatures"], result["timed"]) == ([0.0, 0.5], 2)
    best = result["ways"][0]
    assert (best["speedups"], best["speedup"]) == ((3.0, 1.5), 2.25)


def test_a_different_answer_saves_nothing(path: Path, timed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.load(path)
    timed(steady)
    generate = Engine.generate

    def tampered(*given: Any, **named: Any) -> Completion:
        completion = generate(*given, **named)
        if named.get("drafter") != "ngram":
            return completion
        return replace(completion, token_ids=(7, *completion.token_ids[1:]))

    monkeypatch.setattr(Engine, "generate", tampered)
    result = tune_drafters(engine, PROMPTS, QUIET, max_tokens=20)
    assert result["profile"] is None
    assert {way["drafter"] for way in result["ways"] if not way["identical"]} == {"ngram"}
    assert not profile_path(engine.target, None).exists()


def test_answers_that_are_too_short(path: Path) -> None:
    engine = Engine.load(path)
    with pytest.raises(OptionError, match="no answer has 16 tokens"):
        tune_drafters(engine, PROMPTS[:1], QUIET, max_tokens=3)


# The choice -----------------------------------------------------------------------------------------------------------


def figures(drafter: str, length: int | None, speedup: float) -> Figures:
    return Figures(drafter, length, speedup, (speedup,), 2.0, 0.5, 1.25, True)


@pytest.mark.parametrize(
    ("auto", "ngram", "chosen", "words"),
    [
        (1.5, 1.6, Profile("ngram", 3), "ngram with 3 is the fastest: 50% of its drafts' tokens were accepted"),
        (1.5, 1.52, AUTO, "ngram with 3, the fastest here, isn't 2% faster. Of auto, 50%"),
        (1.5, 1.2, AUTO, "auto is the fastest: 50% of its drafts' tokens were accepted"),
        (0.99, 0.7, AUTO, "auto is the fastest"),
        (0.9, 0.97, Profile("null", None), "Plain decoding is the fastest"),
        (0.9, 1.01, Profile("ngram", 3), "took 1.25 times as long"),
    ],
)
def test_the_choice(auto: float, ngram: float, chosen: Profile, words: str) -> None:
    found = [figures("auto", None, auto), figures("ngram", 3, ngram)]
    assert choose(found) == chosen
    assert words in why(chosen, found)


# What engines make of it ----------------------------------------------------------------------------------------------


def save(engine: Engine, drafter: str = "ngram", num_speculative_tokens: int | None = 7, **changes: Any) -> Path:
    """Writes a profile as tuning would, but for these changes."""
    path = profile_path(engine.target, engine.draft_model)
    path.parent.mkdir(exist_ok=True)
    record = {
        "key": key(engine.target, engine.draft_model),
        "drafter": drafter,
        "num_speculative_tokens": num_speculative_tokens,
    }
    path.write_text(json.dumps({**record, **changes}))
    return path


def used(engine: Engine, **options: Any) -> tuple[str, int]:
    stats = engine.generate("hello", SHORT, **options).speculation
    return stats.drafter, stats.num_speculative_tokens


def test_an_engine_takes_up_the_profile_where_nothing_is_said(path: Path) -> None:
    assert Engine.load(path).tuned is None
    save(Engine.load(path))
    engine = Engine.load(path)
    assert engine.tuned == Profile("ngram", 7)
    assert used(engine) == ("ngram", 7)
    assert used(engine, num_speculative_tokens=2) == ("ngram", 2)
    assert used(engine, drafter="ngram") == ("ngram", 5)  # the drafter's usual length, as ever
    assert used(engine, drafter="auto") == ("auto", 16)
    assert engine.generate_batch([Request("hello", SHORT)])[0].speculation.num_speculative_tokens == 7
    for told, expected in (
        ({"drafter": "recycling"}, ("recycling", 5)),
        ({"drafter": "auto"}, ("auto", 16)),
        ({"num_speculative_tokens": 4}, ("auto", 4)),
    ):
        engine = Engine.load(path, **told)
        assert engine.tuned is None
        assert used(engine) == expected


def test_a_profile_may_say_auto_or_plain(path: Path) -> None:
    for drafter, expected in (("auto", ("auto", 16)), ("null", ("null", 5))):
        save(Engine.load(path, drafter="null"), drafter, None)
        assert used(Engine.load(path)) == expected


def test_a_profile_is_for_its_models_threads_and_precision(path: Path, tmp_path: Path) -> None:
    threads = kernels.threads()
    save(Engine.load(path))
    try:
        assert Engine.load(path, threads=threads + 1).tuned is None
    finally:
        kernels.set_threads(threads)
    assert Engine.load(path).tuned
    assert Engine.load(path, dtype="f32").tuned is None
    assert Engine.load(path, draft_model=path).tuned is None
    other = tiny.make(tmp_path / "other", max_position_embeddings=512, seed=5)
    assert Engine.load(other).tuned is None
    tiny.make(path, max_position_embeddings=512, seed=5)  # other weights in the same place
    assert Engine.load(path).tuned is None


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"drafter": "magic"}, "there is no drafter 'magic' here"),
        ({"drafter": 3}, "there is no drafter 3 here"),
        ({"num_speculative_tokens": 0}, "it is damaged"),
        ({"num_speculative_tokens": "7"}, "it is damaged"),
        ({"key": {}}, "it is damaged"),
    ],
)
def test_a_damaged_profile_is_named(path: Path, damage: dict[str, Any], words: str) -> None:
    file = save(Engine.load(path), **damage) if "key" in damage else save(Engine.load(path))
    file.write_text(json.dumps({**json.loads(file.read_text()), **damage}))
    with pytest.raises(
        OptionError, match=f"{file}: {words}: delete it, and make it anew with slipstream tune drafters"
    ):
        Engine.load(path)
    assert used(Engine.load(path, drafter="auto")) == ("auto", 16)


def test_a_cut_profile_is_named_on_one_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save(Engine.load(path))
    file.write_text(file.read_text()[:-5])
    assert main(["generate", "hello", "--model", str(path)]) == 2
    assert f"{file}: it is damaged: delete it" in capsys.readouterr().err


# The commands ---------------------------------------------------------------------------------------------------------


def test_tuning_and_generating(path: Path, tmp_path: Path, timed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prompts.txt").write_text("the thing\nan island\n")
    arguments = ["tune", "drafters", "--model", str(path), "--prompts", str(tmp_path / "prompts.txt")]
    timed(steady)
    outcome = CliRunner().invoke(cli, [*arguments, "--max-tokens", "20", "--json"])
    assert outcome.exit_code == 0, outcome.output
    assert set(json.loads(outcome.stdout)) == {
        *("kind", "environment", "model", "prompts", "temperatures", "timed", "ways", "winner", "why", "profile")
    }
    text = " ".join(CliRunner().invoke(cli, [*arguments, "--temperature", "0.8"]).stdout.split())
    monkeypatch.undo()
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    assert "model: 2 prompts, 4 answers timed" in text
    assert "ngram 8 3.00× 3.00× 3.00× 2.00 25% yes" in text
    assert "ngram with 8 is the fastest" in text
    assert "Saved in" in text
    assert "the machine was busy" in text  # 3 times as fast with 2 tokens a pass

    generate = ["generate", "hello", "--model", str(path), "--max-tokens", "4", "--json"]
    tuned = json.loads(CliRunner().invoke(cli, generate).stdout)["speculation"]
    assert (tuned["drafter"], tuned["num_speculative_tokens"], tuned["tuned"]) == ("ngram", 8, True)
    told = json.loads(CliRunner().invoke(cli, [*generate, "--drafter", "auto"]).stdout)["speculation"]
    assert (told["drafter"], told["tuned"]) == ("auto", False)
    stats = CliRunner().invoke(cli, ["chat", "--model", str(path), "--max-tokens", "4"], input="hello\n/stats\n")
    assert "drafter: ngram, 8 (tuned)" in stats.stdout


def test_a_difference_ends_with_exit_code_1(path: Path, timed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(steady)
    monkeypatch.setattr("slipstream.tools.tune_drafters.first_difference", lambda *_: "different")
    outcome = CliRunner().invoke(cli, ["tune", "drafters", "--model", str(path), "--limit", "1"])
    assert outcome.exit_code == 1
    assert "Nothing is saved" in outcome.stdout


def test_the_real_thing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all drafters on true answers, whose speeds are what they may be: what is saved is one of them."""
    monkeypatch.setattr(module, "LENGTHS", (2, 5))
    engine = Engine.load(path, draft_model=path, drafter="auto")
    result = tune_drafters(engine, PROMPTS[:1], QUIET, max_tokens=16, temperature=1.5)
    assert {way["drafter"] for way in result["ways"]} == set(engine.drafter_names) - {"null"}
    assert Engine.load(path, draft_model=path).tuned == Profile(**result["winner"])
