"""A load for one model of a server: drawn, sent at its instants, and logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slotool.data import DataSource, has_many_labels, load_multilabel, numbered, open_dataset
from slotool.data.options import DataOptions
from slotool.data.registry import locate
from slotool.energy import EnergyMeter
from slotool.errors import ArgumentError
from slotool.machine import machine_id
from slotool.progress import Quiet, Reporter
from slotool.workloads.arrivals.processes import ArrivalProcess
from slotool.workloads.client import event_loop
from slotool.workloads.client.channels import TargetServer, ask_first_model
from slotool.workloads.client.endpoint import RequestResult, Terms
from slotool.workloads.client.faults import Fault, FaultInjection, read_faults
from slotool.workloads.client.many_processes import ManyProcesses
from slotool.workloads.client.open_loop import LoadPlan, LoadRun, LocalRun, drawn_times, drive_together
from slotool.workloads.client.target import ANSWER_WITHIN_S, is_loopback
from slotool.workloads.requests import RequestLog


@dataclass(frozen=True)
class Load:
    """Requests for one model of a server.

    Args:
        address: Address of the server, as of ``server_address``.
        process: Process of the arrivals.
        duration_s: Duration of the load.
        data: Data set of the examples.
        terms: Options of every request.
        model: Model to load; None: the first that the server lists.
        split: Split of the examples.
        form: ``"infer"``, ``"compute"`` or ``"grpc"``.
        priorities: Shares of the requests by priority; those left have none.
        tolerances: Shares of the requests by tolerance, all of them or none.
        timeout_s: Time until a request counts as failed.
        seed: Same seed, same requests.
    """

    address: str
    process: ArrivalProcess
    duration_s: float
    data: str | DataSource
    terms: Terms
    model: str | None = None
    split: str = "test"
    form: str = "infer"
    priorities: Mapping[int, float] = field(default_factory=dict)
    tolerances: Mapping[float, float] = field(default_factory=dict)
    timeout_s: float = ANSWER_WITHIN_S
    seed: int = 0

    def send(
        self,
        reporter: Reporter | None = None,
        *,
        processes: int = 1,
        faults: str | Path | Sequence[Fault] | None = None,
        out: Path | None = None,
    ) -> tuple[RequestLog, int]:
        """Send all requests; return their log and how many were to be sent.

        Args:
            reporter: Reporter of the progress.
            processes: Client processes.
            faults: Faults to inject, or their schedule, or its file.
            out: File for the log. After Ctrl-C it holds what had finished.

        Raises:
            ArgumentError: The server refuses the largest tolerance.
            InputError: The server has no such model, does not answer, or takes other examples.
            DataError: The data set cannot be read.
            RunError: The load could not be sent.
        """
        drawn_times(self.process, self.duration_s, self.seed)
        locate(self.data if isinstance(self.data, str) else self.data.name, DataOptions())
        plan, server, provenance = self._planned()
        provenance["processes"] = processes
        if (largest := max(self.tolerances, default=0.0)) > 1:
            _require_accepted(replace(server, terms=replace(self.terms, tolerance=largest)), plan.split.x)
        injection, began = None, dict[str, Any]()
        if faults is not None:
            schedule = read_faults(faults) if isinstance(faults, str | Path) else faults
            injection = FaultInjection(self.address, sorted(schedule, key=lambda fault: fault.at_s))
            injection.check(self.duration_s)
            began = {"began": partial(injection.begin, duration_s=self.duration_s)}
        text = f"{self.address}: {self.process.mean_rate_per_s:g} requests/s for {self.duration_s:g} s"
        with (reporter or Quiet()).progress(text, total=len(plan)) as steps:
            run = (
                LocalRun(plan, server, steps.advance, **began)
                if processes == 1
                else ManyProcesses(plan, server, processes, steps.advance, **began)
            )
            meter = EnergyMeter() if is_loopback(urlsplit(self.address).hostname or "") else None
            return _driven(run, out, provenance, injection, meter), len(plan)

    def _planned(self) -> tuple[LoadPlan, TargetServer, dict[str, Any]]:
        """Return the requests, whose examples the server's model takes, the server, and the provenance of their log."""
        model, terms = self.model or ask_first_model(self.address, self.form), self.terms
        if len(self.tolerances) == 1:
            terms = replace(terms, tolerance=next(iter(self.tolerances)))
        server = TargetServer(self.address, self.form, model, terms, self.timeout_s).described()
        source = DataSource.of(self.data)
        if has_many_labels(source):
            dataset: Any = load_multilabel(self.data)
        else:
            dataset = open_dataset(source, server.data_options(source), stored=True)
            dataset = dataset if server.class_count is None else numbered(dataset, server.class_count)
        examples = dataset.examples(self.split)
        plan = LoadPlan.draw(self.process, self.duration_s, examples, self.seed, self.priorities, self.tolerances)
        plan = plan.loaded()
        server.examples(plan.split.x)
        return plan, server, {
            "subject": server.model,
            "server": server.address,
            "endpoint": server.form,
            "terms": {name: term for name, term in asdict(server.terms).items() if name != "priority"},
            "arrivals": self.process.name,
            "rate_per_s": self.process.mean_rate_per_s,
            "duration_s": self.duration_s,
            "seed": self.seed,
            "data": dataset.name,
            "split": self.split,
            "machine": machine_id(),
            "priority": stated_shares(self.priorities),
            "tolerances": stated_shares(self.tolerances),
        }  # fmt: skip


