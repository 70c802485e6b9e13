"""``slotool.plan``: the cheapest workers and policy that keep a promise under given traffic."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.display import Part, duration, table
from slotool.api.inputs import FilePath, as_list, loaded, name_of
from slotool.api.outputs import writes
from slotool.api.progress import Reporter, Reporting, reporter_of
from slotool.api.result import Result
from slotool.errors import ArgumentError, InputError, PromiseBroken

if TYPE_CHECKING:
    import numpy as np

    from slotool.data import DataSource
    from slotool.planning.fleet import Fleet, FleetSearch, Found, Pool, WorkerType
    from slotool.planning.mixed import MixedFleetSearch
    from slotool.planning.promise import Promise
    from slotool.planning.scaling import ScalingLimits
    from slotool.tables import LatencyTable, OutcomeTable
    from slotool.workloads import ArrivalTable

# Tried where nobody names any.
POLICIES = ("value-iteration", "slackfit", "maxacc", "fixed")
# Of traffic that is drawn.
DURATION_S = 60.0
# Shown of those that hold, besides the plan.
RUNNERS_UP = 5
# Which of the draws what is served is compared with: the one that confirmed the plan.
VERIFIED = 1
FRONT_END = "with the front end"


@dataclass(frozen=True, repr=False, eq=False)
class Plan(Result):
    """``rows``: the smallest fleet of each worker type and policy, those that hold the promise first, cheapest first;
    ``explanation``: why not one worker fewer. ``out``: the service file written, ``services``: of each pool of workers;
    ``plots``: files drawn; ``verified``: figures planned and served by this machine, if it was asked; ``kept``: whether
    the promise was kept then, None where that is not decided, and ``verdict`` says by how much. ``scaling``: limits of
    workers that come with the load, where the service file has them."""

    rows: Sequence[Mapping[str, Any]]
    facts: Mapping[str, Any]
    explanation: str
    out: Path | None = None
    plots: Sequence[Path] = ()
    verified: Sequence[Mapping[str, Any]] = ()
    services: Sequence[Path] = ()
    kept: bool | None = None
    verdict: str = ""
    scaling: Mapping[str, Any] | None = None

    schema = "plan"
    rows_key = "fleets"

    @property
    def holds(self) -> bool:
        """Whether any fleet keeps the promise."""
        return bool(self.rows[0]["holds"])

    def judge(self) -> None:
        """Raises ``PromiseBroken`` when no fleet keeps the promise, or the one that was served did not."""
        if not self.holds:
            raise PromiseBroken(self.explanation)
        if self.kept is False:
            raise PromiseBroken(self.verdict)

    def findings(self) -> Mapping[str, Any]:
        out = None if self.out is None else str(self.out)
        plots = [str(path) for path in self.plots]
        found: dict[str, Any] = {
            "fleets": list(self.rows),
            "explanation": self.explanation,
            "verified": list(self.verified),
        }
        found |= {"kept": self.kept, "verdict": self.verdict, "scaling": self.scaling}
        services = [str(path) for path in self.services]
        return {**self.facts, **found, "out": out, "services": services, "plots": plots}

    def shown(self) -> list[Part]:
        facts = self.facts
        accuracy = f", mean accuracy {facts['min_accuracy']:g}" if facts["min_accuracy"] else ""
        title = (
            f"{facts['subject']}: {facts['attainment']:g} of {facts['requests']:,} requests within "
            f"{facts['deadline_ms']:g} ms{accuracy}, confidence {facts['confidence']:g}"
        )
        holding = [row for row in self.rows if row["holds"]] or list(self.rows)
        left = len(self.rows) - len(holding[: RUNNERS_UP + 1])
        more = [f"{left} more worker types and policies; --json lists all"] if left else []
        wrote = [f"wrote {path}" for path in (*self.services, *self.plots)]
        shown: list[Part] = [
            table(title, _COLUMNS, map(_cells, holding[: RUNNERS_UP + 1])),
            *more,
            self.explanation,
            *([_limits(self.rows[0])] if self.holds else []),
            *([self.scaling["sentence"]] if self.scaling else []),
            *wrote,
        ]
        if self.verified:
            requests = self.verified[0]["requests"]
            title = f"The busiest {duration(facts['verify_s'])}, {requests:,} requests, on this machine"
            shown.append(table(title, _VERIFIED, map(_verified_cells, self.verified)))
        if self.verdict and self.kept is not False:  # else it is the error's sentence
            shown.append(self.verdict)
        return shown


@writes("out", folders=("plots",))
def plan(
    latency: FilePath | LatencyTable | Sequence[FilePath],
    *,
    deadline_ms: float,
    attainment: float = 0.99,
    min_accuracy: float = 0.0,
    confidence: float = 0.95,
    arrivals: FilePath | ArrivalTable | None = None,
    rate: float | None = None,
    outcomes: FilePath | OutcomeTable | None = None,
    subject: str | None = None,
    policies: str | Sequence[str] = POLICIES,
    prices: Mapping[str, float] | None = None,
    mixed: bool = False,
    reserve_ms: float = 2.0,
    max_workers: int = 1_000,
    quantile: float = 0.95,
    artifact: FilePath | None = None,
    out: FilePath | None = None,
    plots: FilePath | None = None,
    verify_s: float | None = None,
    data: str | DataSource = "auto",
    seed: int = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> Plan:
    """Find the cheapest workers and policy whose simulated service keeps a promise with a stated confidence.

    Each worker type (a number of threads of a latency table) is tried under each policy with the least workers that do.
    What holds is a lower bound of attainment and of accuracy: attainment's from consecutive blocks of the traffic,
    accuracy's from the examples of ``outcomes``. The fleet found is confirmed with latencies that are drawn anew.
    The promise is for traffic like the one given, and the confidence that of each fleet by itself: it does not count
    that the cheapest of several was chosen. Sources: superserve, sections 4 and 6; Model-Switching, section 4.

    Args:
        latency: Latency table of points × batch sizes, or its file, or several files, one per kind of worker.
        deadline_ms: Deadline of every request, milliseconds.
        attainment: Least share of requests answered within it.
        min_accuracy: Least mean accuracy of these answers; 0: any.
        confidence: With which attainment and accuracy are to hold together.
        arrivals: Arrival table to plan for, or its file.
        rate: Poisson arrivals of so many requests per second for a minute, instead.
        outcomes: Outcome table with the accuracy of the points; None: column ``accuracy`` of the latency table.
        subject: Subject of the latency table; None: its only one.
        policies: Scheduling policies to try; ``"fixed"`` stands for each point that is accurate enough.
        prices: Price of a worker by type, in any unit; None, and for types left out: its threads.
        mixed: Also try fleets of two types, each a service of its own with a fixed share of the requests; needs
            several types.
        reserve_ms: Kept of each deadline for the network and the front end.
        max_workers: Of a fleet.
        quantile: Quantile of the latencies that policies plan with.
        artifact: What is to be served; ``out`` needs it.
        out: Write a service file for ``slotool serve --config`` here; the second of a mixed fleet beside it.
        plots: Folder for plots (PNG) of attainment and accuracy by cost.
        verify_s: Serve the plan on this machine, send it so many seconds of the traffic, the busiest, and compare;
            needs ``out``.
        data: Data set whose test examples are then sent, a name or file, or with how to read it.
        seed: Of drawn arrivals and latencies.
        force: Replace ``out`` if it exists.
        progress: Who hears how far it is; see ``slotool.api.progress``.

    Returns:
        Fleets (``rows``, ``frame()``), the cheapest that holds first; ``judge()`` raises an error when none does, or
        when what was served to verify it did not.

    Raises:
        ArgumentError: An argument has a value that it cannot have, or ``mixed`` has but one type of workers.
        InputError: The traffic is too short to show the promise, no point can keep the deadline, or no such policy.
        TableError: A table cannot be read.
        AlreadyExistsError: ``out`` exists.
        RunError: The server to verify did not start.
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.planning.mixed import MixedFleetSearch
    from slotool.planning.promise import Promise
    from slotool.tables import OutcomeTable

    written = None if out is None else Path(out)
    if verify_s is not None and (written is None or not verify_s > 0):
        raise ArgumentError("verify_s", "a time above 0 is expected, and out: the service file is what is served")
    if written is not None:
        _require_files(artifact, latency, outcomes)
        for path in (written, _second(written)) if mixed else (written,):
            refuse_existing(path, force)
    reporter = reporter_of(progress)
    promise = Promise(deadline_ms * 1e3, attainment, min_accuracy, confidence)
    accuracies = None if outcomes is None else loaded(OutcomeTable, outcomes)
    workers = _worker_types(latency, accuracies, subject, prices or {}, quantile, reporter)
    if mixed and len(workers) == 1:
        raise ArgumentError("mixed", f"it needs several worker types; there is but {workers[0].name}")
    arrival_s = _arrivals(arrivals, rate, seed)
    search = MixedFleetSearch(
        arrival_s, promise, outcomes=accuracies, reserve_us=reserve_ms * 1e3, max_workers=max_workers, seed=seed
    )
    names = as_list(policies)
    found = _found(search, workers, names, mixed, reporter)
    best = found[0]
    facts = {
        "subject": workers[0].profile.subject,
        "deadline_ms": deadline_ms,
        "attainment": attainment,
        "min_accuracy": min_accuracy,
        "confidence": confidence,
        "arrivals": name_of(arrivals) if arrivals is not None else f"{rate:g} requests/s",
        "requests": len(arrival_s),
        "reserve_ms": reserve_ms,
        "seed": seed,
        "verify_s": verify_s,
    }
    rows = [_row(each, promise) for each in found]
    if not best.holds:
        return Plan(rows, facts, _explanation(best, promise))
    alike = next(each.tried for each in found if len(each.tried.pools) == 1)
    drawn = [] if plots is None else _draw(search, alike, best.tried.cost, names, Path(plots), reporter)
    limits = None if written is None else _scaling_limits(search, best.tried)
    services = [] if written is None else _services(written, best.tried, promise, Path(str(artifact)), outcomes, limits)
    scaling = None if limits is None else {**asdict(limits), "sentence": str(limits)}
    verified: list[dict[str, Any]] = []
    kept, verdict = None, ""
    if verify_s is not None:
        verified, (kept, verdict) = _verified(services, search, best.tried, verify_s, data, reporter)
    return Plan(rows, facts, _explanation(best, promise), written, drawn, verified, services, kept, verdict, scaling)


