"""Workers that come with the load: whether a planned fleet still keeps its promise when it is only there for peaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from slotool.planning.fleet import Fleet
from slotool.planning.planner import MAX_CONFIRMED, Planner
from slotool.planning.promise import Verdict
from slotool.scheduling.worker_counts import LOOK_S, RATE_S, Autoscaler
from slotool.simulation import SimulationResult

# Seconds until a worker that is added serves.
START_S = 5.0
# Share of a worker's requests at the peak that one is good for.
SHARES = (0.9, 0.75, 0.6, 0.45, 0.3)
# Fewer workers on average than this share of the fleet are worth their coming and going.
WORTH = 0.9
# Larger fleets are not tried: each number of workers takes a simulation of its own.
MAX_REPLICAS = 32


@dataclass(frozen=True)
class ScalingLimits:
    """Limits of scaling: ``least`` to ``most`` workers, each good for ``requests_per_worker`` a second.

    ``mean_workers``: over the traffic. ``verdicts``: on the promise then, of each model that shares the workers.
    """

    least: int
    most: int
    requests_per_worker: float
    mean_workers: float
    verdicts: Mapping[str, Verdict]

    def document(self) -> dict[str, Any]:
        """Return the limits with a sentence; ``verdicts`` by model, of a single one ``verdict``."""
        document = asdict(self)
        if len(self.verdicts) == 1:
            (document["verdict"],) = document.pop("verdicts").values()
        return {**document, "sentence": str(self)}

    def __str__(self) -> str:
        shown = ", ".join(
            f"{verdict.attainment_at_least:.4f}{f' of {name}' if name else ''}"
            for name, verdict in self.verdicts.items()
        )
        return (
            f"{self.least:,} to {self.most:,} workers that come with the load keep it too, {self.mean_workers:.3g} on "
            f"average: attainment at least {shown} at this confidence, where a worker takes {START_S:g} s to start"
        )


def limits_of(planner: Planner, fleet: Fleet) -> ScalingLimits | None:
    """Return the limits with the fewest workers on average that keep the promise of each model, or None.

    None if the mean needs as many as the peaks, no tried limits keep the promises, or workers are no processes of this
    machine: each on a GPU has one of its own.

    The server's own ``Autoscaler`` sets the workers of each second, by the requests of all models; a new one serves
    ``START_S`` later. Each request gets its outcome in a simulation of a constant number of workers, that of its
    arrival; for a deadline after an increase, that before it, whose queue was left.
    """
    if fleet.pool.worker.is_gpu or not fleet.pool.runs_here or planner.requests > MAX_CONFIRMED:
        return None
    traffic = planner.whole
    times_s = np.sort(np.concatenate([own.arrival_s for own in traffic.values()]))
    if not 1 < fleet.replicas <= MAX_REPLICAS or times_s[-1] - times_s[0] < 2 * RATE_S:
        return None

    def simulated(replicas: int) -> dict[str, SimulationResult]:
        pools = {name: replace(pool, replicas=replicas) for name, pool in fleet.pools.items()}
        return planner.results(pools, 1, traffic)

    peak_per_s = float(_rates_per_s(times_s).max())
    by_size = {fleet.replicas: simulated(fleet.replicas)}
    candidates = []
    for share in SHARES:
        autoscaler = Autoscaler(1, fleet.replicas, share * peak_per_s / fleet.replicas)
        workers = _workers_by_second(autoscaler, times_s)
        if workers.mean() > WORTH * fleet.replicas:
            continue
        at_arrival = {
            name: _as_queued(workers, own.arrival_s - times_s[0], planner.promises[name].deadline_us / 1e6)
            for name, own in traffic.items()
        }
        for count in np.unique(np.concatenate(list(at_arrival.values()))).tolist():
            if count not in by_size:
                by_size[count] = simulated(count)
        verdicts = {}
        for name, is_there in at_arrival.items():
            composed = _composed({count: each[name] for count, each in by_size.items()}, is_there)
            verdicts[name] = planner.models[name].judged(composed, traffic[name])
        if not any(verdict.misses(planner.promises[name]) for name, verdict in verdicts.items()):
            rate = autoscaler.per_worker_per_s
            candidates.append(ScalingLimits(int(workers.min()), fleet.replicas, rate, float(workers.mean()), verdicts))
    return min(candidates, key=lambda limits: limits.mean_workers, default=None)


def _rates_per_s(arrival_s: np.ndarray) -> np.ndarray:
    """Return the requests per second over the last ``RATE_S``, at each look."""
    looks = np.arange(arrival_s[0] + RATE_S, arrival_s[-1] + LOOK_S, LOOK_S)
    rates: np.ndarray = (np.searchsorted(arrival_s, looks) - np.searchsorted(arrival_s, looks - RATE_S)) / RATE_S
    return rates


def _workers_by_second(autoscaler: Autoscaler, arrival_s: np.ndarray) -> np.ndarray:
    """Return the serving workers of each second from the first arrival on, int64 [seconds].

    The service began as large as the first seconds need.
    """
    first_s = float(arrival_s[0])
    seconds = int(np.ceil((arrival_s[-1] - first_s) / LOOK_S)) + 1
    first_rate = float(_rates_per_s(arrival_s)[0])
    workers = int(min(autoscaler.most, max(autoscaler.least, np.ceil(first_rate / autoscaler.per_worker_per_s))))
    serves = np.full(seconds, workers)
    for second, arrived in _looks(arrival_s, first_s, seconds):
        change = autoscaler.look(second * LOOK_S, arrived, workers)
        if change is None:
            continue
        # Fewer at once, more when they have started.
        from_second = second if change.workers < workers else second + int(np.ceil(START_S / LOOK_S))
        serves[from_second:] = workers = change.workers
    return serves


def _looks(arrival_s: np.ndarray, first_s: float, seconds: int) -> Iterator[tuple[int, int]]:
    """Second and requests until then."""
    for second in range(seconds):
        yield second, int(np.searchsorted(arrival_s, first_s + second * LOOK_S, side="right"))


def _as_queued(workers: np.ndarray, since_s: np.ndarray, deadline_s: float) -> np.ndarray:
    """Return the workers to count with per arrival: the least number of the deadline before it."""
    now, before = (np.clip(at_s / LOOK_S, 0, len(workers) - 1).astype(int) for at_s in (since_s, since_s - deadline_s))
    least: np.ndarray = np.minimum(workers[now], workers[before])
    return least


def _composed(by_size: dict[int, SimulationResult], workers: np.ndarray) -> SimulationResult:
    """Put together what became of each request among the workers that there were."""
    whole = by_size[max(by_size)]
    fields = {name: getattr(whole, name).copy() for name in ("status", "started_us", "done_us", "row", "batch")}
    for count in np.unique(workers).tolist():
        is_there = workers == count
        for name, values in fields.items():
            values[is_there] = getattr(by_size[count], name)[is_there]
    return replace(whole, **fields)
