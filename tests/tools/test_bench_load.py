"""slipstream bench load, against a server on this machine whose answers are known."""

import json
import math
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from fake_server import FakeServer

from slipstream import OptionError
from slipstream.cli import cli, main
from slipstream.tools.bench_load import (
    Answer,
    ClosedLoop,
    Load,
    OpenLoop,
    bench_load,
    counters,
    increases,
    percentiles,
    summary,
)

PROMPTS = ["one", "two", "three"]
COMMAND: click.Command = cli.commands["bench"].commands["load"]  # type: ignore[attr-defined]

Outcome = tuple[int, str, str]
Run = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `slipstream bench load` here → (exit code, standard output, standard error)."""

    def run(*arguments: object) -> Outcome:
        code = main(["bench", "load", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def measured(fake: FakeServer, *levels: ClosedLoop | OpenLoop, **options: Any) -> dict[str, Any]:
    return bench_load(Load(**{"url": fake.url, "api": "completions", "prompts": PROMPTS, **options}), levels)


def level_of(fake: FakeServer, level: ClosedLoop | OpenLoop | None = None, **options: Any) -> dict[str, Any]:
    [figures] = measured(fake, level or ClosedLoop(1, 3), **options)["levels"]
    return figures


# Figures --------------------------------------------------------------------------------------------------------------


def test_percentiles() -> None:
    assert percentiles([float(number) for number in range(101, 0, -1)]) == {"p50": 51, "p90": 91, "p99": 100}
    assert percentiles([1.0, 2.0]) == pytest.approx({"p50": 1.5, "p90": 1.9, "p99": 1.99})
    assert percentiles([3.0]) == {"p50": 3, "p90": 3, "p99": 3}
    assert percentiles([]) == {"p50": None, "p90": None, "p99": None}


def test_the_figures_of_a_level() -> None:
    answers = [
        Answer(chunks=(0.5, 0.7, 1.1), latency=1.2, usage=7),  # 0.1 s a token
        Answer(chunks=(1.0, 1.2), latency=1.3, usage=None),  # 0.2 s a token
        Answer(chunks=(2.0,), latency=2.0, usage=1),
    ]
    figures = summary(answers, {"timeout": 1}, seconds=4.0, ttft_limit=1.0, itl_limit=0.15)
    assert (figures["requests"], figures["completed"], figures["errors"]) == (4, 3, {"timeout": 1})
    assert figures["time_to_first_token"]["p50"] == 1.0
    assert figures["time_between_tokens"]["p50"] == pytest.approx(0.15)
    assert figures["time_between_chunks"]["p50"] == pytest.approx(0.2)
    assert figures["time_between_chunks"]["p99"] == pytest.approx(0.396)
    assert figures["latency"]["p50"] == 1.3
    assert figures["tokens_per_chunk"] == 8 / 4  # of the two that tell
    assert figures["output_tokens_per_second"] == (7 + 2 + 1) / 4
    assert figures["requests_per_second"] == 3 / 4
    goodput = {"share": 0.25, "requests_per_second": 0.25, "ttft_limit": 1.0, "itl_limit": 0.15}
    assert figures["goodput"] == goodput  # the first alone: the second's tokens, the third's first came too late
    assert summary(answers, {}, 4.0, ttft_limit=2.0, itl_limit=0.2001)["goodput"]["share"] == 1


METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a } \\"b"} 12.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="a } \\"b"} 1.7e+09
# TYPE slipstream_accepted counter
slipstream_accepted_total 1.5E+3 1700000000
# TYPE slipstream_acceptance_rate gauge
slipstream_acceptance_rate 0.5
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 99
# TYPE broken_draft_total counter
broken_draft_total many
"""


def test_counters_of_speculation() -> None:
    assert counters(METRICS) == {
        'vllm:spec_decode_num_drafts_total{engine="0",model_name="a } \\"b"}': 12,
        "slipstream_accepted_total": 1500,
    }
    assert counters("<html>no metrics</html>") == {}
    assert increases({"a": 2.0}, {"a": 5.0, "b": 1.0}) == {"a": 3, "b": 1}
    assert increases({}, {}) is None
    assert increases(None, {"a": 5.0}) is None
    assert increases({"a": 2.0}, None) is None


