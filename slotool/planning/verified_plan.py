"""Verification of a plan: served on this machine, under the busiest of the traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slotool.errors import ArgumentError, InputError
from slotool.machine import usable_cores
from slotool.progress import Reporter
from slotool.timing.interference import QUIET_CORES, OtherWork

if TYPE_CHECKING:
    import numpy as np

    from slotool.data import DataSource
    from slotool.planning.fleet import Fleet, Pool, WorkerType
    from slotool.planning.front_end import FrontEnd
    from slotool.planning.planner import Planner
    from slotool.tables import OutcomeTable
    from slotool.workloads import ArrivalProcess
    from slotool.workloads.client.load import Load
    from slotool.workloads.requests import RequestLog

# Options of requests besides their deadline: a tolerance, or shares by tolerance, and an objective.
Terms = Mapping[str, Any]
# Draw that served figures are compared with: the one that confirmed the plan.
VERIFIED = 1
FRONT_END = "with the front end"


def why_not_here(worker: WorkerType) -> str:
    """Return why this machine cannot serve on the worker's device; empty where it can."""
    from slotool import devices

    try:
        if worker.is_gpu:
            devices.required(worker.device)
    except ArgumentError as error:
        return error.problem
    return ""


def require_any_here(workers: Sequence[WorkerType], reporter: Reporter) -> None:
    """Warn of workers that this machine cannot verify; raise ``ArgumentError`` early if it can verify none."""
    missing = {worker.name: why for worker in workers if (why := why_not_here(worker))}
    if len(missing) == len(workers):
        raise ArgumentError("verify_s", f"no plan could be served here: {next(iter(missing.values()))}; leave it out")
    for name, why in missing.items():
        reporter.warn(f"a plan with {name} will not be verified: {why}")


def verified_plan(
    service: Path, planner: Planner, fleet: Fleet, verify_s: float, reporter: Reporter
) -> tuple[list[dict[str, Any]], bool | None, str]:
    """Serve ``fleet`` by the file ``service`` and send it the busiest stretch of the traffic.

    Return figures by model: as planned, as planned had the front end been known, and as this machine serves it; whether
    that keeps every promise, None where too few requests or other processes leave it open; and by how much.
    """
    if why := why_not_here(fleet.pool.worker):
        return [], None, f"not verified: the plan needs a device that is not here: {why}"
    try:
        return _Verification(service, planner, fleet, reporter).of_busiest(verify_s)
    except InputError as error:
        if fleet.pool.runs_here:
            raise
        return [], None, f"not verified: the plan needs more cores than this machine has; {error}"


