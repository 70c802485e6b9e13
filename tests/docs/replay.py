"""Commands that several pages show run once: their output and the files they wrote are kept and given back.

A command is the same when its text is, and the files of the page's folder that it names hold the same bytes. Commands
that start a server or speak to one are always run.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.docs.shell import PORTS, Shell


@dataclass(frozen=True)
class _Run:
    code: int
    printed: list[str]
    wrote: Path


class Replay:
    """Keeps runs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, _Run] = {}

    def forget(self) -> None:
        """Run everything again from now on."""
        self._runs.clear()

    def run(self, bash: Shell, command: str) -> tuple[int, list[str]]:
        """The exit code of ``command`` and what it prints, now or at its first run."""
        if (
            command.rstrip().endswith("&")
            or any(port in command for port in PORTS)
            or not command.startswith(("slotool ", "python -c "))
        ):
            return bash.run(command)
        key = _key(command, bash.folder)
        if key not in self._runs:
            before = _files(bash.folder)
            code, printed = bash.run(command)
            wrote = self._folder / key
            for name, version in _files(bash.folder).items():
                if before.get(name) != version:
                    _copy(bash.folder / name, wrote / name)
            self._runs[key] = _Run(code, printed, wrote)
        else:
            wrote = self._runs[key].wrote
            for name in _files(wrote):
                _copy(wrote / name, bash.folder / name)
        return self._runs[key].code, self._runs[key].printed


def _key(command: str, folder: Path) -> str:
    words = set(re.findall(r"\w+", command))
    named = [name for name in sorted(_files(folder)) if words & set(re.findall(r"\w+", Path(name).parts[0])[:1])]
    digest = hashlib.sha256(command.encode())
    for name in named:
        digest.update(f"\0{name}\0".encode() + (folder / name).read_bytes())
    return digest.hexdigest()


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Files under ``folder`` that a command may read or write, with what changes when they do."""
    found = {}
    for path in folder.rglob("*") if folder.is_dir() else []:
        name = path.relative_to(folder)
        if path.is_file() and not name.parts[0].startswith((".", "__")):
            found[str(name)] = (path.stat().st_mtime_ns, path.stat().st_size)
    return found


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)