def _found(
    search: MixedFleetSearch, workers: Sequence[WorkerType], names: Sequence[str], mixed: bool, reporter: Reporter
) -> list[Found]:
    """The smallest fleet of each type and policy, and cheaper ones of two types if ``mixed``; the best first."""
    from slotool.planning.fleet import confirm

    asked = [(worker, policy) for worker in workers for policy in search.policies(worker, names)]
    if not asked:
        least = search.promise.accuracy
        raise InputError(f"no operating point has the accuracy {least:g} by itself; name a policy besides fixed")
    found: list[Found] = []
    with reporter.progress(f"fleets for {search.requests:,} requests", total=len(asked)) as steps:
        for worker, policy in asked:
            found.append(search.cheapest(worker, policy))
            steps.advance()
    with reporter.progress("fleets confirmed") as steps:
        found = confirm(search, found, steps.advance)
    if not mixed:
        return found
    with reporter.progress("fleets of two kinds", total=len(workers) * (len(workers) - 1)) as steps:
        cheaper = search.mixed(found, steps.advance)
    with reporter.progress("fleets confirmed") as steps:
        return confirm(search, [*found, *cheaper], steps.advance)


def _require_files(artifact: Any, latency: Any, outcomes: Any) -> None:
    """A service file names files, so that all it is made from has to be one."""
    if artifact is None:
        raise ArgumentError("artifact", "is needed for out: the service file names what is to be served")
    if not Path(str(artifact)).is_dir():
        raise ArgumentError("artifact", f"there is no folder {artifact}; an artifact is expected")
    for name, given in (("latency", latency), ("outcomes", outcomes)):
        several = [given] if given is None or isinstance(given, str | Path) else given
        if not isinstance(several, Sequence) or not all(
            each is None or isinstance(each, str | Path) for each in several
        ):
            raise ArgumentError(name, "a file is needed for out: the service file names it")


