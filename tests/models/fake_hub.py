"""A Hugging Face hub on localhost, with as much of it as a download needs."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from local_server import serving

COMMIT = "0123456789abcdef" * 2 + "01234567"


@dataclass
class FakeHub:
    """What the hub has, by repository and path, and which files were fetched from it."""

    repositories: dict[str, dict[str, bytes]]
    fetched: list[str] = field(default_factory=list)
    url: str = ""

    @contextmanager
    def running(self) -> Iterator["FakeHub"]:
        with serving(_Handler, self) as url:
            self.url = url
            yield self


class _Handler(BaseHTTPRequestHandler):
    fake: FakeHub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            files = self.fake.repositories.get("/".join(parts[2:4]))
            if files is None:
                self._reply(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif parts[4:5] in ([], ["revision"]):
                siblings = [{"rfilename": path} for path in files]
                record = {"id": "/".join(parts[2:4]), "sha": COMMIT, "siblings": siblings}
                self._reply(200, json.dumps(record).encode())
            else:
                tree = [
                    {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for path, data in files.items()
                ]
                self._reply(200, json.dumps(tree).encode())
        else:  # org/name/resolve/revision/path
            path = "/".join(parts[4:])
            content = self.fake.repositories["/".join(parts[:2])][path]
            if self.command == "GET":
                self.fake.fetched.append(path)
            self._reply(200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT})

    def _reply(self, status: int, body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
