"""Base class of measurers, which turn items into rows of the latency table, and the measurer of solo subjects."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from slotool.errors import WorkerError
from slotool.machine import machine_id
from slotool.profiling.backends import backend_class
from slotool.profiling.out_of_memory import OUT_OF_MEMORY
from slotool.profiling.plan import Item, Settings
from slotool.profiling.process import MeasuringWorker, WorkerHung
from slotool.profiling.rows import judged
from slotool.profiling.subjects import Subject
from slotool.tables.latency import MEASURED_COLUMNS

# A worker that dies is tried twice, since it may have been killed from outside.
TRIES = 2
# An unused device may still report a small load.
IDLE_PERCENT = 5.0


class Measurer(ABC):
    """Base class of measurers, as context managers; worker processes are reused between items.

    A subject that is too big has a row ``skipped``, one that runs out of memory ``out-of-memory``, one that fails or
    kills its worker ``failed``, one that hangs ``timeout``, each with its reason. Raises ``WorkerError`` if no worker
    can be started.
    """

    def __init__(self, settings: Settings):
        self.settings = settings

    @abstractmethod
    def rows(self, item: Item) -> list[dict[str, Any]]:
        """Measure an item; return a row for each of its subjects."""

    @abstractmethod
    def close(self) -> None:
        """End the workers. Safe to call again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def too_big(self, item: Item) -> dict[str, Any] | None:
        """Return the answer for an item that does not fit, else None."""
        settings = self.settings
        if settings.fits(item):
            return None
        of_device = "" if settings.device_limit_bytes is None else f" of {settings.device}"
        needed, limit = settings.needed_bytes(item) / 2**30, settings.limit_bytes / 2**30
        return {"status": "skipped", "reason": f"needs about {needed:.2f} GiB{of_device}, the limit is {limit:.2f} GiB"}

    def start(self, backend: str, cores: Sequence[int]) -> MeasuringWorker:
        """Start a worker bound to these cores."""
        settings = self.settings
        return MeasuringWorker(
            backend=backend,
            device=settings.device,
            threads=settings.threads,
            affinity=cores,
            rule=settings.round_rule,
            seed=settings.seed,
            precision=settings.precision_of(backend),
            streams=settings.on_streams,
        )

    def row(self, item: Item, place: int, cores: Sequence[int], answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of the item's subject number ``place``, judged as one round."""
        settings, subject = self.settings, item.subjects[place]
        name, point, batch_size, co_runners = item.keys[place]
        backend = settings.backend_of(subject)
        row = {
            **MEASURED_COLUMNS,
            "subject": name,
            "point": point,
            "batch_size": batch_size,
            "co_runners": co_runners,
            "device": settings.device,
            "backend": backend_class(backend).name,
            "precision": settings.precision_of(backend),
            "threads": settings.threads,
            "machine": machine_id(),
            "name": subject.title,
            "content": subject.content,
            "cache": "warm",
            "affinity": ",".join(map(str, cores)),
            "reason": "",
            "first_call_s": None,
            "samples_s": [],
            "measured_at": time.time(),
            "device_name": settings.device_name,
            "colocation": settings.colocation if settings.placement else "",
            **answer,
        }
        if settings.device != "cpu":
            row.setdefault("device_samples_s", [])
            if settings.device_busy_percent > IDLE_PERCENT:
                busy = f"others kept the device busy by {settings.device_busy_percent:.0f} % before the campaign"
                row["remarks"] = "; ".join(filter(None, [busy, row["remarks"]]))
        if co_runners:  # of the call alone
            row.pop("energy_j", None)
        row["samples_per_round"] = [len(row["samples_s"])] if row["samples_s"] else []
        row["limit_s"] = settings.timeout_s if row["status"] == "timeout" else None
        row["limit_bytes"] = settings.limit_bytes if row["status"] == OUT_OF_MEMORY else None
        return judged(row, settings.rule)


def request_for(subject: Subject, item: Item, do: str) -> dict[str, Any]:
    """Return the request to a worker about a subject."""
    return {"do": do, "subject": dict(subject.request), "batch_size": item.batch_size}


class SoloMeasurer(Measurer):
    """Measurer of solo subjects, with one worker per backend; unhealthy ones are replaced."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._cores = settings.cores_of()[0]
        self._workers: dict[str, MeasuringWorker] = {}

    def rows(self, item: Item) -> list[dict[str, Any]]:
        return [self.row(item, 0, self._cores, self.too_big(item) or self._measured(item))]

    def operators(self, item: Item) -> dict[str, Any]:
        """Return the answer of ``Bench.operators`` about the item's only subject."""
        return self.too_big(item) or self._measured(item, "operators")

    def close(self) -> None:
        for backend in list(self._workers):
            self._retire(backend)

    def _measured(self, item: Item, do: str = "measure") -> dict[str, Any]:
        backend = self.settings.backend_of(item.subjects[0])
        death = ""
        for _ in range(TRIES):
            worker = self._worker(backend)
            try:
                answer = worker.ask(request_for(item.subjects[0], item, do), self.settings.timeout_s)
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
