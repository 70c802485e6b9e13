"""A fleet as planned, as planned with the front end of this machine, and as this machine serves it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from slotool.planning.fleet import Pool
from slotool.planning.fleet_search import FleetSearch
from slotool.planning.front_end import BURST, FrontEnd
from slotool.planning.pool_service import all_busy
from slotool.planning.promise import Promise, attainment_at_most
from slotool.planning.traffic import Traffic
from slotool.workloads.requests import RequestLog

# Halvings of the range in which the loop's time for a request is looked for: to a thousandth of it.
FITTED = 10
# Large bursts tell something where such a share of them is answered within the deadline.
LARGE_IN_TIME = 0.95


def planned(
    search: FleetSearch,
    pool: Pool,
    draw: int,
    traffic: Traffic,
    front_end: FrontEnd,
    cores: int | None = None,
) -> dict[str, Any]:
    """Return figures of ``pool`` under ``traffic``; see ``figures``. ``cores``: of a machine on which workers take
    each, and front end and client a part of it; None where a core is left for these."""
    longer = 1.0 if cores is None else all_busy(front_end.cpu_us + front_end.client_us, traffic.rate_per_s, cores)
    took_us, right = answered(search, pool, draw, traffic.arrival_s, front_end, longer)
    return figures(took_us <= search.promise.deadline_us, right, took_us)


def answered(
    search: FleetSearch,
    pool: Pool,
    draw: int,
    arrival_s: np.ndarray,
    front_end: FrontEnd,
    longer: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return by request, float64 [n], how long its answer takes, infinite for none, and how accurate it is.

    ``longer``: how many times as long calls take while all workers are busy.
    """
    read_us = front_end.read_us(1e6 * arrival_s)
    overhead = front_end.overhead_within(search.promise.deadline_us, longer)
    result = search.run(pool, draw, Traffic.whole(read_us / 1e6), overhead)
    random = np.random.default_rng((search.seed, draw, len(arrival_s)))
    took_us = result.done_us - result.scenario.arrival_us
    outside_us = random.choice(front_end.outside_us, len(arrival_s))
    took_us = np.where(np.isnan(took_us), np.inf, read_us - 1e6 * arrival_s + took_us + outside_us)
    return took_us, result.right


def with_bursts(search: FleetSearch, pool: Pool, front_end: FrontEnd, bursts: RequestLog) -> FrontEnd:
    """Return the front end whose simulated ``bursts`` take as long, on average, as those that were served.

    What has no answer within the deadline counts as the deadline. By how much longer large bursts take than small ones
    a request is told from the first of a burst; where large ones outlast the deadline, all requests count alike. Found
    by bisection, as answers come later the longer each request keeps the loop: where its CPU time is known, no longer
    than server and client compute for it, as bursts that outlast the deadline take no longer by it.
    """
    deadline_us = search.promise.deadline_us
    served = _Bursts.of(bursts, deadline_us)

    def simulated(each_us: float, first_us: float = 0.0) -> _Bursts:
        tried = replace(front_end, each_us=each_us, first_us=first_us)
        return served.had_they_taken(answered(search, pool, 0, served.due_s, tried)[0])

    max_us = min(deadline_us / BURST, front_end.cpu_us + front_end.client_us or math.inf)
    if served.large_tell:
        each_us = _bisected(lambda each_us: simulated(each_us).apart_us > served.apart_us, max_us)
        first_us = _bisected(lambda first_us: simulated(each_us, first_us).small_us > served.small_us, BURST * max_us)
    else:
        each_us, first_us = _bisected(lambda each_us: simulated(each_us).small_us > served.small_us, max_us), 0.0
    return replace(front_end, each_us=each_us, first_us=first_us)


