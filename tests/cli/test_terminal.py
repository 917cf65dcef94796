"""The installed command in a process of its own: in a pipe, in a terminal, interrupted."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

SLIPSTREAM = str(Path(sys.executable).parent / "slipstream")
COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def piped(*arguments, **options):
    command = [SLIPSTREAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


@pytest.fixture
def terminal():
    """Starts a command in a terminal of 80 columns and 24 rows."""
    running = []

    def start(*arguments, **environment):
        inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "CI")}
        environment = {**inherited, "TERM": "xterm-256color", **environment}
        arguments = [str(argument) for argument in arguments]
        child = pexpect.spawn(SLIPSTREAM, arguments, dimensions=(24, 80), env=environment, encoding="utf-8", timeout=30)
        running.append(child)
        return child

    yield start
    for child in running:
        child.close(force=True)


def finish(child):
    """All that is left of a command's output, and its exit code."""
    output = child.read()
    child.wait()
    return output, child.exitstatus


def test_no_torch_and_a_first_token_within_three_seconds(terminal, smollm2_path):
    """The issue's bound on the demo's second run, at its best of three: other work on the machine is not its fault."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        child = terminal("demo")
        child.expect("tokens/s")
        seconds.append(time.perf_counter() - began)
        child.sendintr()
        if seconds[-1] < 3:
            break
    assert min(seconds) < 3
    loaded = "import sys, slipstream.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0


def test_demo_in_a_terminal(terminal, smollm2_path):
    output, code = finish(terminal("demo"))
    assert code == 0
    assert "\x1b[32m" in output  # accepted, in green
    assert "\x1b[9;31m" in output  # rejected, red and struck out
    assert output.rstrip().endswith("slipstream compare\x1b[0m")
    last = COLOURS.sub("", output).split("Same\r\n")[-1]
    assert last.count(" yes") == 3
    assert "Every answer is the same" in last
    assert output.count("\x1b[?25h") >= output.count("\x1b[?25l")  # the cursor is back


def test_generate_in_a_terminal(terminal, smollm2_path):
    arguments = ("generate", "Count from 1 to 20.", "--max-tokens", 40)
    plain = piped(*arguments).stdout
    output, code = finish(terminal(*arguments))
    assert code == 0
    answer, _, closing = output.replace("\r\n", "\n").partition("\x1b[2m")
    assert answer.endswith(plain)  # after the progress bars
    assert "40 tokens · " in closing
    assert "tokens/s · drafter:" in closing
    assert "auto" in closing
    coloured, _ = finish(terminal(*arguments, "--show-drafts"))
    assert "\x1b[33m" in coloured
    assert "{+" not in coloured
    without, _ = finish(terminal(*arguments, "--show-drafts", NO_COLOR="1"))
    assert "{+" in without
    assert "\x1b[3" not in without


def test_what_the_model_says_cannot_steer_the_terminal(terminal, tiny_path):
    """Random weights say every byte sooner or later."""
    output, _ = finish(
        terminal("generate", "hi", "--model", tiny_path, "--max-tokens", 300, "--temperature", 5, "--seed", 1)
    )
    text = COLOURS.sub("", output)
    assert "\\x" in text
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", text)


def test_an_interrupted_answer_stays_and_the_terminal_is_clean(terminal, smollm2_path):
    child = terminal("generate", "Write a long story about the sea.", "--show-drafts")
    child.expect(r"\w+ \w+ \w+ \w+")
    child.sendintr()
    output, code = finish(child)
    assert code == 130
    assert "Traceback" not in output
    assert output.endswith("\x1b[0m\r\n\x1b[?25h\x1b[0m\x1b[?25h\x1b[0m")


def test_an_interrupted_answer_in_a_pipe(smollm2_path):
    command = [SLIPSTREAM, "generate", "Write a long story about the sea."]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        first = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")
    assert len(first) == 20
    assert rest.endswith("\n")


@pytest.mark.parametrize("delay", [0, 0.05, 0.1, 0.2])
def test_interrupted_while_loading(terminal, smollm2_path, delay):
    child = terminal("generate", "hi")
    child.expect(r"\x1b\[\?25l")  # the progress bar
    time.sleep(delay)
    child.sendintr()
    output, code = finish(child)
    assert code == 130
    assert "Traceback" not in output
    assert "\x1b[?25h" in output


def test_a_closed_pipe_is_quiet(tiny_path):
    line = f"{SLIPSTREAM} generate hi --model {tiny_path} --max-tokens 200 | head -c 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=60, check=False)
    assert len(done.stdout) == 1
    assert done.stderr == b""


def test_chat_in_a_terminal(terminal, smollm2_path):
    child = terminal("chat", "--max-tokens", 400)
    child.expect("Ctrl-D leaves")
    child.expect("> ")
    child.sendline("Name a colour.")
    child.expect("> ")
    child.sendline("Write a long story.")
    child.expect("story.\r\n")
    child.expect(r"\w+ \w+ \w+ \w+")
    child.sendintr()  # stops the answer, not the chat
    child.expect("> ")
    child.send("half a line")
    child.expect("half a line")
    time.sleep(0.2)  # Python's readline overlooks a signal that comes while it takes in a character
    child.sendintr()  # drops the line
    child.expect("> ")
    child.sendline("/nonsense")
    child.expect("there is no command /nonsense: /help lists them")
    child.expect("> ")
    child.send("\x1b[A\x1b[A")  # up, twice: history
    child.expect("Write a long story.")
    child.sendintr()
    child.expect("> ")
    child.sendeof()
    output, code = finish(child)
    assert code == 0
    assert "Traceback" not in output


def test_an_error_in_a_process_of_its_own():
    done = piped("generate", "hi", "--model", "absent.gguf")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("slipstream: error: ")
    assert done.stderr.count("\n") == 1


def test_a_full_disk_is_one_line(tiny_path):
    arguments = ["models"], ["generate", "hi", "--model", tiny_path, "--max-tokens", 5]
    for words in arguments:
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [SLIPSTREAM, *map(str, words)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
            )
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "No space left" in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_output_that_cannot_show_a_character_replaces_it(tiny_path, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = piped("generate", "hi", "--model", tiny_path, "--max-tokens", 60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
