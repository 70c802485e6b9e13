"""The append-only journal beside a campaign's output: what was finished survives any death."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from slotool.errors import AlreadyExistsError, InputError

FORMAT = "slotool-journal"
FORMAT_VERSION = 1


class Journal:
    """JSON lines: a header with the campaign's configuration, then one line per finished row.

    Opening takes an exclusive lock, so that two campaigns cannot write one journal, drops a last line that was torn
    by a crash, and reads ``rows``; closing one without rows deletes it. ``fresh`` forgets what an earlier campaign
    wrote. Use it as a context manager.

    Raises ``InputError`` when another process holds it, when it is no journal, or when a line in its midst is
    damaged; ``AlreadyExistsError`` when it was written under another configuration.
    """

    def __init__(self, path: Path, configuration: Mapping[str, Any], fresh: bool = False):
        self.path = path
        self._removed = False
        self._descriptor = _open_locked(path)
        try:
            kept = b"" if fresh else _read_all(self._descriptor)
            header, self.rows, self._end = _parse(kept, path)
            os.ftruncate(self._descriptor, self._end)
            if header is None:
                self._write(
                    [{"format": FORMAT, "format_version": FORMAT_VERSION, "configuration": dict(configuration)}]
                )
            else:
                refuse_other(header, configuration, path)
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
        text = "".join(json.dumps(document, allow_nan=False) + "\n" for document in documents)
        lines = memoryview(text.encode())
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


def read_journal(path: Path, configuration: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The finished rows, without taking the lock or changing the file; empty when there is no journal."""
    try:
        header, rows, _ = _parse(path.read_bytes(), path)
    except FileNotFoundError:
        return []
    if header is not None:
        refuse_other(header, configuration, path)
    return rows


def refuse_other(earlier: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """Raises ``AlreadyExistsError`` that says which settings differ, if any do."""
    names = [name for name in {**earlier, **now} if earlier.get(name) != now.get(name)]
    if names:
        changes = ", ".join(f"{name} {earlier.get(name)} then, {now.get(name)} now" for name in names)
        raise AlreadyExistsError(f"{path} holds a campaign with other settings ({changes})")


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


def _parse(data: bytes, path: Path) -> tuple[Mapping[str, Any] | None, list[dict[str, Any]], int]:
    """Configuration (None when not even the header is whole), rows, and where the last whole line ends."""
    end = data.rfind(b"\n") + 1
    lines = data[:end].splitlines()
    documents = [_document(line, number, path) for number, line in enumerate(lines, start=1)]
    if not documents:
        if end == 0 and data and not data.startswith(b'{"format"'[: len(data)]):
            raise InputError(f"{path}: this is no journal of slotool")
        return None, [], 0
    header = documents[0]
    if header.get("format") != FORMAT or header.get("format_version") != FORMAT_VERSION:
        raise InputError(f"{path}: this is no journal of slotool, or one of another version")
    return header["configuration"], documents[1:], end


def _document(line: bytes, number: int, path: Path) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InputError(f"{path}: line {number} is damaged; remove it, or add --force to begin again")
    return document
