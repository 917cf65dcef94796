"""The commands, in this process, on tiny models and on the real one."""

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields, replace

import click
import gguf_files
import pytest
import results

from slipstream import DRAFTERS, Engine, SamplingParams
from slipstream.cli import bench_generate, cli, main
from slipstream.cli.demo import PARAMS, Outcome, in_words
from slipstream.cli.options import EngineOptions
from slipstream.cli.prompts import BUILT_IN
from slipstream.drafters.store import Store
from slipstream.scheduler import Scheduler
from slipstream.tools import bench_batch, bench_kernels
from slipstream.tools.conditions import Conditions
from slipstream.tools.prompt_files import as_prompt
from slipstream.types import Completion, SpeculationStats, Timing, Usage

COMMANDS = dict(cli.commands)
for group, command in cli.commands.items():
    if isinstance(command, click.Group):
        COMMANDS |= {f"{group} {name}": subcommand for name, subcommand in command.commands.items()}


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs a command line here: run("generate", "hi", stdin=b"…") → (exit code, standard output, standard error)."""

    def run(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def tiny(tiny_path, run):
    """Runs a command on the tiny Llama."""

    def tiny(command, *arguments, stdin=b""):
        return run(command, *arguments, "--model", tiny_path, stdin=stdin)

    return tiny


@pytest.fixture
def loaded(monkeypatch, smollm2):
    """Commands find the real model loaded already."""
    monkeypatch.setattr(EngineOptions, "load", lambda options: smollm2)


def record(outcome):
    code, out, err = outcome
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    return json.loads(out)


# generate -------------------------------------------------------------------------------------------------------------


def test_generate_json_has_the_agreed_shape(tiny):
    shape = {
        "text": str,
        "token_ids": list,
        "finish_reason": str,
        "seed": int,
        "index": int,
        "logprobs": type(None),
        "prompt_logprobs": type(None),
        "usage": {"prompt_tokens": int, "completion_tokens": int},
        "speculation": {
            "drafter": str,
            "verification": str,
            "num_speculative_tokens": int,
            "tuned": bool,
            "target_passes": int,
            "drafted": int,
            "accepted": int,
            "rejected": int,
            "unverified": int,
            "mean_accepted_length": float,
            "acceptance_rate": float,
        },
        "timing": {
            "load_seconds": float,
            "prefill_seconds": float,
            "decode_seconds": float,
            "tokens_per_second": float,
        },
        "params": {},
    }

    def shape_of(value):
        return {key: shape_of(inner) for key, inner in value.items()} if isinstance(value, dict) else type(value)

    answer = record(tiny("generate", "hello", "--max-tokens", 40, "--json"))
    assert list(answer) == list(shape)
    assert answer["params"]["temperature"] == 0
    assert list(answer.pop("params")) == [field.name for field in fields(SamplingParams)]
    shape.pop("params")
    assert shape_of(answer) == shape
    assert len(answer["token_ids"]) == answer["usage"]["completion_tokens"] == 40
    counts = answer["speculation"]
    assert counts["drafted"] == counts["accepted"] + counts["rejected"] + counts["unverified"]
    assert counts["drafter"] == "auto"


def test_generate_prints_the_same_text_in_every_way(tiny):
    text = record(tiny("generate", "hello", "--max-tokens", 30, "--json"))["text"]
    assert tiny("generate", "hello", "--max-tokens", 30) == (0, text + "\n", "")
    assert tiny("generate", "-", "--max-tokens", 30, stdin=b"hello\n") == (0, text + "\n", "")
    assert record(tiny("generate", "hello", "--max-tokens", 30, "--drafter", "null", "--json"))["text"] == text


def test_every_option_of_generate_does_something(tiny, tiny_path):
    def generate(*options):
        fixed = [] if "--drafter" in options else ["--drafter", "ngram"]  # auto's counters depend on the clock
        return record(tiny("generate", "hello", "--max-tokens", 24, "--json", *fixed, *options))

    plain = generate()
    assert generate("--max-tokens", 3)["token_ids"] == plain["token_ids"][:3]
    assert generate("--stop", plain["text"][4:7])["text"] == plain["text"][: plain["text"].find(plain["text"][4:7])]
    assert generate("--stop", "absent", "--stop", plain["text"][2:4])["finish_reason"] == "stop"
    assert generate("--system", "be brief")["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]
    assert generate("--raw")["usage"]["prompt_tokens"] == 5
    assert generate("--num-speculative-tokens", 2)["speculation"]["num_speculative_tokens"] == 2
    assert generate("--dtype", "f32", "--threads", 2)["token_ids"]
    sampled = generate("--temperature", 1.5, "--seed", 3)
    assert sampled["seed"] == 3
    assert sampled == {**generate("--temperature", 1.5, "--seed", 3), "timing": sampled["timing"]}
    assert sampled["token_ids"] != plain["token_ids"]
    for narrowed in (["--top-k", 1], ["--top-p", 1e-9], ["--min-p", 1]):
        assert generate("--temperature", 1.5, "--seed", 3, *narrowed)["token_ids"] == plain["token_ids"]
    ids, text = plain["token_ids"], plain["text"]
    for changed in (
        ["--typical-p", 0.05, "--temperature", 1.5, "--seed", 3],
        ["--repetition-penalty", 2],
        ["--frequency-penalty", 9],
        ["--presence-penalty", 9],
        ["--no-repeat-ngram-size", 1],
        ["--logit-bias", f"{ids[0]}=-100"],
        ["--logit-bias", "40=50", "--logit-bias", "41=50"],
        ["--bad-word", next(character for character in text if character.isascii())],
        ["--stop-token-id", ids[2]],
        ["--regex", "[a-c]+"],
        ["--grammar", 'start: "x" | "y"'],
        ["--json-schema", '{"enum": ["one", "two"]}'],
        ["--echo"],
    ):
        assert generate(*changed)["token_ids"] != ids, changed
    penalised = [generate("--presence-penalty", 9, *window)["token_ids"] for window in ([], ["--penalty-window", 1])]
    assert penalised[0] != penalised[1]
    assert generate("--stop-token-id", ids[2], "--min-tokens", 6)["usage"]["completion_tokens"] >= 6
    assert generate("--ignore-eos")["params"]["ignore_eos"] is True
    assert generate("--verification", "rejection")["params"]["verification"] == "rejection"
    assert [len(entry["top"]) for entry in generate("--logprobs", 2)["logprobs"]] == [2] * len(ids)
    assert generate("--logprobs", 0, "--logprobs-of", "processed")["logprobs"][0]["token_id"] == ids[0]
    scored = generate("--prompt-logprobs", 0)
    assert len(scored["prompt_logprobs"]) == scored["usage"]["prompt_tokens"]
    drafted = generate("--draft-model", tiny_path, "--drafter", "draft_model")
    assert drafted["speculation"]["drafter"] == "draft_model"
    assert drafted["speculation"]["accepted"] > 0
    assert drafted["token_ids"] == plain["token_ids"]


def test_several_answers(tiny):
    options = ("generate", "hello", "--n", 3, "--max-tokens", 6, "--temperature", 1, "--seed", 4)
    code, out, err = tiny(*options, "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    assert len({answer["seed"] for answer in answers}) == len({answer["text"] for answer in answers}) == 3
    _, out, _ = tiny(*options)
    assert out == "".join(f"--- {answer['index'] + 1} of 3\n{answer['text']}\n" for answer in answers)


def test_grammars_from_files(tiny, tmp_path):
    (tmp_path / "schema.json").write_text('{"enum": ["one", "two"]}')
    (tmp_path / "latin1.txt").write_bytes(b"\xff")
    assert json.loads(tiny("generate", "hello", "--json-schema", f"@{tmp_path / 'schema.json'}")[1]) in ("one", "two")
    expect_error(tiny("generate", "hello", "--regex", f"@{tmp_path / 'absent'}"), "can't be read")
    expect_error(tiny("generate", "hello", "--regex", f"@{tmp_path / 'latin1.txt'}"), "is not UTF-8")


def test_an_answer_that_a_grammar_s_end_is_missing_from_says_so(tiny):
    for several in ([], ["--n", "2"]):
        code, _, said = tiny("generate", "hello", "--regex", "[ab]{9}", "--max-tokens", 4, *several)
        assert code == 0
        assert said.count("The answer was cut off and isn't complete") == max(1, len(several))
        assert tiny("generate", "hello", "--regex", "[ab]{9}", "--max-tokens", 9, *several)[2] == ""


def test_shown_drafts_hold_the_answer(run, loaded):
    arguments = ("generate", BUILT_IN[0].text, "--max-tokens", "40")
    text = run(*arguments)[1]
    code, marked, err = run(*arguments, "--show-drafts")
    assert (code, err) == (0, "")
    assert "{+" in marked
    assert re.sub(r"\[-.*?-\]", "", marked).replace("{+", "").replace("+}", "") == text


# chat -----------------------------------------------------------------------------------------------------------------


def test_chat_reads_lines_and_remembers(tiny, tiny_path):
    code, out, err = tiny("chat", "--max-tokens", 8, stdin=b"hello\n\nmore\n")
    assert (code, err) == (0, "")
    engine = Engine.load(tiny_path)
    params = replace(PARAMS, max_tokens=8)
    turns = [{"role": "user", "content": "hello"}]
    first = engine.generate(turns, params).text
    turns += [{"role": "assistant", "content": first}, {"role": "user", "content": "more"}]
    assert out == f"{first}\n{engine.generate(turns, params).text}\n"


def test_chat_commands(tiny):
    lines = b"/stats\n/system\n/system be brief\nhello\n/stats\n/clear\n/help\nhello\n/exit\nnever read\n"
    code, out, err = tiny("chat", "--max-tokens", 4, stdin=lines)
    assert (code, err) == (0, "")
    before, _, after = out.partition("System message: be brief\n")
    assert before == "No finished answer yet.\nSystem message: none\n"
    answer, _, rest = after.partition("4 tokens · ")
    assert "mean accepted length" in rest
    assert rest.endswith(answer)  # once forgotten, the same question gets the same answer
    assert all(command in rest for command in ("/help", "/clear", "/system", "/stats", "/exit"))


def test_chat_takes_a_path_for_a_message_and_a_typo_for_a_typo(tiny):
    assert tiny("chat", "--max-tokens", 2, stdin=b"/etc/hosts is what?\n")[0] == 0
    code, out, err = tiny("chat", stdin=b"/clera\n")
    assert (code, out) == (2, "")
    assert err == "slipstream: error: there is no command /clera: /help lists them\n"


@pytest.mark.parametrize("command", [("generate", "hello", "--json"), ("chat",)])
def test_what_is_remembered_is_kept_in_a_file(command, tiny, tmp_path):
    file = tmp_path / "answers.store"
    arguments = (*command, "--max-tokens", 60, "--ignore-eos", "--drafter", "ngram", "--remember", file)
    code, first, err = tiny(*arguments, stdin=b"hello\n/stats\n")
    assert (code, err) == (0, "")
    assert file.stat().st_mode & 0o777 == 0o600
    kept = file.stat().st_size
    code, second, err = tiny(*arguments, stdin=b"hello\n/stats\n")
    assert (code, err) == (0, "")
    assert file.stat().st_size > kept
    passes = [
        json.loads(out)["speculation"]["target_passes"]
        if "--json" in command
        else int(re.findall(r"(\d+) passes", out)[0])
        for out in (first, second)
    ]
    assert passes[1] < passes[0] / 2


def test_what_another_command_remembers_meanwhile_is_kept(tiny, tmp_path, monkeypatch):
    """Two commands begin with the same file; the one that ends first has added to it when the other ends."""
    link, other = tmp_path / "answers.store", tmp_path / "real.store"
    link.symlink_to(other.name)
    arguments = ("generate", "hello", "--max-tokens", 20, "--drafter", "ngram", "--remember", link)
    assert tiny(*arguments)[0] == 0
    alone = other.stat().st_size
    update = Store.update

    def after_another(store, path):
        monkeypatch.setattr(Store, "update", update)
        assert tiny("generate", "good day", "--max-tokens", 20, "--remember", link)[0] == 0
        update(store, path)

    monkeypatch.setattr(Store, "update", after_another)
    assert tiny(*arguments)[0] == 0
    assert other.stat().st_size > alone + (alone - 100) * 3 // 2  # hello twice and a good day
    assert link.is_symlink()


def test_files_that_cannot_be_written_are_refused_before_any_work(run, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(EngineOptions, "load", None)
    (tmp_path / "circle").symlink_to("circle")
    for option, command in (("--remember", "generate hello"), ("--out", "bench batch")):
        for name, words in (
            ("circle", "can't be written (Too many levels of symbolic links): name another file"),
            ("no/file", "its directory doesn't exist: make it first"),
            (".", "is a directory"),
        ):
            expect_error(run(*command.split(), option, tmp_path / name), words)
        with monkeypatch.context() as patch:
            patch.setattr("os.access", lambda path, mode: path != tmp_path)
            words = "nothing can be written into its directory: name another"
            expect_error(run(*command.split(), option, tmp_path / "new"), words)


def test_a_memory_that_cannot_be_read_again_is_refused(tiny, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    expect_error(tiny("generate", "hello", "--remember", tmp_path / "pipe"), "is not a regular file")


def test_a_memory_that_is_no_use_is_refused(tiny, tmp_path):
    (tmp_path / "answers.store").write_text("hello")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("hello")
    expect_error(tiny("generate", "hello", "--remember", tmp_path / "answers.store"), "not a Slipstream store")
    assert (tmp_path / "answers.store").read_text() == "hello"
    expect_error(tiny("generate", "hello", "--remember", tmp_path / "no" / "file"), "its directory doesn't exist")
    both = ("--remember", tmp_path / "new.store", "--corpus", tmp_path / "texts")
    expect_error(tiny("generate", "hello", *both), "use one of them")
    expect_error(tiny("generate", "hello", "--drafter", "null", *both[:2]), "looks nothing up: leave --remember out")
    assert not (tmp_path / "new.store").exists()


# compare --------------------------------------------------------------------------------------------------------------


def test_compare_json_has_the_agreed_shape(tiny, tiny_path, tmp_path):
    (tmp_path / "prompts.txt").write_text("hello\nthe the the the\n")
    options = ["--prompts", tmp_path / "prompts.txt", "--max-tokens", 16, "--ignore-eos", "--draft-model", tiny_path]
    result = record(tiny("compare", "--json", *options))
    assert list(result) == ["model", "plain", "drafters"]
    assert result["plain"]["completion_tokens"] == 32
    assert list(result["drafters"]) == ["auto", "ngram", "recycling", "draft_model", "layer_skip"]
    for figures in result["drafters"].values():
        assert figures.pop("identical") is True
        assert figures.pop("first_difference") is None
        assert all(isinstance(figures.pop(name), float) for name in ("speedup", "tokens_per_second"))
        assert figures.pop("mean_accepted_length") >= 1
        assert 0 <= figures.pop("acceptance_rate") <= 1
        assert not figures
    alone = record(tiny("compare", "--json", *options, "--drafters", "draft_model", "--limit", 1))
    assert list(alone["drafters"]) == ["draft_model"]
    assert alone["plain"]["completion_tokens"] == 16


def test_compare_holds_when_sampling(tiny):
    result = record(tiny("compare", "--json", "--limit", 2, "--max-tokens", 12, "--temperature", 1))
    assert result["drafters"]["ngram"]["identical"] is True


def test_compare_prints_a_table(tiny):
    code, out, err = tiny("compare", "--limit", 1, "--max-tokens", 8)
    assert (code, err) == (0, "")
    assert all(word in out for word in ("1 prompt", "8 tokens", "plain", "ngram", "yes"))
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_compare_reports_a_difference(tiny, monkeypatch):
    generate = Engine.generate

    def tampered(engine, prompt, params, *, drafter=None):
        completion = generate(engine, prompt, params, drafter=drafter)
        if drafter != "ngram":
            return completion
        return replace(completion, token_ids=(*completion.token_ids[:3], 7, *completion.token_ids[4:]))

    monkeypatch.setattr(Engine, "generate", tampered)
    code, out, _ = tiny("compare", "--json", "--limit", 2, "--max-tokens", 8)
    difference = json.loads(out)["drafters"]["ngram"]["first_difference"]
    assert code == 1
    assert (difference["prompt"], difference["position"], difference["drafted"]) == (0, 3, 7)
    assert difference["plain"] != 7
    code, out, _ = tiny("compare", "--limit", 2, "--max-tokens", 8)
    assert code == 1
    assert "differs first in prompt 1, token 4" in " ".join(out.split())


# audit ----------------------------------------------------------------------------------------------------------------


def test_audit_json_has_the_agreed_shape(tiny, tiny_path):
    options = ["--limit", 1, "--draft-model", tiny_path, "--samples", 64, "--max-tokens", 16]
    report = record(tiny("audit", "--json", *options))
    assert report["lossless"] is True
    assert report["runs"] == report["identical"] == 240  # 8 options × 5 drafters × 3 lengths, alone and in a batch
    assert report["differences"] == []
    assert all(report["accepted"][name] > 0 for name in ("ngram", "draft_model"))
    tests = {(test["drafter"], test["verification"]): test for test in report["distribution"]["tests"]}
    assert {(name, "match") for name in ("auto", "ngram", "recycling", "draft_model", "layer_skip")} <= set(tests)
    assert ("draft_model", "rejection") in tests
    assert all(test["passed"] and test["p_value"] > 1e-4 for test in tests.values())
    assert set(report["options"]) == {"greedy", "sampled", "hot", "penalised", "banned", "stopped", "regex", "json"}


def test_audit_reports_a_difference(tiny, monkeypatch):
    generate = Engine.generate

    def tampered(engine, prompt, params, *, drafter=None, num_speculative_tokens=None):
        completion = generate(engine, prompt, params, drafter=drafter, num_speculative_tokens=num_speculative_tokens)
        if drafter != "ngram" or num_speculative_tokens != 4 or params.typical_p == 1:
            return completion
        return replace(completion, token_ids=(*completion.token_ids[:3], 7, *completion.token_ids[4:]))

    monkeypatch.setattr(Engine, "generate", tampered)
    code, out, _ = tiny("audit", "--json", "--limit", 1, "--max-tokens", 16)
    report = json.loads(out)
    assert (code, report["lossless"]) == (1, False)
    [difference] = report["differences"]
    assert (difference["options"], difference["what"], difference["position"]) == ("hot", "token_ids", 3)
    assert (difference["drafter"], difference["num_speculative_tokens"], difference["batched"]) == ("ngram", 4, False)
    assert difference["drafted"] == 7
    code, out, _ = tiny("audit", "--limit", 1, "--max-tokens", 16)
    assert code == 1
    assert "NOT lossless" in out
    assert "hot, ngram with 4: token_ids differ at position 3" in " ".join(out.split())


def test_audit_notices_a_wrong_distribution(tiny, monkeypatch):
    """Draws that don't depend on the seed are no draws."""
    monkeypatch.setattr("slipstream.engine.derived_seed", lambda seed, index: seed)
    code, out, _ = tiny("audit", "--json", "--limit", 1, "--max-tokens", 16, "--samples", 128)
    report = json.loads(out)
    assert (code, report["differences"]) == (1, [])
    assert not any(test["passed"] for test in report["distribution"]["tests"])


