"""Files that are there whole or not at all."""

import stat
from pathlib import Path

import pytest

from slipstream import OptionError, files
from slipstream.files import read_record, write_record, write_whole


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


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", "[" * 100_000])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(OptionError, match=r"record\.json: it is damaged: make it anew"):
        read_record(path, "make it anew")


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"record\.json: can't be read: .*: make it anew"):
        read_record(tmp_path / "record.json", "make it anew")
