"""Operators timed in the networks that they are part of, and the file of their times."""

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
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.graph import FLOAT32
from slotool.machine import machine_facts, machine_id
from slotool.profiling.measurers.solo import SoloMeasurer
from slotool.profiling.operator_calls import OperatorCall, network_call
from slotool.profiling.plan import Item, Settings
from slotool.profiling.subjects import graph_subject
from slotool.tables.rounds import median_interval
from slotool.timing.speed import facts_with_speed
from slotool.timing.timer import StoppingRule

VERSION = 3
RULE = StoppingRule(runs=5, precision=0.02, max_seconds=0.3, max_samples=200)
# Number of measurements of a network while it is disturbed or its spread is larger.
TRIES, NOISY = 3, 0.1


@dataclass(frozen=True)
class OperatorTime:
    """Latency of an operator.

    Attributes:
        seconds: Median.
        spread: Half-width of the median's 95 % interval, as a share of it.
        disturbed: True if other processes ran during its samples.
        op: Type of the ``OperatorCall``.
        flops: Its floating point operations.
        bytes: Its bytes.
        network: Id of the network in which it was timed.
    """

    seconds: float
    spread: float
    disturbed: bool
    op: str
    flops: int
    bytes: int
    network: str


@dataclass(frozen=True)
class CheckedNetwork:
    """Whole network that was measured beside its operators.

    Attributes:
        graph_id: Id of the network.
        name: Its name.
        kind: Its kind.
        latency_s: Median latency of it as a whole, in a process of its own.
        disturbed: True if other processes ran meanwhile.
        call_s: Seconds of a call beyond its operators.
        operators: Number of calls of each operator, and seconds of one, by the operator's key.
    """

    graph_id: str
    name: str
    kind: str
    latency_s: float
    disturbed: bool
    call_s: float
    operators: Mapping[str, tuple[int, float]]

    @property
    def sum_s(self) -> float:
        """Seconds of its operators and of a call, added up."""
        return self.call_s + sum(count * seconds for count, seconds in self.operators.values())

    @property
    def calls(self) -> int:
        """Number of its operators."""
        return sum(count for count, _ in self.operators.values())


