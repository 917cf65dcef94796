"""Package indexes: which ones pip and uv are configured with, and where a file of a package is on them.

No pip is run: an environment may be without it, and `python -m pip` runs modules of the current directory.
"""

import configparser
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import url2pathname

from slipstream.errors import ModelError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["ACCEPT", "PYPI", "Sources", "configured_sources", "links", "local_path", "shown"]

PYPI = "https://pypi.org/simple"

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
"""What a page of an index may be: JSON or HTML."""

_ETC = Path("/etc")

_TRUE = ("1", "true", "yes", "on", "y", "t")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where packages are looked for.

    links          folders, or pages with links to files of any package: paths and URLs
    indexes        simple indexes, which have a page for each package: paths and URLs
    trusted_hosts  hosts, perhaps with ports, whose certificates aren't checked
    proxy, cert    the proxy's URL, and the file of certificates to trust, where not the system's
    """

    links: tuple[str, ...] = ()
    indexes: tuple[str, ...] = (PYPI,)
    trusted_hosts: tuple[str, ...] = ()
    proxy: str | None = None
    cert: str | None = None

    def pages(self, package: str) -> Iterator[str]:
        """The pages and folders where links to this package's files may be, nearest first."""
        yield from self.links
        for index in self.indexes:
            yield f"{index.rstrip('/')}/{quote(package)}/"


def configured_sources(environment: Mapping[str, str], directory: Path) -> Sources:
    """What pip and uv would use in a directory: their variables and their files, those of a uv project included.

    Both tools' places count. PyPI is among them unless one tool's setting takes its place or forbids every index.
    Raises ModelError, naming the file, where one can't be understood.
    """
    pip, uv = _pip_settings(environment), _uv_settings(environment, directory)
    default = [*uv.defaults, *pip.get("index-url", "").split()] or [PYPI]
    indexes = [*uv.indexes, *pip.get("extra-index-url", "").split(), *default]
    no_index = uv.no_index or pip.get("no-index", "").lower() in _TRUE
    return Sources(
        links=_unique([*pip.get("find-links", "").split(), *uv.links]),
        indexes=() if no_index else _unique(indexes),
        trusted_hosts=_unique([*pip.get("trusted-host", "").split(), *uv.trusted_hosts]),
        proxy=pip.get("proxy"),
        cert=pip.get("cert") or environment.get("REQUESTS_CA_BUNDLE"),
    )


def shown(address: str) -> str:
    """The address as messages may show it: without a user's name, password or token."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address
    return f"{scheme}://{re.split('[?#]', rest.rpartition('@')[2])[0]}"


def local_path(address: str) -> Path | None:
    """The path that an address is, if it is one or a file: URL."""
    if address.startswith("file:"):
        return Path(url2pathname(urlsplit(address).path))
    return None if "://" in address else Path(os.path.expanduser(address))


def links(page: str, base: str) -> dict[str, str]:
    """The addresses on a page of an index, JSON or HTML, by the names of their files. base: the page's own address.

    Raises ValueError for JSON that isn't such a page.
    """
    if page.lstrip().startswith("{"):
        try:
            addresses = [str(file["url"]) for file in json.loads(page)["files"]]
        except (KeyError, TypeError, RecursionError):
            raise ValueError("not a page of a package index") from None
    else:
        parser = _Links()
        parser.feed(page)
        base, addresses = urljoin(base, parser.base), parser.addresses
    absolute = [urljoin(base, address) for address in addresses]
    return {unquote(urlsplit(address).path).rpartition("/")[2]: address for address in absolute}


class _Links(HTMLParser):
    """What a page's links lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        address = dict(attributes).get("href")
        if tag == "a" and address:
            self.addresses.append(address)
        elif tag == "base" and address and not self.base:
            self.base = address


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


# Where settings are ---------------------------------------------------------------------------------------------------


