"""Of ``slotool.plan`` of several models: the service files, and what this machine makes of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.plan_interference import with_raised_table, with_raised_tables
from slotool.api.plan_models import file_part
from slotool.api.plan_scaling import scaling_limits, scaling_of, shared_scaling_limits
from slotool.api.plan_verified import FRONT_END, VERIFIED, cores_shared, examples_sent
from slotool.api.progress import Reporter
from slotool.errors import InputError
from slotool.machine import usable_cores

if TYPE_CHECKING:
    import numpy as np

    from slotool.api.plan_models import PlannedModel
    from slotool.planning.fleet import Found, Pool
    from slotool.planning.front_end import FrontEnd
    from slotool.planning.scaling import ScalingLimits
    from slotool.planning.server_process import RunningServer
    from slotool.planning.shared import SharedFleet, SharedFleetSearch, SharedFound
    from slotool.workloads.requests import RequestLog


def write_services(
    out: Path,
    entries: Mapping[str, PlannedModel],
    search: SharedFleetSearch,
    best: SharedFound | None,
    apart: Mapping[str, Sequence[Found]],
    reporter: Reporter,
) -> tuple[list[Path], dict[str, Any] | None]:
    """Of the fleet that all models share or, without one, a file for each model, beside ``out``. Those written, and the
    limits of workers that come with the load."""
    from slotool.atomic import whole_file
    from slotool.planning.service_text import cluster_remark, service_text

    texts, remarks, scaling = {}, [], None
    if best is not None:
        limits = shared_scaling_limits(search, best.tried)
        scaling = None if limits is None else scaling_of(limits)
        texts[out] = _shared_text(out, entries, search, best.tried, raised_pools(out, search, best.tried), limits)
        remarks.append(cluster_remark(best.tried.alike.pool))
    else:
        own_limits = {}
        for number, (name, found) in enumerate(apart.items()):
            own, fleet, files = search.alone[name], found[0].tried, _files(entries[name])
            path = out.with_name(f"{out.stem}-{file_part(name, number)}{out.suffix}")
            own_limits[name] = scaling_limits(own, fleet)
            fleet = with_raised_tables(own, fleet, path)
            texts[path] = service_text(
                fleet, own.promise, out.parent, files, {}, own.max_queue(fleet.pool), own_limits[name]
            )
            remarks.append(cluster_remark(fleet.pool))
        scaling = _scaling_apart(own_limits)
    for remark in filter(None, remarks):
        reporter.warn(remark)
    for path, text in texts.items():
        with whole_file(path) as file:
            file.write_text(text)
    return list(texts), scaling


def _scaling_apart(limits: Mapping[str, ScalingLimits | None]) -> dict[str, Any] | None:
    """Of models apart, under ``models``; None where all workers of each are there always."""
    models = {name: scaling_of(own) for name, own in limits.items() if own is not None}
    sentence = "; ".join(f"{name}: {own['sentence']}" for name, own in models.items())
    return {"models": models, "sentence": sentence} if models else None


def _shared_text(
    out: Path,
    entries: Mapping[str, PlannedModel],
    search: SharedFleetSearch,
    fleet: SharedFleet,
    pools: Mapping[str, Pool],
    limits: ScalingLimits | None = None,
) -> str:
    """Of the workers of ``fleet``, with the policies of ``pools``."""
    from slotool.planning.shared_service import shared_service_text

    return shared_service_text(
        fleet.alike,
        {name: demand.promise for name, demand in search.demands.items()},
        out.parent,
        {name: _files(entry) for name, entry in entries.items()},
        {name: pools.get(name) or _idle_pool(search, name, fleet) for name in entries},
        search.max_queue(fleet.pools),
        limits,
    )


def raised_pools(out: Path, search: SharedFleetSearch, fleet: SharedFleet) -> dict[str, Pool]:
    """Of each model its pool with latency tables beside ``out`` where workers share machines."""
    return {
        name: with_raised_table(
            search.alone[name], pool, out.with_name(f"{out.stem}-{file_part(name, number)}-latency.parquet")
        )
        for number, (name, pool) in enumerate(fleet.pools.items())
    }


def _files(entry: PlannedModel) -> dict[str, Path]:
    """By key of a service file, without latencies."""
    given = {"artifact": entry.artifact, "outcomes": entry.outcomes}
    return {key: Path(str(path)) for key, path in given.items() if path is not None}


def _idle_pool(search: SharedFleetSearch, name: str, fleet: SharedFleet) -> Pool:
    """Of a model that no requests are expected of: its first policy."""
    from slotool.planning.fleet import Pool

    demand = search.demands[name]
    return Pool(demand.workers[fleet.worker.name], demand.policies[0], fleet.replicas)


def verified_together(
    service: Path,
    entries: Mapping[str, PlannedModel],
    search: SharedFleetSearch,
    fleet: SharedFleet,
    verify_s: float,
    reporter: Reporter,
) -> tuple[list[dict[str, Any]], tuple[bool | None, str]]:
    """By model figures of the busiest stretch of the traffic: as planned, as planned had the front end been known, and
    as this machine serves it; and whether that keeps every promise."""
    from slotool.planning.service_text import runs_here

    try:
        return _verified(service, entries, search, fleet, verify_s, reporter)
    except InputError as error:
        if runs_here(fleet.alike.pool):
            raise
        return [], (None, f"not verified: the plan needs more cores than this machine has; {error}")


def _verified(
    service: Path,
    entries: Mapping[str, PlannedModel],
    search: SharedFleetSearch,
    fleet: SharedFleet,
    verify_s: float,
    reporter: Reporter,
) -> tuple[list[dict[str, Any]], tuple[bool | None, str]]:
    from slotool.api.loadtest import models_together
    from slotool.planning import verification
    from slotool.planning.server_process import RunningServer
    from slotool.planning.service_text import is_gpu
    from slotool.planning.shared_verification import mean_cpu_us, planned_together, rate_per_s
    from slotool.planning.traffic import Traffic

    busiest = {name: times_s for name, times_s in search.busiest(verify_s).items() if len(times_s)}
    pools = {name: fleet.pools[name] for name in busiest}
    traffic = {name: Traffic.whole(times_s) for name, times_s in busiest.items()}
    cores = usable_cores()
    splits = {name: examples_sent(search.alone[name].outcomes, entries[name].data) for name in busiest}
    takes_all = fleet.replicas * fleet.worker.threads >= cores
    fastest = _fastest(service, entries, search, fleet, reporter)
    served = ["--config", str(service), "--port", "0"]
    if not is_gpu(fleet.worker):  # all of them, also where workers come with the load
        served += ["--replicas", str(fleet.replicas)]
    with RunningServer(served) as server:
        front_ends = {
            name: _front_end(name, entries[name], search, pool, server, reporter, fastest.get(name))
            for name, pool in pools.items()
        }
        for name, found in front_ends.items():
            reporter.note(f"the front end of {name} takes {found}")
        if takes_all:
            reporter.note(cores_shared(mean_cpu_us(traffic, front_ends), rate_per_s(traffic), cores))
        asked = {
            name: (_table(times_s), entries[name].deadline_ms, entries[name].data, splits[name])
            for name, times_s in busiest.items()
        }
        logs = models_together(server.url, asked)
    promised = search.served(pools, fleet.replicas, VERIFIED, traffic).verdicts
    with_front_end = planned_together(search, pools, VERIFIED, traffic, front_ends, cores if takes_all else None)
    figures, verdicts = [], []
    for name, verdict in promised.items():
        planned = {"attainment": verdict.attainment, "accuracy": verdict.accuracy, "p99_s": verdict.p99_us / 1e6}
        figures += [
            {"model": name, "what": "planned", "requests": len(busiest[name]), **planned},
            {"model": name, "what": FRONT_END, **with_front_end[name]},
            {"model": name, "what": "served", **verification.served([logs[name]])},
        ]
        judged = verification.verdict(search.promises[name], planned, [logs[name]])
        verdicts.append(replace(judged, sentence=f"{name}: {judged.sentence}"))
    kept = False if any(each.kept is False for each in verdicts) else all(each.kept for each in verdicts) or None
    return figures, (kept, "\n".join(each.sentence for each in verdicts))


def _fastest(
    service: Path,
    entries: Mapping[str, PlannedModel],
    search: SharedFleetSearch,
    fleet: SharedFleet,
    reporter: Reporter,
) -> dict[str, RequestLog]:
    """Probes of the fastest points, by a server of these, of the models where they are to be probed too."""
    from slotool.atomic import whole_file
    from slotool.planning import front_end
    from slotool.planning.server_process import RunningServer

    raised = raised_pools(service, search, fleet)
    points = {name: front_end.fastest_apart(pool.worker.profile) for name, pool in fleet.pools.items()}
    pools = {
        name: replace(pool, policy=f"fixed@{point.key}")
        for name, pool in raised.items()
        if (point := points[name]) is not None
    }
    if not pools:
        return {}
    file = service.with_name(f".{service.stem}-{os.getpid()}.toml")  # beside it, as its paths are relative
    try:
        with whole_file(file) as written:
            written.write_text(_shared_text(file, entries, search, fleet, {**raised, **pools}))
        with RunningServer(["--config", str(file), "--port", "0"]) as server:
            return {name: _probe(name, entries[name], pool, server.url, reporter) for name, pool in pools.items()}
    finally:
        file.unlink(missing_ok=True)


def _front_end(
    name: str,
    entry: PlannedModel,
    search: SharedFleetSearch,
    pool: Pool,
    server: RunningServer,
    reporter: Reporter,
    fastest: RequestLog | None,
) -> FrontEnd:
    """As probed by requests for this model alone: bursts, low load, and then as many as keep the workers busy."""
    from slotool.api.loadtest import loadtest
    from slotool.planning import front_end, verification
    from slotool.planning.front_end import FrontEnd
    from slotool.planning.warm_up import with_warm_up

    def sent(times_s: np.ndarray) -> RequestLog:
        return loadtest(
            server.url, model=name, data=entry.data, deadline_ms=entry.deadline_ms, arrivals=_table(times_s),
            progress=reporter,
        ).log  # fmt: skip

    spent = front_end.CpuTime(server.process_id)
    bursts = sent(front_end.burst_times_s(entry.deadline_ms / 1e3))
    cpu_us, client_us = spent.each_us(len(bursts.rows))
    rested, busy = _probe(name, entry, pool, server.url, reporter), sent(front_end.busy_times_s(pool))
    alone = search.alone[name]
    found = FrontEnd.of_probe(rested, pool.worker.profile, fastest)
    found = replace(found, cpu_us=cpu_us, client_us=client_us)
    found = with_warm_up(found, alone.placed(pool.worker, pool.replicas), pool.replicas, [rested, busy])
    return verification.with_bursts(alone, pool, found, bursts)


def _probe(name: str, entry: PlannedModel, pool: Pool, url: str, reporter: Reporter) -> RequestLog:
    """Of requests for this model, none of which waits for another."""
    from slotool.api.loadtest import loadtest
    from slotool.planning import front_end

    rate, lasts_s = front_end.probe_rate_per_s(pool), front_end.PROBE_S
    return loadtest(
        url, model=name, data=entry.data, deadline_ms=entry.deadline_ms, rate=rate, duration_s=lasts_s,
        progress=reporter,
    ).log  # fmt: skip


def _table(times_s: np.ndarray) -> Any:
    import pandas as pd

    from slotool.workloads import ArrivalTable

    return ArrivalTable(pd.DataFrame({"arrival_s": times_s}))