def test_arrivals_are_a_poisson_process_with_a_fixed_seed() -> None:
    loop = OpenLoop(rate=50, duration=100)
    assert loop.arrivals == OpenLoop(50, 100).arrivals
    assert list(loop.arrivals) == sorted(loop.arrivals)
    assert 0 < loop.arrivals[0] < loop.arrivals[-1] < 100
    assert loop.requests == pytest.approx(5000, rel=0.05)
    pauses = [later - earlier for earlier, later in zip(loop.arrivals, loop.arrivals[1:], strict=False)]
    share = sum(pause > 1 / 50 for pause in pauses) / len(pauses)
    assert share == pytest.approx(math.exp(-1), abs=0.03)  # pauses are exponential


# Load -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_what_is_sent_and_measured(api: Any) -> None:
    prompts = [[{"role": "user", "content": prompt}] for prompt in PROMPTS] if api == "chat" else PROMPTS
    with FakeServer(first_delay=0.02, delay=0.01).running() as fake:
        result = measured(fake, ClosedLoop(1, 4), api=api, prompts=prompts, max_tokens=7, temperature=0.5)
    head = {name: result[name] for name in ("kind", "url", "model", "api", "tokens_counted", "interrupted")}
    assert head == {
        "kind": "load",
        "url": fake.url,
        "model": "fake",
        "api": api,
        "tokens_counted": "usage",
        "interrupted": False,
    }
    assert result["environment"]["date"]
    assert set(fake.paths) == {"/v1/chat/completions" if api == "chat" else "/v1/completions"}
    sent = [body["messages"] if api == "chat" else body["prompt"] for body in fake.bodies]
    assert sent == [prompts[0], *prompts, prompts[0]]  # one to warm up, then all in turn
    assert all((body["max_tokens"], body["temperature"], body["stream"]) == (7, 0.5, True) for body in fake.bodies)
    [level] = result["levels"]
    assert (level["mode"], level["concurrency"], level["requests"], level["errors"]) == ("closed", 1, 4, {})
    assert level["tokens_per_chunk"] == 2
    first = 0.03 if api == "chat" else 0.02  # a chunk that only names the role is no token
    assert level["time_to_first_token"]["p50"] >= first
    assert level["time_between_chunks"]["p50"] >= 0.01
    assert level["time_between_tokens"]["p50"] >= 3 * 0.01 / 7
    assert level["latency"]["p50"] >= first + 5 * 0.01
    assert level["seconds"] >= 4 * (first + 5 * 0.01)
    assert level["output_tokens_per_second"] == pytest.approx(4 * 8 / level["seconds"])
    assert level["speculation"] is None


def test_so_many_clients_are_served_at_once() -> None:
    with FakeServer(first_delay=0.05).running() as fake:
        for concurrency in (1, 4):
            fake.most_at_once = 0
            level = level_of(fake, ClosedLoop(concurrency, 8))
            assert level["completed"] == 8
            assert fake.most_at_once == concurrency


def test_arrivals_of_an_open_loop_wait_for_nobody() -> None:
    loop = OpenLoop(rate=40, duration=0.5)
    with FakeServer(first_delay=1.0).running() as fake:
        level = level_of(fake, loop)
    assert (level["mode"], level["rate"], level["completed"]) == ("open", 40, loop.requests)
    assert fake.most_at_once == loop.requests > 8
    assert level["seconds"] >= loop.arrivals[-1] + 1.0


def test_goodput_counts_what_is_in_time() -> None:
    with FakeServer(first_delay=0.03, delay=0.01).running() as fake:
        assert level_of(fake, ttft_limit=60, itl_limit=60)["goodput"]["share"] == 1
        assert level_of(fake, ttft_limit=0.02, itl_limit=60)["goodput"]["share"] == 0
        assert level_of(fake, ttft_limit=60, itl_limit=0.003)["goodput"]["share"] == 0


@pytest.mark.parametrize(("usage", "asked"), [("silent", [True, False]), ("refuses", [True, False, False])])
def test_without_usage_chunks_are_counted(usage: Any, asked: list[bool]) -> None:
    with FakeServer(usage=usage).running() as fake:
        result = measured(fake, ClosedLoop(1, 1))
    [level] = result["levels"]
    assert result["tokens_counted"] == "chunks"
    assert level["tokens_per_chunk"] is None
    assert level["output_tokens_per_second"] * level["seconds"] == pytest.approx(len(fake.pieces))
    assert ["stream_options" in body for body in fake.bodies] == asked


