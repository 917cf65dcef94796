"""Prompt files, their errors, and the suites that are made of them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import OptionError
from slipstream.tools.suites import (
    SuitePrompt,
    as_prompt,
    check_text,
    mixed,
    read_prompts,
    read_suites,
    spread,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
# A line of plain text: no line ends or byte order marks, not blank, and not taken for JSON.
LINE = TEXT.map(lambda text: "".join(text.splitlines()).strip("\ufeff")).filter(
    lambda line: line.strip() and not line.lstrip().startswith("{")
)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": TEXT})
RECORD = st.one_of(
    st.tuples(st.fixed_dictionaries({"prompt": TEXT, "other": st.integers()}), st.none()),
    st.tuples(st.fixed_dictionaries({"messages": st.lists(MESSAGE, min_size=1)}), st.none()),
    st.tuples(st.fixed_dictionaries({"turns": st.lists(TEXT, min_size=1)}), st.none()),
).map(lambda pair: pair[0])


def user(text):
    return [{"role": "user", "content": text}]


def expected(record):
    if "prompt" in record:
        return user(record["prompt"])
    return record["messages"] if "messages" in record else user(record["turns"][0])


def read(path, text, limit=None, workload=None, raw=False):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_prompts(path, limit=limit, workload=workload, raw=raw)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("prompts")


@given(
    records=st.lists(RECORD, min_size=1, max_size=5), ascii=st.booleans(), limit=st.integers(1, 6), named=st.booleans()
)
def test_json_lines(folder, records, ascii, limit, named):
    text = "\n\n".join(json.dumps(record, ensure_ascii=ascii) for record in records)
    path = folder / ("prompts.jsonl" if named else "prompts.txt")
    assert read(path, text, limit) == [expected(record) for record in records][:limit]


@given(lines=st.lists(LINE, min_size=1, max_size=5), end=st.sampled_from(["\n", "\r\n"]))
def test_plain_text_is_one_prompt_a_line(folder, lines, end):
    assert read(folder / "prompts.txt", end.join(lines)) == [user(line) for line in lines]
    assert read(folder / "prompts.txt", end.join(lines), raw=True) == lines


def test_prompt_wins_over_messages_and_turns(folder):
    record = {"turns": ["t"], "messages": user("m"), "prompt": "p"}
    assert read(folder / "p.jsonl", json.dumps(record)) == [user("p")]
    assert read(folder / "p.jsonl", json.dumps(record), raw=True) == ["p"]


def test_a_byte_order_mark_is_no_part_of_the_prompt(folder):
    assert read(folder / "p.txt", b"\xef\xbb\xbfhello\n") == [user("hello")]


def test_code_edit_asks_for_annotations_of_the_whole_function(folder):
    record = {"prompt": "def one():\n", "canonical_solution": "    return 1\n", "turns": ["ignored"]}
    [[message]] = read(folder / "p.jsonl", json.dumps(record), workload="code_edit")
    assert message["content"].startswith("Add type hints and a docstring to this function")
    assert "def one():\n    return 1\n```" in message["content"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ('{"prompt": "a"', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('["a"]', "a list, not an object"),
        ("3", "a number, not an object"),
        ("{}", "neither prompt nor messages nor turns"),
        ('{"prompt": ""}', "prompt is empty"),
        ('{"prompt": null}', "prompt is null"),
        ('{"prompt": 3}', "prompt is a number"),
        (r'{"prompt": "\ud800"}', "not valid UTF-8"),
        ('{"messages": []}', "messages is empty"),
        ('{"messages": "hi"}', "messages is a text"),
        ('{"messages": ["hi"]}', "a message is a text"),
        ('{"messages": [{"role": "user"}]}', "content is missing"),
        ('{"turns": []}', "turns is empty"),
        ('{"turns": "hi"}', "turns is a text"),
        ('{"turns": [true]}', "turns is true or false"),
        ('{"prompt": "p", "category": 3}', "category is a number"),
    ],
)
def test_a_malformed_line_is_named(folder, line, words):
    path = folder / "bad.jsonl"
    with pytest.raises(OptionError) as error:
        read(path, '{"prompt": "good"}\n' + line)
    assert str(error.value).startswith(f"{path}, line 2")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert read(path, '{"prompt": "good"}\n' + line, limit=1) == [user("good")]  # it isn't read further than needed


@pytest.mark.parametrize(
    "record", [{"prompt": "p"}, {"canonical_solution": "c"}, {"prompt": "p", "canonical_solution": 1}]
)
def test_code_edit_needs_its_two_fields(folder, record):
    with pytest.raises(OptionError, match=r"line 1: (prompt|canonical_solution) is (missing|a number)"):
        read(folder / "p.jsonl", json.dumps(record), workload="code_edit")


def test_what_a_file_as_a_whole_can_lack(folder):
    with pytest.raises(OptionError, match=r"holds no prompts"):
        read(folder / "p.txt", "\n  \n")
    with pytest.raises(OptionError, match=r"p\.txt, line 2 is not UTF-8"):
        read(folder / "p.txt", b"good\n\xff\n")
    with pytest.raises(OptionError, match="plain text"):
        read(folder / "p.txt", "hello", workload="code_edit")
    with pytest.raises(OptionError, match="drop --raw"):
        read(folder / "p.jsonl", json.dumps({"messages": user("m")}), raw=True)
    with pytest.raises(OptionError, match=r"can't be read \(No such file"):
        read_prompts(folder / "absent.txt", limit=None, workload=None, raw=False)
    with pytest.raises(OptionError, match="can't be read"):
        read_prompts(Path(folder), limit=None, workload=None, raw=False)


def test_prompt_of_a_text():
    assert as_prompt("hi") == user("hi")
    assert as_prompt("hi", raw=True) == "hi"
    assert as_prompt("hi", system="be brief") == [{"role": "system", "content": "be brief"}, *user("hi")]
    with pytest.raises(OptionError, match="--system needs the chat template"):
        as_prompt("hi", system="be brief", raw=True)


def test_check_text_names_the_place():
    assert check_text("é", "it") == "é"
    with pytest.raises(OptionError, match="it is empty"):
        check_text("", "it")
    with pytest.raises(OptionError, match="it is not valid UTF-8 text at character 3"):
        check_text("ab\udcff", "it")


# Suites ---------------------------------------------------------------------------------------------------------------


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
    prompts = [SuitePrompt(category, index, "x") for category, count in (("a", 3), ("b", 1)) for index in range(count)]
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
