"""The journal: what was appended is there after any end."""

from __future__ import annotations

import errno
import json
import os
import zlib
from pathlib import Path

import pytest

from slotool.errors import AlreadyExistsError, InputError
from slotool.journal import Journal, read_journal, refuse_other
from slotool.machine import machine_facts, machine_id

CONFIGURATION = {"threads": 1, "batch": [1, 8]}
ROWS = [{"subject": name, "samples_s": [0.1, 0.2]} for name in ("a", "b", "c")]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("slotool.journal.machine_facts", lambda: {"cpu": "short"})
    path = tmp_path / "t.parquet.journal"
    with Journal(path, CONFIGURATION) as journal:
        for row in ROWS:
            journal.append(row)
    return path


def test_rows_come_back(path: Path) -> None:
    with Journal(path, CONFIGURATION) as journal:
        assert journal.rows == ROWS
    assert read_journal(path, CONFIGURATION).rows == ROWS


def test_cut_anywhere_the_whole_lines_are_kept_and_it_can_go_on(path: Path) -> None:
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        rows = max(whole[:end].count(b"\n") - 1, 0)
        assert list(read_journal(path, CONFIGURATION).rows) == ROWS[:rows]
        with Journal(path, CONFIGURATION) as journal:
            assert journal.rows == ROWS[:rows]
            journal.append({"subject": "new"})
        lines = path.read_text().splitlines()
        assert json.loads(lines[-1].partition(" ")[2]) == {"subject": "new"}
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


def test_a_journal_of_an_earlier_slotool_is_refused_in_a_sentence_and_kept(path: Path) -> None:
    header = {"format": "slotool-journal", "format_version": 2, "configuration": CONFIGURATION}
    path.write_bytes(b"".join(with_checksum(json.dumps(document)) for document in (header, *ROWS)))
    before = path.read_bytes()
    for read in (Journal, read_journal):
        with pytest.raises(InputError, match=r"written by another version of slotool; .*--force"):
            read(path, CONFIGURATION)
    assert path.read_bytes() == before


def test_another_machine_is_named_in_words_and_another_kernel_is_none(path: Path) -> None:
    facts, machine = machine_facts(), machine_id()
    here = {**CONFIGURATION, "machine": machine}
    there = {**facts, "cpu": "Abacus", "cores": 77}
    with pytest.raises(AlreadyExistsError, match=r"another machine: processor Abacus → .*, cores 77 → "):
        refuse_other({**CONFIGURATION, "machine": machine_id(there)}, here, path, there)
    refuse_other(
        {**CONFIGURATION, "machine": "an id of an earlier slotool"}, here, path, {**facts, "system": "Linux 1"}
    )


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
        monkeypatch.setattr("slotool.journal.os.write", full)
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


def with_checksum(text: str) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(text.encode()), text.encode())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 200_000 + "]" * 200_000, "nested more than"),
        ('{"subject": "a", "samples_s": ' + "[" * 200_000, "nested more than"),
        ('{"samples_s": [NaN]}', "not JSON"),
        ('{"name": "\\ud800"}', "not JSON"),
        ("[]", "object is expected"),
        ("null", "object is expected"),
        ('"' + "x" * (1 << 25) + '"', "bytes, at most"),
    ],
    ids=["deep", "deep and torn", "NaN", "surrogate", "list", "null", "large"],
)
def test_a_crafted_line_with_a_right_checksum_is_refused_by_its_number(path: Path, text: str, said: str) -> None:
    path.write_bytes(path.read_bytes() + with_checksum(text))
    for read in (Journal, read_journal):
        with pytest.raises(InputError, match=f"line 5: .*({said})"):
            read(path, CONFIGURATION)


def test_digits_without_end_are_read_as_one_number(path: Path) -> None:
    path.write_bytes(path.read_bytes() + with_checksum('{"rounds": ' + "9" * 300 + "}"))
    assert read_journal(path, CONFIGURATION).rows[-1] == {"rounds": 1e300}


@pytest.mark.parametrize(
    "change", [{"id": None}, {"replaces": 1}, {"configuration": []}, {"machine_facts": "none"}, {"machine_facts": None}]
)
def test_a_crafted_header_is_refused_in_a_sentence(path: Path, change: dict[str, object]) -> None:
    first, _, rest = path.read_bytes().partition(b"\n")
    header = {**json.loads(first.partition(b" ")[2]), **change}
    path.write_bytes(with_checksum(json.dumps(header)) + rest)
    for read in (Journal, read_journal):
        with pytest.raises(InputError, match=r"line 1 is not the header .*--force"):
            read(path, CONFIGURATION)


def test_half_a_surrogate_pair_does_not_make_a_journal_unreadable(path: Path) -> None:
    with Journal(path, CONFIGURATION) as journal:
        journal.append({"reason": "no file \udcff here"})
    assert read_journal(path, CONFIGURATION).rows[-1] == {"reason": "no file ? here"}
