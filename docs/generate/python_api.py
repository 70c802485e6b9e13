"""One page per room of the package: its modules, documented by their docstrings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import slotool

ROOMS = (
    "tables", "data", "graphs", "artifacts", "elastic", "profiling", "predictors", "rules", "scheduling", "workloads",
    "simulation", "serving", "reports", "testing", "commands",
)  # fmt: skip
PACKAGE = Path(slotool.__file__).parent


def pages() -> dict[str, str]:
    """Return pages by path in ``docs/``."""
    return {f"reference/python/{room}.md": _page(room) for room in ROOMS}


def _page(room: str) -> str:
    # Searches name guides and commands first: this lists a thousand names.
    lines = ["---", "search: {boost: 0.1}", "---", "", f"# slotool.{room}", ""]
    for path in sorted((PACKAGE / room).rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if path.name != "__init__.py" and any(_public(path)):
            lines += [f"## {module.removeprefix('slotool.')}", "", f"::: {module}", "    options:"]
            lines += ["      show_root_heading: false", "      show_root_toc_entry: false", ""]
    return "\n".join(lines)


def _public(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text()).body:
        if (
            isinstance(node, ast.ClassDef | ast.FunctionDef)
            and not node.name.startswith("_")
            and ast.get_docstring(node)
        ):
            yield node.name