# demo -----------------------------------------------------------------------------------------------------------------


def test_demo_into_a_pipe(tiny):
    code, out, err = tiny("demo")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert out.count("--- plain decoding") == out.count("--- with the drafter auto") == 3
    assert "Every answer is the same" in out
    assert "Speed-up" in out


def test_the_demo_is_no_loop(smollm2):
    """A small model that repeats itself flatters every drafter: each answer must end by itself, without circles."""
    for example in BUILT_IN[:3]:
        answer = smollm2.generate(as_prompt(example.text), PARAMS)
        spans = [answer.token_ids[at : at + 8] for at in range(len(answer.token_ids) - 7)]
        assert answer.finish_reason == "stop", example.title
        assert len(spans) == len(set(spans)), example.title


def outcome(title, plain, drafted, length, identical=True):
    """plain, drafted: tokens per second; length: the mean accepted length."""

    def completion(rate, token):
        stats = SpeculationStats("ngram", 5, target_passes=100, committed=round(100 * length))
        return Completion("", (token,), "stop", 0, Usage(1, 1), stats, Timing(0.1, 1.0, rate))

    example = replace(BUILT_IN[0], title=title)
    return Outcome(example, completion(plain, 1), completion(drafted, 1 if identical else 2))


def test_the_demo_says_in_words_what_happened():
    edit, even, ask = (
        outcome("Edit", 10.0, 21.0, 2.5),
        outcome("Talk", 10.0, 10.5, 1.0),
        outcome("Ask", 10.0, 9.0, 1.02),
    )
    words = in_words([edit, even, ask])
    assert "faster for “Edit” (2.10" in words
    assert "no difference for “Talk” (1.05" in words
    assert "slower for “Ask” (0.90" in words
    assert not any(word in in_words([edit]) for word in ("slower", "difference", "again"))
    assert not any(word in in_words([ask]) for word in ("faster", "difference", "again"))
    assert "run this again" in in_words([outcome("Ask", 10.0, 12.0, 1.0)])  # one token a pass can't be that much faster
    assert "differ for: Edit" in in_words([outcome("Edit", 10.0, 21.0, 2.5, identical=False)])


