"""Operators of a network timed alone, and the file that keeps their times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.atomic import whole_file
from slotool.errors import InputError, WorkerError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.machine import machine_facts, machine_id
from slotool.profiling.backends import backend_class
from slotool.profiling.measurers.solo import SoloMeasurer
from slotool.profiling.operator_calls import OperatorCall
from slotool.profiling.plan import Item, Settings
from slotool.profiling.subjects import Subject, graph_subject
from slotool.tables.rounds import median_interval
from slotool.timing.speed import facts_with_speed
from slotool.timing.timer import StoppingRule

VERSION = 1
# Key of the time that a call of any network takes beyond its operators.
CALL = "call"
# Fewest samples of an operator, and the seconds after which no more are taken.
RULE = StoppingRule(runs=5, precision=0.02, max_seconds=0.02, max_samples=200)
# Times that are taken of one that is disturbed, or whose spread is larger.
TRIES, NOISY = 3, 0.1
# Copies of the smallest operator whose time, less that of one, tells what a call takes beyond its operators.
MANY = 17
# An operator takes at least this share of a call with copies of it.
MIN_SHARE = 0.02


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


@dataclass(frozen=True)
class Timed:
    """Median latency, seconds; half-width of its 95 % interval as a share of it; whether others disturbed it."""

    seconds: float
    spread: float
    disturbed: bool


class OperatorTimer:
    """Measuring process that times operators and networks; made by ``opened``."""

    def __init__(self, measurer: SoloMeasurer, backend: str):
        self._measurer, self._backend = measurer, backend

    @classmethod
    @contextmanager
    def opened(cls, backend: str, device: str, threads: int, seed: int = 0) -> Iterator[Self]:
        """Start the process when it is first needed, and end it after the block."""
        with SoloMeasurer(Settings(backend, device, threads, rule=RULE, seed=seed)) as measurer:
            yield cls(measurer, backend)

    def call_time(self) -> OperatorTime:
        """Return the time of a call beyond its operators, by those of one and of many of the smallest."""
        builder = GraphBuilder()
        builder.add("ReLU", builder.add("InputLayer", shape=(1,)))
        calls = backend_class(self._backend).operator_calls(builder.graph(), 1)
        smallest = next(call for call in calls if call is not None)
        few, many = (self._copies(replace(smallest, copies=copies)) for copies in (1, MANY))
        if few is None or many is None:
            raise WorkerError(f"the {self._backend} backend cannot run a single operator")
        each_s = max(0.0, (many.seconds - few.seconds) / (MANY - 1))
        return OperatorTime(max(0.0, few.seconds - each_s), few.spread, few.disturbed, "", 0, 0)

    def time(self, call: OperatorCall, call_s: float) -> OperatorTime | None:
        """Return the time of an operator, without the ``call_s`` seconds of ``call_time``; None for one that the
        backend cannot run alone."""
        found = self._copies(call)
        if found is None:
            return None
        seconds = max(found.seconds - call_s, MIN_SHARE * found.seconds) / call.copies
        return OperatorTime(seconds, found.spread, found.disturbed, call.op, call.flops, call.bytes)

    def network(self, graph: OperatorGraph, batch_size: int = 1) -> Timed | None:
        """Return the time of a whole network; None for one that does not run."""
        return self._timed(graph_subject(graph), batch_size)

    def _copies(self, call: OperatorCall) -> Timed | None:
        """Return the time of all copies."""
        request = call.request()
        if request is None:
            return None
        size = call.copies * call.weight_bytes
        return self._timed(
            Subject("operator", call.key, request, weight_bytes=size, output_bytes=call.bytes), call.batch_size
        )

    def _timed(self, subject: Subject, batch_size: int) -> Timed | None:
        """Return the least of up to ``TRIES`` times, as noise only adds; another is taken while they are noisy."""
        found: list[Timed] = []
        while not found or (len(found) < TRIES and (found[-1].disturbed or found[-1].spread > NOISY)):
            (row,) = self._measurer.rows(Item((subject,), batch_size))
            if row["status"] != "ok":
                return None
            samples = np.array(row["samples_s"])
            low, high = median_interval(samples)
            median = float(np.median(samples))
            spread = float(max(high - median, median - low) / median)
            found.append(Timed(median, spread, bool(row["interrupted"])))
        return min(found, key=lambda timed: timed.seconds)


def _libraries() -> dict[str, Any]:
    """Versions of libraries that run operators."""
    facts = machine_facts()
    known = {**(facts.get("libraries") or {}), **(facts.get("optional_libraries") or {})}
    return {name: known.get(name) for name in ("torch", "tensorflow", "keras", "onnxruntime")}
