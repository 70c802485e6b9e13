"""Help of every command at 80 columns, held against a file, so that a change of it shows in a diff."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotool.cli.app import command as command_line

GOLDEN = Path(__file__).parent.parent / "golden" / "help"
# Set to 1, the files are written instead.
RECORD = "SLOTOOL_RECORD_GOLDEN"


def paths(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from paths(command, (*path, name))


PATHS = [*paths(command_line())]


def file_of(path: tuple[str, ...]) -> Path:
    return GOLDEN / f"{'-'.join(('slotool', *path))}.txt"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: " ".join(("slotool", *path)))
def test_help_is_as_recorded(
    slotool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = slotool(*path, "--help").stdout
    if os.environ.get(RECORD) == "1":
        file_of(path).write_text(shown)
    assert shown == file_of(path).read_text(), f"if this change is meant, record it with {RECORD}=1"


def test_no_file_is_left_of_a_command_that_is_gone() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {file_of(path).name for path in PATHS}
