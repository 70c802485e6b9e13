"""A backend for tests: what a subject does is its name. Loaded in a worker as ``hostile_backend:HostileBackend``."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slotool.errors import GraphError
from slotool.profiling.backends import Backend

STOPPED_S = 3.0
CALL_UJ = 2_000


class HostileBackend(Backend):
    """``die`` kills its process, ``die-once PATH`` only when PATH is not there yet, ``hang`` never returns,
    ``break`` raises, ``odd`` raises a ``GraphError``, ``print`` writes over standard output, ``shake`` takes a long
    time every other call, ``work`` needs a core for a while, ``die-later`` kills its process in its 40th call,
    ``stop-once PATH`` has it stopped for ``STOPPED_S`` in its 150th, ``parricide`` kills the process that started its
    own, ``parricide-once PATH`` does so as above; all else sleeps a moment (``pause`` half a second in its first call).
    Writes every run to the file it is given as ``log``. A call takes ``CALL_UJ`` by the counter in
    ``$SLOTOOL_POWERCAP``, if there is one."""

    name = "hostile"
    needs = "numpy"

    def set_threads(self, threads: int) -> None:
        self._threads = threads

    def threads(self) -> int:
        return self._threads

    def open(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return request

    def prepare(self, subject: Mapping[str, Any], batch_size: int) -> Callable[[], np.ndarray]:
        what = subject.get("does", "run")
        if "log" in subject:
            with open(subject["log"], "a") as log:
                log.write(f"{subject['name']}\n")
        if what == "die" or (what == "die-once" and not Path(subject["mark"]).exists()):
            if what == "die-once":
                Path(subject["mark"]).touch()
            print("last words")
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "parricide" or (what == "parricide-once" and not Path(subject["mark"]).exists()):
            Path(subject.get("mark", os.devnull)).touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(3600)
        if what == "break":
            raise RuntimeError("out of luck")
        if what == "odd":
            raise GraphError("operator 'odd' is odd")
        if what == "print":
            print('{"status": "ok"}', flush=True)
            os.system("echo noise")
        if what == "stop-once" and not Path(subject["mark"]).exists():
            return Call(what, Path(subject["mark"]))
        return Call(what)

    def array(self, output: Any) -> np.ndarray:
        return np.zeros(1)


class Call:
    def __init__(self, what: str, mark: Path | None = None):
        self._what, self._count, self._mark = what, 0, mark

    def __call__(self) -> None:
        self._count += 1
        if (counter := Path(os.environ.get("SLOTOOL_POWERCAP", "/nowhere")) / "intel-rapl:0/energy_uj").exists():
            counter.write_text(str(int(counter.read_text()) + CALL_UJ))
        if self._what == "die-later" and self._count == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._mark is not None and self._count == 150:
            self._mark.touch()
            subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}; sleep {STOPPED_S:g}; kill -CONT {os.getpid()}"])
        if self._what == "pause" and self._count == 1:
            time.sleep(0.5)
        if self._what == "work":
            sum(range(500_000))
        elif self._what == "pace":
            time.sleep(0.02)  # far longer than a crowded machine wakes it too late
        elif self._what == "shake":
            time.sleep(0.0005 if self._count % 2 else 0.005)
        else:
            time.sleep(3600 if self._what == "hang" else 0.0005)
