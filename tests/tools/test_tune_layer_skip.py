"""The search for layers to skip: acceptance is the drafter's own, figures follow from it, and it can be interrupted."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner

from slipstream import Completion, Engine, OptionError, SamplingParams
from slipstream.cli import cli, main
from slipstream.drafters import History, Models
from slipstream.drafters.layer_skip import LayerSkipDrafter, identity, profile_path
from slipstream.sampling import Sampler
from slipstream.tools import conditions
from slipstream.tools import tune_layer_skip as module
from slipstream.tools.conditions import Conditions
from slipstream.tools.prompt_files import SourcedPrompt
from slipstream.tools.tune_layer_skip import MOST_DRAFTED, Costs, Estimate, Trials, search, tune_layer_skip
from slipstream.types import Prompt

TEXTS = ["the thing in the hand: the thing in the", "an island", "a"]
PROMPTS = [SourcedPrompt(text, "a test") for text in TEXTS]
COSTS = Costs(passes=[8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0], one_layer=3.0)  # of a model of 6 layers: 1 each

CONDITIONS = Conditions(processors_in_use=0.0, read_bandwidth=10.0)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine.load(tiny.make(tmp_path / "model", num_hidden_layers=6), drafter="null")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The read bandwidth takes a process of its own to measure."""
    monkeypatch.setattr(conditions, "read_bandwidth_apart", lambda: 10.0)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes take what COSTS says."""
    monkeypatch.setattr(module, "measure_costs", lambda model, progress: COSTS)


def answered(engine: Engine, max_tokens: int = 40) -> tuple[list[list[int]], list[list[int]]]:
    params = SamplingParams(max_tokens=max_tokens)
    prompts = [engine.tokenizer.encode(prompt) for prompt in TEXTS]
    return prompts, [list(engine.generate(prompt, params).token_ids) for prompt in prompts]


@pytest.mark.parametrize("skipped", [(), (1,), (2, 4), (0, 1, 2, 3, 4)])
def test_a_trial_is_what_the_drafter_does(engine: Engine, skipped: tuple[int, ...]) -> None:
    prompts, answers = answered(engine)
    trials = Trials(engine, prompts, answers)
    reached = trials(skipped)
    assert trials(skipped) == reached  # a trial leaves the answers' cache as it was

    path = profile_path(engine.target.file)
    path.write_text(json.dumps({**identity(engine.target), "skipped": skipped, "num_speculative_tokens": 8}))
    drafter = LayerSkipDrafter(Models(engine.target, engine.tokenizer))
    expected = [0] * MOST_DRAFTED
    drafts = 0
    for text, starts, filled in zip(trials.texts, trials.starts, trials.caches, strict=True):
        for start in reversed(starts):
            sampler = Sampler(SamplingParams(), 0, 0)
            filled.truncate(start)
            history = History(text[: start + 1], 0, len(text), sampler, filled)
            [draft] = drafter.propose([drafter.start(history)], [MOST_DRAFTED])
            drafts += 1
            for length in range(MOST_DRAFTED):
                right = text[start + 1 : start + 2 + length]
                expected[length] += draft.tokens[: length + 1].tolist() == right
    assert (reached, trials.drafts) == (expected, drafts)
    if not skipped:
        assert reached == [drafts] * MOST_DRAFTED


def test_answers_without_room_for_a_draft(engine: Engine) -> None:
    prompts, answers = answered(engine)
    short = [answer[:MOST_DRAFTED] for answer in answers]
    trials = Trials(engine, prompts, [answers[0], *short[1:]])
    assert len(trials.texts) == 1
    with pytest.raises(OptionError, match="no answer has 9 tokens"):
        Trials(engine, prompts, short)


def test_an_estimate_by_hand() -> None:
    costs = Costs(passes=[10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0], one_layer=2.0)
    assert costs.draft(5, num_layers=9) == 6  # 2 for the first layer and the projection, 1 for each other one
    estimate = Estimate.of((1, 2, 3, 4), [10, 9, 8, 2, 0, 0, 0, 0], 10, costs, num_layers=9)
    # Lengths 1, 2, 3, 4: 2.0 tokens in 17, 2.9 in 24, 3.7 in 31, 3.9 in 38; plain decoding has one in 10.
    assert estimate == Estimate((1, 2, 3, 4), 2, pytest.approx(0.95), pytest.approx(2.9), pytest.approx(29 / 24))


def test_the_search_adds_what_is_missed_least() -> None:
    harm = [9, 3, 1, 1, 5, 2, 8, 9]
    tried: list[tuple[int, ...]] = []

    def estimate(skipped: tuple[int, ...]) -> Estimate:
        tried.append(skipped)
        return Estimate(skipped, 1, 0.0, 0.0, 4 * len(skipped) - sum(harm[layer] for layer in skipped))

    found = search(8, estimate)
    assert [each.skipped for each in found] == [
        (2,),
        (2, 3),
        (2, 3, 5),
        (1, 2, 3, 5),  # the best: the next ones cost more than they gain
        (1, 2, 3, 4, 5),
        (1, 2, 3, 4, 5, 6),
        (0, 1, 2, 3, 4, 5, 6),  # one layer has to stay
    ]
    assert len(set(tried)) == len(tried)
    assert [each.skipped for each in search(2, estimate)] == [(1,)]


def test_the_search_gives_up() -> None:
    found = search(30, lambda skipped: Estimate(skipped, 1, 0.0, 0.0, -len(skipped)))
    assert [each.skipped for each in found] == [tuple(range(size)) for size in range(1, 7)]


def test_tuning_saves_the_best_set(engine: Engine, timed: None) -> None:
    reports: list[tuple[str, int, int]] = []
    result = tune_layer_skip(
        engine, PROMPTS, CONDITIONS, max_tokens=40, progress=lambda *report: reports.append(report)
    )
    best = max(result["sets"], key=lambda found: found["speedup"])
    assert result["best"] == best
    path = Path(result["profile"])
    saved = json.loads(path.read_text())
    assert {key: saved[key] for key in best} == {**best, "skipped": list(best["skipped"])}
    assert drafter_layers(engine) == [layer for layer in range(6) if layer not in best["skipped"]]
    assert [file.name for file in path.parent.iterdir() if "layer_skip" in file.name] == [path.name]
    assert ("answering", 3, 3) in reports
    assert all(done <= total for _, done, total in reports)
    assert tune_layer_skip(engine, PROMPTS, CONDITIONS, max_tokens=40)["sets"] == result["sets"]


def drafter_layers(engine: Engine) -> list[int]:
    return LayerSkipDrafter(Models(engine.target, engine.tokenizer)).layers


@pytest.mark.parametrize("stop_after", [1, 4, 9])
def test_an_interrupted_search_goes_on(
    engine: Engine, timed: None, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    tried: list[tuple[int, ...]] = []
    stop = [stop_after]
    trial = Trials.__call__

    def counted(trials: Trials, skipped: tuple[int, ...]) -> list[int]:
        if len(tried) == stop[0]:
            raise KeyboardInterrupt
        tried.append(skipped)
        return trial(trials, skipped)

    with monkeypatch.context() as patch:
        patch.setattr(Trials, "__call__", counted)
        with pytest.raises(KeyboardInterrupt):
            tune_layer_skip(engine, PROMPTS, CONDITIONS, max_tokens=40)
        assert not profile_path(engine.target.file).exists()
        stop[0] = -1
        patch.setattr(engine, "generate", refuse_to_answer(engine))
        resumed = tune_layer_skip(engine, PROMPTS, CONDITIONS, max_tokens=40)
    assert len(set(tried)) == len(tried)  # nothing is tried twice
    assert tune_layer_skip(engine, PROMPTS, CONDITIONS, max_tokens=40)["sets"] == resumed["sets"]


def refuse_to_answer(engine: Engine) -> Callable[..., Completion]:
    generate = engine.generate

    def generate_nothing(prompt: Prompt, params: SamplingParams) -> Completion:
        assert params.max_tokens == 0, "an answer that is known is asked for again"
        return generate(prompt, params)

    return generate_nothing


def unfinished(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leaves a search that stopped before its first trial."""
    with monkeypatch.context() as patch:
        patch.setattr(Trials, "__call__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tune_layer_skip(engine, PROMPTS, CONDITIONS, max_tokens=40)
    path = profile_path(engine.target.file)
    return path.with_name(path.name + ".unfinished")


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_other_arguments_start_anew(engine: Engine, timed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unfinished(engine, monkeypatch)
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "answers": [[5] * 40] * 3}))
    assert (
        tune_layer_skip(engine, PROMPTS, CONDITIONS, max_tokens=32)["drafts"] == 9
    )  # three of each answer of 32 tokens


