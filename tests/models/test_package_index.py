"""Which package indexes pip and uv are configured with, and what is read on their pages."""

import os
import sys
from pathlib import Path

import pytest

from slipstream.errors import ModelError
from slipstream.models import package_index
from slipstream.models.package_index import PYPI, Sources, configured_sources, links, local_path, shown


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without settings, beside which nothing else counts."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(package_index, "_ETC", tmp_path / "etc")
    monkeypatch.setattr(package_index, "_shared_directories", lambda environment: [tmp_path / "xdg", tmp_path / "etc"])
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    return tmp_path / "home"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def sources(home: Path, **environment: str) -> Sources:
    return configured_sources(environment, home.parent / "work")


def test_nothing_configured(home: Path) -> None:
    assert sources(home) == Sources((), (PYPI,))
    assert list(sources(home).pages("a-b")) == ["https://pypi.org/simple/a-b/"]


def test_variables_of_pip(home: Path) -> None:
    found = sources(
        home,
        PIP_INDEX_URL="https://a/simple/",
        PIP_EXTRA_INDEX_URL="https://b/simple https://c/simple",
        PIP_FIND_LINKS="/wheels https://d/page",
        PIP_TRUSTED_HOST="b c:8080",
        PIP_PROXY="proxy:80",
        PIP_CERT="/cert.pem",
    )
    assert found == Sources(
        ("/wheels", "https://d/page"),
        ("https://b/simple", "https://c/simple", "https://a/simple/"),
        ("b", "c:8080"),
        "proxy:80",
        "/cert.pem",
    )
    assert list(found.pages("x"))[-1] == "https://a/simple/x/"


def test_files_of_pip_and_which_of_them_weigh_more(home: Path) -> None:
    write(home.parent / "etc" / "pip.conf", "[global]\nindex-url = https://everybody\nproxy = host\n")
    assert sources(home) == Sources((), ("https://everybody",), (), "host")
    write(home.parent / "etc" / "pip.conf", "")
    write(home.parent / "xdg" / "pip" / "pip.conf", "[global]\nindex-url = https://everybody\n")
    assert sources(home).indexes == ("https://everybody",)
    write(home.parent / "prefix" / "pip.conf", "[global]\nextra_index_url =\n    https://one\n    https://two\n")
    write(home / ".config" / "pip" / "pip.conf", "[global]\nindex-url = https://user\n[install]\nfind-links = /w\n")
    write(home / ".pip" / "pip.conf", "[global]\nindex-url = https://older\n[list]\nindex-url = https://other\n")
    assert sources(home) == Sources(("/w",), ("https://one", "https://two", "https://user"))
    named = write(home / "named", "[global]\nindex-url = https://%(named)s\n")
    assert sources(home, PIP_CONFIG_FILE=str(named)).indexes[-1] == "https://%(named)s"
    assert sources(home, PIP_CONFIG_FILE=str(named), PIP_INDEX_URL="https://variable").indexes[-1] == "https://variable"
    assert sources(home, PIP_CONFIG_FILE=os.devnull) == Sources()


@pytest.mark.parametrize(
    "environment",
    [{"PIP_NO_INDEX": "1"}, {"UV_NO_INDEX": "true"}, {"PIP_NO_INDEX": "yes", "PIP_INDEX_URL": "https://a"}],
)
def test_no_index(home: Path, environment: dict[str, str]) -> None:
    assert sources(home, **environment, PIP_FIND_LINKS="/w") == Sources(("/w",), ())


def test_variables_of_uv(home: Path) -> None:
    found = sources(
        home,
        UV_DEFAULT_INDEX="own=https://a/simple",
        UV_INDEX="https://b/simple?x=y named-one=https://c/simple",
        UV_EXTRA_INDEX_URL="https://d/simple",
        UV_FIND_LINKS="/w,https://e",
        UV_INSECURE_HOST="a b",
        UV_INDEX_NAMED_ONE_USERNAME="user",
        UV_INDEX_NAMED_ONE_PASSWORD="p@ss/word",
    )
    assert found == Sources(
        ("/w", "https://e"),
        ("https://b/simple?x=y", "https://user:p%40ss%2Fword@c/simple", "https://d/simple", "https://a/simple"),
        ("a", "b"),
    )
    assert sources(home, UV_INDEX_URL="https://f").indexes == ("https://f",)