def test_what_was_read_otherwise_than_the_file_says_is_told(run, tmp_path):
    values = gguf_files.byte_level_metadata()
    values["tokenizer.ggml.token_type"] = [gguf_files.NORMAL] * len(values["tokenizer.ggml.tokens"])
    path = gguf_files.with_tokenizer(tmp_path / "m.gguf", values)
    code, _, err = run("generate", "hi", "--model", path, "--max-tokens", 2)
    assert code == 0
    assert err.startswith("slipstream: note: the file calls <|endoftext|>, <|im_start|>, <|im_end|> text")


# models ---------------------------------------------------------------------------------------------------------------


def test_models_lists_what_is_in_the_cache(run, tiny_path, tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "absent"))
    empty = record(run("models", "--json"))
    assert empty["default"]["cached"] is False
    assert empty["default"]["bytes"] is None
    assert empty["others"] == []
    (tmp_path / "tiny").symlink_to(tiny_path)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    found = {other["model"]: other for other in record(run("models", "--json"))["others"]}
    assert found[str(tmp_path / "tiny")]["problem"] is None
    assert found[str(tmp_path / "tiny")]["bytes"] > 0
    assert found[str(tmp_path / "tiny")]["end_tokens"] == {"<|endoftext|>": "settings", "<|im_end|>": "template"}
    assert "broken.gguf" in found[str(tmp_path / "broken.gguf")]["problem"]
    code, out, err = run("models")
    assert (code, err) == (0, "")
    assert "not here yet" in out
    assert "<|im_end|>" in out
    assert "qwen3" in out