@dataclass
class OperatorTimes:
    """Times of operators on this machine by ``backend`` on ``device`` with ``threads``, stored in the file ``path``.

    Attributes:
        times: By the key of the ``OperatorCall``.
        facts: Facts of the machine, with its speed at the first measurement.
        checks: Errors that ``calibrate`` measured on whole networks, as JSON.
        networks: Those networks, by their ids.
        precision: Number format; None for the backend's usual one.
    """

    path: Path
    backend: str
    device: str
    threads: int
    times: dict[str, OperatorTime] = field(default_factory=dict)
    facts: Mapping[str, Any] | None = None
    checks: Mapping[str, Any] | None = None
    networks: dict[str, CheckedNetwork] = field(default_factory=dict)
    precision: str | None = None

    @classmethod
    def load(cls, folder: Path, backend: str, device: str, threads: int, precision: str | None = None) -> Self:
        """Open the file in ``folder``; empty if there is none, or another version of a library measured it."""
        name, place = (text.replace(":", "-").replace("/", "-") for text in (backend, device))
        place = f"{place}-{precision}" if precision else place
        path = folder / "operators" / f"{name}-{place}-threads{threads}-{machine_id()}.json"
        empty = cls(path, backend, device, threads, precision=precision)
        try:
            document = strict_json.convert(strict_json.read(path), dict[str, Any])
            if document.get("version") != VERSION or document.get("libraries") != _libraries():
                return empty
            times = strict_json.convert(document["times"], dict[str, OperatorTime])
            networks = strict_json.convert(document.get("networks") or {}, dict[str, CheckedNetwork])
        except (InputError, OSError, KeyError):
            # The times can be measured again.
            return empty
        facts, checks = document.get("facts"), document.get("checks")
        return replace(empty, times=times, facts=facts, checks=checks, networks=networks)

    def save(self) -> None:
        """Write the file, with times that other processes have added meanwhile."""
        before = type(self).load(self.path.parent.parent, self.backend, self.device, self.threads, self.precision)
        self.times = before.times | self.times
        self.networks = before.networks | self.networks
        self.checks = self.checks or before.checks
        document = {
            "version": VERSION,
            "libraries": _libraries(),
            "facts": self.facts,
            "checks": self.checks,
            "networks": {key: asdict(network) for key, network in self.networks.items()},
            "times": {key: asdict(time) for key, time in self.times.items()},
        }
        with whole_file(self.path) as partial:
            partial.write_text(json.dumps(document))

    def knows(self, calls: Sequence[OperatorCall | None]) -> bool:
        """True if all calls were timed."""
        return all(call.key in self.times for call in calls if call is not None)

    def measure(
        self, graph: OperatorGraph, calls: Sequence[OperatorCall | None], batch_size: int, timer: NetworkTimer
    ) -> str | None:
        """Time ``calls``, those of ``graph``, while it runs; unknown operators are left out.

        Earlier times are replaced, but not undisturbed ones by disturbed ones. Returns the reason of a failure.
        """
        if self.facts is None:
            self.facts = facts_with_speed()
        answer = timer.operators(graph, batch_size)
        if answer["status"] != "ok":
            return str(answer.get("reason") or answer["status"])
        disturbed = bool(answer["interrupted"])
        absent = {operator.op for operator in graph.operators if not operator.known}
        named = [network_call(graph, batch_size), *calls]
        timed: dict[str, list[OperatorTime]] = {}
        for call, seconds, spread in zip(named, answer["calls_s"], answer["spreads"], strict=True):
            if call is not None and call.op not in absent:
                one = OperatorTime(seconds, spread, disturbed, call.op, call.flops, call.bytes, graph.id)
                timed.setdefault(call.key, []).append(one)
        for key, equal in timed.items():
            if disturbed and key in self.times and not self.times[key].disturbed:
                continue
            seconds, spread = (float(np.mean([getattr(one, name) for one in equal])) for name in ("seconds", "spread"))
            self.times[key] = replace(equal[0], seconds=seconds, spread=spread)
        return None


@dataclass(frozen=True)
class Timed:
    """Median latency, seconds; half-width of its 95 % interval as a share of it; True if it was disturbed."""

    seconds: float
    spread: float
    disturbed: bool


class NetworkTimer:
    """Measuring process that times networks and their operators; made by ``opened``."""

    def __init__(self, measurer: SoloMeasurer):
        self._measurer = measurer

    @classmethod
    @contextmanager
    def opened(
        cls, backend: str, device: str, threads: int, seed: int = 0, precision: str | None = None
    ) -> Iterator[Self]:
        """Start the process when it is first needed, and end it after the block."""
        with SoloMeasurer(Settings(backend, device, threads, rule=RULE, seed=seed, precision=precision)) as measurer:
            yield cls(measurer)

    def operators(self, graph: OperatorGraph, batch_size: int) -> Mapping[str, Any]:
        """Return the answer of ``Bench.operators``, for the float32 form of the network."""
        twin = replace(graph, element_type=FLOAT32, compiled=False)
        return self._measurer.operators(Item((graph_subject(twin),), batch_size))

    def network(self, graph: OperatorGraph, batch_size: int = 1) -> Timed | None:
        """Return the shortest of up to ``TRIES`` measurements of a network; None if it does not run."""
        tries: list[Timed] = []
        while not tries or (len(tries) < TRIES and (tries[-1].disturbed or tries[-1].spread > NOISY)):
            (row,) = self._measurer.rows(Item((graph_subject(graph),), batch_size))
            if row["status"] != "ok":
                return None
            samples = np.array(row["samples_s"])
            low, high = median_interval(samples)
            median = float(np.median(samples))
            spread = float(max(high - median, median - low) / median)
            tries.append(Timed(median, spread, bool(row["interrupted"])))
        return min(tries, key=lambda timed: timed.seconds)


def _libraries() -> dict[str, Any]:
    """Return the versions of libraries that run operators."""
    facts = machine_facts()
    versions = {**(facts.get("libraries") or {}), **(facts.get("optional_libraries") or {})}
    return {name: versions.get(name) for name in ("torch", "tensorflow", "keras", "onnxruntime")}
