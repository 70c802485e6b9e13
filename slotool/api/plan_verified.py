"""Of ``slotool.plan``: what this machine makes of a plan, served by real servers under the busiest of the traffic."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.progress import Reporter

if TYPE_CHECKING:
    import numpy as np

    from slotool.data import DataSource
    from slotool.planning.fleet import Fleet, FleetSearch
    from slotool.workloads import ArrivalTable

# Which of the draws what is served is compared with: the one that confirmed the plan.
VERIFIED = 1
FRONT_END = "with the front end"


def verified_plan(
    services: Sequence[Path],
    search: FleetSearch,
    fleet: Fleet,
    verify_s: float,
    data: str | DataSource,
    reporter: Reporter,
) -> tuple[list[dict[str, Any]], tuple[bool | None, str]]:
    """Figures of the busiest stretch of the traffic: as planned, as planned had the front end been known, and as this
    machine serves it; and whether that keeps the promise.

    Pools share nothing but the traffic, so they are served one after the other.
    """
    from slotool.api.loadtest import loadtest
    from slotool.planning import front_end, verification
    from slotool.planning.server_process import RunningServer
    from slotool.planning.traffic import Traffic

    traffic = Traffic.whole(search.busiest_s(verify_s))
    promised = search.served(fleet.pools, VERIFIED, traffic).verdict
    deadline_ms = search.promise.deadline_us / 1e3
    logs, front_ends = [], []
    shares = search.shared_out(fleet.pools, VERIFIED, traffic)
    cores = len(os.sched_getaffinity(0))
    if any(pool.replicas * pool.worker.threads >= cores for pool in fleet.pools):
        reporter.note(
            "the workers take every core of this machine, and share them with the client and the server's front end, "
            "which no plan knows: on more cores more may be in time"
        )
    for service, pool, at in zip(services, fleet.pools, shares, strict=True):
        # All workers that were planned, also where they are to come with the load: the stretch begins at its peak.
        served = ["--config", str(service), "--port", "0", "--replicas", str(pool.replicas)]
        sent = partial(loadtest, data=data, deadline_ms=deadline_ms, progress=reporter)
        # By single versions, of which the latency table knows how long they take: the most accurate, which a server
        # without load chooses, and the fastest.
        probe = partial(sent, rate=front_end.probe_rate_per_s(pool), duration_s=front_end.PROBE_S)
        point, fastest = front_end.fastest_apart(pool.worker.profile), None
        if point is not None:
            with RunningServer([*served, "--policy", f"fixed@{point.key}"]) as server:
                fastest = probe(server.url).log
        with RunningServer(served) as server:
            asked = partial(sent, server.url, **search.terms(pool))
            bursts = asked(arrivals=_at(front_end.burst_times_s(deadline_ms / 1e3)))
            found = front_end.FrontEnd.of_probe(probe(server.url).log, pool.worker.profile, fastest)
            front_ends.append(verification.with_bursts(search, pool, found, bursts.log))
            reporter.note(f"the front end takes {front_ends[-1]}")
            logs.append(asked(arrivals=_at(traffic.arrival_s[at])).log)
    planned = {"attainment": promised.attainment, "accuracy": promised.accuracy, "p99_s": promised.p99_us / 1e6}
    verdict = verification.verdict(search.promise, planned, logs)
    figures = [
        {"what": "planned", "requests": len(traffic.arrival_s), **planned},
        {"what": FRONT_END, **verification.planned(search, fleet.pools, VERIFIED, traffic, front_ends)},
        {"what": "served", **verification.served(logs)},
    ]
    return figures, (verdict.kept, verdict.sentence)


def _at(arrival_s: np.ndarray) -> ArrivalTable:
    import pandas as pd

    from slotool.workloads import ArrivalTable

    return ArrivalTable(pd.DataFrame({"arrival_s": arrival_s}))
