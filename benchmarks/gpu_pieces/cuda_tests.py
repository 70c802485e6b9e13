"""The tests marked ``cuda``, in a pytest of their own. In a rehearsal they are skipped: there is no GPU.

Several run at a time where pytest-xdist is installed; what fails then runs again alone, for some compare times.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_pieces.piece import Figures, Left, Piece
from benchmarks.record import ROOT

MARKED = "mark.cuda"
# Each takes some 500 MiB of the device.
WORKERS = 8
# What pytest takes to report after an interrupt.
END_S = 15.0


def run(piece: Piece) -> None:
    piece.step("marked cuda", lambda: marked(piece))


def marked(piece: Piece) -> Figures:
    if find_spec("pytest") is None or find_spec("hypothesis") is None:
        raise Left("pytest and hypothesis are not installed")
    side_by_side = ["-n", str(WORKERS)] if find_spec("xdist") is not None else []
    report, ended = ran(piece, "all", side_by_side)
    figures = {**counted(report), "cut_off": not ended}
    if side_by_side and figures["failed"]:
        alone = counted(ran(piece, "failed", ["--last-failed"])[0])
        figures["failed_beside_others"] = figures["failed"]
        figures["failed"] = alone["failed"]
        figures["passed"] += alone["passed"]
    return figures


def ran(piece: Piece, name: str, options: list[str]) -> tuple[Path, bool]:
    """Return JUnit's XML of the tests that ended, and True if that is all of them: the time may be over before."""
    report = (piece.folder / f"{name}.xml").absolute()
    report.unlink(missing_ok=True)
    # A plugin for benchmarks, where it is installed, warns of the workers, and a warning is an error here.
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:benchmark", f"--junitxml={report}"]
    command += ["-o", f"cache_dir={(piece.folder / 'cache').absolute()}", *options, *files(ROOT / "tests")]
    path = piece.folder / f"{name}.txt"
    ended = True
    with path.open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            process.wait(piece.left_s if piece.full else None)
        except subprocess.TimeoutExpired:
            # As after Ctrl-C pytest reports what has ended.
            ended = False
            process.send_signal(signal.SIGINT)
            process.wait(END_S)
        finally:
            process.kill()
    if not report.is_file():
        raise RuntimeError(f"pytest ended with {process.returncode}: {path.read_text()[-400:]}")
    return report, ended


def files(folder: Path) -> list[str]:
    """Test files that have such a test: to collect all others would take longer than to run these."""
    return sorted(str(path.relative_to(folder.parent)) for path in folder.rglob("test_*.py")
                  if MARKED in path.read_text())  # fmt: skip


def counted(report: Path) -> Figures:
    """From JUnit's XML, which our own pytest wrote: tests passed and skipped, and the names of those that failed."""
    cases = list(ET.parse(report).getroot().iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {
        "passed": len(cases) - len(bad) - skipped,
        "not_run": skipped,
        "failed": [f"{case.get('classname')}::{case.get('name')}" for case in bad],
    }
