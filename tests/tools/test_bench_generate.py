"""bench generate and bench batch: on a clock of the test's own they find the speed-up that the arithmetic gives."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
import tiny
from click.testing import CliRunner, Result

import slipstream
from slipstream import DRAFTERS, Engine, OptionError, SamplingParams, kernels, running
from slipstream.cli import cli
from slipstream.drafters import History, Models
from slipstream.models.decoder import Decoder
from slipstream.tools import bench_batch as batch_module
from slipstream.tools import conditions as conditions_module
from slipstream.tools.bench_batch import bench_batch
from slipstream.tools.bench_generate import bench_generate, loop_start, rotated
from slipstream.tools.conditions import Conditions, apart, peak_memory_bytes, processors_in_use
from slipstream.tools.report import read_results
from slipstream.tools.suites import SuitePrompt
from slipstream.types import Completion, Draft, SpeculationStats, Timing, Usage

HOT = SamplingParams(temperature=1.5, seed=3, max_tokens=300, ignore_eos=True)  # no loops
QUIET = Conditions(0.0, 20.0)


@pytest.fixture(autouse=True)
def bandwidths(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The read bandwidths that are measured from now on: 20 GB/s, whatever the machine has."""
    values = [20.0] * 9
    monkeypatch.setattr(conditions_module, "read_bandwidth_apart", lambda: values.pop(0))
    return values


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models as tiny as these gain nothing from more, and lose much where other tests keep the processor busy."""
    before = kernels.threads()
    kernels.set_threads(1)
    yield
    kernels.set_threads(before)


# The arithmetic -------------------------------------------------------------------------------------------------------


class Clock:
    """Stands in for `time` in a module; only what a test says takes time."""

    def __init__(self) -> None:
        self.now = 1.0

    def perf_counter(self) -> float:
        return self.now


class Lucky:
    """Knows the answer, and gets each position right with probability `chance` where the one before it was right.

    The chances come from a sequence that is spread evenly over 0 to 1, so that few passes come close to their law.
    """

    name: ClassVar[str] = "lucky"
    chance: ClassVar[float]
    seconds_per_token: ClassVar[float]
    clock: ClassVar[Clock]
    answers: ClassVar[dict[tuple[int, ...], tuple[int, ...]]]

    def __init__(self, models: Models) -> None:
        self.draws = (number * (math.sqrt(5) - 1) / 2 % 1 for number in count(1))

    def start(self, history: History) -> History:
        return history

    def propose(self, states: Sequence[History], lengths: Sequence[int]) -> list[Draft]:
        return [self._draft(history, length) for history, length in zip(states, lengths, strict=True)]

    def _draft(self, history: History, length: int) -> Draft:
        self.clock.now += length * self.seconds_per_token
        answer = self.answers[tuple(history.tokens[: history.num_prompt_tokens])]
        right = int(math.log(next(self.draws)) / math.log(self.chance))
        guesses = answer[history.position : history.position + length]
        return Draft.chain([(token + (place >= right)) % 264 for place, token in enumerate(guesses)])


def pass_seconds(rows: int) -> float:
    return 1.0 + 0.08 * (rows - 1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.load(tiny.make(tmp_path_factory.mktemp("bench") / "tiny", max_position_embeddings=512))


@pytest.fixture(scope="module")
def prompts() -> list[SuitePrompt]:
    return [
        SuitePrompt(text, "a test", "tales", index) for index, text in enumerate(["the thing in the hand", "an island"])
    ]


@pytest.fixture(scope="module")
def answers(engine: Engine, prompts: list[SuitePrompt]) -> dict[tuple[int, ...], tuple[int, ...]]:
    return {
        tuple(engine.tokenizer.encode(str(prompt.prompt))): engine.generate(
            prompt.prompt, HOT, drafter="null"
        ).token_ids
        for prompt in prompts
    }


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The engine's time, of which a pass takes pass_seconds."""
    clock, forward = Clock(), Decoder.forward

    def timed(model: Decoder, segments: Any) -> Any:
        clock.now += pass_seconds(sum(len(segment.tokens) for segment in segments))
        return forward(model, segments)

    monkeypatch.setattr(Decoder, "forward", timed)
    monkeypatch.setattr(running, "time", clock)
    monkeypatch.setattr(batch_module, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("chance", "length", "draft_seconds"), [(0.8, 4, 0.1), (0.5, 2, 0.0), (0.9, 7, 0.02), (0.3, 5, 0.2)]
)
def test_the_speedup_is_that_of_the_formula(
    engine: Engine,
    prompts: list[SuitePrompt],
    answers: dict[tuple[int, ...], tuple[int, ...]],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    chance: float,
    length: int,
    draft_seconds: float,
) -> None:
    monkeypatch.setitem(DRAFTERS, "lucky", Lucky)
    for name, value in (
        ("chance", chance),
        ("seconds_per_token", draft_seconds),
        ("clock", clock),
        ("answers", answers),
    ):
        monkeypatch.setattr(Lucky, name, value, raising=False)
    monkeypatch.setattr(engine, "default_num_speculative_tokens", length)
    monkeypatch.setattr(engine, "_drafters", {})
    result = bench_generate(engine, prompts, ["lucky"], HOT, QUIET)

    tokens = sum(chance**accepted for accepted in range(length + 1))
    expected = tokens * pass_seconds(1) / (pass_seconds(1 + length) + length * draft_seconds)
    figures = result["overall"]["lucky"]
    assert figures["plain_tokens_per_second"] == pytest.approx(1 / pass_seconds(1))
    assert figures["tokens_per_second"] == pytest.approx(expected, rel=0.02)
    assert figures["speedup"] == pytest.approx(expected, rel=0.02)
    assert figures["mean_accepted_length"] == pytest.approx(tokens, rel=0.02)
    assert figures["acceptance_by_position"][:2] == pytest.approx([chance] * 2, abs=0.03)
    assert len(figures["acceptance_by_position"]) == length
    assert (figures["identical"], figures["looped"], figures["prompts"]) == (True, 0, 2)
    assert not result["environment"]["warnings"]


