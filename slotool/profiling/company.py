"""Company on a core: busy copies of a model in processes of their own, while this process measures on the same core."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from slotool.errors import WorkerError
from slotool.profiling.process import WorkerProcess
from slotool.profiling.timer import StoppingRule
from slotool.profiling.together import Board

READY_TIMEOUT_S = 180.0
# A pause of the clock longer than this is another process at work; the system's own interrupts are shorter.
LEAST_GAP_S = 2e-4


class Company:
    """``copies`` processes on ``core``, each answering ``request`` (see ``ElasticBackend.open``) back to back.

    From entering the context to leaving it they are busy. Raises ``WorkerError`` when one does not start; ``check``
    raises it when one has died since, for what was measured then was not measured in company.
    """

    def __init__(self, request: Mapping[str, Any], copies: int, core: int):
        self.copies, self.core = copies, core
        self._request = dict(request)
        self._board: Board | None = None
        self._workers: list[WorkerProcess] = []

    def __enter__(self) -> Company:
        if not self.copies:
            return self
        self._board = Board.create(self.copies)
        try:
            for member in range(self.copies):
                self._workers.append(self._started(member))
            self._wait(0)
            self._board.go(time.perf_counter())
            self._wait(1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.stop()
            for worker in self._workers:
                worker.kill()
            self._board.close()
            self._board = None

    def check(self) -> None:
        """Raises ``WorkerError`` unless all copies are alive."""
        if not all(worker.alive for worker in self._workers):
            raise WorkerError("a busy copy beside the measured model has died")

    def _started(self, member: int) -> WorkerProcess:
        assert self._board is not None
        worker = WorkerProcess(
            backend="elastic", device="cpu", threads=1, affinity=[self.core], rule=StoppingRule(runs=1)
        )
        prepared = worker.ask({"do": "prepare", "subject": self._request, "batch_size": 1}, READY_TIMEOUT_S)
        if prepared["status"] != "ok":
            worker.kill()
            raise WorkerError(prepared["reason"])
        worker.send({"do": "keep busy", "board": self._board.path, "members": self.copies, "member": member})
        return worker

    def _wait(self, calls: int) -> None:
        """Until each has made so many calls."""
        assert self._board is not None
        until = time.monotonic() + READY_TIMEOUT_S
        while min(self._board.counts) < calls:
            self.check()
            if time.monotonic() > until:
                raise WorkerError("a busy copy beside the measured model did not begin")
            time.sleep(0.001)


def pauses_s(seconds: float, least_s: float = LEAST_GAP_S) -> np.ndarray:
    """How long others had this core, each time they had it, within so many ``seconds``: float64 [n].

    Found by reading the clock without end: two readings further apart than ``least_s`` had another process between
    them. What the system's scheduler hands out to a rival at a time is their median.
    """
    found: list[float] = []
    now = began = time.perf_counter()
    while now - began < seconds:
        last, now = now, time.perf_counter()
        if now - last > least_s:
            found.append(now - last)
    return np.array(found)
