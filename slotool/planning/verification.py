"""A fleet as planned, as planned with the front end of this machine, and as this machine serves it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.errors import InputError
from slotool.planning.fleet import FleetSearch, Pool, Traffic
from slotool.planning.promise import Part, Promise, attainment_at_most
from slotool.scheduling.batching import Profile
from slotool.workloads.requests import RequestLog

# A server that has just started is asked for so long, at this share of what its most accurate point answers one by one
# and at most at this rate: no request waits for another.
PROBE_S, PROBE_SHARE, MAX_PROBE_RATE_PER_S = 4.0, 0.2, 50.0
# Of what delays answers: by as much a server brings deadlines forward (``LatencyHeadroom``).
HEADROOM_QUANTILE = 0.99


@dataclass(frozen=True)
class FrontEnd:
    """What the simulation of a fleet leaves out, as probed from one server at low load.

    ``outside_us``: float64 [n], of each probe, from the instant it was due to its answer at the client, without queue
    and call. ``call_us``: by how much longer than the latency table's median a call takes, mostly the way to its worker
    and back. ``headroom_us``: by which the server brings deadlines forward.
    """

    outside_us: np.ndarray
    call_us: float
    headroom_us: float

    @classmethod
    def of_probe(cls, log: RequestLog, profile: Profile) -> FrontEnd:
        """From requests none of which waited for another. Raises ``InputError`` where none was answered."""
        rows = log.rows[log.answered & log.rows["queue_s"].notna() & log.rows["compute_s"].notna()]
        if rows.empty:
            raise InputError("the server answered none of the requests that were to say how long its front end takes")
        took_us = 1e6 * rows["compute_s"].to_numpy()
        outside_us = 1e6 * (rows["done_s"] - rows["intended_s"] - rows["queue_s"]).to_numpy() - took_us
        grid = profile.grid
        places = {point.key: row for row, point in enumerate(grid.points)}
        at = np.array([places[key] for key in rows["point"]])
        medians_us = np.array([np.median(profile.samples_us[point, int(grid.sizes[0])]) for point in grid.points])
        late_us = outside_us + took_us - grid.latency_us[at, 0]
        return cls(
            np.maximum(outside_us, 0.0),
            max(0.0, float(np.median(took_us - medians_us[at]))),
            max(0.0, float(np.quantile(late_us, HEADROOM_QUANTILE))),
        )

    def __str__(self) -> str:
        outside_ms = np.quantile(self.outside_us, (0.5, 0.99)) / 1e3
        return (
            f"{outside_ms[0]:.2g} ms a request (p99 {outside_ms[1]:.2g}) and {self.call_us / 1e3:.2g} ms a call, "
            "as probed at the server's start"
        )


def probe_rate_per_s(pool: Pool) -> float:
    """Requests per second at which none waits for another."""
    slowest_us = float(pool.worker.profile.grid.latency_us[:, 0].max())
    return min(MAX_PROBE_RATE_PER_S, PROBE_SHARE * pool.replicas * 1e6 / slowest_us)


def planned(
    search: FleetSearch, pools: Sequence[Pool], draw: int, traffic: Traffic, front_ends: Sequence[FrontEnd]
) -> dict[str, Any]:
    """Figures of these pools under ``traffic``, of which each has a front end; see ``figures``."""
    in_time, right, took_us = (np.zeros(len(traffic.arrival_s)) for _ in range(3))
    parts = search.parts(pools, draw, traffic, [(each.headroom_us, each.call_us) for each in front_ends])
    for part, front_end in zip(parts, front_ends, strict=True):
        random = np.random.default_rng((search.seed, draw, len(part.at)))
        took_us[part.at] = _took_us(part) + random.choice(front_end.outside_us, len(part.at))
        in_time[part.at] = took_us[part.at] <= search.promise.deadline_us
        right[part.at] = part.result.grid.accuracy[part.result.row]
    return figures(in_time.astype(bool), right, took_us)


def _took_us(part: Part) -> np.ndarray:
    took_us = part.result.done_us - part.result.scenario.arrival_us
    return np.where(np.isnan(took_us), np.inf, took_us)


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
    most = attainment_at_most(met, promise.significance)
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