def test_a_batch_is_as_fast_as_its_passes(engine: Engine, prompts: list[SuitePrompt], clock: Clock) -> None:
    result = bench_batch(engine, prompts, ["ngram"], QUIET, sizes=(1, 2, 4))
    for size in (1, 2, 4):
        plain, ngram = (result["sizes"][str(size)][name] for name in ("null", "ngram"))
        assert plain["tokens_per_second"] == pytest.approx(size / pass_seconds(size), rel=0.01)
        assert ngram["speedup"] == pytest.approx(ngram["tokens_per_second"] / plain["tokens_per_second"])
        prefill = pass_seconds(sum(len(engine.tokenizer.encode(str(prompts[at % 2].prompt))) for at in range(size)))
        seconds = [prefill + 63 * size / figures["tokens_per_second"] for figures in (plain, ngram)]
        assert ngram["speedup_with_prefill"] == pytest.approx(seconds[0] / seconds[1])
        assert plain["identical"] is ngram["identical"] is True
    assert result["sizes"]["4"]["ngram"]["speedup"] != 1


# What is timed --------------------------------------------------------------------------------------------------------


def test_loop_start() -> None:
    line = list(range(20))
    assert loop_start(line) is None
    assert loop_start([*line, *line[:7]]) is None
    assert loop_start([*line, *line[:8]]) == 20
    assert loop_start([*line, 99, *line[5:14], 98]) == 21
    assert loop_start([1] * 9) == 1
    assert loop_start([]) is None


def test_rotated() -> None:
    assert [rotated("abc", turn) for turn in range(4)] == [list(order) for order in ("abc", "bca", "cab", "abc")]


class Script:
    """An engine that says what the test wants: outputs by prompt, seconds a token by drafter."""

    def __init__(self, outputs: dict[str, list[int]], speeds: dict[str, float]) -> None:
        self.outputs, self.speeds = outputs, speeds
        self.calls: list[tuple[str, str, int]] = []  # (prompt, drafter, max_tokens)

    def generate(self, prompt: Any, params: SamplingParams, *, drafter: str = "null") -> Completion:
        if params.echo:
            return self._completion(prompt, [ord(character) for character in prompt], drafter)
        text, length = "".join(map(chr, prompt)), params.max_tokens or 0
        if not params.ignore_eos:  # which warming up does
            self.calls.append((text, drafter, length))
        return self._completion(text, self.outputs[text][:length], drafter)

    def _completion(self, prompt: str, tokens: list[int], drafter: str) -> Completion:
        stats = SpeculationStats(drafter, 5, target_passes=10, committed=len(tokens), drafted=8, accepted=2, rejected=6)
        rate = self.speeds[drafter]
        timing = Timing(2.0, len(tokens) / rate, rate)
        return Completion("", tuple(tokens), "length", 0, Usage(len(prompt), len(tokens)), stats, timing)


