"""Operators of a network timed alone, and the file that keeps their times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from slotool import strict_json
from slotool.atomic import whole_file
from slotool.errors import InputError, WorkerError
from slotool.graphs import GraphBuilder
from slotool.machine import machine_facts, machine_id
from slotool.process import cores_by_preference
from slotool.profiling.backends import backend_class
from slotool.profiling.operator_calls import OperatorCall
from slotool.profiling.process import MeasuringWorker
from slotool.timing.speed import facts_with_speed
from slotool.timing.timer import StoppingRule

VERSION = 1
# Key of the time that a call of any network takes beyond its operators.
CALL = "call"
# Fewest samples of an operator, and the seconds after which no more are taken.
RULE = StoppingRule(runs=5, precision=0.02, max_seconds=0.02, max_samples=200)
TIMEOUT_S = 60.0
# Copies of the smallest operator whose time, less that of one, tells what a call takes beyond its operators.
MANY = 17
# An operator takes at least this share of a call with copies of it.
LEAST_SHARE = 0.02


@dataclass(frozen=True)
class OperatorTime:
    """Median latency of an operator, seconds. ``spread``: half-width of the median's 95 % interval, as a share of it.
    ``disturbed``: other processes ran during its samples. Its type and costs are those of ``OperatorCall``."""

    seconds: float
    spread: float
    disturbed: bool
    op: str
    flops: int
    bytes: int


@dataclass
class OperatorTimes:
    """Times of operators on this machine by ``backend`` on ``device`` with ``threads``, kept in the file ``path``.

    ``times``: by key. ``facts``: of the machine, its speed when the first was measured included. ``correction``: what
    ``calibrate`` learnt of whole networks, as JSON.
    """

    path: Path
    backend: str
    device: str
    threads: int
    times: dict[str, OperatorTime] = field(default_factory=dict)
    facts: Mapping[str, Any] | None = None
    correction: Mapping[str, Any] | None = None

    @classmethod
    def here(cls, folder: Path, backend: str, device: str, threads: int) -> Self:
        """Open the file in ``folder``; empty where there is none, or where it was measured by another version of the
        backend's library."""
        name, place = (text.replace(":", "-").replace("/", "-") for text in (backend, device))
        path = folder / "operators" / f"{name}-{place}-threads{threads}-{machine_id()}.json"
        empty = cls(path, backend, device, threads)
        try:
            document = strict_json.convert(strict_json.read(path), dict[str, Any])
            if document.get("version") != VERSION or document.get("libraries") != _libraries():
                return empty
            times = strict_json.convert(document["times"], dict[str, OperatorTime])
        except (InputError, OSError, KeyError):
            # What can be measured again is no reason to fail.
            return empty
        return cls(path, backend, device, threads, times, document.get("facts"), document.get("correction"))

    def save(self) -> None:
        """Write the file, with what other processes have added to it meanwhile."""
        before = type(self).here(self.path.parent.parent, self.backend, self.device, self.threads)
        self.times = before.times | self.times
        self.correction = self.correction or before.correction
        document = {
            "version": VERSION,
            "libraries": _libraries(),
            "facts": self.facts,
            "correction": self.correction,
            "times": {key: asdict(time) for key, time in self.times.items()},
        }
        with whole_file(self.path) as partial:
            partial.write_text(json.dumps(document))

    def unknown(self, calls: Sequence[OperatorCall]) -> list[OperatorCall]:
        """Return calls that were not timed yet, each once."""
        return list({call.key: call for call in calls if call.key not in self.times}.values())

    def measure(self, calls: Sequence[OperatorCall], timer: OperatorTimer) -> Iterator[OperatorCall]:
        """Time ``calls``, and yield each that is done. One that cannot be run alone is left unknown."""
        if self.facts is None:
            self.facts = facts_with_speed()
        if CALL not in self.times:
            self.times[CALL] = timer.call_time()
        for call in calls:
            found = timer.time(call, self.times[CALL].seconds)
            if found is not None:
                self.times[call.key] = found
            yield call


class OperatorTimer:
    """Measuring process that times operators; made by ``opened``."""

    def __init__(self, worker: MeasuringWorker, backend: str):
        self._worker, self._backend = worker, backend

    @classmethod
    @contextmanager
    def opened(cls, backend: str, device: str, threads: int, seed: int = 0) -> Iterator[Self]:
        """Start the process, bound to as many cores as it has threads, and end it after the block."""
        cores = cores_by_preference()[:threads] if device == "cpu" else cores_by_preference()
        with MeasuringWorker(
            backend=backend, device=device, threads=threads, affinity=cores, rule=RULE, seed=seed
        ) as worker:
            yield cls(worker, backend)

    def call_time(self) -> OperatorTime:
        """Return the time of a call beyond its operators, by those of one and of many of the smallest."""
        builder = GraphBuilder()
        builder.add("ReLU", builder.add("InputLayer", shape=(1,)))
        calls = backend_class(self._backend).operator_calls(builder.graph(), 1)
        smallest = next(call for call in calls if call is not None)
        few, many = (self._time(replace(smallest, copies=copies)) for copies in (1, MANY))
        if few is None or many is None:
            raise WorkerError(f"the {self._backend} backend cannot run a single operator")
        each_s = max(0.0, (many.seconds - few.seconds) / (MANY - 1))
        return replace(few, seconds=max(0.0, few.seconds - each_s), op="", flops=0, bytes=0)

    def time(self, call: OperatorCall, call_s: float) -> OperatorTime | None:
        """Return the time of an operator, without the ``call_s`` seconds of ``call_time``; None for one that the
        backend cannot run alone."""
        found = self._time(call)
        if found is None:
            return None
        return replace(found, seconds=max(found.seconds - call_s, LEAST_SHARE * found.seconds) / call.copies)

    def _time(self, call: OperatorCall) -> OperatorTime | None:
        """Return the time of all copies."""
        subject = call.request()
        if subject is None:
            return None
        request = {"do": "measure", "subject": subject, "batch_size": call.batch_size}
        answer = self._worker.ask(request, TIMEOUT_S)
        return _judged(answer, call) if answer["status"] == "ok" else None

    def network_s(self, subject: Mapping[str, Any], batch_size: int) -> tuple[float, float, bool]:
        """Return the median latency of a whole network, its spread, and whether it was disturbed, as in
        ``OperatorTime``. Raises ``WorkerError`` where it does not run."""
        answer = self._worker.ask({"do": "measure", "subject": dict(subject), "batch_size": batch_size}, TIMEOUT_S)
        if answer["status"] != "ok":
            raise WorkerError(answer["reason"])
        found = _judged(answer, None)
        return found.seconds, found.spread, found.disturbed


def _judged(answer: Mapping[str, Any], call: OperatorCall | None) -> OperatorTime:
    import numpy as np

    from slotool.tables.rounds import median_interval

    samples = np.array(answer["samples_s"])
    median = float(np.median(samples))
    low, high = median_interval(samples)
    return OperatorTime(
        seconds=median,
        spread=float(max(high - median, median - low) / median),
        disturbed=bool(answer["interrupted"]),
        op="" if call is None else call.op,
        flops=0 if call is None else call.flops,
        bytes=0 if call is None else call.bytes,
    )


def _libraries() -> dict[str, Any]:
    """Versions of libraries that run operators."""
    facts = machine_facts()
    known = {**(facts.get("libraries") or {}), **(facts.get("optional_libraries") or {})}
    return {name: known.get(name) for name in ("torch", "tensorflow", "keras", "onnxruntime")}