@pytest.mark.parametrize("damage", [lambda text: text[:-9], lambda text: text.replace('"answers"', '"questions"')])
def test_a_damaged_search_is_named(
    engine: Engine, timed: None, monkeypatch: pytest.MonkeyPatch, damage: Callable[[str], str]
) -> None:
    path = unfinished(engine, monkeypatch)
    path.write_text(damage(path.read_text()))
    with pytest.raises(OptionError, match="unfinished: it is damaged: delete it"):
        tune_layer_skip(engine, PROMPTS, CONDITIONS, max_tokens=40)


def test_a_model_of_one_layer(tmp_path: Path) -> None:
    engine = Engine.load(tiny.make(tmp_path / "flat", num_hidden_layers=1))
    with pytest.raises(OptionError, match="flat has 1 layer: there is none to skip"):
        tune_layer_skip(engine, PROMPTS, CONDITIONS)


def test_costs_are_measured(engine: Engine) -> None:
    reports: list[tuple[str, int, int]] = []
    costs = module.measure_costs(engine.target, lambda *report: reports.append(report))
    assert len(costs.passes) == MOST_DRAFTED + 1
    assert min(*costs.passes, costs.one_layer) > 0
    assert costs.passes == sorted(costs.passes)  # more rows aren't cheaper
    assert reports