class _Verification:
    """A fleet, served by the file ``service``, and the requests that are sent to it."""

    def __init__(self, service: Path, planner: Planner, fleet: Fleet, reporter: Reporter):
        self._service, self._planner, self._fleet, self._reporter = service, planner, fleet, reporter

    def of_busiest(self, verify_s: float) -> tuple[list[dict[str, Any]], bool | None, str]:
        from slotool.planning import verification
        from slotool.planning.server_process import RunningServer
        from slotool.planning.traffic import Traffic

        planner, fleet, cores = self._planner, self._fleet, usable_cores()
        busiest = {name: times_s for name, times_s in planner.busiest(verify_s).items() if len(times_s)}
        pools = {name: fleet.pools[name] for name in busiest}
        traffic = {name: Traffic.whole(times_s) for name, times_s in busiest.items()}
        takes_all = fleet.replicas * fleet.pool.worker.threads >= cores
        fastest = self._fastest()
        served = ["--config", str(self._service), "--port", "0"]
        with RunningServer(served) as server:
            probing = OtherWork()
            front_ends = {name: self._front_end(name, server, fastest.get(name)) for name in pools}
            _, probing_cores = probing.read()
            if probing_cores > QUIET_CORES:
                self._reporter.warn(
                    f"other processes took {probing_cores:.2g} cores while the front end was probed, so that the row "
                    f"{FRONT_END!r} may understate the share in time"
                )
            for name, front_end in front_ends.items():
                self._reporter.note(f"the front end{f' of {name}' if name else ''} takes {front_end}")
            if takes_all:
                spent_us = verification.mean_cpu_us(traffic, front_ends)
                self._reporter.note(cores_shared(spent_us, verification.rate_per_s(traffic), cores))
            others = OtherWork()
            logs = self._sent_together(server.url, busiest)
            _, busy_cores = others.read()
        promised = planner.served(pools, fleet.replicas, VERIFIED, traffic).verdicts
        with_front_end = verification.planned(
            planner, pools, VERIFIED, traffic, front_ends, cores if takes_all else None
        )
        figures, verdicts = [], []
        for name, verdict in promised.items():
            planned = {"attainment": verdict.attainment, "accuracy": verdict.accuracy, "p99_s": verdict.p99_us / 1e6}
            of = {"model": name} if name else {}
            figures += [
                {**of, "what": "planned", "requests": len(busiest[name]), **planned},
                {**of, "what": FRONT_END, **with_front_end[name]},
                {**of, "what": "served", **verification.served(logs[name])},
            ]
            judged = verification.verdict(planner.promises[name], planned, logs[name], busy_cores)
            verdicts.append(replace(judged, sentence=f"{name}: {judged.sentence}" if name else judged.sentence))
        promises_kept = (
            False if any(each.kept is False for each in verdicts) else all(each.kept for each in verdicts) or None
        )
        return figures, promises_kept, "\n".join(each.sentence for each in verdicts)

    def _front_end(self, name: str, server: Any, fastest: RequestLog | None) -> FrontEnd:
        """Probe the front end by requests for one model alone: bursts, low load, and full load."""
        from slotool.planning import front_end, verification
        from slotool.planning.front_end import FrontEnd
        from slotool.planning.warm_up import with_warm_up

        pool, model = self._fleet.pools[name], self._planner.models[name]
        spent = front_end.CpuTime(server.process_id)
        bursts_at = front_end.burst_times_s(model.promise.deadline_us / 1e6)
        bursts = self._sent(name, server.url, bursts_at, model.terms(pool))
        cpu_us, client_us = spent.each_us(len(bursts.rows))
        rested = self._probe(name, pool, server.url)
        busy = self._sent(name, server.url, front_end.busy_times_s(pool))
        probed = replace(FrontEnd.of_probe(rested, pool.worker.profile, fastest), cpu_us=cpu_us, client_us=client_us)
        probed = with_warm_up(probed, model.placed(pool.worker, pool.replicas), pool.replicas, [rested, busy])
        return verification.with_bursts(self._planner, name, pool, probed, bursts)

    def _fastest(self) -> dict[str, RequestLog]:
        """Probe, by a server of these, the fastest points of the models where they are to be probed too."""
        from slotool.planning.front_end import fastest_apart
        from slotool.planning.server_process import RunningServer
        from slotool.planning.service_files import passing_service, raised_pools

        raised = raised_pools(self._planner, self._fleet, self._service)
        pools = {
            name: replace(raised[name], policy=f"fixed@{point.key}")
            for name, pool in self._fleet.pools.items()
            if (point := fastest_apart(pool.worker.profile)) is not None
        }
        if not pools:
            return {}
        with (
            passing_service(self._planner, self._fleet, {**raised, **pools}, self._service) as file,
            RunningServer(["--config", str(file), "--port", "0"]) as server,
        ):
            return {name: self._probe(name, pool, server.url) for name, pool in pools.items()}

    def _probe(self, name: str, pool: Pool, url: str) -> RequestLog:
        """Send isolated requests for one model, by single versions, whose latency is in the table."""
        from slotool.planning import front_end
        from slotool.workloads import Poisson

        rate = Poisson(front_end.probe_rate_per_s(pool))
        return self._load(name, rate, front_end.PROBE_S, url, {}).send(self._reporter)[0]

    def _load(self, name: str, process: ArrivalProcess, duration_s: float, url: str, terms: Terms) -> Load:
        """Return requests for one model, of the data and with the deadline of its demand."""
        from slotool.workloads.client import endpoint
        from slotool.workloads.client.load import Load
        from slotool.workloads.client.target import server_address

        demand, tolerance = self._planner.demands[name], terms.get("tolerance")
        return Load(
            server_address(url), process, duration_s, demand.data,
            endpoint.Terms(demand.promise.deadline_us / 1e6, None, terms.get("objective"), None),
            model=name or None, split=examples_sent(demand.outcomes, demand.data),
            tolerances=tolerance if isinstance(tolerance, Mapping) else {} if tolerance is None else {tolerance: 1.0},
        )  # fmt: skip

    def _sent(self, name: str, url: str, times_s: np.ndarray, terms: Terms = MappingProxyType({})) -> RequestLog:
        """Send requests for one model at these instants."""
        return self._load(name, *_recorded(times_s), url, terms).send(self._reporter)[0]

    def _sent_together(self, url: str, times_s: Mapping[str, np.ndarray]) -> dict[str, RequestLog]:
        """Send the requests for all models at the same time."""
        from slotool.workloads.client.load import send_together

        if len(times_s) == 1:
            ((name, own_s),) = times_s.items()
            return {name: self._sent(name, url, own_s, self._planner.models[name].terms(self._fleet.pools[name]))}
        return send_together({name: self._load(name, *_recorded(own_s), url, {}) for name, own_s in times_s.items()})


def _recorded(times_s: np.ndarray) -> tuple[ArrivalProcess, float]:
    from slotool.workloads import RecordedInstants

    process = RecordedInstants(times_s, from_start=True)
    return process, process.duration_s


def examples_sent(outcomes: OutcomeTable | None, data: str | DataSource) -> str:
    """Return the split to send: all data if the outcome table has all, as it then trained no model; else test."""
    from slotool.data import DataSource
    from slotool.data.dataset import ALL

    of: Mapping[str, Any] = {} if outcomes is None else outcomes.provenance
    name = Path(DataSource.of(data).name.partition(":")[0]).name
    return ALL if (of.get("data"), of.get("split")) == (name, ALL) else "test"


def cores_shared(spent_us: tuple[float, float], rate_per_s: float, cores: int) -> str:
    """Return a sentence on the cost of workers on every core.

    ``spent_us``: CPU time of the server's own process and of the client per request.
    """
    from slotool.planning.model_on_workers import all_busy

    own_ms, client_ms = spent_us[0] / 1e3, spent_us[1] / 1e3
    longer = all_busy(1e3 * (own_ms + client_ms), rate_per_s, cores)
    return (
        "the workers take every core of this machine, and share them with the server's front end and the client: these "
        f"spend {own_ms:.2g} and {client_ms:.2g} ms of a core's time on a request, so at {rate_per_s:,.0f}/s calls "
        f"take {longer:.3g} times as long while all workers are busy; on more cores more may be in time"
    )
