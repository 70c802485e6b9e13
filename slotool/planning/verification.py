"""A fleet as planned, as planned with the front end of this machine, and as this machine serves it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from slotool.planning.fleet import Pool
from slotool.planning.front_end import BURST, FrontEnd, read_in_turn
from slotool.planning.model_on_workers import all_busy
from slotool.planning.planner import Planner
from slotool.planning.promise import Promise, attainment_at_most
from slotool.planning.traffic import Traffic
from slotool.timing.interference import NOT_DECIDED, QUIET_CORES
from slotool.workloads.requests import RequestLog

# Halvings of the range in which the loop's time for a request is looked for: to a thousandth of it.
FITTED = 10
# Large bursts tell something where such a share of them is answered within the deadline.
LARGE_IN_TIME = 0.95


def planned(
    planner: Planner,
    pools: Mapping[str, Pool],
    draw: int,
    traffic: Mapping[str, Traffic],
    front_ends: Mapping[str, FrontEnd],
    cores: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Return ``figures`` of the requests by model.

    ``cores``: of a machine on which workers take each, and front end and client a part; None if a core is left for
    these.
    """
    longer = 1.0 if cores is None else all_busy(sum(mean_cpu_us(traffic, front_ends)), rate_per_s(traffic), cores)
    arrival_s = {name: requests.arrival_s for name, requests in traffic.items()}
    results = answered(planner, pools, draw, arrival_s, front_ends, longer)
    return {
        name: figures(took_us <= planner.promises[name].deadline_us, right, took_us)
        for name, (took_us, right) in results.items()
    }


