"""Of ``slotool.plan``: what this machine makes of a plan, served by real servers under the busiest of the traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.progress import Reporter
from slotool.errors import InputError
from slotool.machine import usable_cores

if TYPE_CHECKING:
    import numpy as np

    from slotool.api.load_tested import LoadTest
    from slotool.data import DataSource
    from slotool.planning.fleet import Fleet, Pool
    from slotool.planning.fleet_search import FleetSearch
    from slotool.planning.front_end import FrontEnd
    from slotool.tables import OutcomeTable
    from slotool.workloads import ArrivalTable
    from slotool.workloads.requests import RequestLog

# Which of the draws what is served is compared with: the one that confirmed the plan.
VERIFIED = 1
FRONT_END = "with the front end"


def verified_plan(
    service: Path,
    search: FleetSearch,
    fleet: Fleet,
    verify_s: float,
    data: str | DataSource,
    reporter: Reporter,
) -> tuple[list[dict[str, Any]], tuple[bool | None, str]]:
    """As ``_verified``; only why not, of more workers than this machine has cores for and without a cluster that has
    them: the plan is worth knowing all the same."""
    from slotool.planning.service_text import runs_here

    try:
        return _verified(service, search, fleet, verify_s, data, reporter)
    except InputError as error:
        if runs_here(fleet.pool):
            raise
        return [], (None, f"not verified: the plan needs more cores than this machine has; {error}")


def _verified(
    service: Path,
    search: FleetSearch,
    fleet: Fleet,
    verify_s: float,
    data: str | DataSource,
    reporter: Reporter,
) -> tuple[list[dict[str, Any]], tuple[bool | None, str]]:
    """Figures of the busiest stretch of the traffic: as planned, as planned had the front end been known, and as this
    machine serves it; and whether that keeps the promise.

    One server gets bursts, probes of what calls take beyond the table, and the traffic.
    """
    from slotool.api.loadtest import loadtest
    from slotool.planning import front_end, verification
    from slotool.planning.server_process import RunningServer
    from slotool.planning.traffic import Traffic

    traffic = Traffic.whole(search.busiest_s(verify_s))
    pool = fleet.pool
    promised = search.served(pool, VERIFIED, traffic).verdict
    deadline_ms = search.promise.deadline_us / 1e3
    cores = usable_cores()
    takes_all = pool.replicas * pool.worker.threads >= cores
    split = examples_sent(search.outcomes, data)
    sent = partial(loadtest, data=data, split=split, deadline_ms=deadline_ms, progress=reporter)
    asked = partial(sent, **search.terms(pool))
    bursts_at = _at(front_end.burst_times_s(deadline_ms / 1e3))
    # All workers that were planned, also where they are to come with the load: the stretch begins at its peak.
    served = ["--config", str(service), "--port", "0", "--replicas", str(pool.replicas)]
    fastest = _fastest(pool, served, sent)
    with RunningServer(served) as server:
        spent = front_end.CpuTime(server.process_id)
        bursts = asked(server.url, arrivals=bursts_at).log
        cpu_us, client_us = spent.each_us(len(bursts.rows))
        probed = replace(_probed(pool, search, server.url, sent, fastest), cpu_us=cpu_us, client_us=client_us)
        probed = verification.with_bursts(search, pool, probed, bursts)
        reporter.note(f"the front end takes {probed}")
        if takes_all:
            reporter.note(cores_shared((cpu_us, client_us), traffic.rate_per_s, cores))
        logs = [asked(server.url, arrivals=_at(traffic.arrival_s)).log]
    with_front_end = verification.planned(search, pool, VERIFIED, traffic, probed, cores if takes_all else None)
    planned = {"attainment": promised.attainment, "accuracy": promised.accuracy, "p99_s": promised.p99_us / 1e6}
    verdict = verification.verdict(search.promise, planned, logs)
    figures = [
        {"what": "planned", "requests": len(traffic.arrival_s), **planned},
        {"what": FRONT_END, **with_front_end},
        {"what": "served", **verification.served(logs)},
    ]
    return figures, (verdict.kept, verdict.sentence)


def examples_sent(outcomes: OutcomeTable | None, data: str | DataSource) -> str:
    """The split that is sent: all of data of which the outcome table holds all, as it then trained none of the models;
    of others the test split."""
    from slotool.data import DataSource
    from slotool.data.dataset import ALL

    of: Mapping[str, Any] = {} if outcomes is None else outcomes.provenance
    name = Path(DataSource.of(data).name.partition(":")[0]).name
    return ALL if (of.get("data"), of.get("split")) == (name, ALL) else "test"


def cores_shared(spent_us: tuple[float, float], rate_per_s: float, cores: int) -> str:
    """That workers take every core, and what that costs them; ``spent_us``: CPU time that the server's own process and
    the client spend on a request."""
    from slotool.planning.pool_service import all_busy

    own_ms, client_ms = spent_us[0] / 1e3, spent_us[1] / 1e3
    longer = all_busy(1e3 * (own_ms + client_ms), rate_per_s, cores)
    return (
        "the workers take every core of this machine, and share them with the server's front end and the client: these "
        f"spend {own_ms:.2g} and {client_ms:.2g} ms of a core's time on a request, so at {rate_per_s:,.0f}/s calls "
        f"take {longer:.3g} times as long while all workers are busy; on more cores more may be in time"
    )


def _probed(
    pool: Pool, search: FleetSearch, url: str, sent: Callable[..., LoadTest], fastest: RequestLog | None
) -> FrontEnd:
    """By requests none of which waits for another; then by as many as keep the workers busy."""
    from slotool.planning import front_end
    from slotool.planning.front_end import FrontEnd
    from slotool.planning.warm_up import with_warm_up

    rested = _probe(pool, url, sent)
    found = FrontEnd.of_probe(rested, pool.worker.profile, fastest)
    busy = sent(url, arrivals=_at(front_end.busy_times_s(pool))).log
    return with_warm_up(found, search.placed(pool.worker, pool.replicas), pool.replicas, [rested, busy])


def _probe(pool: Pool, url: str, sent: Callable[..., LoadTest]) -> RequestLog:
    """Of requests none of which waits for another, by single versions, of which the latency table knows how long they
    take: the most accurate, which a server without load chooses, or the only one."""
    from slotool.planning import front_end

    return sent(url, rate=front_end.probe_rate_per_s(pool), duration_s=front_end.PROBE_S).log


def _fastest(pool: Pool, served: Sequence[str], sent: Callable[..., LoadTest]) -> RequestLog | None:
    """The probe of the fastest point, where it is to be probed too."""
    from slotool.planning.front_end import fastest_apart
    from slotool.planning.server_process import RunningServer

    point = fastest_apart(pool.worker.profile)
    if point is None:
        return None
    with RunningServer([*served, "--policy", f"fixed@{point.key}"]) as server:
        return _probe(pool, server.url, sent)


def _at(arrival_s: np.ndarray) -> ArrivalTable:
    import pandas as pd

    from slotool.workloads import ArrivalTable

    return ArrivalTable(pd.DataFrame({"arrival_s": arrival_s}))
