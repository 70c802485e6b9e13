"""Recorded benchmarks (``benchmarks/results/*.json``) as one page, each with machine, date and commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

_INTRODUCTION = """# Recorded benchmarks

What `make bench` printed, as `python -m tests.perf --record` kept it in `benchmarks/results/`. This page is generated
from those files; nothing on it is edited.
"""


def page(folder: Path = RESULTS) -> str:
    """Markdown: a section per recorded benchmark."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    none = [] if documents else ["No benchmark has been recorded yet.", ""]
    return "\n".join([_INTRODUCTION, *none, *map(_section, documents)])


def _section(document: dict[str, Any]) -> str:
    machine = document["machine"]
    where = f"{machine['cpu']}, {machine['cores_given']} cores, {machine['system']}"
    when = f"{document['date'][:10]}, commit `{document['commit']}`, {document['seconds']:,.0f} s"
    return "\n".join(
        [f"## {document['benchmark']}", "", f"{where}; {when}.", "", "```text", *document["printed"], "```", ""]
    )
