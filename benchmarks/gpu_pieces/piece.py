"""Pieces of ``make gpu``: steps, each a file that is written when the step ends and never computed twice."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from slotool.atomic import alone, whole_file

Figures = dict[str, Any]
Size = TypeVar("Size")

SCHEMA, SCHEMA_VERSION = "slotool/gpu-benchmark", 1
DONE, FAILED, UNFINISHED = "done", "failed", "unfinished"
# How the process of a piece ends; the last one asks to be started again.
EXIT_CODES = {DONE: 0, FAILED: 1, UNFINISHED: 75}
# The folder of all Parquet tables.
TABLES = "tables"
# A figure that could not be had for lack of a package or a device, and the traceback's end of a step that failed.
SKIPPED, ERROR = "skipped", "error"
TRACEBACK_LINES = 12


class OutOfTime(KeyboardInterrupt):
    """The piece's limit has passed. It ends what runs as Ctrl-C does, so that campaigns keep what they have."""


class Left(Exception):
    """A step cannot run here; the message says what is missing."""


class NotYet(Exception):
    """A step needs what another has not made yet, which counts as a failure: it is to be tried again."""


@dataclass(frozen=True)
class Spec:
    """One line of a window.

    Args:
        window: Number of the window that the piece belongs to.
        run: Makes the steps of the piece.
        allowance_s: Planned time on a GPU, seconds.
        needs: Packages beside those that slotool always needs.
        anywhere: True if the device is of use and no more: a window on a GPU leaves the piece for a CPU, afterwards.
    """

    window: int
    name: str
    title: str
    run: Callable[[Piece], None]
    allowance_s: float
    needs: tuple[str, ...] = ()
    anywhere: bool = False


class Piece:
    """State shared by the steps of one piece.

    Args:
        device: ``cuda:N``, in a rehearsal ``cpu``.
        full: False in a rehearsal, which runs the same code in little time.
        allowance_s: Planned time, seconds.
    """

    def __init__(self, name: str, out: Path, device: str, full: bool, allowance_s: float):
        self.name, self.device, self.full = name, device, full
        # Parquet tables, which other pieces read, have a folder of their own.
        self.out, self.folder, self.tables = out, out / name, out / TABLES / name
        self._allowance_s = allowance_s
        for folder in (self.folder, self.tables):
            folder.mkdir(parents=True, exist_ok=True)
        self.figures: dict[str, Figures] = {}

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def sized(self, full: Size, rehearsal: Size) -> Size:
        """Return the size for a GPU, or the one for a rehearsal."""
        return full if self.full else rehearsal

    def budget_s(self, share: float) -> float | None:
        """For a campaign, ``share`` of the allowance, or what the finished steps have left of it, at least a second;
        None in a rehearsal, which measures all of its few items."""
        if not self.full:
            return None
        return max(1.0, min(share * self._allowance_s, self.left_s))

    @property
    def left_s(self) -> float:
        """Seconds of the allowance that the finished steps have left."""
        return self._allowance_s - sum(figures.get("seconds", 0.0) for figures in self.figures.values())

    def step(self, name: str, make: Callable[[], Figures]) -> Figures | None:
        """What ``make`` gives, or gave in an earlier run; None where it cannot run here or failed, which the other
        steps outlive. Both are tried again in the next run."""
        path = self._path(self.folder, name)
        if path.is_file():
            self.figures[name] = json.loads(path.read_text())
            print(f"   {name}: finished before", flush=True)
            return self.figures[name]
        began = time.monotonic()
        try:
            figures = make()
        except Left as reason:
            self.figures[name] = {SKIPPED: str(reason)}
            print(f"   {name}: left out, {reason}", flush=True)
            return None
        except NotYet as reason:
            self.figures[name] = {ERROR: str(reason)}
            print(f"   {name}: not yet, {reason}", flush=True)
            return None
        except Exception as error:
            self.failed(name, error)
            return None
        self.figures[name] = {**figures, "seconds": round(time.monotonic() - began, 2)}
        write_json(path, self.figures[name])
        print(f"   {name}: {self.figures[name]['seconds']:.1f} s", flush=True)
        return self.figures[name]

    @staticmethod
    def _path(folder: Path, step: str) -> Path:
        """The file of a step, whose name machines that give results back accept."""
        return folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', step)}.json"

    def failed(self, name: str, error: Exception) -> None:
        """Print and keep an error, in the block that handles it."""
        traceback.print_exc(file=sys.stdout)
        shown = traceback.format_exc().splitlines()[-TRACEBACK_LINES:]
        self.figures[name] = {ERROR: f"{type(error).__name__}: {error}", "traceback": shown}
        print(f"   {name}: failed", flush=True)

    def figures_of(self, piece: str, step: str) -> Figures:
        """Those of another piece. Raises ``NotYet`` where it has none."""
        path = self._path(self.out / piece, step)
        if not path.is_file():
            raise NotYet(f"piece {piece} has no figures of {step} yet")
        return dict(json.loads(path.read_text()))

    def table_of(self, piece: str, name: str) -> Path:
        """A Parquet table that ``piece`` wrote. Raises ``NotYet`` where it is not there."""
        path = self.out / TABLES / piece / name
        if not path.is_file():
            raise NotYet(f"{name} is not there yet; run piece {piece}")
        return path