def answered(
    planner: Planner,
    pools: Mapping[str, Pool],
    draw: int,
    arrival_s: Mapping[str, np.ndarray],
    front_ends: Mapping[str, FrontEnd],
    longer: float = 1.0,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return by model and request, float64 [n], how long its answer takes, infinite for none, and how accurate it is.

    One server reads the requests of all models, one by one, each behind those before it. Its headroom is that of the
    model whose answers come latest, as it keeps one for all. ``longer``: how many times as long calls take while all
    workers are busy.
    """
    read_us = read_together(arrival_s, front_ends)
    reserve_us = max(each.overhead.reserve_us for each in front_ends.values())
    overheads = {
        name: replace(each, overhead=each.overhead._replace(reserve_us=reserve_us)).overhead_within(
            planner.promises[name].deadline_us, longer
        )
        for name, each in front_ends.items()
    }
    traffic = {name: Traffic.whole(instants / 1e6) for name, instants in read_us.items()}
    results = {}
    for name, result in planner.results(pools, draw, traffic, overheads).items():
        random = np.random.default_rng((planner.seed, draw, len(result.row)))
        took_us = result.done_us - 1e6 * arrival_s[name] + random.choice(front_ends[name].outside_us, len(result.row))
        results[name] = np.where(np.isnan(took_us), np.inf, took_us), result.right
    return results


def mean_cpu_us(traffic: Mapping[str, Traffic], front_ends: Mapping[str, FrontEnd]) -> tuple[float, float]:
    """Return the CPU time that the server's own process and the client spend on a request, the mean of all models."""
    parts = [(requests.rate_per_s / rate_per_s(traffic), front_ends[name]) for name, requests in traffic.items()]
    return sum(part * each.cpu_us for part, each in parts), sum(part * each.client_us for part, each in parts)


def rate_per_s(traffic: Mapping[str, Traffic]) -> float:
    """Return the requests per second of all models."""
    return sum(requests.rate_per_s for requests in traffic.values())


def read_together(arrival_s: Mapping[str, np.ndarray], front_ends: Mapping[str, FrontEnd]) -> dict[str, np.ndarray]:
    """Return by model the instants at which its requests have been read, float64 µs: all by one loop."""
    names = list(arrival_s)
    counts = [len(arrival_s[name]) for name in names]
    of, due_us = np.repeat(np.arange(len(names)), counts), np.concatenate([1e6 * arrival_s[name] for name in names])
    each_us, first_us = np.array([(front_ends[name].each_us, front_ends[name].first_us) for name in names]).T
    order = np.argsort(due_us, kind="stable")
    read_us = read_in_turn(due_us[order], each_us[of[order]], first_us[of[order]])
    return {name: read_us[of[order] == at] for at, name in enumerate(names)}


def with_bursts(planner: Planner, name: str, pool: Pool, front_end: FrontEnd, bursts: RequestLog) -> FrontEnd:
    """Return the front end of a model whose simulated ``bursts`` take as long, on average, as those that were served.

    What has no answer within the deadline counts as the deadline. By how much longer large bursts take than small ones
    a request is told from the first of a burst; where large ones outlast the deadline, all requests count alike. Found
    by bisection, as answers come later the longer each request keeps the loop: where its CPU time is known, no longer
    than server and client compute for it, as bursts that outlast the deadline take no longer by it.
    """
    alone, deadline_us = planner.only(name), planner.promises[name].deadline_us
    served = _Bursts.of(bursts, deadline_us)

    def simulated(each_us: float, first_us: float = 0.0) -> _Bursts:
        tried = replace(front_end, each_us=each_us, first_us=first_us)
        results = answered(alone, {name: pool}, 0, {name: served.due_s}, {name: tried})
        return served.had_they_taken(results[name][0])

    max_us = min(deadline_us / BURST, front_end.cpu_us + front_end.client_us or math.inf)
    if served.large_tell:
        each_us = _bisected(lambda each_us: simulated(each_us).apart_us > served.apart_us, max_us)
        first_us = _bisected(lambda first_us: simulated(each_us, first_us).small_us > served.small_us, BURST * max_us)
    else:
        each_us, first_us = _bisected(lambda each_us: simulated(each_us).small_us > served.small_us, max_us), 0.0
    return replace(front_end, each_us=each_us, first_us=first_us)


@dataclass(frozen=True)
class _Bursts:
    """Requests of small and large bursts: ``due_s``, ``is_large`` bool [n], ``took_us``, at most the deadline; [n]."""

    due_s: np.ndarray
    is_large: np.ndarray
    took_us: np.ndarray
    deadline_us: float

    @classmethod
    def of(cls, log: RequestLog, deadline_us: float) -> Self:
        """Read bursts off a client's log; requests without an answer took as long as the deadline."""
        due_s = log.rows["intended_s"].to_numpy()
        _, which, sizes = np.unique(due_s, return_inverse=True, return_counts=True)
        took_us = np.where(log.answered, 1e6 * log.latency_s, np.inf)
        return cls(due_s, sizes[which] > BURST, np.minimum(took_us, deadline_us), deadline_us)

    def had_they_taken(self, took_us: np.ndarray) -> Self:
        return replace(self, took_us=np.minimum(took_us, self.deadline_us))

    @property
    def large_tell(self) -> bool:
        """True if enough of large bursts is answered in time to say how long a request takes."""
        in_time = self.took_us[self.is_large] < self.deadline_us
        return len(in_time) > 0 and float(in_time.mean()) >= LARGE_IN_TIME

    @property
    def small_us(self) -> float:
        """The mean of small bursts."""
        return float(self.took_us[~self.is_large].mean())

    @property
    def apart_us(self) -> float:
        """Mean time that large bursts take longer, µs."""
        return float(self.took_us[self.is_large].mean()) - self.small_us


def _bisected(is_too_long: Callable[[float], bool], max_us: float) -> float:
    """Return the longest time up to ``max_us`` that is not, to the precision of ``FITTED``."""
    low_us, high_us = 0.0, max_us
    for _ in range(FITTED):
        middle_us = 0.5 * (low_us + high_us)
        low_us, high_us = (low_us, middle_us) if is_too_long(middle_us) else (middle_us, high_us)
    return low_us


def served(log: RequestLog) -> dict[str, Any]:
    """Return figures of what a client logged; the accuracy is NaN without labels."""
    return figures(log.in_time, _right(log), np.where(log.answered, 1e6 * log.latency_s, np.inf))


def _right(log: RequestLog) -> np.ndarray:
    return np.where(log.has_labels, log.correct, np.nan)


_SENTENCES = {
    True: "served as promised",
    False: "the promise was broken as it was served",
    None: "whether the promise was kept is not decided; verify longer",
}


@dataclass(frozen=True)
class ServedVerdict:
    """Verdict on a served load; ``kept`` is None if too few requests, a late client or other processes leave it open.

    ``sentence``: by how much.
    """

    kept: bool | None
    sentence: str


def verdict(promise: Promise, planned: Mapping[str, Any], log: RequestLog, busy_cores: float = 0.0) -> ServedVerdict:
    """Compare what was served with the promise, or with the plan's own figures where these are lower.

    The busiest stretch of the traffic may be planned to lie below a promise that holds over all of it. A promise is
    broken where it lies above the upper bound, at its confidence, of what was served, unless other processes kept
    ``busy_cores`` busy meanwhile.
    """
    in_time, least = log.in_time, min(promise.attainment, planned["attainment"])
    results = [_judged("attainment", in_time, least, promise)]
    sent = float(log.in_time_from_sending.mean())
    if not results[0].kept and sent >= least:  # the client kept them from their schedule, not the server
        results = [ServedVerdict(None, f"{results[0].sentence}, but {sent:.4f} counted from when the client sent them")]
    right = _right(log)[in_time]
    if promise.accuracy and len(right) and not np.isnan(right).any():
        least = min(promise.accuracy, planned["accuracy"])
        results.append(_judged("mean accuracy", right.astype(bool), least, promise))
    promises_kept = False if any(each.kept is False for each in results) else all(each.kept for each in results) or None
    text = _SENTENCES[promises_kept]
    if promises_kept is False and busy_cores >= QUIET_CORES:
        promises_kept = None
        text = f"{NOT_DECIDED}, as other processes kept {busy_cores:.1f} cores busy; verify again on an idle machine"
    return ServedVerdict(promises_kept, f"{text}: {'; '.join(each.sentence for each in results)}")


def _judged(what: str, met: np.ndarray, least: float, promise: Promise) -> ServedVerdict:
    share = float(met.mean())
    if share >= least:
        return ServedVerdict(True, f"{what} {share:.4f} for {least:.4g}")
    most = attainment_at_most(met, promise.significance(2 if promise.accuracy else 1))
    return ServedVerdict(
        False if most < least else None, f"{what} {share:.4f}, at most {most:.4f} by chance, for {least:.4g}"
    )


def figures(in_time: np.ndarray, right: np.ndarray, took_us: np.ndarray) -> dict[str, Any]:
    """Return ``requests``, ``attainment``, ``accuracy`` (mean of ``right`` over those in time) and ``p99_s``.

    ``p99_s`` is of all requests, infinite if more than a hundredth have no answer. Arrays have one value per request:
    bool, float64, float64.
    """
    return {
        "requests": len(in_time),
        "attainment": float(in_time.mean()),
        "accuracy": float(right[in_time].mean()) if in_time.any() else math.nan,
        "p99_s": float(np.quantile(took_us, 0.99, method="higher")) / 1e6,
    }