UV_TOML = """
extra-index-url = ["https://a"]
find-links = ["wheels"]
allow-insecure-host = ["a"]
[[index]]
name = "own"
url = "https://b"
default = true
[[index]]
name = "torch"
url = "https://only-for-torch"
explicit = true
[[index]]
url = "pages/flat"
format = "flat"
"""


def test_files_of_uv(home: Path) -> None:
    write(home.parent / "etc" / "uv" / "uv.toml", "index-url = 'https://everybody'\n")
    assert sources(home).indexes == ("https://everybody",)
    place = write(home / ".config" / "uv" / "uv.toml", UV_TOML).parent
    found = sources(home)
    assert found == Sources((f"{place}/pages/flat", f"{place}/wheels"), ("https://a", "https://b"), ("a",))
    assert sources(home, UV_NO_CONFIG="1") == Sources()
    other = write(home / "other.toml", '[pip]\nindex-url = "https://c"\nno-index = false\n')
    assert sources(home, UV_CONFIG_FILE=str(other)) == Sources((), ("https://c",))


def test_a_project_of_uv(home: Path) -> None:
    work = home.parent / "work"
    write(work / "pyproject.toml", "[project]\nname = 'not of uv'\n")
    write(home.parent / "pyproject.toml", "[tool.uv]\nindex-url = 'https://project'\n")
    write(home / ".config" / "uv" / "uv.toml", "index-url = 'https://user'\n")
    assert sources(home).indexes == ("https://project",)
    write(work / "pyproject.toml", "damaged")
    assert sources(home).indexes == ("https://project",)
    write(work / "uv.toml", "index-url = 'https://nearer'\n")
    assert sources(home).indexes == ("https://nearer",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pip/pip.conf", "index-url = https://x\n"),
        ("pip/pip.conf", "[global]\na = 1\na = 2\n"),
        ("uv/uv.toml", "index ="),
        ("uv/uv.toml", "index = 1"),
        ("uv/uv.toml", "[[index]]\nname = 'x'\n"),
        ("uv/uv.toml", "[[index]]\nurl = 1\n"),
        ("uv/uv.toml", "pip = 1"),
        ("uv/uv.toml", "find-links = 3"),
    ],
)
def test_a_damaged_file_is_named(home: Path, name: str, text: str) -> None:
    file = write(home / ".config" / name, text)
    with pytest.raises(ModelError, match=f"{file}: .*: mend it"):
        sources(home)


def test_a_file_that_is_no_text_is_named(home: Path) -> None:
    write(home / ".config" / "pip" / "pip.conf", "").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match=r"pip\.conf: it isn't UTF-8"):
        sources(home)


@pytest.mark.parametrize(
    ("address", "is_shown"),
    [
        ("https://user:secret@host:1/a/b?token=secret#secret", "https://host:1/a/b"),
        ("https://secret@host/a", "https://host/a"),
        ("https://user:sec/ret@x/secret@host/a", "https://host/a"),
        ("https://user:sec?ret#@host/a", "https://host/a"),
        ("/folder/a b", "/folder/a b"),
        ("file:///folder", "file:///folder"),
    ],
)
def test_what_messages_show_of_an_address(address: str, is_shown: str) -> None:
    assert shown(address) == is_shown


def test_paths(home: Path) -> None:
    assert local_path("/a b") == Path("/a b")
    assert local_path("~/wheels") == home / "wheels"
    assert local_path("file:///a%20b/c") == Path("/a b/c")
    assert local_path("https://x/y") is None


def test_links_on_pages() -> None:
    base = "https://host/simple/p/"
    html = '<base href="/other/"><a href="x-1.whl#sha256=1">x</a><A HREF="https://cdn/y%2B1.whl?a=1&amp;b=2">y</A><a>'
    assert links(html, base) == {
        "x-1.whl": "https://host/other/x-1.whl#sha256=1",
        "y+1.whl": "https://cdn/y%2B1.whl?a=1&b=2",
    }
    assert links('{"files": [{"filename": "x", "url": "../../x.whl"}]}', base) == {"x.whl": "https://host/x.whl"}
    assert links("", base) == links("nothing <here", base) == {}
    for damaged in ('{"files": 1}', "{", '{"files": [1]}', '{"files": [{}]}'):
        with pytest.raises(ValueError, match=r"."):
            links(damaged, base)
