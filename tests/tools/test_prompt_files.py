"""Prompt files: what they may be, and their errors."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import OptionError
from slipstream.tools.prompt_files import as_prompt, check_text, read_prompts

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
# A line of plain text: no line ends, zero bytes or byte order marks, not blank, and not taken for JSON.
LINE = TEXT.map(lambda text: "".join(text.splitlines()).replace("\0", "").strip("\ufeff")).filter(
    lambda line: line.strip() and not line.lstrip().startswith(("{", "["))
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
    return [found.prompt for found in read_prompts(path, limit=limit, workload=workload, raw=raw)]


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


@given(
    entries=st.lists(st.one_of(TEXT, RECORD), min_size=1, max_size=5),
    indent=st.sampled_from([None, 0, 2]),
    wrapped=st.booleans(),
    named=st.booleans(),
    before=st.sampled_from(["", "\n", "\ufeff"]),
)
def test_json(folder, entries, indent, wrapped, named, before):
    """A list of texts and records, on one line or over several; so is the list under `prompts`."""
    path = folder / ("prompts.json" if named else "prompts.txt")
    content = {"other": {"prompts": [1]}, "prompts": entries} if wrapped else entries
    text = before + json.dumps(content, indent=indent)
    wanted = [user(entry) if isinstance(entry, str) else expected(entry) for entry in entries]
    assert read(path, text) == wanted
    assert read(path, text, limit=2) == wanted[:2]


@given(record=RECORD, named=st.booleans())
def test_one_record_over_several_lines(folder, record, named):
    path = folder / ("prompts.json" if named else "prompts.txt")
    assert read(path, json.dumps(record, indent=2)) == [expected(record)]


def test_json_lines_under_another_name(folder):
    assert read(folder / "p.json", '{"prompt": "a"}\n{"prompt": "b"}\n') == [user("a"), user("b")]
    assert read(folder / "p.ndjson", '{"prompt": "a"}\n{"prompt": "b"}\n') == [user("a"), user("b")]


def test_a_text_in_brackets_is_plain_text(folder):
    lines = ["[INST] Hello [/INST]", '["a", "b"]', "[1]"]
    assert read(folder / "p.txt", "\n".join(lines)) == [user(line) for line in lines]


def test_each_prompt_has_its_line(folder):
    def places(name, text):
        path = folder / name
        path.write_text(text)
        return [
            found.where.removeprefix(f"{path}, ") for found in read_prompts(path, limit=None, workload=None, raw=False)
        ]

    assert places("p.txt", "\na\n\nb\n") == ["line 2", "line 4"]
    assert places("p.jsonl", '{"prompt": "a"}\n\n{"prompt": "b"}') == ["line 1", "line 3"]
    assert places("p.json", '\n[\n "a",\n\n {"prompt":\n "b"}, "c"]') == ["line 3", "line 5", "line 6"]
    assert places("p.json", '{"n": [1],\n"prompts": [\n"a"\n,\n"b"]}') == ["line 3", "line 5"]
    assert places("p.json", '\n\n{\n"prompt": "a"}') == ["line 3"]


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
        ('{"messages": []}', "messages is []"),
        ('{"messages": "hi"}', "messages is 'hi'"),
        ('{"messages": ["hi"]}', "messages[0] is 'hi'"),
        ('{"messages": [{"role": "user"}]}', "messages[0].content is missing"),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "sister", "content": "a"}]}', "messages[1].role is"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "content[0] is of type 'image_url'"),
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
    ("text", "words"),
    [
        ('[\n"a",\n]', ", line 3 is not JSON"),
        ('["a"', ", line 1 is not JSON"),
        ('[{"prompt": "a"},\n{"prompt" "b"}]', ", line 2 is not JSON (Expecting ':' delimiter)"),
        ('[{"prompt": "a"}]\n[{"prompt": "b"}]', ", line 2 is not JSON"),
        ('{\n"prompt": "a"', ", line 2 is not JSON"),
        ("[" * 100_000, " is not JSON"),
        ('["a",\n""]', ", line 2 is empty"),
        ('["a",\n3]', ", line 2 is a number: write a text"),
        ('["a",\n["b"]]', ", line 2 is a list: write a text"),
        ('["a",\n{"text": "b"}]', ", line 2 has neither prompt nor messages nor turns"),
        ('["a",\n{"prompt": ""}]', ", line 2: prompt is empty"),
        ('{"prompts": "a"}', ": prompts is a text: write a list"),
        ('{"prompts": []}', " holds no prompts"),
        ("[\n]", " holds no prompts"),
    ],
)
def test_malformed_json_is_named(folder, text, words):
    for name in ("bad.json", "bad.txt"):
        with pytest.raises(OptionError) as error:
            read(folder / name, text)
        assert str(error.value).startswith(f"{folder / name}{words}")
        assert "\n" not in str(error.value)


def test_a_json_file_is_never_plain_text(folder):
    with pytest.raises(OptionError, match=r"p\.json, line 1 is not JSON"):
        read(folder / "p.json", "hello\nagain")
    with pytest.raises(OptionError, match=r"p\.json is a text: write a list"):
        read(folder / "p.json", '"hello"')


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("p.csv", b"prompt,answer\na,b\n", "is a table"),
        ("p.TSV", b"prompt\tanswer\na\tb\n", "is a table"),
        ("p.yaml", b"- prompt: a\n", "is YAML"),
        ("p.jsonl.gz", gzip.compress(b'{"prompt": "a"}'), "gzip: unpack it first"),
        ("p.parquet", b"PAR1\x15\x04\x15", "is a Parquet file: convert it to JSON lines"),
        ("p.xlsx", b"PK\x03\x04\x14\0", "is a ZIP archive"),
        ("p.txt", "hello".encode("utf-16"), "is UTF-16 text: convert it to UTF-8"),
        ("p.txt", "hello".encode("utf-16-le"), "line 1 is not UTF-8 text, it has a zero byte"),
    ],
)
def test_other_kinds_of_files_are_refused_by_name(folder, name, data, words):
    with pytest.raises(OptionError, match=rf"{name}.*{words}"):
        read(folder / name, data)


def test_a_list_of_texts_has_no_code_to_edit(folder):
    with pytest.raises(OptionError, match="line 1 is plain text: code_edit needs"):
        read(folder / "p.json", '["hello"]', workload="code_edit")


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
    for blank in ("", "\n", " \n\t\n", "\ufeff"):
        with pytest.raises(OptionError, match="holds no prompts"):
            read(folder / "p.txt", blank)


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
