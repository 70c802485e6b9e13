"""Busy copies of a model in processes of their own, on the core or the device on which this process measures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from slotool.errors import WorkerError
from slotool.process import cores_by_preference
from slotool.profiling.barrier import SharedMemoryBarrier
from slotool.profiling.process import MeasuringWorker
from slotool.timing.timer import StoppingRule

READY_TIMEOUT_S = 180.0
# A gap between clock readings longer than this is another process; the system's own interrupts are shorter.
MIN_GAP_S = 2e-4


class BusyCopies:
    """``copies`` processes on ``core``, each answering ``request`` (see ``ElasticBackend.open``) back to back.

    On another ``device`` than the CPU they keep that busy, from other cores than ``core`` where there are any: it is
    the device that is shared. They are busy while the context is entered. Raises ``InputError`` for a device that is
    not there, ``WorkerError`` when a copy does not start; ``check`` raises it when one has died since: what was
    measured after that was not co-located.
    """

    def __init__(self, request: Mapping[str, Any], copies: int, core: int, device: str = "cpu"):
        self.copies, self.core, self.device = copies, core, device
        self._request = dict(request)
        self._barrier: SharedMemoryBarrier | None = None
        self._workers: list[MeasuringWorker] = []

    def __enter__(self) -> BusyCopies:
        if not self.copies:
            return self
        self._barrier = SharedMemoryBarrier.create(self.copies)
        try:
            for member in range(self.copies):
                self._workers.append(self._started(member))
            self._wait(0)
            self._barrier.go(time.perf_counter())
            self._wait(1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._barrier is not None:
            self._barrier.stop()
            for worker in self._workers:
                worker.kill()
            self._barrier.close()
            self._barrier = None

    def check(self) -> None:
        """Raises ``WorkerError`` unless all copies are alive."""
        if not all(worker.alive for worker in self._workers):
            raise WorkerError("a busy copy co-located with the measured model has died")

    def _started(self, member: int) -> MeasuringWorker:
        assert self._barrier is not None
        worker = MeasuringWorker(
            backend="elastic",
            device=self.device,
            threads=1,
            affinity=[self._core_of(member)],
            rule=StoppingRule(runs=1),
        )
        prepared = worker.ask({"do": "prepare", "subject": self._request, "batch_size": 1}, READY_TIMEOUT_S)
        if prepared["status"] != "ok":
            worker.kill()
            raise WorkerError(prepared["reason"])
        worker.send({"do": "keep busy", "barrier": self._barrier.path, "members": self.copies, "member": member})
        return worker

    def _core_of(self, member: int) -> int:
        others = [core for core in cores_by_preference() if core != self.core]
        return others[member % len(others)] if others and self.device != "cpu" else self.core

    def _wait(self, calls: int) -> None:
        """Until each has made so many calls."""
        assert self._barrier is not None
        until = time.monotonic() + READY_TIMEOUT_S
        while min(self._barrier.counts) < calls:
            self.check()
            if time.monotonic() > until:
                raise WorkerError("a busy copy co-located with the measured model did not start")
            time.sleep(0.001)


def pauses_s(seconds: float, least_s: float = MIN_GAP_S) -> np.ndarray:
    """Return how long other processes had this core, each time they had it, within ``seconds``: float64 [n].

    Reads the clock in a loop: between two readings further apart than ``least_s`` another process ran. The median is
    the scheduler's time slice.
    """
    pauses: list[float] = []
    now = began = time.perf_counter()
    while now - began < seconds:
        last, now = now, time.perf_counter()
        if now - last > least_s:
            pauses.append(now - last)
    return np.array(pauses)