# The command ---------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_promised_object(tmp_path: Path) -> None:
    model = tiny.make(tmp_path / "model", max_position_embeddings=1024)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the thing\nan island\n")
    arguments = ["tune", "layer-skip", "--model", str(model), "--prompts", str(prompts), "--max-tokens", "20", "--json"]
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 0, outcome.output
    result = json.loads(outcome.stdout)
    assert set(result) == {
        "kind", "environment", "model", "num_layers", "prompts", "drafts", "costs", "sets", "best", "profile",
    }  # fmt: skip
    assert (result["kind"], result["model"], result["num_layers"], result["prompts"]) == ("layer_skip", "model", 3, 2)
    assert [len(found["skipped"]) for found in result["sets"]] == [1, 2]
    assert result["best"] in result["sets"]
    assert Path(result["profile"]).is_file()


@pytest.mark.parametrize(
    ("right", "words"),
    [
        (1, "Best: 2 skipped and 8 tokens drafted, 3.00× expected with --drafter layer_skip."),
        (0, "Layer skipping doesn't pay on this model: best expected 0.80×."),
    ],
)
def test_the_command_says_whether_it_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], right: int, words: str
) -> None:
    model = tiny.make(tmp_path / "model", max_position_embeddings=1024)
    monkeypatch.setattr(module, "measure_costs", lambda *_: Costs(passes=[8.0] * 9, one_layer=2.0))
    monkeypatch.setattr(Trials, "__call__", lambda trials, skipped: [right * trials.drafts] * MOST_DRAFTED)
    assert main(["tune", "layer-skip", "--model", str(model), "--limit", "2", "--max-tokens", "20"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "3 layers, 2 prompts, 4 drafts for each set" in printed
    assert words in printed
    assert "Saved in" in printed
