"""The journal: what was appended is there after any end."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from slotool.errors import AlreadyExistsError, InputError
from slotool.profiling.journal import Journal, read_journal

CONFIGURATION = {"threads": 1, "batch": [1, 8]}
ROWS = [{"subject": name, "samples_s": [0.1, 0.2]} for name in ("a", "b", "c")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "t.parquet.journal"
    with Journal(path, CONFIGURATION) as journal:
        for row in ROWS:
            journal.append(row)
    return path


def test_rows_come_back(path: Path) -> None:
    with Journal(path, CONFIGURATION) as journal:
        assert journal.rows == ROWS
    assert read_journal(path, CONFIGURATION) == ROWS


def test_cut_anywhere_the_whole_lines_are_kept_and_it_can_go_on(path: Path) -> None:
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        rows = max(whole[:end].count(b"\n") - 1, 0)
        assert read_journal(path, CONFIGURATION) == ROWS[:rows]
        with Journal(path, CONFIGURATION) as journal:
            assert journal.rows == ROWS[:rows]
            journal.append({"subject": "new"})
        lines = path.read_text().splitlines()
        assert json.loads(lines[-1]) == {"subject": "new"}
        assert len(lines) == rows + 2


def test_other_settings_are_refused_by_name_and_change_nothing(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(AlreadyExistsError, match="threads 1 then, 2 now"):
        Journal(path, {**CONFIGURATION, "threads": 2})
    assert path.read_bytes() == before
    with Journal(path, {**CONFIGURATION, "threads": 2}, fresh=True) as journal:
        assert journal.rows == []


def test_two_campaigns_cannot_write_one_journal(path: Path) -> None:
    with Journal(path, CONFIGURATION), pytest.raises(InputError, match="another campaign"):
        Journal(path, CONFIGURATION)
    with Journal(path, CONFIGURATION) as journal:
        assert journal.rows == ROWS


def test_damage_in_the_midst_is_named_not_dropped(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\x00\x00\x00\n", *lines[3:]]))
    with pytest.raises(InputError, match="line 3"):
        Journal(path, CONFIGURATION)


@pytest.mark.parametrize("content", ["something else", "hello\nworld\n", '{"format": "other"}\n'])
def test_a_foreign_file_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.journal"
    path.write_text(content)
    with pytest.raises(InputError):
        Journal(path, CONFIGURATION)
    assert path.read_text() == content


def test_a_full_disk_leaves_the_rows_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = path.read_bytes(), os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) <= 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:10])

    with Journal(path, CONFIGURATION) as journal:
        monkeypatch.setattr("slotool.profiling.journal.os.write", full)
        with pytest.raises(OSError, match="No space left") as raised:
            journal.append({"subject": "a row that does not fit"})
        assert raised.value.filename == str(path)
        monkeypatch.undo()
        assert journal.rows == ROWS
    assert path.read_bytes() == before


def test_a_journal_without_rows_leaves_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "n.journal", CONFIGURATION):
        assert (tmp_path / "n.journal").exists()
    assert not (tmp_path / "n.journal").exists()