LINE = list(range(40))
OUTPUTS = {
    "free": LINE,
    "loop": [*LINE[:20], *LINE[:20]],
    "short loop": [1] * 40,
    "short": [1, 2, 3],
    "also free": LINE,
}


@pytest.fixture
def script() -> Script:
    return Script(OUTPUTS, {"null": 10.0, "fast": 25.0, "slow": 5.0})


def scripted(script: Script, *prompts: tuple[str, str], **options: Any) -> dict[str, Any]:
    """Runs the benchmark on (category, prompt) pairs."""
    suite = [SuitePrompt(prompt, "a test", category, index) for index, (category, prompt) in enumerate(prompts)]
    params = SamplingParams(max_tokens=40)
    return bench_generate(script, suite, ["fast", "slow"], params, QUIET, **options)  # type: ignore[arg-type]


def test_every_way_takes_its_turn_on_each_prompt(script: Script) -> None:
    scripted(script, ("a", "free"), ("a", "also free"))
    assert script.calls == [
        *(("free", drafter, 40) for drafter in ("null", "fast", "slow")),
        *(("also free", drafter, 40) for drafter in ("null", "slow", "fast")),
        ("free", "null", 40),  # once more at the end: was the machine quiet?
    ]


def test_loops_are_cut_and_counted(script: Script) -> None:
    """All are timed on what comes before the loop, plain decoding once more; too little of it is left out."""
    result = scripted(script, ("a", "free"), ("a", "loop"), ("b", "short loop"), ("b", "short"))
    assert [call for call in script.calls if call[0] == "loop"] == [
        ("loop", "null", 40),
        *(("loop", drafter, 20) for drafter in ("fast", "slow", "null")),
    ]
    assert [call for call in script.calls if call[0] == "short loop"] == [("short loop", "null", 40)]
    counts = {
        name: tuple(figures["fast"][what] for what in ("prompts", "looped", "too_short", "completion_tokens"))
        for name, figures in {**result["categories"], "overall": result["overall"]}.items()
    }
    assert counts == {"a": (2, 1, 0, 60), "b": (0, 1, 2, 0), "overall": (2, 2, 2, 60)}
    nothing = result["categories"]["b"]["fast"]
    assert nothing["speedup"] is nothing["speedup_quartiles"] is nothing["time_to_first_token"] is None
    assert [(prompt["completion_tokens"], bool(prompt["runs"])) for prompt in result["prompts"]] == [
        (40, True),
        (20, True),
        (1, False),
        (3, False),
    ]


def test_the_figures(script: Script) -> None:
    result = scripted(script, ("a", "free"), ("b", "loop"), ("b", "also free"))
    assert list(result["categories"]) == ["a", "b"]
    fast, slow = result["categories"]["b"]["fast"], result["overall"]["slow"]
    assert (fast["speedup"], fast["speedup_quartiles"]) == (2.5, [2.5, 2.5])
    assert (slow["speedup"], slow["tokens_per_second"], slow["plain_tokens_per_second"]) == pytest.approx((0.5, 5, 10))
    assert slow["speedup_with_prefill"] == pytest.approx((2 + 40 / 10) / (2 + 40 / 5))
    assert (fast["time_to_first_token"], fast["mean_accepted_length"]) == (2.0, (20 + 40) / 20)
    assert (fast["acceptance_rate"], fast["identical"], fast["first_difference"]) == (0.25, True, None)
    assert result["prompts"][1]["runs"]["fast"] == {
        "tokens_per_second": 25.0,
        "decode_seconds": 20 / 25,
        "time_to_first_token": 2.0,
        "mean_accepted_length": 2.0,
    }


