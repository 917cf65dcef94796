"""The suites that are made of prompt files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream import Engine
from slipstream.errors import ModelError, OptionError
from slipstream.tools.prompt_files import SourcedPrompt
from slipstream.tools.suites import SuitePrompt, mixed, prompt_ids, read_suites, spread


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The named suites' files, made up: 4 questions and 2 riddles, 3 functions."""
    folder = tmp_path_factory.mktemp("data")
    questions = [{"category": "qa", "turns": [f"question {number}", "ignored"]} for number in range(4)]
    riddles = [{"category": "riddle", "turns": [f"riddle {number}"]} for number in range(2)]
    (folder / "spec_bench.jsonl").write_text("\n".join(map(json.dumps, [*questions, *riddles])))
    functions = [{"prompt": f"def f{number}():\n", "canonical_solution": "    pass\n"} for number in range(3)]
    (folder / "human_eval.jsonl").write_text("\n".join(map(json.dumps, functions)))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("prompts")


def named(prompts):
    return [(prompt.category, prompt.index, prompt.prompt[0]["content"]) for prompt in prompts]


def test_spec_bench_has_its_categories_and_first_turns(data):
    prompts = read_suites(["spec_bench"], data)
    assert named(prompts) == [
        *(("qa", number, f"question {number}") for number in range(4)),
        *(("riddle", number, f"riddle {number}") for number in range(2)),
    ]


def test_two_suites_are_made_of_the_functions(data):
    edit, complete = read_suites(["code_edit", "human_eval"], data)[1::3]
    assert (edit.category, complete.category) == ("code_edit", "human_eval")
    assert "Add type hints" in edit.prompt[0]["content"]
    assert "def f1():\n    pass\n```" in edit.prompt[0]["content"]
    assert "Complete this function" in complete.prompt[0]["content"]
    assert complete.prompt[0]["content"].endswith("def f1():\n```")


def test_a_file_is_a_suite(folder):
    (folder / "mine.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "category": "other"}\n')
    (folder / "lines.txt").write_text("c\n")
    suites = [str(folder / "mine.jsonl"), str(folder / "lines.txt"), str(folder / "lines.txt")]
    assert named(read_suites(suites)) == [("mine", 0, "a"), ("other", 0, "b"), ("lines", 0, "c")]


def test_the_limit_is_spread_over_each_category(data):
    assert named(read_suites(["spec_bench"], data, limit=2)) == [
        ("qa", 1, "question 1"),
        ("qa", 3, "question 3"),
        ("riddle", 0, "riddle 0"),
        ("riddle", 1, "riddle 1"),
    ]


@given(count=st.integers(1, 200), limit=st.integers(1, 200))
def test_spread_is_even(count, limit):
    places = list(spread(count, limit))
    assert len(places) == min(count, limit)
    assert places == sorted(set(places))
    gaps = {after - before for before, after in zip([-1, *places], [*places, count], strict=True)}
    assert max(gaps) <= -(-count // len(places)) + 1
    assert list(spread(count, None)) == list(range(count))


def test_mixed_takes_the_categories_in_turns():
    prompts = [
        SuitePrompt("x", "it", category, index) for category, count in (("a", 3), ("b", 1)) for index in range(count)
    ]
    assert [(prompt.category, prompt.index) for prompt in mixed(prompts)] == [("a", 0), ("b", 0), ("a", 1), ("a", 2)]


def test_what_can_be_wrong_with_suites(data, folder):
    with pytest.raises(OptionError, match="suite spec_bench needs --data: the directory that holds spec_bench"):
        read_suites(["spec_bench"])
    with pytest.raises(OptionError, match=r"no suite or file 'spec_bensh' \(did you mean spec_bench\?\)"):
        read_suites(["spec_bensh"], None)
    with pytest.raises(OptionError, match=r"human_eval.jsonl can't be read"):
        read_suites(["code_edit"], folder / "absent")
    with pytest.raises(OptionError, match="is of no use without"):
        read_suites([], data)


def test_a_prompt_that_cannot_be_completed_is_named(tiny_models):
    engine = Engine.load(tiny_models["llama"], drafter="null")
    good = SourcedPrompt("hello", "p.txt, line 1")
    assert prompt_ids(engine, [good]) == [engine.tokenizer.encode("hello")]
    with pytest.raises(OptionError, match=r"^p\.txt, line 2: the prompt has 600 tokens and the model's context is 256"):
        prompt_ids(engine, [good, SourcedPrompt("x" * 600, "p.txt, line 2")])
    engine.tokenizer._chat_template = None
    with pytest.raises(ModelError, match=r"^p\.jsonl, line 3: this model has no chat template"):
        prompt_ids(engine, [good, SourcedPrompt([{"role": "user", "content": "hi"}], "p.jsonl, line 3")])
