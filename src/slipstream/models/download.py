"""Pages and files over HTTP: tried again where the connection fails, and continued where they broke off."""

import netrc
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar
from urllib.parse import unquote

import httpx2

from slipstream.errors import ModelError
from slipstream.models.package_index import ACCEPT, Sources, links, local_path

__all__ = ["Client", "DownloadError"]

_PAUSES = (0.5, 2.0)
"""Seconds before the second and the third attempt."""

_SILENCE = 30.0
"""Seconds that a server may be silent."""

_LARGEST_PAGE = 1 << 25
"""Bytes."""

_Outcome = TypeVar("_Outcome")


class DownloadError(Exception):
    """Why something can't be had from one address, which another may have. Its message names no address."""


class _Passing(Exception):
    """A failure that may be gone a moment later."""


class Client:
    """Fetches from package indexes, with their credentials, proxy and certificates. Use it as a context."""

    def __init__(self, sources: Sources) -> None:
        """Raises ModelError for a proxy or a file of certificates that can't be used."""
        proxy = sources.proxy if sources.proxy is None or "://" in sources.proxy else f"http://{sources.proxy}"
        try:
            checked = ssl.create_default_context(cafile=sources.cert) if sources.cert else httpx2.create_ssl_context()
        except OSError as error:
            raise ModelError(
                f"the file of trusted certificates can't be read: {sources.cert or os.environ.get('SSL_CERT_FILE')}: "
                f"{error.strerror}: see pip's setting cert, REQUESTS_CA_BUNDLE and SSL_CERT_FILE"
            ) from None
        try:
            self._checked, self._trusting = (
                httpx2.Client(timeout=_SILENCE, follow_redirects=True, verify=verify, proxy=proxy)
                for verify in (checked, False)
            )
        except (ImportError, ValueError, httpx2.InvalidURL):
            raise ModelError(
                "the proxy of the environment or of pip's settings can't be used: name one of http"
            ) from None
        self._trusted_hosts = sources.trusted_hosts
        addresses = [_split(address) for address in (*sources.links, *sources.indexes)]
        self._credentials = {server: credentials for server, credentials, _ in addresses if credentials}

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._checked.close()
        self._trusting.close()

    def page(self, address: str) -> tuple[str, str]:
        """The text at an address, and the address that it came from in the end. Raises DownloadError."""

        def attempt() -> tuple[str, str]:
            with self._get(address, {"Accept": ACCEPT}) as response:
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > _LARGEST_PAGE:
                        raise DownloadError(f"a page of more than {_LARGEST_PAGE} bytes")
                return body.decode("utf-8", "replace"), str(response.url)

        return _persistently(attempt)

    def locate(self, name: str, page: str) -> str | Path | None:
        """The address, or the path here, of the file of this name that a page or a folder has. Raises DownloadError."""
        place = local_path(page)
        if place is None:
            text, base = self.page(page)
        else:
            if place.is_dir() and not (place / "index.html").is_file():
                return place / name if (place / name).is_file() else None
            file = place / "index.html" if place.is_dir() else place
            try:
                text, base = file.read_text("utf-8", "replace"), file.absolute().as_uri()
            except OSError as error:
                raise DownloadError(f"{error.strerror}") from None
        try:
            address = links(text, base).get(name)
        except ValueError:
            raise DownloadError("not a page of a package index") from None
        return address and (local_path(address) or address)

    def save(self, address: str, file: Path, size: int, report: Callable[[int], None]) -> None:
        """Makes the file the `size` bytes at an address, going on behind what an earlier attempt left in it;
        report(bytes so far) follows. Raises DownloadError, and OSError where the file can't be written."""

        def attempt() -> None:
            done = file.stat().st_size if file.exists() else 0
            headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
            with self._get(address, headers) as response:
                if response.status_code == 416:
                    file.unlink()
                    raise _Passing(f"it has fewer bytes than the {done} that came before")
                if response.status_code != 206:  # all of it, whatever was asked for
                    done = 0
                elif not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
                    raise DownloadError("another part of the file came than was asked for")
                with file.open("ab" if done else "wb") as output:
                    for chunk in response.iter_raw():
                        done += len(chunk)
                        if done > size:
                            raise DownloadError(f"it has more than the {size} bytes that it should have")
                        output.write(chunk)
                        report(done)
            if done < size:
                raise _Passing(f"it ended after {done} of {size} bytes")

        if not file.exists() or file.stat().st_size != size:
            _persistently(attempt)

    @contextmanager
    def _get(self, address: str, headers: dict[str, str]) -> Iterator[httpx2.Response]:
        """The response, if it is a good one. Raises _Passing and DownloadError."""
        server, credentials, bare = _split(address)
        host = server.partition("://")[2]
        trusted = host in self._trusted_hosts or re.sub(r":\d+$", "", host) in self._trusted_hosts
        client = self._trusting if trusted else self._checked
        auth = credentials or self._credentials.get(server) or _from_netrc(host)
        try:
            with client.stream("GET", bare, headers=headers, auth=auth) as response:
                status = response.status_code
                if status in (408, 429) or status >= 500:
                    raise _Passing(f"HTTP status {status}")
                if not response.is_success and status != 416:
                    raise DownloadError(f"HTTP status {status}")
                yield response
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL, UnicodeError):
            raise DownloadError("not an address of http or https") from None
        except httpx2.TimeoutException:
            raise _Passing(f"no answer within {_SILENCE:.0f} seconds") from None
        except httpx2.TransportError as error:
            raise _Passing(" ".join(f"{error}".split()) or type(error).__name__) from None
        except httpx2.HTTPError as error:
            raise DownloadError(" ".join(f"{error}".split()) or type(error).__name__) from None


def _persistently(attempt: Callable[[], _Outcome]) -> _Outcome:
    for pause in _PAUSES:
        try:
            return attempt()
        except _Passing:
            time.sleep(pause)
    try:
        return attempt()
    except _Passing as error:
        raise DownloadError(str(error)) from None


def _split(address: str) -> tuple[str, tuple[str, str] | None, str]:
    """The address's server, its user and password if it has them, and the address without these."""
    scheme, _, rest = address.partition("://")
    authority, slash, path = rest.partition("/")
    own, at, host = authority.rpartition("@")
    user, _, password = own.partition(":")
    server = f"{scheme}://{host}".lower()
    return server, (unquote(user), unquote(password)) if at else None, f"{scheme}://{host}{slash}{path}"


def _from_netrc(host: str) -> tuple[str, str] | None:
    """The user and password that the user's netrc file has for a host."""
    file = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        found = netrc.netrc(file).authenticators(re.sub(r":\d+$", "", host))
    except (OSError, ValueError, netrc.NetrcParseError):  # none, or none that can be read
        return None
    return (found[0], found[2] or "") if found else None
