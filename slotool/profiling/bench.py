"""What a measuring process does when it is asked: a backend, the model that lies on it, and the ways to time it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from slotool.errors import InputError, SlotoolError
from slotool.profiling.backends import Backend
from slotool.profiling.barrier import SharedMemoryBarrier
from slotool.profiling.caches import eviction
from slotool.profiling.interference import Interference
from slotool.profiling.timer import Call, MeasurementHooks, StoppingRule, measure

# Enough digits for a tenth of a picosecond in a microsecond; the rest is noise that would only fill the journal.
DIGITS = 11


class Bench:
    """Answers the requests of ``WorkerProcess`` with plain JSON values. ``cores`` are those the process is bound to.

    ``measure`` times a subject alone. ``prepare`` makes one ready; after it ``sample`` times it again, ``colocated``
    runs it with co-runners, and ``keep_busy`` runs it as a co-runner that is not timed.
    """

    def __init__(self, backend: Backend, cores: list[int], rule: StoppingRule, cold: bool = False):
        self._backend, self._rule = backend, rule
        self._interference = Interference(cores, oversubscribed=backend.oversubscribed)
        self._hooks = MeasurementHooks(
            begin=self._interference.look_again,
            lost=self._lost_s,
            idle=self._interference.idle_s,
            before_sample=eviction() if cold else None,
            wait=backend.wait,
            stopwatch=backend.stopwatch(),
        )
        self._call: Call | None = None
        self._calls_per_sample = 1

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The measurement, or why there is none; ``healthy`` tells whether this process can be trusted with the
        next."""
        ways = {
            "measure": self.measure,
            "prepare": self.prepare,
            "sample": self.sample,
            "run colocated": self.colocated,
            "keep busy": self.keep_busy,
        }
        try:
            found = ways[request.get("do", "measure")](request)
        except Exception as error:
            return {"status": "failed", "reason": sentence(error), "healthy": isinstance(error, SlotoolError)}
        return {"status": "ok", **found, "healthy": True}

    def measure(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Time ``subject`` at ``batch_size`` by the worker's rule."""
        return self._place(request) | self._timed(self._rule)

    def prepare(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Place ``subject`` and time it shortly, so that it is warm and the calls per sample are known."""
        return self._place(request) | self._timed(replace(self._rule, runs=1, max_seconds=0.0))

    def sample(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Time the prepared model ``runs`` times."""
        return self._timed(replace(self._rule, runs=int(request["runs"]), max_seconds=0.0))

    def colocated(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run the prepared model as ``member`` of the ``barrier``; returns its samples and its stops."""
        barrier = SharedMemoryBarrier(request["barrier"], int(request["members"]))
        try:
            idle = self._interference.idle_s
            found = barrier.run(int(request["member"]), self._ready(), self._calls_per_sample, idle)
        finally:
            barrier.close()
        return {"spans": found.samples.tolist(), "stops": found.stops.tolist()}

    def keep_busy(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run the prepared model as ``member`` of the ``barrier``, without timing it."""
        barrier = SharedMemoryBarrier(request["barrier"], int(request["members"]))
        try:
            barrier.keep_busy(int(request["member"]), self._ready())
        finally:
            barrier.close()
        return {}

    def _place(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._call = None  # free the last one first: both together may not fit
        started = time.perf_counter()
        subject = self._backend.open(request["subject"])
        opened = time.perf_counter()
        self._call = self._backend.prepare(subject, int(request["batch_size"]))
        return {"open_s": opened - started, "prepare_s": time.perf_counter() - opened, **self._backend.facts()}

    def _timed(self, rule: StoppingRule) -> dict[str, Any]:
        call = self._ready()
        measured = measure(call, rule, hooks=self._hooks)
        self._calls_per_sample = measured.calls_per_sample
        found = {
            "first_call_s": measured.first_call_s,
            "samples_s": _rounded(measured.samples_s),
            "calls_per_sample": measured.calls_per_sample,
            "discarded": measured.discarded,
            "interrupted": measured.interrupted,
            "measured_at": time.time(),
        }
        if measured.device_samples_s is not None:
            found["device_samples_s"] = _rounded(measured.device_samples_s)
        return found

    def _ready(self) -> Call:
        if self._call is None:
            raise InputError("no model is prepared: send prepare or measure first")
        return self._call

    def _lost_s(self) -> float:
        """A device whose clock was lowered meanwhile spoils a sample just as another process does."""
        return float("inf") if self._backend.throttled() else self._interference()


def sentence(error: Exception) -> str:
    """An error as the parent reports it."""
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, SlotoolError) else f"{type(error).__name__}: {text}"


def _rounded(seconds: np.ndarray) -> list[float]:
    return [round(value, DIGITS) for value in seconds.tolist()]