def _worker_types(
    latency: Any,
    outcomes: OutcomeTable | None,
    subject: str | None,
    prices: Mapping[str, float],
    quantile: float,
    reporter: Reporter,
) -> list[WorkerType]:
    """One per number of threads of each table, named by them, and by the file where there are several."""
    from slotool.planning.fleet import WorkerType
    from slotool.scheduling.batching import read_profile
    from slotool.tables import LatencyTable

    sources = [latency] if isinstance(latency, str | Path | LatencyTable) else list(latency)
    made: list[WorkerType] = []
    for source in sources:
        known = loaded(LatencyTable, source)
        for threads in sorted(set(known.where(status="ok", co_runners="").rows["threads"])):
            profile = read_profile(known, outcomes, subject=subject, quantile=quantile, threads=threads)
            of = f"{Path(str(source)).stem}, " if len(sources) > 1 else ""
            name = f"{of}{threads} thread{'s' if threads > 1 else ''}"
            price = prices.get(name, float(threads))
            if not price > 0:
                raise ArgumentError("prices", f"the price of {name} is {price:g}; one above 0 is expected")
            if known.where(threads=threads).rows["predicted"].any():
                reporter.warn(f"latencies of {name} are predicted: compare a measurement, or what --verify serves")
            made.append(WorkerType(name, profile, int(threads), price, source))
            for remark in profile.grid.remarks:
                reporter.warn(remark)
    if unknown := set(prices) - {worker.name for worker in made}:
        there = "; ".join(worker.name for worker in made)
        raise ArgumentError("prices", f"there is no worker type {min(unknown)!r}; there are {there}")
    return made


