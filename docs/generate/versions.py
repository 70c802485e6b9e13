"""Versions of packages: the oldest that slotool takes, and those that are tested together."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from docs.generate import places

ROOT = Path(__file__).parents[2]
MARK = "<!-- generated: versions -->"
_REQUIREMENT = re.compile(r"([A-Za-z0-9-]+)(?:\[.*?\])?>=([\d.]+)")
# Extras of users, in the order of the page.
_EXTRAS = ("keras", "onnx", "cuda", "ray", "grpc", "trees", "report", "zoo", "otel")


def filled(markdown: str) -> str:
    """Return ``markdown`` with the table of versions in its place."""
    return places.filled(markdown, "generated", lambda name: _table())


def _table() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().split()
    tested = {name.replace("_", "-"): version for name, _, version in (line.partition("==") for line in lines)}
    groups = {"": project["dependencies"], **{name: project["optional-dependencies"][name] for name in _EXTRAS}}
    rows = [
        f"| {match[1]} | {match[2]} | {tested.get(match[1], '–')} | {f'`{extra}`' if extra else ''} |"
        for extra, requirements in groups.items()
        for match in filter(None, map(_REQUIREMENT.match, requirements))
    ]
    return "\n".join(["| package | oldest | tested | extra |", "|---|---|---|---|", *rows])