# Help and errors ------------------------------------------------------------------------------------------------------


def example_lines(command):
    return [line.strip() for line in (command.epilog or "").splitlines() if "slipstream " in line]


def test_help_of_everything(run):
    for name in [None, *COMMANDS]:
        arguments = ["--help"] if name is None else [*name.split(), "--help"]
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        assert "Examples:" in out
    assert run()[1] == run("--help")[1] == run("-h")[1]
    assert re.fullmatch(r"slipstream \d+\.\d+\.\d+\S*\n", run("--version")[1])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_tells_every_default(name):
    for parameter in COMMANDS[name].params:
        if not isinstance(parameter, click.Option) or parameter.is_flag or parameter.name in ("help", "version"):
            continue
        optional = {"system", "stop", "stop_token_ids", "bad_words", "logit_bias", "draft_model", "workload"}
        optional |= {"json_schema", "regex", "grammar", "data", "plot", "corpus"}  # nothing, unless given
        told = parameter.required or parameter.show_default or "[default:" in (parameter.help or "")
        assert told or parameter.name in optional, parameter.name


EXAMPLES = dict.fromkeys(line for command in [cli, *COMMANDS.values()] for line in example_lines(command))


@pytest.mark.parametrize("line", [line for line in EXAMPLES if "--url" not in line])  # which needs a server
def test_examples_in_help_run(line, run, monkeypatch, tmp_path, tiny_path):
    """Each as written, but with the tiny model in the place of the default one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "hello"}\n{"turns": ["the the", "ignored"]}\n')
    (tmp_path / "functions.jsonl").write_text('{"prompt": "def f():\\n", "canonical_solution": "    pass\\n"}\n')
    (tmp_path / "data").mkdir()
    for file, copy in (("prompts.jsonl", "spec_bench.jsonl"), ("functions.jsonl", "human_eval.jsonl")):
        shutil.copy(tmp_path / file, tmp_path / "data" / copy)
    results.write(tmp_path, results=results.generate())
    engine = Engine.load(tiny_path)
    monkeypatch.setattr(EngineOptions, "load", lambda options: engine)
    monkeypatch.setattr(bench_kernels, "uncached_footprint", lambda: 1 << 25)  # but for the figures, all is the same
    monkeypatch.setattr(bench_batch, "REPEATS", 2)
    before, _, command = line.rpartition("slipstream ")
    feed = before.strip().removesuffix("|")
    stdin = subprocess.run(["sh", "-c", feed], capture_output=True, check=True).stdout if feed else b""
    code, out, err = run(*shlex.split(command), stdin=stdin)
    assert (code, err) == (0, "")
    assert out or command.startswith("chat")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["genrate"], "Did you mean 'generate'?"),
        (["generate"], "Missing argument 'PROMPT'"),
        (["generate", "hi", "--max-token", "3"], "Did you mean one of: '--max-tokens'"),
        (["generate", "hi", "there"], "unexpected extra argument"),
        (["generate", ""], "the prompt is empty"),
        (["generate", "ab\udcff"], "the prompt is not valid UTF-8 text at character 3"),
        (["generate", "-"], "the prompt on standard input is empty"),
        (["generate", "hi", "--drafter", "magic"], "'magic' is not one of"),
        (["generate", "hi", "--drafter", "draft_model"], "name one with --draft-model"),
        (["generate", "hi", "--drafter", "ngram", "--draft-model", "x"], "makes no use of --draft-model"),
        (["generate", "hi", "--dtype", "f64"], "'f64' is not one of"),
        (["generate", "hi", "--threads", "0"], "0 is not in the range"),
        (["generate", "hi", "--threads", "two"], "not a valid integer"),
        (["generate", "hi", "--num-speculative-tokens", "-1"], "-1 is not in the range"),
        (["generate", "hi", "--max-tokens", "-1"], "max_tokens is -1"),
        (["generate", "hi", "--temperature", "nan"], "temperature is nan"),
        (["generate", "hi", "--top-k", "-1"], "top_k is -1"),
        (["generate", "hi", "--top-p", "0"], "top_p is 0.0"),
        (["generate", "hi", "--min-p", "2"], "min_p is 2.0"),
        (["generate", "hi", "--seed", "-1"], "seed is -1"),
        (["generate", "hi", "--seed", str(2**64)], "seed is 18446744073709551616"),
        (["generate", "hi", "--stop", ""], "--stop is empty"),
        (["generate", "hi", "--typical-p", "0"], "typical_p is 0.0"),
        (["generate", "hi", "--repetition-penalty", "0"], "repetition_penalty is 0.0"),
        (["generate", "hi", "--penalty-window", "3"], "there is no penalty"),
        (["generate", "hi", "--logit-bias", "3"], "--logit-bias is '3'"),
        (["generate", "hi", "--logit-bias", "3=nan"], "logit_bias is"),
        (["generate", "hi", "--bad-word", ""], "--bad-word is empty"),
        (["generate", "hi", "--min-tokens", "9", "--max-tokens", "3"], "min_tokens is 9"),
        (["generate", "hi", "--regex", ""], "--regex is empty"),
        (["generate", "hi", "--regex", "a", "--grammar", "start: /a/"], "regex and grammar are given"),
        (["generate", "hi", "--regex", "a", "--ignore-eos"], "ignore_eos and regex"),
        (["generate", "hi", "--verification", "hope"], "'hope' is not"),
        (["generate", "hi", "--logprobs", "21", "--json"], "logprobs is 21"),
        (["generate", "hi", "--logprobs", "2"], "add --json"),
        (["generate", "hi", "--logprobs-of", "processed", "--json"], "logprobs None"),
        (["generate", "hi", "--n", "0"], "n is 0"),
        (["generate", "hi", "--n", "2", "--show-drafts"], "--n is 2"),
        (["generate", "hi", "--system", ""], "--system is empty"),
        (["generate", "hi", "--system", "s", "--raw"], "--system needs the chat template"),
        (["generate", "hi", "--json", "--show-drafts"], "use one of the two"),
        (["generate", "hi", "--model", "nowhere/at/all"], "nowhere/at/all"),
        (["compare", "--drafters", "ngarm"], "did you mean ngram?"),
        (["compare", "--drafters", ""], "--drafters has ''"),
        (["compare", "--drafters", "draft_model"], "name one with --draft-model"),
        (["compare", "--drafters", "ngram", "--draft-model", "x"], "makes no use of --draft-model"),
        (["compare", "--verification", "rejection"], "use match, or slipstream audit"),
        (["compare", "--limit", "0"], "0 is not in the range"),
        (["compare", "--as", "code_edit"], "name one with --prompts"),
        (["compare", "--as", "prose"], "'prose' is not"),
        (["compare", "--prompts", "absent.jsonl"], "absent.jsonl can't be read"),
        (["audit", "--drafters", "magic"], "--drafters has 'magic'"),
        (["audit", "--max-tokens", "2"], "2 is not in the range"),
        (["demo", "--drafter", "null"], "name another drafter"),
        (["models", "extra"], "unexpected extra argument"),
    ],
)
def test_bad_input_is_one_line(run, arguments, words):
    expect_error(run(*arguments), words)


def expect_error(outcome, words):
    code, out, err = outcome
    assert (code, out) == (2, "")
    assert err.startswith("slipstream: error: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[: len(data) // 2], ""),
        (lambda data: b"GGML" + data[4:], ""),
        (lambda data: b"", ""),
        (lambda data: data[:4] + b"\xff" * 20 + data[24:], ""),
    ],
    ids=["truncated", "wrong magic", "empty", "absurd sizes"],
)
def test_bad_model_files_are_one_line(run, smollm2_path, tmp_path, damage, words):
    file = tmp_path / "bad.gguf"
    file.write_bytes(damage(smollm2_path.read_bytes()))
    expect_error(run("generate", "hi", "--model", file), "bad.gguf")


def test_bad_models_and_requests_are_one_line(run, tiny, tiny_path):
    expect_error(tiny("generate", "x " * 800), "context is 1024")
    expect_error(run("generate", "hi", "--model", tiny_path / "config.json"), "give its directory")
    expect_error(tiny("generate", "hi", "--regex", "("), "regex is '('")
    expect_error(tiny("generate", "hi", "--logit-bias", "9999=1"), "logit_bias has token id 9999")
    expect_error(tiny("chat", stdin=b"ab\xff\n"), "UTF-8")


@pytest.fixture(scope="module")
def tiny_engine(tiny_path):
    return Engine.load(tiny_path)


@pytest.mark.parametrize(
    "command",
    [
        "compare --prompts",
        "audit --prompts",
        "tune drafters --prompts",
        "tune layer-skip --prompts",
        "bench generate --suite",
        "bench batch --sizes 2 --suite",
    ],
)
def test_a_prompt_that_is_too_long_is_named_before_anything_runs(command, run, monkeypatch, tmp_path, tiny_engine):
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "hi"}) + "\n\n" + json.dumps({"prompt": "x" * 1100}))
    monkeypatch.setattr(EngineOptions, "load", lambda options: tiny_engine)
    monkeypatch.setattr(Conditions, "now", lambda: Conditions(0.0, 20.0))
    monkeypatch.setattr(bench_generate, "cost_curve", lambda model, progress: [])
    monkeypatch.setattr(Scheduler, "add", None)  # no request runs
    expect_error(
        run(*command.split(), tmp_path / "prompts.jsonl"), f"{tmp_path}/prompts.jsonl, line 3: the prompt has 11"
    )


def test_a_prompt_with_turns_cannot_be_sent_as_text(run, tmp_path):
    messages = [{"role": "user", "content": "hi"}] * 2
    (tmp_path / "prompts.json").write_text(json.dumps(["hi", {"messages": messages}], indent=1))
    load = ("bench", "load", "--url", "http://127.0.0.1:1", "--api", "completions", "--prompts")
    expect_error(run(*load, tmp_path / "prompts.json"), "prompts.json, line 3: it has several messages")


def test_every_drafter_can_be_chosen():
    [option] = [parameter for parameter in COMMANDS["generate"].params if parameter.name == "drafter"]
    assert list(option.type.choices) == ["auto", *DRAFTERS]