def test_the_speedup_is_the_median_over_prompts(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([20.0, 90.0, 30.0])
    original = Script._completion

    def uneven(self: Script, prompt: str, tokens: list[int], drafter: str) -> Completion:
        completion = original(self, prompt, tokens, drafter)
        if drafter != "fast" or len(tokens) < 40:
            return completion
        rate = next(speeds)
        return replace(completion, timing=Timing(2.0, len(tokens) / rate, rate))

    monkeypatch.setattr(Script, "_completion", uneven)
    figures = scripted(script, *[("a", "free")] * 3)["overall"]["fast"]
    assert (figures["speedup"], figures["speedup_quartiles"]) == (3.0, [2.5, 6.0])


def test_a_prompt_without_room_is_named(engine: Engine) -> None:
    with pytest.raises(OptionError, match=r"tales\.txt, line 8: the prompt has"):
        bench_generate(engine, [SuitePrompt("x" * 600, "tales.txt, line 8", "tales", 7)], [], HOT, QUIET)


# Noise ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_use", "after", "speeds", "words"),
    [
        (0.1, 18.0, (10.0, 9.5), None),
        (None, 20.0, None, None),
        (0.6, 20.0, (10.0, 10.0), "0.6 processors were in use"),
        (0.0, 16.0, (10.0, 10.0), "bandwidth was 20.0 GB/s before and 16.0 GB/s after"),
        (0.0, 20.0, (10.0, 8.0), "10.0 tokens/s early and 8.0 late"),
        (0.0, 20.0, (8.0, 10.0), "8.0 tokens/s early and 10.0 late"),
    ],
)
def test_noise_is_told(
    bandwidths: list[float],
    in_use: float | None,
    after: float,
    speeds: tuple[float, float] | None,
    words: str | None,
) -> None:
    bandwidths[0] = after
    environment = Conditions(in_use, 20.0).environment(speeds)
    assert environment["quiet"] is (words is None)
    assert environment["read_bandwidth_gbps"] == {"before": 20.0, "after": after}
    assert environment["processors_in_use"] == in_use
    warnings = environment["warnings"]
    assert isinstance(warnings, list)
    assert len(warnings) == (words is not None)
    assert words is None or words in warnings[0]


@pytest.mark.parametrize(("others", "words"), [(None, None), (0.1, None), (1.4, "others used 1.4 processors")])
def test_work_of_others_meanwhile_is_told(bandwidths: list[float], others: float | None, words: str | None) -> None:
    class Watched:
        def others(self) -> float | None:
            return others

    environment = Conditions(0.0, 20.0, Watched()).environment()  # type: ignore[arg-type]
    assert environment["processors_in_use_by_others"] == others
    assert environment["quiet"] is (words is None)
    assert words is None or words in str(environment["warnings"])


def test_processors_in_use() -> None:
    idle = processors_in_use(0.2)
    assert idle is None or 0 <= idle <= 2 * (os.cpu_count() or 1)
    work = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        busy = processors_in_use(0.5)
        assert busy is None or busy > 0.3
    finally:
        work.kill()
        work.wait()


def test_a_process_of_its_own_runs_no_code_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slipstream", "numpy", "statistics"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('it ran')")
    monkeypatch.chdir(tmp_path)
    assert apart("import numpy, slipstream, statistics; print(slipstream.__file__)").strip() == slipstream.__file__


def test_peak_memory() -> None:
    before = peak_memory_bytes()
    block = bytearray(b"x") * (before + 2**26)
    assert peak_memory_bytes() >= len(block)


# The commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a bench command on a tiny model and two prompts that it answers without loops."""
    model = tiny.make(tmp_path / "tiny", max_position_embeddings=512)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    (tmp_path / "mine.jsonl").write_text('{"prompt": "hello"}\n{"prompt": "the the", "category": "other"}\n')

    def bench(*arguments: str) -> Result:
        options = ["--model", str(model), "--suite", str(tmp_path / "mine.jsonl"), "--drafters", "ngram"]
        return CliRunner().invoke(cli, ["bench", *arguments, *options])

    return bench


SAMPLED = ("generate", "--temperature", "1.5", "--max-tokens", "24")