def test_counters_are_those_of_the_level() -> None:
    fake = FakeServer()
    fake.metrics = lambda: f"# TYPE drafted_total counter\ndrafted_total {10 * len(fake.bodies)}\n"
    with fake.running():
        first, second = measured(fake, ClosedLoop(1, 1), ClosedLoop(2, 3))["levels"]
    assert (first["speculation"], second["speculation"]) == ({"drafted_total": 10}, {"drafted_total": 30})


# Streams --------------------------------------------------------------------------------------------------------------


def bytewise(stream: bytes) -> Iterator[bytes]:
    return (stream[at : at + 1] for at in range(len(stream)))


def with_trimmings(stream: bytes) -> Iterator[bytes]:
    """Comments, other fields, no blank after the colon, CR LF cut in the middle; all in two parts."""
    dressed = b": hello\n\nevent: message\nid: 1\n" + stream.replace(b"data: ", b"data:").replace(b"\n", b"\r\n")
    cut = dressed.index(b"\r\n\r\n", len(dressed) // 2) + 3
    return iter([dressed[:cut], dressed[cut:]])


@pytest.mark.parametrize("wire", [bytewise, with_trimmings, lambda stream: iter([stream])])
def test_streams_however_they_are_cut(wire: Callable[[bytes], Iterator[bytes]]) -> None:
    with FakeServer(pieces=("é", "\u2028", "日本", "data: \n\n"), wire=wire).running() as fake:
        level = level_of(fake, ClosedLoop(1, 2))
    assert (level["completed"], level["errors"], level["tokens_per_chunk"]) == (2, {}, 2)


def test_a_stream_without_done_ends_with_its_finish_reason() -> None:
    def without_done(stream: bytes) -> Iterator[bytes]:
        return iter([stream.removesuffix(b"data: [DONE]\n\n")])

    with FakeServer(wire=without_done).running() as fake:
        assert level_of(fake)["completed"] == 3


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("busy", "status 503"),
        ("no stream", "broken stream"),
        ("hang up", "broken stream"),
        ("break off", "broken stream"),
        ("error", "broken stream"),
        ("nonsense", "broken stream"),
    ],
)
def test_failed_requests_are_counted_and_the_others_go_on(fault: str, kind: str) -> None:
    with FakeServer(fault=lambda number, body: fault if number in (2, 3) else None).running() as fake:
        level = level_of(fake, ClosedLoop(2, 6))
    assert (level["requests"], level["completed"], level["errors"]) == (6, 4, {kind: 2})
    assert level["goodput"]["share"] <= 4 / 6
    assert level["output_tokens_per_second"] * level["seconds"] == pytest.approx(4 * 8)


def test_requests_that_take_too_long_are_given_up() -> None:
    fake = FakeServer()

    def slow_from_now_on(number: int, body: dict[str, Any]) -> None:
        fake.first_delay = 0.0 if number == 0 else 0.6

    fake.fault = slow_from_now_on
    with fake.running():
        level = level_of(fake, ClosedLoop(2, 2), timeout=0.3)
    assert (level["completed"], level["errors"]) == (0, {"timeout": 2})
    assert level["time_to_first_token"] == {"p50": None, "p90": None, "p99": None}


# The command ----------------------------------------------------------------------------------------------------------


def complaint(outcome: Outcome) -> str:
    code, out, err = outcome
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("slipstream: error: ")
    return err


def test_the_command_prints_a_table(run: Run) -> None:
    fake = FakeServer(fault=lambda number, body: "busy" if number == 2 else None)
    fake.metrics = lambda: (
        f'# TYPE drafts_total counter\ndrafts_total {len(fake.bodies)}\ndrafts_total{{position="0"}} 0\n'
    )
    with fake.running():
        code, out, err = run("--url", fake.url, "--concurrency", "1,2", "--requests", 4, "--ttft-limit", 9)
    assert (code, err) == (0, "")
    assert f"fake at {fake.url} (chat)" in out
    assert re.search(r"^1 client +3 +1 +[\d.]+ +[\d.]+ +2.00 +75%", out, re.MULTILINE)
    assert re.search(r"^2 clients +4 +0 ", out, re.MULTILINE)
    assert re.search(r"^1 client( +\d+\.?\d*( / \d+\.?\d*){2}){3} *$", out, re.MULTILINE)
    assert "first token within 9 s and 0.1 s or less between tokens" in out
    assert "1 client, failed: 1 by status 503" in out
    assert "2 clients: drafts_total +4\n" in out
    with FakeServer(usage="silent").running() as silent:
        code, out, _ = run("--url", silent.url, "--rate", 50, "--duration", 0.2)
    assert code == 0
    assert "50 requests/s" in out
    assert "each chunk is counted as one" in out
    assert "publishes no counters" in out