def ran(spec: Spec, out: Path, device: str, limit_s: float, full: bool = True) -> str:
    """Run a piece for ``limit_s`` seconds at most, write its document, and return how it ended.

    Raises ``KeyboardInterrupt`` after Ctrl-C, with the document written; ``InputError`` where another process runs it.
    """
    piece = Piece(spec.name, out, device, full, spec.allowance_s)
    with alone(piece.folder / "lock"):
        started, status, interrupted = datetime.now(UTC), DONE, False
        clocks = [gpu_clocks()]
        try:
            with limited(limit_s):
                spec.run(piece)
        except OutOfTime:
            status = UNFINISHED
        except KeyboardInterrupt:
            status, interrupted = UNFINISHED, True
        except Exception as error:  # outside of any step: a module that cannot be imported
            piece.failed(spec.name, error)
        if status == DONE and any(ERROR in figures for figures in piece.figures.values()):
            status = FAILED
        clocks.append(gpu_clocks())
        write_json(out / f"{spec.name}.json", {**document(spec, piece, status, started), "gpu_clocks": clocks})
    if interrupted:
        raise KeyboardInterrupt
    return status


def gpu_clocks() -> str:
    """Return the clocks of the GPU now, which nobody sets; an empty text without the driver's program."""
    query = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"
    try:
        asked = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True,
                               text=True, timeout=10, check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip()


def document(spec: Spec, piece: Piece, status: str, started: datetime) -> Figures:
    """Return the record of a piece: how it ended, what on, and the figures of its steps."""
    from benchmarks.record import commit
    from slotool.machine import machine_facts, machine_id

    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "window": spec.window,
        "piece": spec.name,
        "title": spec.title,
        "status": status,
        "rehearsal": not piece.full,
        "date": started.isoformat(timespec="seconds"),
        "commit": commit(),
        "device": device_facts(piece.device),
        "machine": {"id": machine_id(), **machine_facts()},
        "seconds": round(sum(figures.get("seconds", 0.0) for figures in piece.figures.values()), 1),
        "steps": piece.figures,
    }


def device_facts(device: str) -> Figures:
    """What computes, and by which libraries."""
    import torch

    facts: Figures = {"device": device, "torch": torch.__version__, "cuda": torch.version.cuda}
    if device == "cpu":
        return {**facts, "name": "cpu"}
    properties = torch.cuda.get_device_properties(torch.device(device))
    return {**facts, "name": properties.name, "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count}  # fmt: skip


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises ``OutOfTime`` in the block, which the main thread runs, when so many seconds have passed."""

    def end(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def write_json(path: Path, figures: Figures) -> None:
    """Whole or not at all; what is no number is written as null."""
    with whole_file(path) as partial:
        text = json.dumps(_plain(figures), indent=1, ensure_ascii=False, allow_nan=False, default=str)
        partial.write_text(text + "\n")


def _plain(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if hasattr(content, "item") and not hasattr(content, "__len__"):
        return _plain(content.item())
    return None if isinstance(content, float) and not math.isfinite(content) else content
