"""ARCHITECTURE.md tells the truth: every room is in its table, and imports only rooms above it."""

from __future__ import annotations

import ast
import gc
import re
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import slotool

PACKAGE = Path(slotool.__file__).parent
ROOMS = re.findall(r"^\| `(\w+)(?:\.py|/)` \|", (PACKAGE.parent / "ARCHITECTURE.md").read_text(), re.MULTILINE)
SUB_ROOMS = {
    room: re.findall(r"`(\w+)/`", sub_rooms)
    for room, sub_rooms in re.findall(
        r"^\| `(\w+)/` \| ((?:`\w+/`(?: · )?)+) \|$", (PACKAGE.parent / "ARCHITECTURE.md").read_text(), re.MULTILINE
    )
}
PLAIN = {"__init__", "__main__"}
# Modules of a room that still import each other, below ``slotool.``. The list only shrinks: take out what is gone.
CIRCLES: tuple[set[str], ...] = ()


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports_of(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Wherever in the file. Trees are not kept: later tests would wait for the garbage collector to walk over them."""
    # An error of what is collected is printed with its lines parsed, and Python before 3.12.3 cannot parse in a parse.
    gc.disable()
    try:
        tree = ast.parse(path.read_text())
    finally:
        gc.enable()
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path) -> set[str]:
    """slotool modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in imports_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def module_of(path: Path) -> str:
    """Name below ``slotool.``; a package is its ``__init__``."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


@cache
def circles() -> list[set[str]]:
    """Groups of modules that import each other, directly or not; inside functions and for types count too."""
    paths = {module_of(path): path for path in PACKAGE.rglob("*.py")}
    graph = nx.DiGraph()
    for module, path in paths.items():
        for node in imports_of(path):
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path.relative_to(PACKAGE)}: imports are absolute"
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name.removeprefix("slotool.") in paths else str(node.module) for name in whole]
            else:
                names = [alias.name for alias in node.names]
            targets = {name.removeprefix("slotool.") for name in names if name.startswith("slotool.")}
            graph.add_edges_from((module, target) for target in targets & paths.keys() - {module})
    return [component for component in nx.strongly_connected_components(graph) if len(component) > 1]


def test_no_modules_import_each_other_but_those_listed() -> None:
    for circle in circles():
        known = any(circle <= listed for listed in CIRCLES)
        assert known, f"these modules import each other, directly or not: {', '.join(sorted(circle))}"


def test_a_circle_that_is_gone_is_taken_from_the_list() -> None:
    found = circles()
    for listed in CIRCLES:
        stands = any(circle <= listed for circle in found)
        assert stands, f"take this circle out of CIRCLES, nobody imports in it any more: {', '.join(sorted(listed))}"


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


@pytest.mark.parametrize("room", SUB_ROOMS)
def test_a_sub_room_imports_only_those_before_it(room: str) -> None:
    order = SUB_ROOMS[room]
    assert set(order) <= {path.parent.name for path in (PACKAGE / room).glob("*/__init__.py")}
    # The room's own __init__ states the names that the room offers, wherever they are.
    for path in set((PACKAGE / room).rglob("*.py")) - {PACKAGE / room / "__init__.py"}:
        here = path.relative_to(PACKAGE / room).parts
        allowed = set(order[: order.index(here[0]) + 1]) if len(here) > 1 else set()
        names = [name.split(".") for name in imported(path) if name.startswith(f"slotool.{room}.")]
        below = {parts[2] for parts in names} & set(order) - allowed
        assert not below, f"{path.relative_to(PACKAGE)} imports {', '.join(sorted(below))}, which is below it"


def test_only_the_command_line_knows_typer_and_nobody_pickles() -> None:
    for path in PACKAGE.rglob("*.py"):
        names = {name.split(".")[0] for name in imported(path)}
        assert "typer" not in names or room_of(path) == "cli", path
        assert not names & {"pickle", "joblib", "cloudpickle", "dill", "shelve"}, path
        # Restricted to tensors, torch's own reader builds no other object.
        assert not re.search(r"torch\.load\((?!.*weights_only=True)", path.read_text()), path


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by their base names, and refuses the second in a run of the whole suite."""
    names = [path.name for path in (PACKAGE.parent / "tests").rglob("test_*.py")]
    assert not {name for name in names if names.count(name) > 1}


def test_no_fixture_of_tests_stays_for_the_tests_of_other_rooms() -> None:
    """Nobody asks for an automatic fixture; of a package or session, it would hold in each room that runs later."""
    for path in Path(__file__).parent.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "autouse" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.fixture":
                options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                lasting = options.get("scope") in ("'package'", "'session'")
                assert not (lasting and "autouse" in options), f"{path.name}: {ast.unparse(node)}"