@dataclass(frozen=True)
class _Bursts:
    """Requests of small and of large bursts: ``due_s`` float64 [n], ``is_large`` bool [n], and ``took_us`` float64 [n],
    at most the deadline."""

    due_s: np.ndarray
    is_large: np.ndarray
    took_us: np.ndarray
    deadline_us: float

    @classmethod
    def of(cls, log: RequestLog, deadline_us: float) -> Self:
        """As a client logged them; those without an answer took as long as the deadline."""
        due_s = log.rows["intended_s"].to_numpy()
        _, which, sizes = np.unique(due_s, return_inverse=True, return_counts=True)
        took_us = np.where(log.answered, 1e6 * log.latency_s, np.inf)
        return cls(due_s, sizes[which] > BURST, np.minimum(took_us, deadline_us), deadline_us)

    def had_they_taken(self, took_us: np.ndarray) -> Self:
        return replace(self, took_us=np.minimum(took_us, self.deadline_us))

    @property
    def large_tell(self) -> bool:
        """Whether enough of large bursts is answered in time to say how long a request takes."""
        in_time = self.took_us[self.is_large] < self.deadline_us
        return len(in_time) > 0 and float(in_time.mean()) >= LARGE_IN_TIME

    @property
    def small_us(self) -> float:
        """The mean of small bursts."""
        return float(self.took_us[~self.is_large].mean())

    @property
    def apart_us(self) -> float:
        """By how much longer large bursts take, on average."""
        return float(self.took_us[self.is_large].mean()) - self.small_us


def _bisected(is_too_long: Callable[[float], bool], max_us: float) -> float:
    """The longest time up to ``max_us`` that is not, to the precision of ``FITTED``."""
    low_us, high_us = 0.0, max_us
    for _ in range(FITTED):
        middle_us = 0.5 * (low_us + high_us)
        low_us, high_us = (low_us, middle_us) if is_too_long(middle_us) else (middle_us, high_us)
    return low_us


def served(logs: Sequence[RequestLog]) -> dict[str, Any]:
    """Figures of what clients logged; the accuracy is NaN without labels."""
    took_us = [np.where(log.answered, 1e6 * log.latency_s, np.inf) for log in logs]
    return figures(_in_time(logs), _right(logs), np.concatenate(took_us))


def _right(logs: Sequence[RequestLog]) -> np.ndarray:
    return np.concatenate([np.where(log.has_labels, log.correct, np.nan) for log in logs])


_SAID = {
    True: "served as promised",
    False: "the promise was broken as it was served",
    None: "whether the promise was kept is not decided; verify longer",
}


@dataclass(frozen=True)
class Verdict:
    """Whether what was served keeps a promise; ``kept`` is None where too few requests, or a late client, leave it
    open. ``sentence``: by how much."""

    kept: bool | None
    sentence: str


def verdict(promise: Promise, planned: Mapping[str, Any], logs: Sequence[RequestLog]) -> Verdict:
    """What was served beside the promise, or beside the plan's own figures where these are lower.

    The busiest stretch of the traffic may be planned to lie below a promise that holds over all of it. A promise is
    broken where it lies above the upper bound, at its confidence, of what was served.
    """
    in_time, least = _in_time(logs), min(promise.attainment, planned["attainment"])
    found = [_judged("attainment", in_time, least, promise)]
    sent = float(np.concatenate([log.in_time_from_sending for log in logs]).mean())
    if not found[0].kept and sent >= least:  # the client kept them from their schedule, not the server
        found = [Verdict(None, f"{found[0].sentence}, but {sent:.4f} counted from when the client sent them")]
    right = _right(logs)[in_time]
    if promise.accuracy and len(right) and not np.isnan(right).any():
        least = min(promise.accuracy, planned["accuracy"])
        found.append(_judged("mean accuracy", right.astype(bool), least, promise))
    kept = False if any(each.kept is False for each in found) else all(each.kept for each in found) or None
    return Verdict(kept, f"{_SAID[kept]}: {'; '.join(each.sentence for each in found)}")


def _in_time(logs: Sequence[RequestLog]) -> np.ndarray:
    return np.concatenate([log.in_time for log in logs])


def _judged(what: str, met: np.ndarray, least: float, promise: Promise) -> Verdict:
    share = float(met.mean())
    if share >= least:
        return Verdict(True, f"{what} {share:.4f} for {least:.4g}")
    most = attainment_at_most(met, promise.significance(2 if promise.accuracy else 1))
    return Verdict(
        False if most < least else None, f"{what} {share:.4f}, at most {most:.4f} by chance, for {least:.4g}"
    )


def figures(in_time: np.ndarray, right: np.ndarray, took_us: np.ndarray) -> dict[str, Any]:
    """``requests``; ``attainment``; ``accuracy``: mean of ``right`` over those in time; ``p99_s``: of all requests,
    infinite where more than a hundredth has no answer. Arrays of one value per request: bool, float64, float64."""
    return {
        "requests": len(in_time),
        "attainment": float(in_time.mean()),
        "accuracy": float(right[in_time].mean()) if in_time.any() else math.nan,
        "p99_s": float(np.quantile(took_us, 0.99, method="higher")) / 1e6,
    }
