"""Where files are kept; files that are there whole or not at all."""

import errno
import os
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slipstream import OptionError, files
from slipstream.files import NOWHERE, cache_directory, locked, read_record, user_cache, write_record, write_whole


def test_a_record_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.json"
    write_record(path, {"a": [1, 2.5, None]})
    assert read_record(path, "make it anew") == {"a": [1, 2.5, None]}
    assert list(path.parent.iterdir()) == [path]


def test_what_was_there_stays_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(files.Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_the_owner_may_read_a_private_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", b"secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_a_file_keeps_its_permissions_and_a_link_stays(tmp_path: Path) -> None:
    target, link, dangling = tmp_path / "real" / "file", tmp_path / "link", tmp_path / "dangling"
    target.parent.mkdir()
    link.symlink_to("real/file")
    dangling.symlink_to("real/other")
    target.write_bytes(b"old")
    target.chmod(0o640)
    write_whole(link, b"new", mode=0o600)
    write_whole(dangling, b"other")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert (target.parent / "other").read_bytes() == b"other"
    assert sorted(file.name for file in target.parent.iterdir()) == ["file", "other"]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_file_keeps_its_owner_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    owners: list[tuple[int, int]] = []

    def chown(path: Path, user: int, group: int) -> None:
        owners.append((user, group))
        if not allowed:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chown", chown)
    owner = (path.stat().st_uid, path.stat().st_gid)
    write_whole(path, b"new")
    assert (path.read_bytes(), owners) == (b"new", [owner])


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(tmp_path / "circle", b"data")


def test_what_is_no_file_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as threads:
        read = threads.submit(pipe.read_bytes)
        write_whole(pipe, b"data")
        assert read.result(timeout=10) == b"data"
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, b"data")


@pytest.mark.parametrize("name", ["/proc/self/fd/1", "/dev/fd/2", "out"])
def test_what_an_output_goes_to_is_added_to(tmp_path: Path, name: str) -> None:
    """A new file in its place would take what the caller of the command waits for with it."""
    code = "from pathlib import Path; from slipstream.files import write_whole; print('before', flush=True); "
    code += f"write_whole(Path({name!r}), b'data\\n'); print('after')"
    with open(tmp_path / "out", "ab") as out:
        command = [sys.executable, "-c", code]
        subprocess.run(command, stdout=out, stderr=out, check=True, cwd=tmp_path)
    assert (tmp_path / "out").read_text() == "before\ndata\nafter\n"


def test_a_lock_keeps_others_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.05)
    path, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(path)

    def lock_too() -> None:
        with locked(link):
            pass

    with ThreadPoolExecutor() as threads:
        with locked(path), pytest.raises(TimeoutError, match=r"another process has kept it locked for 0\.05 s"):
            threads.submit(lock_too).result()
        threads.submit(lock_too).result()
    with pytest.raises(FileNotFoundError), locked(tmp_path / "absent" / "file"):
        pass
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", "[" * 100_000])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(OptionError, match=r"record\.json: it is damaged: make it anew"):
        read_record(path, "make it anew")


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"record\.json: can't be read: .*: make it anew"):
        read_record(tmp_path / "record.json", "make it anew")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLIPSTREAM_CACHE", "~/mine")
    assert cache_directory() == tmp_path / "mine"
    monkeypatch.delenv("SLIPSTREAM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "slipstream"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_directory() == tmp_path / ".cache" / "slipstream"


def test_a_cache_that_cannot_be_made_is_temporary_and_the_users_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SLIPSTREAM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"slipstream-{os.getuid()}"
    assert user_cache("other") == own / "other"
    assert cache_directory() == own / "slipstream"
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    own.chmod(0o770)
    assert cache_directory() == NOWHERE  # others may have put something there
    own.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    own.symlink_to(tmp_path / "elsewhere")
    assert cache_directory() == NOWHERE
    own.unlink()
    own.write_text("in the way")
    assert cache_directory() == NOWHERE
    with pytest.raises(OSError, match="Not a directory"):
        write_record(cache_directory() / "record.json", {})