def test_the_record_of_generate(bench: Any, tmp_path: Path) -> None:
    outcome = bench(*SAMPLED, "--limit", "1", "--json", "--out", str(tmp_path / "out.json"))
    assert outcome.exit_code == 0, outcome.output
    record = json.loads(outcome.stdout)
    assert json.loads((tmp_path / "out.json").read_text()) == record
    assert [result.kind for result in read_results([tmp_path / "out.json"])] == [record["kind"]]  # a report takes it
    assert (record["kind"], record["model"], record["dtype"], record["draft_model"]) == (
        "generate",
        "tiny",
        "auto",
        None,
    )
    assert (record["suites"], record["limit"], record["seed"]) == (["mine.jsonl"], 1, 0)
    assert (record["temperature"], record["max_tokens"]) == (1.5, 24)
    assert [point["rows"] for point in record["cost_curve"]] == [1, 2, 3, 4, 6, 8, 12, 16]
    assert all(point["seconds"] > 0 for point in record["cost_curve"])
    assert {"processor", "date", "commit", "numpy", "tokenizers", "quiet"} <= set(record["environment"])
    assert record["peak_memory_bytes"] > 2**20
    assert list(record["categories"]) == ["mine", "other"]
    keys = {
        *("speedup", "speedup_quartiles", "speedup_with_prefill", "prompts", "looped", "too_short"),
        *("mean_accepted_length", "acceptance_rate", "acceptance_by_position", "tokens_per_second"),
        *("plain_tokens_per_second", "time_to_first_token", "identical", "first_difference", "completion_tokens"),
    }
    for figures in [*record["categories"].values(), record["overall"]]:
        assert list(figures) == ["ngram"]
        assert set(figures["ngram"]) == keys
    assert record["overall"]["ngram"]["prompts"] == 2
    first = record["prompts"][0]
    assert (first["category"], first["index"], first["completion_tokens"]) == ("mine", 0, 24)
    assert set(first["runs"]) == {"null", "ngram"}


def test_the_table_of_generate_warns_of_noise(bench: Any, bandwidths: list[float]) -> None:
    bandwidths[1] = 10.0
    outcome = bench(*SAMPLED)
    assert outcome.exit_code == 0, outcome.output
    text = " ".join(outcome.stdout.split())
    assert all(word in text for word in ("tiny: 2 prompts", "mine ngram", "other ngram", "overall ngram", "yes"))
    assert "bandwidth was 20.0 GB/s before and 10.0 GB/s after" in text


def test_batch_prints_its_record_and_a_table(bench: Any, tmp_path: Path) -> None:
    record = json.loads(bench("batch", "--sizes", "1,3", "--json", "--out", str(tmp_path / "out.json")).stdout)
    assert [result.kind for result in read_results([tmp_path / "out.json"])] == [record["kind"]]  # a report takes it
    assert (record["kind"], record["model"], list(record["sizes"])) == ("batch", "tiny", ["1", "3"])
    for figures in record["sizes"].values():
        assert list(figures) == ["null", "ngram"]
        assert figures["null"]["speedup"] == 1
        assert figures["ngram"]["identical"] is True
    text = bench("batch", "--sizes", "2").stdout
    assert all(word in text for word in ("plain", "ngram", "yes"))


def test_a_difference_ends_with_exit_code_1(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generate, stream_batch = Engine.generate, Engine.stream_batch

    def tampered(completion: Completion) -> Completion:
        if completion.speculation.drafter != "ngram" or len(completion.token_ids) < 20:
            return completion
        return replace(completion, token_ids=(*completion.token_ids[:5], 7, *completion.token_ids[6:]))

    monkeypatch.setattr(Engine, "generate", lambda *given, **named: tampered(generate(*given, **named)))
    outcome = bench(*SAMPLED, "--json")
    assert outcome.exit_code == 1
    figures = json.loads(outcome.stdout)["overall"]["ngram"]
    assert figures["identical"] is False
    assert (figures["first_difference"]["prompt"], figures["first_difference"]["position"]) == (0, 5)
    monkeypatch.setattr(Engine, "generate", generate)
    monkeypatch.setattr(
        Engine,
        "stream_batch",
        lambda *given: (
            [replace(output, completion=output.completion and tampered(output.completion)) for output in outputs]
            for outputs in stream_batch(*given)
        ),
    )
    outcome = bench("batch", "--sizes", "1", "--json")
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout)["sizes"]["1"]["ngram"]["identical"] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "--drafters", "null"], "null is plain decoding"),
        (["generate", "--suite", "spec_bench"], "needs --data"),
        (["generate", "--suite", "nothing"], "no suite or file 'nothing'"),
        (["generate", "--temperature", "-1"], "temperature is -1"),
        (["generate", "--out", "no/where.json"], "its directory doesn't exist"),
        (["batch", "--sizes", "17"], "a batch of 17 doesn't run at once: use sizes up to 16"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: list[str], words: str) -> None:
    outcome = CliRunner().invoke(cli, ["bench", *arguments, "--model", str(tiny.make(tmp_path / "tiny"))])
    assert isinstance(outcome.exception, OptionError)
    assert words in str(outcome.exception)
