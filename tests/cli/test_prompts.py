"""Prompt files, standard input and their errors."""

import io
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.cli.prompts import BUILT_IN, as_prompt, check_text, read_prompts, read_standard_input
from slipstream.errors import OptionError

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


def read(path, text, limit=None, code_edit=False, raw=False):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_prompts(path, limit=limit, code_edit=code_edit, raw=raw)


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
    [[message]] = read(folder / "p.jsonl", json.dumps(record), code_edit=True)
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
        read(folder / "p.jsonl", json.dumps(record), code_edit=True)


def test_what_a_file_as_a_whole_can_lack(folder):
    with pytest.raises(OptionError, match=r"holds no prompts"):
        read(folder / "p.txt", "\n  \n")
    with pytest.raises(OptionError, match=r"p\.txt, line 2 is not UTF-8"):
        read(folder / "p.txt", b"good\n\xff\n")
    with pytest.raises(OptionError, match="plain text"):
        read(folder / "p.txt", "hello", code_edit=True)
    with pytest.raises(OptionError, match="drop --raw"):
        read(folder / "p.jsonl", json.dumps({"messages": user("m")}), raw=True)
    with pytest.raises(OptionError, match=r"can't be read \(No such file"):
        read_prompts(folder / "absent.txt", limit=None, code_edit=False, raw=False)
    with pytest.raises(OptionError, match="can't be read"):
        read_prompts(Path(folder), limit=None, code_edit=False, raw=False)


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


@pytest.mark.parametrize(("data", "text"), [(b"hi\n", "hi"), (b"hi\n\n", "hi\n"), (b"hi", "hi"), ("ü".encode(), "ü")])
def test_standard_input_loses_its_last_newline(monkeypatch, data, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert read_standard_input() == text


@pytest.mark.parametrize(
    ("data", "words"), [(b"", "is empty"), (b"\n", "is empty"), (b"ab\xff", "not UTF-8 text at byte 3")]
)
def test_bad_standard_input(monkeypatch, data, words):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(OptionError, match=words):
        read_standard_input()


def test_built_in_prompts_are_distinct():
    assert len({example.title for example in BUILT_IN}) == len({example.text for example in BUILT_IN}) == len(BUILT_IN)
