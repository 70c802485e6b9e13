"""Recorded benchmarks (``benchmarks/results/*.json``) as tables, each with machine, date and commit.

The tables of benchmark NAME stand in the place ``recorded: NAME`` of a results page; ``result_tables.py`` states which
figures they show. The page "Recorded output" has what every benchmark printed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.generate import places
from docs.generate.result_tables import TABLES, Table

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

# Characters of a figure with its unit and its error.
MAX_FIGURE = 14

_KIND = "recorded"
_INTRODUCTION = """---
search: {boost: 0.1}
---

# Recorded output

What each benchmark printed, as `python -m benchmarks --record` kept it in `benchmarks/results/`. This page is generated
from those files.
"""


def filled(markdown: str, folder: Path = RESULTS) -> str:
    """Return ``markdown`` with the recorded tables, or nothing if there are none, in each place."""
    return places.filled(markdown, _KIND, lambda name: _recorded(name, folder))


def marks(markdown: str) -> list[str]:
    """Return the benchmarks whose tables ``markdown`` shows."""
    return places.names(markdown, _KIND)


def page(folder: Path = RESULTS) -> str:
    """Return the page: a section per recorded benchmark with all that it printed."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    missing = [f"`{name}`" for name in TABLES if name not in {document["benchmark"] for document in documents}]
    left_out = f"Not recorded yet: {', '.join(missing)}; `python -m benchmarks --record NAME` records one.\n"
    return "\n".join([_INTRODUCTION, *([left_out] if missing else []), *map(_printed, documents)])


def _recorded(name: str, folder: Path) -> str:
    path = folder / f"{name}.json"
    if not path.is_file():
        return ""
    document = json.loads(path.read_text())
    parts = [f"*Recorded: {_origin(document)}. [All that was printed](benchmarks.md#{name}).*"]
    parts += map(markdown_of, TABLES[name](document["figures"]))
    return "\n\n".join(parts)


def markdown_of(table: Table) -> str:
    lines = [f"**{table.title}**", ""] if table.title else []
    lines += [_line(table.heads), "|---" * len(table.heads) + "|", *map(_line, table.rows)]
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    # A figure and its unit stay on one line.
    whole = [cell.replace(" ", "\u00a0") if len(cell) <= MAX_FIGURE else cell for cell in cells[1:]]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in [cells[0], *whole]) + " |"


def _printed(document: dict[str, Any]) -> str:
    name = document["benchmark"]
    return "\n".join([f"## {name}", "", f"{_origin(document)}.", "", "```text", *document["printed"], "```", ""])


def _origin(document: dict[str, Any]) -> str:
    machine = document["machine"]
    where = f"{machine['cpu']}, {machine['cores_given']} cores, {machine['system']}"
    return f"{where}; {document['date'][:10]}, commit `{document['commit']}`, {document['seconds']:,.0f} s"
