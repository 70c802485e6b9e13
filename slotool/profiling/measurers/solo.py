"""Each subject alone on the machine."""

from __future__ import annotations

from typing import Any

from slotool.errors import WorkerError
from slotool.profiling.measurers.base import TRIES, Measurer, request_for
from slotool.profiling.plan import Item, Settings
from slotool.profiling.process import MeasuringWorker, WorkerHung


class SoloMeasurer(Measurer):
    """Keeps one worker per backend alive and replaces one that cannot be trusted; the idle ones sleep."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._cores = settings.cores_of()[0]
        self._workers: dict[str, MeasuringWorker] = {}

    def rows(self, item: Item) -> list[dict[str, Any]]:
        return [self.row(item, 0, self._cores, self.too_big(item) or self._measured(item))]

    def close(self) -> None:
        for backend in list(self._workers):
            self._retire(backend)

    def _measured(self, item: Item) -> dict[str, Any]:
        backend = self.settings.backend_of(item.subjects[0])
        death = ""
        for _ in range(TRIES):
            worker = self._worker(backend)
            try:
                answer = worker.ask(request_for(item.subjects[0], item, "measure"), self.settings.timeout_s)
            except WorkerHung as error:
                self._retire(backend)
                return {"status": "timeout", "reason": str(error)}
            except WorkerError as error:
                self._retire(backend)
                death = str(error)
            else:
                if not answer.pop("healthy"):
                    self._retire(backend)
                return answer
        return {"status": "failed", "reason": death}

    def _worker(self, backend: str) -> MeasuringWorker:
        if backend not in self._workers:
            self._workers[backend] = self.start(backend, self._cores)
        return self._workers[backend]

    def _retire(self, backend: str) -> None:
        worker = self._workers.pop(backend, None)
        if worker is not None:
            worker.kill()
