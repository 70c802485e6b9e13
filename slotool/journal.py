"""Append-only journal next to the output of long work: finished rows survive the death of any process.

A line is eight hexadecimal digits, the CRC-32 of the rest, and a JSON object: first a header, then finished rows. A bit
that flipped on the disk is found by its line; only a last line without its end, which a death tears, is dropped.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotool import strict_json
from slotool.errors import AlreadyExistsError, InputError
from slotool.machine import differences, machine_facts, machine_id
from slotool.regular_files import read_bytes

FORMAT = "slotool-journal"
FORMAT_VERSION = 3
MAX_JOURNAL_BYTES = 2**32
_CHECKSUM_DIGITS = 8


class Journal:
    """A header with the campaign's configuration, then one line per finished row.

    Opening takes an exclusive lock, so that two campaigns cannot write one journal, drops a last line that was torn
    by a crash, and reads ``rows``; closing one without rows deletes it. ``fresh`` forgets what an earlier campaign
    wrote. ``id`` is the journal's own, by which a table tells whose rows it holds; ``replaces`` says that it was begun
    ``fresh``, so that an earlier table does not count. Use it as a context manager.

    Raises ``InputError`` when another process holds it, when it is no journal, or when a line is damaged;
    ``AlreadyExistsError`` when it was written under another configuration.
    """

    def __init__(self, path: Path, configuration: Mapping[str, Any], fresh: bool = False):
        self.path = path
        self._removed = False
        self._descriptor = _open_locked(path)
        try:
            header, rows, self._end = _parse(b"" if fresh else _read_all(self._descriptor), path)
            if header is not None:
                refuse_other(header["configuration"], configuration, path, header["machine_facts"])
            self.rows = rows
            if header is None or not rows:
                # A header without rows has no effect: the campaign that begins now says whether an earlier table
                # counts.
                header, self._end = _header(configuration, fresh), 0
                os.ftruncate(self._descriptor, 0)
                self._write([header])
            os.ftruncate(self._descriptor, self._end)
            self.id, self.replaces = str(header["id"]), bool(header["replaces"])
        except BaseException:
            os.close(self._descriptor)
            raise

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Add rows; when this returns, they are on the disk. Raises ``OSError`` and leaves the rows before them."""
        self._write(rows)
        self.rows += map(dict, rows)

    def remove(self) -> None:
        """Delete the file: its rows are safe elsewhere."""
        if not self._removed:
            self.path.unlink(missing_ok=True)
        self._removed = True

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.rows:
            self.remove()
        os.close(self._descriptor)

    def _write(self, documents: Iterable[Mapping[str, Any]]) -> None:
        lines = memoryview(b"".join(map(_line, documents)))
        try:
            os.lseek(self._descriptor, self._end, os.SEEK_SET)
            written = 0
            while written < len(lines):
                written += os.write(self._descriptor, lines[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            with suppress(OSError):  # a torn line is dropped on resume anyway
                os.ftruncate(self._descriptor, self._end)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._end += len(lines)


@dataclass(frozen=True)
class _Header:
    """Keys of a journal's first line, each with its type."""

    id: str
    replaces: bool
    configuration: dict[str, Any]
    machine_facts: dict[str, Any]


@dataclass(frozen=True)
class JournalContent:
    """Content of a journal: ``id`` and ``replaces`` as of ``Journal``, empty and False without a journal."""

    id: str = ""
    replaces: bool = False
    rows: Sequence[dict[str, Any]] = ()


def read_journal(path: Path, configuration: Mapping[str, Any]) -> JournalContent:
    """Return the finished rows, without taking the lock or changing the file; none when there is no journal."""
    try:
        header, rows, _ = _parse(read_bytes(path, MAX_JOURNAL_BYTES), path)
    except FileNotFoundError:
        return JournalContent()
    if header is None:
        return JournalContent()
    refuse_other(header["configuration"], configuration, path, header["machine_facts"])
    return JournalContent(header["id"], header["replaces"] and bool(rows), rows)


def refuse_other(
    earlier: Mapping[str, Any], now: Mapping[str, Any], path: Path, facts: Mapping[str, Any] | None = None
) -> None:
    """Raise ``AlreadyExistsError`` with the settings that differ, if any do; ``facts`` are the earlier machine's."""
    names = [name for name in {**earlier, **now} if earlier.get(name) != now.get(name)]
    changes = [f"{name} {earlier.get(name)} then, {now.get(name)} now" for name in names if name != "machine"]
    if "machine" in names and (facts is None or machine_id(facts) != now.get("machine")):
        changes.append(f"another machine: {', '.join(differences(facts or {})) or 'its facts were not kept'}")
    if changes:
        raise AlreadyExistsError(f"{path} holds a campaign with other settings ({', '.join(changes)})")


def _open_locked(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before us may have finished and removed the very file we opened.
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise InputError(f"{path}: another campaign is writing this journal now") from None
            raise
        os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return file.read()


def _header(configuration: Mapping[str, Any], fresh: bool) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "id": uuid.uuid4().hex,
        "replaces": fresh,
        "configuration": dict(configuration),
        "machine_facts": machine_facts(),
    }


def _line(document: Mapping[str, Any]) -> bytes:
    # Half a surrogate pair, as in the name of a file that is not UTF-8, is no JSON that could be read again.
    text = json.dumps(document, allow_nan=False, ensure_ascii=False).encode(errors="replace")
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(data: bytes, path: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]], int]:
    """Header (None when not even that is whole), rows, and where the last whole line ends."""
    end = data.rfind(b"\n") + 1
    lines = data[:end].split(b"\n")[:-1]
    if not lines:
        if data and not _may_begin(data):
            raise InputError(f"{path}: this is no journal of slotool; choose another name for the output")
        return None, [], 0
    if not _may_begin(lines[0]):
        raise InputError(f"{path}: line 1 is damaged, or this is no journal of slotool; add --force to begin again")
    header, *rows = [_document(line, number, path) for number, line in enumerate(lines, start=1)]
    if header.get("format") != FORMAT or header.get("format_version") != FORMAT_VERSION:
        raise InputError(f"{path}: this journal was written by another version of slotool; add --force to begin again")
    try:
        strict_json.convert(header, _Header)
    except strict_json.JsonError as error:
        raise InputError(
            f"{path}: line 1 is not the header of a journal ({error}); add --force to begin again"
        ) from error
    return header, rows, end


def _may_begin(data: bytes) -> bool:
    """True if this can be the beginning of a journal's first line, or all that a death left of it."""
    digits, rest = data[:_CHECKSUM_DIGITS], data[_CHECKSUM_DIGITS:]
    begin = b' {"format"'
    return all(digit in b"0123456789abcdef" for digit in digits) and begin[: len(rest)] == rest[: len(begin)]


def _document(line: bytes, number: int, path: Path) -> dict[str, Any]:
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        advice = (
            "add --force to begin again" if number == 1 else "remove that line to lose its row alone, or add --force"
        )
        raise InputError(f"{path}: line {number} is damaged, its checksum does not fit; {advice}")
    return strict_json.decode_object(text, f"{path}: line {number}")