def _arrivals(arrivals: FilePath | ArrivalTable | None, rate: float | None, seed: int) -> np.ndarray:
    from slotool.workloads import ArrivalTable, Poisson

    if (arrivals is None) == (rate is None):
        raise ArgumentError("arrivals", "give either arrivals or a rate")
    if arrivals is not None:
        return loaded(ArrivalTable, arrivals).times_s
    if rate is None or not rate > 0:
        raise ArgumentError("rate", f"{rate:g} is not above 0")
    return Poisson(rate).times(DURATION_S, seed)


def _row(found: Found, promise: Promise) -> dict[str, Any]:
    fleet = found.tried
    fewer = None
    if found.fewer is not None:
        verdict = found.fewer.verdict
        fewer = {"replicas": found.fewer.replicas, **asdict(verdict), "misses": verdict.misses(promise)}
    return {
        "worker": " + ".join(pool.worker.name for pool in fleet.pools),
        "threads": fleet.pools[0].worker.threads if len(fleet.pools) == 1 else None,
        "policy": " + ".join(pool.policy for pool in fleet.pools),
        "replicas": fleet.replicas,
        "cost": fleet.cost,
        "holds": found.holds,
        "confirmed": found.confirmed,
        **asdict(fleet.verdict),
        "misses": fleet.verdict.misses(promise),
        "fewer": fewer,
        "pools": [
            {
                "worker": pool.worker.name,
                "threads": pool.worker.threads,
                "policy": pool.policy,
                "replicas": pool.replicas,
                "share": pool.share,
                "max_batch": pool.max_batch,
                "max_queue": pool.max_queue(promise.deadline_us),
            }
            for pool in fleet.pools
        ],
    }


def _limits(row: Mapping[str, Any]) -> str:
    """What a service of each pool of workers is to be started with."""
    return "; ".join(
        (f"{pool['worker']} ({pool['share']:.1%} of the requests): " if len(row["pools"]) > 1 else "")
        + f"batches of up to {pool['max_batch']:,}, a queue of up to {pool['max_queue']:,} requests, as many as "
        "the workers can answer within a deadline at their fastest point"
        for pool in row["pools"]
    )


def _explanation(best: Found, promise: Promise) -> str:
    fleet = best.tried
    said = str(fleet)
    if not best.holds:
        most = max(float(pool.worker.profile.grid.accuracy[-1]) for pool in fleet.pools)
        why = f"; its most accurate point has {most:.4f}" if most < promise.accuracy else ""
        return f"no fleet keeps the promise; closest: {said}, with {_shortfall(fleet, promise)}{why}"
    if best.fewer is None:
        return f"the promise holds with {said}; there is no smaller fleet"
    return f"the promise holds with {said}, not with {best.fewer.replicas:,}: {_shortfall(best.fewer, promise)}"


