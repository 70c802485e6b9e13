"""Files from outside, opened where they are regular: a pipe may never end, a device gives more than memory holds."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from slotool.errors import InputError

LOOP = "a link that leads back to itself"
MAX_TEXT_BYTES = 32 * 2**20


class IrregularFileError(InputError, OSError):
    """A pipe, device or socket in the place of a file, or a file larger than is read."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def open_regular(path: str | Path) -> BufferedReader:
    """Open a file for reading, without waiting for a writer.

    Raises:
        IrregularFileError: If it is a folder, pipe, device or socket.
        OSError: If it cannot be opened.
    """
    # A name is resolved once and looked at before it is opened. O_NONBLOCK would not wait for pipes either, but fails
    # on files that another process holds a lease of.
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _require_regular(path, os.fstat(place))
        return open(f"/proc/self/fd/{place}", "rb")
    finally:
        os.close(place)


def read_bytes(path: str | Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return what a regular file holds. Raises as ``open_regular``, and ``IrregularFileError`` beyond ``max_bytes``."""
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise IrregularFileError(errno.EFBIG, f"larger than the {max_bytes} bytes that are read", str(path))
    return content


def read_text(path: str | Path, max_bytes: int = MAX_TEXT_BYTES, errors: str = "strict") -> str:
    """Return ``read_bytes`` decoded from UTF-8, with the line ends of Python's text."""
    return read_bytes(path, max_bytes).decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")


def require_regular(path: str | Path, error: type[InputError] = InputError, missing: str = "no such file") -> None:
    """Raise ``error``, one sentence, unless ``path`` is a regular file; for files that a library opens by their name.

    ``missing``: the sentence where nothing is there.
    """
    sentences = {errno.ENOENT: missing, errno.ENOTDIR: missing, errno.ELOOP: LOOP}
    try:
        _require_regular(path, os.stat(path))
    except OSError as refused:
        raise error(f"{path}: {sentences.get(refused.errno or 0, refused.strerror)}") from refused


def _require_regular(path: str | Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IrregularFileError(errno.EISDIR, "a folder, where a file is expected", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise IrregularFileError(errno.EINVAL, "a pipe, socket or device, where a regular file is expected", str(path))
