"""HTTP servers on localhost, for tests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], fake: object) -> Iterator[str]:
    """Runs a server whose handlers have `fake`; gives its URL, without a slash at the end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"fake": fake})) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