def test_the_command_writes_json(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello"}\n{"messages": [{"role": "user", "content": "you"}]}\n')
    options = ("--api", "completions", "--model", "other", "--prompts", prompts, "--concurrency", 1, "--requests", 2)
    with FakeServer().running() as fake:
        code, out, err = run("--url", f"{fake.url}/v1/", *options, "--json", "--out", file)
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(file.read_text())
    assert json.loads(out)["url"] == fake.url
    assert [body["prompt"] for body in fake.bodies] == ["hello", "hello", "you"]
    assert {body["model"] for body in fake.bodies} == {"other"}


def test_the_key_is_used_and_never_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    options = ("--concurrency", 1, "--requests", 1, "--json")
    with FakeServer(api_key="sk-secret").running() as fake:
        code, out, err = run("--url", fake.url, *options)
        assert code == 0
        assert "secret" not in out + err
        fake.api_key = "sk-another"
        asked = complaint(run("--url", fake.url, *options))
        told = complaint(run("--url", fake.url, "--model", "fake", *options))
    assert "status 401" in asked
    assert "give the right key with --api-key or in OPENAI_API_KEY" in told
    assert "wrong key: Bearer …" in told
    assert "secret" not in asked + told
    assert "secret" not in repr(Load("http://host", "chat", [], api_key="sk-secret"))


def test_a_password_in_the_url_is_used_and_never_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fake_server._Handler._allowed", lambda it: it.headers["Authorization"] == "Basic dTpzZWNyZXQ=")
    with FakeServer().running() as fake:
        url = fake.url.replace("//", "//u:secret@")
        code, out, err = run("--url", url, "--concurrency", 1, "--requests", 1, "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)["url"] == fake.url
        assert "secret" not in out
        errors = [
            complaint(run("--url", url, "--model", "none")),
            complaint(run("--url", url, "--api-key", "sk-secret")),
            complaint(run("--url", "ftp://u:secret@host")),
        ]
    assert "use one of the two" in errors[1]
    assert "secret" not in "".join(errors)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "127.0.0.1:8080"], "the URL '127.0.0.1:8080' is no server's address"),
        (["--url", "http://h?key=1"], "is no server's address"),
        (["--url", "http://h:port"], "is no server's address"),
        (["--url", ""], "--url is empty"),
        (["--url", "http://h", "--api-key", "a\nb"], "the API key is empty or has characters"),
        (["--url", "http://h", "--api-key", ""], "the API key is empty"),
        (["--url", "http://h", "--concurrency", "1,x"], "'x' is not a valid integer"),
        (["--url", "http://h", "--concurrency", "0"], "0 is not in the range"),
        (["--url", "http://h", "--concurrency", "8", "--requests", "7"], "7 requests can't keep 8 clients busy"),
        (["--url", "http://h", "--rate", "0"], "0.0 is not in the range"),
        (["--url", "http://h", "--rate", "nan"], "nan is not a finite number"),
        (["--url", "http://h", "--rate", "0.1", "--duration", "1"], "come to no request"),
        (["--url", "http://h", "--rate", "1", "--requests", "3"], "--requests is for --concurrency"),
        (["--url", "http://h", "--duration", "3"], "--duration is for --rate"),
        (["--url", "http://h", "--timeout", "inf"], "inf is not a finite number"),
        (["--url", "http://h", "--temperature", "-1"], "-1.0 is not in the range"),
        (["--url", "http://h", "--model", ""], "--model is empty"),
        (["--url", "http://h", "--prompts", "absent.txt"], "absent.txt can't be read"),
        (["--url", "http://h", "--out", "no/where.json"], "its directory doesn't exist"),
        ([], "Missing option '--url'"),
    ],
)
def test_bad_options_are_one_line(run: Run, arguments: list[str], words: str) -> None:
    assert words in complaint(run(*arguments))


