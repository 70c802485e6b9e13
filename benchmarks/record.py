"""Keep what a benchmark printed: its figures, with machine, date and commit, as ``benchmarks/results/NAME.json``."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from slotool.machine import machine_facts, machine_id

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


class _Tee(io.TextIOBase):
    """What is written goes on to ``shown`` and is kept."""

    def __init__(self, shown: TextIO):
        self.kept = io.StringIO()
        self._shown = shown

    def write(self, text: str) -> int:
        self.kept.write(text)
        return self._shown.write(text)

    def flush(self) -> None:
        self._shown.flush()


def record(name: str, benchmark: Callable[[], object], folder: Path = RESULTS) -> Path:
    """Run ``benchmark`` and write what it printed, its last JSON line apart as figures, to ``folder``."""
    made_at = commit()  # before it runs: the run may take an hour
    tee = _Tee(sys.stdout)
    started = datetime.now(UTC)
    with redirect_stdout(tee):
        benchmark()
    *printed, last = tee.kept.getvalue().rstrip("\n").split("\n")
    document = {
        "schema": "slotool/benchmark",
        "schema_version": 1,
        "benchmark": name,
        "date": started.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - started).total_seconds(), 1),
        "commit": made_at,
        "machine": {"id": machine_id(), **machine_facts()},
        "printed": printed,
        "figures": _figures(name, last),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n")
    return path


def _figures(name: str, line: str) -> dict[str, Any]:
    try:
        figures = json.loads(line)
    except ValueError:
        figures = None
    if not isinstance(figures, dict):
        raise ValueError(f"benchmark {name} ends with {line[:80]!r}; expected one line with a JSON object")
    return figures


def commit() -> str:
    """The commit checked out, with ``+`` behind it when tracked files differ; empty outside a repository."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        # Records of benchmarks that ran before this one are no change of what is measured.
        elsewhere = ["--", ".", ":!benchmarks/results"]
        status = ["git", "status", "--porcelain", "-uno", *elsewhere]
        changed = subprocess.run(status, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