def _shared_directories(environment: Mapping[str, str]) -> list[Path]:
    """Directories of settings for every user, the weightiest last."""
    if os.name == "nt":
        return [Path(environment.get("PROGRAMDATA", r"C:\ProgramData"))]
    named = (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    return [Path("/Library/Application Support"), *map(Path, reversed(named)), _ETC]


def _own_directories(environment: Mapping[str, str]) -> list[Path]:
    """Directories of this user's settings, the weightiest last."""
    home = os.path.expanduser("~")
    if os.name == "nt":
        return [Path(environment.get("APPDATA") or home)]
    own = Path(environment.get("XDG_CONFIG_HOME") or Path(home, ".config"))
    return [own, Path(home, "Library", "Application Support")] if sys.platform == "darwin" else [own]


def _read(file: Path) -> str | None:
    """The text of a file, None where there is none that this user may read."""
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise ModelError(f"{file}: it isn't UTF-8 text: mend it, or remove it") from None
    except OSError:
        return None


# pip ------------------------------------------------------------------------------------------------------------------


def _pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """By their names in pip's files, such as "index-url"; several values in one are set apart by white space."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for file in _pip_files(environment):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(_read(file) or "")
        except configparser.Error:
            raise ModelError(f"{file}: it isn't a file of pip's settings: mend it, or remove it") from None
        for section, settings in sections.items():
            if parser.has_section(section):
                settings |= {name.replace("_", "-"): value for name, value in parser.items(section) if value}
    variables = {name[4:].lower(): value for name, value in environment.items() if name.startswith("PIP_") and value}
    return sections["global"] | sections["install"] | {name.replace("_", "-"): variables[name] for name in variables}


def _pip_files(environment: Mapping[str, str]) -> list[Path]:
    """Those of all users, of this one, of this environment, and the one that a variable names: later ones win."""
    named = environment.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    name = "pip.ini" if os.name == "nt" else "pip.conf"
    shared = [directory / "pip" / name for directory in _shared_directories(environment) if directory != _ETC]
    if os.name != "nt":
        shared.append(_ETC / name)
    home = Path(os.path.expanduser("~"))
    own = [home / ("pip" if os.name == "nt" else ".pip") / name]
    own += [directory / "pip" / name for directory in _own_directories(environment)]
    return [*shared, *own, Path(sys.prefix, name), *([Path(named)] if named else [])]


# uv -------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _UvSettings:
    defaults: list[str]
    indexes: list[str]
    links: list[str]
    trusted_hosts: list[str]
    no_index: bool


def _uv_settings(environment: Mapping[str, str], directory: Path) -> _UvSettings:
    """What the variables say, before what the files do, the nearest first."""
    named = [_named_index(item, environment) for item in environment.get("UV_INDEX", "").split()]
    default = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL")
    settings = _UvSettings(
        defaults=[_named_index(default, environment)] if default else [],
        indexes=[*named, *environment.get("UV_EXTRA_INDEX_URL", "").split()],
        links=[item for item in environment.get("UV_FIND_LINKS", "").split(",") if item],
        trusted_hosts=environment.get("UV_INSECURE_HOST", "").split(),
        no_index=environment.get("UV_NO_INDEX", "").lower() in _TRUE,
    )
    for file in _uv_files(environment, directory):
        try:
            table = _uv_table(file)
            _add_file(settings, {**table, **table.get("pip", {})}, file.parent, environment)
        except (tomllib.TOMLDecodeError, AttributeError, TypeError, KeyError, RecursionError):
            raise ModelError(f"{file}: uv's settings in it can't be understood: mend it, or remove it") from None
    return settings


def _add_file(settings: _UvSettings, table: dict[str, Any], directory: Path, environment: Mapping[str, str]) -> None:
    defaults = [table["index-url"]] if "index-url" in table else []
    for entry in table.get("index", []):
        if entry.get("explicit"):
            continue  # it serves those packages that a project asks of it by name
        address = _with_credentials(_absolute(entry["url"], directory), entry.get("name"), environment)
        if entry.get("format") == "flat":
            settings.links.append(address)
        else:
            (defaults if entry.get("default") else settings.indexes).append(address)
    settings.defaults = settings.defaults or [_absolute(address, directory) for address in defaults[-1:]]
    settings.indexes += [_absolute(address, directory) for address in table.get("extra-index-url", [])]
    settings.links += [_absolute(address, directory) for address in table.get("find-links", [])]
    settings.trusted_hosts += [str(host) for host in table.get("allow-insecure-host", [])]
    settings.no_index = settings.no_index or bool(table.get("no-index"))


def _uv_files(environment: Mapping[str, str], directory: Path) -> list[Path]:
    """The project's, this user's, and that of all users; or the one that a variable names."""
    if named := environment.get("UV_CONFIG_FILE"):
        return [Path(named)]
    if environment.get("UV_NO_CONFIG", "").lower() in _TRUE:
        return []
    project = next(
        (file for file in _project_files(directory) if file.name == "uv.toml" or _uv_table(file, strict=False)), None
    )
    general = [*reversed(_own_directories(environment)), *reversed(_shared_directories(environment))]
    return [*([project] if project else []), *(place / "uv" / "uv.toml" for place in general)]


def _project_files(directory: Path) -> Iterator[Path]:
    for place in (directory, *directory.parents):
        yield from (file for name in ("uv.toml", "pyproject.toml") if os.access(file := place / name, os.R_OK))


def _uv_table(file: Path, strict: bool = True) -> dict[str, Any]:
    """uv's settings in a file. A project's file that is damaged is uv's to complain of: not strict, it has none."""
    try:
        table = tomllib.loads(_read(file) or "")
        if file.name == "pyproject.toml":
            table = table.get("tool", {}).get("uv", {})
        return dict(table)
    except (ValueError, AttributeError, ModelError):
        if strict:
            raise
        return {}


def _absolute(address: str, directory: Path) -> str:
    """A path is meant from the directory of the file that names it."""
    return address if "://" in address else str(directory / address)


def _named_index(item: str, environment: Mapping[str, str]) -> str:
    """The address in "name=address", or alone."""
    match = re.fullmatch(r"(?:([\w.-]+)=)?(.+)", item)
    name, address = match.groups() if match else (None, item)
    return _with_credentials(address, name, environment)


def _with_credentials(address: str, name: str | None, environment: Mapping[str, str]) -> str:
    """An index's user and password may be in variables that have its name in theirs."""
    variable = f"UV_INDEX_{re.sub('[^A-Z0-9]', '_', (name or '').upper())}"
    user, password = environment.get(f"{variable}_USERNAME", ""), environment.get(f"{variable}_PASSWORD", "")
    scheme, separator, rest = address.partition("://")
    if not name or not separator or not (user or password):
        return address
    return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{rest.rpartition('@')[2]}"
