"""Files and folders that are at every moment either the old one, the new one, or absent."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slotool.errors import AlreadyExistsError, InputError


@contextmanager
def whole_file(path: str | Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a name to write to; it replaces ``path`` by one rename if the block succeeds, and else is removed.

    Raises:
        AlreadyExistsError: Without ``replace``, if another process created ``path`` meanwhile.
        InputError: As ``replaceable``.
    """
    path = replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        yield partial
        if replace:
            os.replace(partial, path)
        else:
            _link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder to fill; it replaces ``path`` if the block succeeds, and else is removed.

    Raises ``InputError`` as ``replaceable``.
    """
    path = replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        _swap_in(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replaceable(path: str | Path) -> Path:
    """Return the file or folder that a rename may replace: ``path``, or where it leads to as a link, which stays.

    Raises ``InputError`` for a pipe, socket or device, also behind a link, and for links that lead in a circle.
    """
    place = Path(os.path.realpath(path))
    mode = place.lstat().st_mode if os.path.lexists(place) else stat.S_IFREG
    if stat.S_ISLNK(mode):
        raise InputError(f"{path} is a loop of links; choose another name")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"{path} is a pipe, socket or device, which is never replaced; choose another name")
    return place if os.path.islink(path) else Path(path)


@contextmanager
def alone(path: str | Path) -> Iterator[None]:
    """Hold the file ``path``, which is made and stays, while the block runs; it is free again however the process ends.

    Raises ``InputError`` when another process holds it.
    """
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{Path(path).parent}: another process writes there now; wait, or name another") from None
        yield


def _link(partial: Path, path: Path) -> None:
    try:
        os.link(partial, path)
    except FileExistsError:
        raise AlreadyExistsError(f"{path} exists already: another process wrote it meanwhile") from None
    except OSError:  # a file system without links
        if path.exists():
            raise AlreadyExistsError(f"{path} exists already: another process wrote it meanwhile") from None
        os.replace(partial, path)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial-{os.getpid()}")


def _swap_in(partial: Path, path: Path) -> None:
    """Rename ``partial`` to ``path``; an old folder, which no rename replaces unless empty, moves aside first."""
    if not path.exists():
        os.rename(partial, path)
        return
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    os.rename(path, old)
    os.rename(partial, path)
    shutil.rmtree(old)
