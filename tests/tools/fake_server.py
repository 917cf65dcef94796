"""A server with the OpenAI API on localhost, whose answers take as long, and go as wrong, as a test wants."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal

from local_server import serving


@dataclass
class FakeServer:
    """What the server does, and what it saw.

    pieces          the texts of an answer's chunks
    tokens          the output tokens that it tells of
    usage           whether it tells its usage when asked to, never does, or refuses to be asked
    first_delay     seconds before the first chunk
    delay           seconds between chunks
    fault           called with (number of the request, from 0; its body): what goes wrong with it
    wire            called with the whole stream of an answer: the parts in which it is sent, half a millisecond apart
    metrics         the text of /metrics, made anew each time; None: there is no such page
    api_key         what it asks for
    """

    pieces: tuple[str, ...] = ("a", "b", "c", "d")
    tokens: int = 8
    usage: Literal["tells", "silent", "refuses"] = "tells"
    first_delay: float = 0.0
    delay: float = 0.0
    models: tuple[str, ...] = ("fake", "other")
    fault: Callable[[int, dict[str, Any]], str | None] = lambda number, body: None
    wire: Callable[[bytes], Iterator[bytes]] | None = None
    metrics: Callable[[], str] | None = None
    api_key: str | None = None

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def running(self) -> Iterator["FakeServer"]:
        with serving(_Handler, self) as url:
            self.url = url
            yield self

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        yield
        with self._lock:
            self._at_once -= 1

    def stream(self, chat: bool, with_usage: bool) -> Iterator[bytes]:
        """The events of an answer."""
        if chat:
            yield _event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        for piece in self.pieces:
            choice = {"delta": {"content": piece}} if chat else {"text": piece}
            yield _event({"choices": [{**choice, "finish_reason": None}], "usage": None})
        yield _event({"choices": [{**({"delta": {}} if chat else {"text": ""}), "finish_reason": "stop"}]})
        if with_usage:
            yield _event({"choices": [], "usage": {"completion_tokens": self.tokens}})
        yield b"data: [DONE]\n\n"


LAST_WORDS = {"break off": b"", "error": b'data: {"error": "lost"}\n\n', "nonsense": b"data: {\n\n"}
"""What a stream ends with, too early."""


def _event(record: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(record).encode() + b"\n\n"


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models" and not self._allowed():
            self._refuse(401, "wrong key")
        elif self.path == "/v1/models":
            self._reply(200, json.dumps({"data": [{"id": name} for name in self.fake.models]}))
        elif self.path == "/metrics" and self.fake.metrics:
            self._reply(200, self.fake.metrics(), "text/plain")
        else:
            self._reply(404, "no such page", "text/plain")

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with fake._lock:
            number = len(fake.bodies)
            fake.bodies.append(body)
            fake.paths.append(self.path)
        with fake.counted():
            fault = fake.fault(number, body)
            if not self._allowed():
                self._refuse(401, f"wrong key: {self.headers['Authorization']}")
            elif body["model"] not in fake.models:
                self._refuse(404, f"there is no {body['model']}")
            elif fake.usage == "refuses" and "stream_options" in body:
                self._refuse(400, "what are stream_options?")
            elif fault == "busy":
                self._refuse(503, "too busy")
            elif fault == "no stream":
                self._reply(200, json.dumps({"choices": [{"text": "all at once"}]}))
            elif fault != "hang up":
                self._stream(body, fault)

    def _stream(self, body: dict[str, Any], fault: str | None) -> None:
        fake = self.fake
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        asked = "stream_options" in body and fake.usage == "tells"
        events = fake.stream(self.path == "/v1/chat/completions", asked)
        if fake.wire:
            for part in fake.wire(b"".join(events)):
                self._send(part)
                time.sleep(0.0005)
            return
        time.sleep(fake.first_delay)
        for index, event in enumerate(events):
            if fault and index == 3:
                self._send(LAST_WORDS[fault])
                return
            self._send(event)
            time.sleep(fake.delay)

    def _send(self, part: bytes) -> None:
        try:
            self.wfile.write(part)
            self.wfile.flush()
        except OSError:  # the client gave up
            pass

    def _allowed(self) -> bool:
        return self.fake.api_key is None or self.headers["Authorization"] == f"Bearer {self.fake.api_key}"

    def _refuse(self, status: int, message: str) -> None:
        self._reply(status, json.dumps({"error": {"message": message}}))

    def _reply(self, status: int, text: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self._send(text.encode())
