"""ARCHITECTURE.md tells the truth: every room is in its table, and imports only rooms above it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import slotool

PACKAGE = Path(slotool.__file__).parent
ROOMS = re.findall(r"^\| `(\w+)(?:\.py|/)` \|", (PACKAGE.parent / "ARCHITECTURE.md").read_text(), re.MULTILINE)
PLAIN = {"__init__", "__main__"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """slotool modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_the_table_lists_every_room() -> None:
    standing = {room_of(path) for path in PACKAGE.rglob("*.py")} - PLAIN
    assert set(ROOMS) == standing


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_above_it(room: str) -> None:
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    for path in PACKAGE.rglob("*.py"):
        if room_of(path) == room:
            rooms = {name.split(".")[1] for name in imported(path) if name.startswith("slotool.")}
            assert (rooms & set(ROOMS)) <= allowed, f"{path.relative_to(PACKAGE)} imports a room below its own"


def test_only_the_command_line_knows_typer_and_nobody_pickles() -> None:
    for path in PACKAGE.rglob("*.py"):
        names = {name.split(".")[0] for name in imported(path)}
        assert "typer" not in names or room_of(path) == "cli", path
        assert not names & {"pickle", "joblib", "cloudpickle", "dill", "shelve"}, path
        assert "torch.load" not in path.read_text(), path