def send_together(loads: Mapping[str, Load]) -> dict[str, RequestLog]:
    """Send several loads from one instant on, and return their logs. Raises as ``Load.send`` does."""
    planned = {name: load._planned() for name, load in loads.items()}
    runs = {name: LocalRun(plan, server) for name, (plan, server, _) in planned.items()}
    drive_together(list(runs.values()))
    return {name: run.log(planned[name][2]) for name, run in runs.items()}


def stated_shares(shares: Mapping[int, float] | Mapping[float, float]) -> str | None:
    """Return ``0=0.2,0.05=0.8``; None of no shares."""
    return ",".join(f"{each:g}={share:g}" for each, share in shares.items()) or None


def _require_accepted(server: TargetServer, x: Any) -> None:
    """Raise ``ArgumentError`` if the server rejects this tolerance: every request would end so, as 5 means 5 %."""

    async def ask() -> RequestResult:
        channel = server.connect()
        try:
            return await channel.ask(server.examples(x)(0), 0)
        finally:
            await channel.close()

    result = event_loop.run(ask())
    if "tolerance" in result.error:
        raise ArgumentError("tolerance", result.error)


def _driven(
    run: LoadRun,
    out: Path | None,
    provenance: dict[str, Any],
    injection: FaultInjection | None,
    meter: EnergyMeter | None,
) -> RequestLog:
    """Return the whole log, saved; on Ctrl-C what had finished is saved before the interruption goes on.

    ``meter``: of this machine, where the server is on it.
    """
    try:
        run.drive()
    except KeyboardInterrupt as interruption:
        if run.finished and out is not None:
            run.log({**provenance, "interrupted": True}).save(out)
            interruption.add_note(f"wrote {out} with the requests that had finished")
        elif out is not None:
            interruption.add_note(f"{out} is not written, as no request had finished")
        raise
    finally:
        if injection is not None:
            provenance["faults"] = injection.end()
    reason = "the server may be on another machine" if meter is None else meter.reason
    provenance |= {"energy_j": meter and meter.joules(), "energy_unknown": reason or None}
    log = run.log(provenance)
    if out is not None:
        log.save(out)
    return log


def priority_shares(priority: Mapping[int, float] | int | None) -> dict[int, float]:
    """Return shares by priority; what is left has none. Raises ``ArgumentError``."""
    if priority is None:
        return {}
    shares = {priority: 1.0} if isinstance(priority, int) else dict(priority)
    if not shares or min(shares) < 1 or min(shares.values()) < 0 or not sum(shares.values()) <= 1.0 + 1e-9:
        problem = "is neither a priority from 1 on nor shares like 1=0.2,2=0.3 that add up to 1 at most"
        raise ArgumentError("priority", f"{stated_shares(shares)!r} {problem}")
    return shares