def test_servers_that_can_not_be_measured_are_one_line(run: Run, tmp_path: Path) -> None:
    with FakeServer(models=()).running() as fake:
        assert "/v1/models lists no model: name one with --model" in complaint(run("--url", fake.url))
        assert "status 404 (there is no x): see whether" in complaint(run("--url", fake.url, "--model", "x"))
        assert "status 404 (no such page)" in complaint(run("--url", f"{fake.url}/elsewhere"))
    assert "no connection" in complaint(run("--url", fake.url))  # it is gone
    for fault, words in [
        ("busy", "status 503 (too busy)"),
        ("no stream", "got 'application/json'): give the address of a server with the OpenAI API that can stream"),
        ("break off", "broken stream (it ended before the answer did)"),
    ]:
        with FakeServer(fault=lambda number, body, fault=fault: fault).running() as fake:
            assert words in complaint(run("--url", fake.url))
    with FakeServer(first_delay=0.5).running() as fake:
        assert "timeout: see whether" in complaint(run("--url", fake.url, "--timeout", 0.1))
    with FakeServer(pieces=()).running() as fake:
        assert "no output: try other prompts" in complaint(run("--url", fake.url))
    talk = tmp_path / "talk.jsonl"
    turns = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    talk.write_text(json.dumps({"messages": turns}))
    with FakeServer().running() as fake:
        assert "use --api chat" in complaint(run("--url", fake.url, "--prompts", talk, "--api", "completions"))


@pytest.mark.parametrize("as_json", [True, False])
def test_ctrl_c_shows_what_was_measured(as_json: bool, run: Run) -> None:
    fake = FakeServer()

    def interrupt_the_eighth(number: int, body: dict[str, Any]) -> None:
        if number == 8:
            fake.first_delay = 0.5
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    fake.fault = interrupt_the_eighth
    with fake.running():
        options = ("--concurrency", "1,2,1", "--requests", 4, *(["--json"] if as_json else []))
        code, out, err = run("--url", fake.url, *options)
    assert (code, err) == (130, "")
    if as_json:
        result = json.loads(out)
        assert result["interrupted"] is True
        assert [level["concurrency"] for level in result["levels"]] == [1, 2]
        assert result["levels"][0]["requests"] == 4
        assert result["levels"][1]["requests"] == result["levels"][1]["completed"] < 4
    else:
        assert "stopped by Ctrl-C after 2 levels, of which the last may be incomplete" in out


def test_ctrl_c_before_anything_was_measured(run: Run) -> None:
    fake = FakeServer(first_delay=0.3)

    def interrupt(number: int, body: dict[str, Any]) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    fake.fault = interrupt
    with fake.running():
        code, out, err = run("--url", fake.url)
    assert (code, out, err.strip()) == (130, "", "")


def example_lines() -> list[str]:
    return [line.strip() for line in (COMMAND.epilog or "").splitlines() if "slipstream " in line]


@pytest.mark.parametrize("line", example_lines())
def test_examples_in_help_run(line: str, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each as written, but at the fake server, and without the waiting."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(OpenLoop, "drive", lambda loop, send: ClosedLoop(1, loop.requests).drive(send))
    with FakeServer().running() as fake:
        code, out, err = run(*shlex.split(line.replace("http://127.0.0.1:8080", fake.url))[3:])
    assert (code, err) == (0, "")
    assert out
    assert len(example_lines()) == 3


def test_help_tells_every_default(run: Run) -> None:
    assert "Examples:" in run("--help")[1]
    for parameter in COMMAND.params:
        if isinstance(parameter, click.Option) and not parameter.is_flag and not parameter.required:
            assert parameter.show_default or "[default:" in (parameter.help or ""), parameter.name


def test_other_commands_do_not_pay_for_the_http_client() -> None:
    code = "import sys, slipstream.cli; sys.exit('httpx2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_levels_that_make_no_sense() -> None:
    with pytest.raises(OptionError, match="5 requests can't keep 6 clients busy"):
        ClosedLoop(6, 5)
    with pytest.raises(OptionError, match="1e-06 requests a second for 1 s come to no request"):
        OpenLoop(1e-6, 1)