def _shortfall(fleet: Fleet, promise: Promise) -> str:
    verdict, busy = fleet.verdict, f"busy {fleet.verdict.utilisation:.0%} of the time"
    parts = []
    for what in verdict.misses(promise):
        shown, least = getattr(verdict, f"{what}_at_least"), getattr(promise, what)
        parts.append(f"{what} of {getattr(verdict, what):.4f}, at least {shown:.4f} at this confidence, for {least:g}")
    return f"{' and '.join(parts) or 'all of it kept by chance'}; {busy}"


def _second(out: Path) -> Path:
    """The service file of a mixed fleet's second pool."""
    return out.with_stem(f"{out.stem}-2")


def _scaling_limits(search: FleetSearch, fleet: Fleet) -> ScalingLimits | None:
    """Of workers that come with the load, for a service file of this machine's worker processes."""
    from slotool.planning.fleet import MAX_CONFIRMED
    from slotool.planning.scaling import limits_of
    from slotool.planning.service_text import runs_here

    if len(fleet.pools) > 1 or not runs_here(fleet.pools[0]) or search.requests > MAX_CONFIRMED:
        return None
    return limits_of(search, fleet, search.whole)


def _services(
    out: Path, fleet: Fleet, promise: Promise, artifact: Path, outcomes: Any, limits: ScalingLimits | None
) -> list[Path]:
    """Write the service file of each pool."""
    from slotool.atomic import whole_file
    from slotool.planning.service_text import service_text

    written = [out, _second(out)][: len(fleet.pools)]
    accuracies = None if outcomes is None else Path(str(outcomes))
    for path, pool in zip(written, fleet.pools, strict=True):
        text = service_text(pool, promise, out.parent, artifact, Path(str(pool.worker.source)), accuracies, limits)
        with whole_file(path) as file:
            file.write_text(text)
    return written


def _verified(
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
    from slotool.planning.fleet import Traffic
    from slotool.planning.server_process import RunningServer

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
        workers = ["--replicas", str(pool.replicas)]
        with RunningServer(["--config", str(service), "--port", "0", *workers]) as server:
            asked = partial(loadtest, server.url, data=data, deadline_ms=deadline_ms, progress=reporter)
            bursts = asked(arrivals=_at(front_end.burst_times_s(deadline_ms / 1e3)))
            probe = asked(rate=front_end.probe_rate_per_s(pool), duration_s=front_end.PROBE_S)
            found = front_end.FrontEnd.of_probe(probe.log, pool.worker.profile)
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


def _draw(
    search: FleetSearch, around_it: Fleet, chosen_cost: float, policies: Sequence[str], folder: Path, reporter: Reporter
) -> list[Path]:
    from slotool.planning.fleet import around
    from slotool.reports.plots import save_plots
    from slotool.reports.series.fleets import fleet_figures

    pool: Pool = around_it.pools[0]
    tried = list(dict.fromkeys([pool.policy, *(name for name in policies if name != "fixed")]))
    rows = []
    with reporter.progress("fleets around the plan") as steps:
        for fleet in around(search, around_it, tried):
            figures = asdict(fleet.verdict)
            rows.append({"policy": fleet.pools[0].policy, "cost": fleet.cost, **figures})
            steps.advance()
    return save_plots(fleet_figures(pool.worker.profile.subject, rows, chosen_cost), folder)


_VERIFIED = ("", "in time", "accuracy", "p99")
_COLUMNS = ("workers", "type", "policy", "cost", "in time ≥", "accuracy ≥", "p99", "busy", "with fewer, short of")


def _cells(row: Mapping[str, Any]) -> list[str]:
    fewer = row["fewer"]
    return [
        f"{row['replicas']:,}",
        row["worker"],
        row["policy"],
        f"{row['cost']:g}",
        f"{row['attainment_at_least']:.4f}",
        f"{row['accuracy_at_least']:.4f}",
        duration(row["p99_us"] / 1e6) if row["p99_us"] < float("inf") else "never",
        f"{row['utilisation']:.0%}",
        "–" if fewer is None else f"{fewer['replicas']:,}: {' and '.join(fewer['misses']) or 'by chance'}",
    ]


def _verified_cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["what"],
        f"{row['attainment']:.4f}",
        f"{row['accuracy']:.4f}",
        duration(row["p99_s"]) if row["p99_s"] < float("inf") else "never",
    ]
