"""A system in a process of its own, that may fail in any way without taking the others along."""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protocol import Answer, Request

CLOSING_SECONDS = 15


@dataclass(frozen=True)
class System:
    """A system and how its processes are started.

    modes     plain decoding, and whatever else it can do
    weights   the kinds that it reads: gguf, bf16
    together  how its modes are loaded: in "one process"; "side by side", in a process each; or "in turn", where memory
              holds but one such process
    """

    command: tuple[str, ...]
    modes: tuple[str, ...]
    weights: tuple[str, ...]
    together: str

    def rounds(self) -> list[list[tuple[str, ...]]]:
        """The modes of each process, in groups of those that are loaded at the same time."""
        if self.together == "one process":
            return [[self.modes]]
        alone: list[tuple[str, ...]] = [(mode,) for mode in self.modes]
        return [alone] if self.together == "side by side" else [[modes] for modes in alone]


@dataclass(frozen=True)
class Load:
    """What a process is started with. context: room for this many tokens; timeout: seconds, of each of its answers."""

    model: Path
    draft_model: Path
    context: int
    threads: int
    timeout: float


class PeerError(Exception):
    """A system couldn't do what it was asked to; in one line."""


class Peer:
    """A running process that has loaded some of its system's modes."""

    def __init__(self, system: System, modes: Sequence[str], load: Load) -> None:
        """Starts the process and waits until it has loaded. Raises PeerError where that fails."""
        if not Path(system.command[0]).exists():
            raise PeerError("it isn't installed: run benchmarks/peers/install.sh")
        options = [f"--model={load.model}", f"--context={load.context}", f"--threads={load.threads}"]
        if "draft_model" in modes:
            options.append(f"--draft-model={load.draft_model}")
        self.timeout = load.timeout
        self._failure: str | None = None
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [*system.command, *modes, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # so that the processes that it starts can be ended with it
        )
        assert self._process.stdin
        assert self._process.stdout
        self._input, self._output = self._process.stdin, self._process.stdout
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            loaded = self._hear()
        except PeerError:
            self.close()
            raise
        self.version: str = loaded["version"]
        self.load_seconds: float = loaded["load_seconds"]

    def ask(self, request: Request) -> Answer:
        """Raises PeerError for a request that failed; once the process has died or hung, for every one."""
        if self._failure:
            raise PeerError(self._failure)
        with suppress(OSError):  # it may have ended, which is heard next
            self._input.write(json.dumps(asdict(request)) + "\n")
            self._input.flush()
        return Answer(**self._hear())

    def close(self) -> None:
        """Lets the process end by itself, if it does so soon, and ends all that is left of it."""
        with suppress(OSError):  # a request that was never read
            self._input.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if self._failure else CLOSING_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._output.close()
        self._log.close()

    def _read(self) -> None:
        for line in self._output:
            self._lines.put(line)
        self._lines.put("")

    def _hear(self) -> dict[str, Any]:
        """The process's next record."""
        try:
            line = self._lines.get(timeout=self.timeout)
        except queue.Empty:
            self._failure = f"no answer within {self.timeout:g} s; its last words: {self._last_words()}"
            raise PeerError(self._failure) from None
        if not line:
            code = self._process.wait()
            self._failure = f"it ended with exit code {code}; its last words: {self._last_words()}"
            raise PeerError(self._failure)
        record: dict[str, Any] = json.loads(line)
        if "error" in record:
            raise PeerError(record["error"])
        return record

    def _last_words(self) -> str:
        """The last line on its standard error."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "none")
