"""The start of the command: closed standard streams, Ctrl-C while Python imports, the names that are imported late."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import results

import slipstream

COMMAND = [sys.executable, "-m", "slipstream"]
STREAMS = {"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-"}


def closed(streams, *arguments, folder):
    """Runs a command whose standard streams of these names are closed; the others are empty or come back."""
    redirections = " ".join(STREAMS[stream] for stream in streams)
    command = ["bash", "-c", f'exec "$@" {redirections}', "bash", *COMMAND, *map(str, arguments)]
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
        env={**os.environ, "SLIPSTREAM_CACHE": str(folder / "cache")},
    )


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["generate", "hi"], 0), (["chat"], 0), (["generate", "-"], 2), (["generate", "hi", "--top-p", "2"], 2)],
    ids=["generate", "chat", "no_prompt", "bad_option"],
)
def test_one_closed_stream(stream, arguments, code, tiny_path, tmp_path):
    done = closed([stream], *arguments, "--model", tiny_path, "--max-tokens", 4, folder=tmp_path)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if stream != "stderr":
        assert done.stderr.count("\n") == (1 if code else 0)
    if stream != "stdout" and arguments == ["generate", "hi"]:
        assert done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "models",
        "generate hi --json --max-tokens 4",
        "generate hi --show-drafts --max-tokens 4",
        "demo",
        "compare --limit 1 --max-tokens 4",
        "audit --limit 1 --max-tokens 16 --drafters ngram",
        "plan --context 64 --json",
        "bench pass --repeats 1",
        "report results.json",
    ],
)
def test_no_stream_at_all(arguments, tiny_path, tmp_path):
    """The files that the command opens come first to the numbers of the streams, and nothing is written into them."""
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_path.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    record = json.dumps(results.generate())
    (tmp_path / "results.json").write_text(record)
    words = arguments.split()
    options = [] if words[0] in ("--help", "models", "report") else ["--model", model]
    done = closed(STREAMS, *words, *options, folder=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "results.json").read_text() == record
    for file in tiny_path.iterdir():
        assert (model / file.name).read_bytes() == file.read_bytes()


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # wherever the tests run
imports, fatal = 0, int(sys.argv.pop(1))

def interrupt(event, arguments):
    global imports
    importing = sys.modules.get("slipstream.cli")
    if event == "import" and importing and not hasattr(importing, "main"):
        imports += 1
        if imports == fatal:
            os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
from slipstream.__main__ import main
code = main()
if not fatal:
    print(imports)
sys.exit(code)
"""


def interrupted(number):
    """Runs a command that gets Ctrl-C as it begins its import of this number; 0: none, and it prints how many there
    are."""
    command = [sys.executable, "-c", INTERRUPTED, str(number), "--version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_ctrl_c_while_python_imports_says_nothing():
    imports = int(interrupted(0).stdout.splitlines()[-1])
    assert imports > 100
    for number in [1, 2, *range(10, imports, imports // 10), imports]:
        done = interrupted(number)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", ""), number


def test_a_background_job_goes_on():
    """A shell makes its background jobs ignore Ctrl-C, which is meant for another."""
    command = [*COMMAND, "models", "--json"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    ) as process:
        for _ in range(20):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(0.02)
                break
            except subprocess.TimeoutExpired:
                pass
        out, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, b"")
    json.loads(out)


def test_the_command_begins_where_ctrl_c_is_taken_care_of():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert re.search(r'^slipstream = "slipstream\.__main__:main"$', project, re.MULTILINE)
    loaded = "import sys; before = {*sys.modules}; import slipstream.__main__; print(*({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    ours = {name for name in done.stdout.split() if name.startswith("slipstream")}
    assert ours == {"slipstream", "slipstream.__main__"}
    assert "numpy" not in done.stdout.split()


def test_public_names_are_those_of_their_modules():
    for name in slipstream.__all__:
        value = getattr(slipstream, name)
        assert name in dir(slipstream)
        home = getattr(value, "__module__", None)
        if isinstance(home, str) and home.startswith("slipstream"):
            assert getattr(importlib.import_module(home), name) is value
    assert slipstream.__version__
    with pytest.raises(AttributeError, match="'absent'"):
        _ = slipstream.absent
