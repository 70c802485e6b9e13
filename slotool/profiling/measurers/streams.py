"""Co-located subjects on streams of one process: no context is switched between them, and they share one allocator."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from slotool.errors import WorkerError
from slotool.profiling.measurers.colocated import ColocatedMeasurer, Key
from slotool.profiling.plan import Settings
from slotool.profiling.process import START_TIMEOUT_S, MeasuringWorker
from slotool.profiling.subjects import Subject


class SharedWorker:
    """A worker that several seats ask; an answer goes to the seat that it names."""

    def __init__(self, worker: MeasuringWorker, backend: str, cores: Sequence[int]):
        self.worker, self.backend, self.cores = worker, backend, cores
        self.numbers = count()
        self._answers: dict[int, deque[dict[str, Any]]] = defaultdict(deque)

    def receive(self, seat: int, timeout_s: float) -> dict[str, Any]:
        """The next answer to this seat. Raises as ``MeasuringWorker.receive`` does."""
        while not self._answers[seat]:
            answer = self.worker.receive(timeout_s)
            self._answers[int(answer.pop("seat"))].append(answer)
        return self._answers[seat].popleft()


class Seat:
    """A place in a shared worker, used as a ``MeasuringWorker`` of its own is."""

    def __init__(self, shared: SharedWorker, cores: Sequence[int]):
        self._shared, self._cores, self._number = shared, list(cores), next(shared.numbers)

    @property
    def pid(self) -> int:
        return self._shared.worker.pid

    @property
    def alive(self) -> bool:
        return self._shared.worker.alive

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        self.send(request)
        return self.receive(timeout_s)

    def send(self, request: Mapping[str, Any]) -> None:
        self._shared.worker.send({**request, "seat": self._number, "cores": self._cores})

    def receive(self, timeout_s: float) -> dict[str, Any]:
        return self._shared.receive(self._number, timeout_s)

    def kill(self) -> None:
        """Free the seat. A worker that does not do so at once is ended, and with it all of its seats."""
        if not self.alive:
            return
        try:
            self.ask({"do": "leave"}, START_TIMEOUT_S)
        except WorkerError:
            self._shared.worker.kill()


class StreamsMeasurer(ColocatedMeasurer):
    """As ``ColocatedMeasurer``, with a seat in one worker for each co-runner. When the worker dies all of them start
    anew."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._shared: SharedWorker | None = None

    def close(self) -> None:
        self._members.clear()
        if self._shared is not None:
            self._shared.worker.kill()
            self._shared = None

    def worker_for(self, key: Key, subject: Subject, needed: Sequence[Key]) -> Seat:
        backend = self.settings.backend_of(subject)
        cores = sorted({core for *_, of_member in needed for core in of_member})
        shared = self._shared
        if shared is None or not shared.worker.alive or (shared.backend, shared.cores) != (backend, cores):
            self.close()
            shared = self._shared = SharedWorker(self.start(backend, cores), backend, cores)
        return Seat(shared, key[-1])
