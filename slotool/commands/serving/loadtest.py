"""``slotool.loadtest``: real requests at drawn or recorded instants against a server, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.inputs import FilePath, loaded, tolerance_shares
from slotool.commands.outputs import writes
from slotool.commands.progress import Reporting, reporter_of
from slotool.commands.serving.load_tested import LoadTest
from slotool.commands.values import at_least, between, shares_by_priority
from slotool.commands.values import tolerance as tolerance_in
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.workloads import ArrivalProcess, ArrivalTable
    from slotool.workloads.client.channels import TargetServer
    from slotool.workloads.client.endpoint import RequestResult, Terms
    from slotool.workloads.client.faults import Fault, FaultInjection
    from slotool.workloads.client.open_loop import LoadPlan, LoadRun
    from slotool.workloads.requests import RequestLog

RATE_PER_S, DURATION_S = 200.0, 10.0


@command_line(
    required=("out",),
    values={"tolerance": tolerance_in, "priority": shares_by_priority, "faults": str},
    panels={
        "Load": ("rate", "duration_s", "arrivals", "faults", "processes"),
        "Server": ("model", "protocol", "endpoint", "timeout_s", "allow_remote"),
        "Request options": (*("split", "deadline_ms", "tolerance", "objective", "min_accuracy", "priority", "target"),),
    },
)
@writes("out")
def loadtest(
    url: str,
    out: FilePath | None = None,
    *,
    model: str | None = None,
    rate: Annotated[float, at_least(0.001)] | None = None,
    duration_s: float | None = None,
    arrivals: FilePath | ArrivalTable | None = None,
    data: str | DataSource = "auto",
    split: str = "test",
    protocol: str = "http",
    endpoint: str = "infer",
    processes: Annotated[int, between(1, 256)] = 1,
    deadline_ms: Annotated[float, at_least(0.001)] | None = None,
    tolerance: float | Mapping[float, float] | None = None,
    objective: str | None = None,
    min_accuracy: Annotated[float, between(0, 1)] | None = None,
    priority: Mapping[int, float] | int | None = None,
    target: Annotated[float, between(0, 1)] | None = None,
    timeout_s: float = 10.0,
    allow_remote: bool = False,
    seed: Annotated[int, at_least(0)] = 0,
    faults: str | FilePath | Sequence[Fault] | None = None,
    force: bool = False,
    progress: Reporting = "auto",
) -> LoadTest:
    """Send held-out examples to a server, and log each request.

    A request is sent when it is due, however many are outstanding, and its latency counts from then. Effective
    accuracy is the share of all requests answered correctly and in time. A client too late to judge the server is a
    failed run (exit 3). $SLOTOOL_TOKEN holds the server's bearer token.

    Example: slotool loadtest http://127.0.0.1:8000 -o requests.parquet --rate 200 --duration 10s --deadline-ms 20

    Args:
        url: The server, such as ``http://127.0.0.1:8000``.
        out: File for the request log. After Ctrl-C it holds what had finished.
        model: Model to load; None: the first the server lists.
        rate: Mean requests per second; None: 200.
        duration_s: Duration of the load; None: 10s.
        arrivals: Replay this file of ``generate_arrivals``.
        data: Data set of the examples.
        split: Split of the examples: test, validation, train or all.
        protocol: ``"http"`` or ``"grpc"``.
        endpoint: ``"infer"`` (Open Inference Protocol V2) or ``"compute"``.
        processes: Client processes.
        deadline_ms: Deadline of every request.
        tolerance: Degradation accepted, 0.05; or shares: 0=0.2,0.05=0.8.
        objective: Saving by the tolerance: response-time or cost.
        min_accuracy: Accuracy that every answer should have.
        priority: Priority of every request, 1 the highest; or shares: 1=0.2,2=0.3.
        target: Exit 1 when a smaller share meets the deadline. The share holds for the requests of each tolerance too.
        timeout_s: Time until a request counts as failed.
        allow_remote: Allow another machine, whose owner expects this load.
        seed: Same seed, same result.
        faults: Schedule, or file: "5s:kill 1, 15s:slow 0 2x for 5s". Workers of a server on this machine that was
            started with --allow-faults are killed, stopped and slowed.
        force: Replace ``out`` if it exists.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

    Returns:
        Figures (``summary``) and the log (``frame()``).

    Raises:
        ArgumentError: An argument has a value that it cannot have, or contradicts another.
        InputError: The server has no such model, does not answer, or takes other examples.
        DataError: The data set cannot be read.
        RunError: The load could not be sent.
        AlreadyExistsError: ``out`` exists.
    """
    from slotool.data import DataOptions
    from slotool.data.registry import locate
    from slotool.workloads import ArrivalTable, Poisson, RecordedInstants
    from slotool.workloads.client.channels import TargetServer, ask_first_model
    from slotool.workloads.client.endpoint import Terms
    from slotool.workloads.client.many_processes import ManyProcesses
    from slotool.workloads.client.open_loop import LocalRun, drawn_times
    from slotool.workloads.client.target import server_address

    form, shares, tolerances = _form(protocol, endpoint), _shares(priority), tolerance_shares(tolerance)
    address = server_address(url, scheme=protocol, allow_remote=allow_remote)
    written = None if out is None else Path(out)
    process: ArrivalProcess
    if arrivals is None:
        rate, duration_s = rate or RATE_PER_S, duration_s or DURATION_S
        process = Poisson(rate)
    else:
        for argument, given in (("rate", rate), ("duration_s", duration_s)):
            if given is not None:
                raise ArgumentError(argument, "it has no effect with --arrivals; leave it out")
        process = RecordedInstants(loaded(ArrivalTable, arrivals).times_s, from_start=True)
        rate, duration_s = process.mean_rate_per_s, process.duration_s
    drawn_times(process, duration_s, seed)
    locate(data if isinstance(data, str) else data.name, DataOptions())
    own_tolerance = next(iter(tolerances)) if len(tolerances) == 1 else None
    deadline_s = None if deadline_ms is None else deadline_ms / 1e3
    terms = Terms(deadline_s, own_tolerance, objective, min_accuracy)
    _require_meant(terms, tolerances, target)
    server = TargetServer(address, form, model or ask_first_model(address, form), terms, timeout_s).described()
    plan, provenance = _planned(server, process, duration_s, data, split, seed, shares, tolerances)
    provenance["processes"] = processes
    if max(tolerances, default=0.0) > 1:
        _require_accepted(replace(server, terms=replace(terms, tolerance=max(tolerances))), plan.split.x)
    injection = None if faults is None else _injection(address, faults, duration_s)
    began: dict[str, Any] = {} if injection is None else {"began": partial(injection.begin, duration_s=duration_s)}
    text = f"{address}: {rate:g} requests/s for {duration_s:g} s"
    with reporter_of(progress).progress(text, total=len(plan)) as steps:
        run = (
            LocalRun(plan, server, steps.advance, **began)
            if processes == 1
            else ManyProcesses(plan, server, processes, steps.advance, **began)
        )
        log = _drive(run, written, provenance, injection)
    return LoadTest(log, len(plan), target, written)


def _planned(
    server: TargetServer,
    process: ArrivalProcess,
    duration_s: float,
    data: str | DataSource,
    split: str,
    seed: int,
    shares: Mapping[int, float] = MappingProxyType({}),
    tolerances: Mapping[float, float] = MappingProxyType({}),
) -> tuple[LoadPlan, dict[str, Any]]:
    """Return the requests of a load, whose examples the server's model takes, and the provenance of their log."""
    from slotool.data import DataSource, has_many_labels, load_multilabel, numbered, open_dataset
    from slotool.machine import machine_id
    from slotool.workloads.client.open_loop import LoadPlan

    source = DataSource.of(data)
    if has_many_labels(source):
        dataset: Any = load_multilabel(data)
    else:
        dataset = open_dataset(source, server.data_options(source), stored=True)
        dataset = dataset if server.class_count is None else numbered(dataset, server.class_count)
    plan = LoadPlan.draw(process, duration_s, dataset.examples(split), seed, shares, tolerances).loaded()
    server.examples(plan.split.x)
    return plan, {
        "subject": server.model,
        "server": server.address,
        "endpoint": server.form,
        "terms": {name: asked for name, asked in asdict(server.terms).items() if name != "priority"},
        "arrivals": process.name,
        "rate_per_s": process.mean_rate_per_s,
        "duration_s": duration_s,
        "seed": seed,
        "data": dataset.name,
        "split": split,
        "machine": machine_id(),
        "priority": _stated(shares),
        "tolerances": _stated(tolerances),
    }


def models_together(
    url: str, models: Mapping[str, tuple[ArrivalTable, float, str | DataSource, str]], seed: int = 0
) -> dict[str, RequestLog]:
    """Send requests for several models of one server on this machine at the same time, and return their logs.

    ``models``: by name the instants of the requests, their deadline in milliseconds, and of which data which split is
    sent. Raises as ``loadtest`` does.
    """
    from slotool.workloads import RecordedInstants
    from slotool.workloads.client.channels import TargetServer
    from slotool.workloads.client.endpoint import Terms
    from slotool.workloads.client.open_loop import LocalRun, drive_together
    from slotool.workloads.client.target import server_address

    address, runs = server_address(url, scheme="http", allow_remote=False), {}
    for name, (arrivals, deadline_ms, data, split) in models.items():
        terms = Terms(deadline_ms / 1e3, None, None, None)
        server = TargetServer(address, "infer", name, terms, 10.0).described()
        process = RecordedInstants(arrivals.times_s, from_start=True)
        plan, provenance = _planned(server, process, process.duration_s, data, split, seed)
        runs[name] = LocalRun(plan, server), provenance
    drive_together([run for run, _ in runs.values()])
    return {name: run.log(provenance) for name, (run, provenance) in runs.items()}


def _form(protocol: str, endpoint: str) -> str:
    if protocol not in ("http", "grpc"):
        raise ArgumentError("protocol", f"{protocol!r} is neither http nor grpc")
    if endpoint not in ("infer", "compute"):
        raise ArgumentError("endpoint", f"{endpoint!r} is neither infer nor compute")
    if protocol == "grpc" and endpoint != "infer":
        raise ArgumentError("endpoint", "gRPC has the Open Inference Protocol only")
    return "grpc" if protocol == "grpc" else endpoint


def _shares(priority: Mapping[int, float] | int | None) -> dict[int, float]:
    """Shares by priority; what is left has none. Raises ``ArgumentError``."""
    if priority is None:
        return {}
    shares = {priority: 1.0} if isinstance(priority, int) else dict(priority)
    if not shares or min(shares) < 1 or min(shares.values()) < 0 or not sum(shares.values()) <= 1.0 + 1e-9:
        stated = _stated(shares)
        problem = "is neither a priority from 1 on nor shares like 1=0.2,2=0.3 that add up to 1 at most"
        raise ArgumentError("priority", f"{stated!r} {problem}")
    return shares


def _stated(shares: Mapping[int, float] | Mapping[float, float]) -> str | None:
    return ",".join(f"{each:g}={share:g}" for each, share in shares.items()) or None


def _injection(address: str, given: FilePath | Sequence[Fault], duration_s: float) -> FaultInjection:
    from slotool.workloads.client.faults import FaultInjection, read_faults

    schedule = read_faults(given) if isinstance(given, str | Path) else sorted(given, key=lambda fault: fault.at_s)
    injection = FaultInjection(address, schedule)
    injection.check(duration_s)
    return injection


def _require_meant(terms: Terms, tolerances: Mapping[float, float], target: float | None) -> None:
    """Raise ``ArgumentError`` for terms that contradict each other."""
    if terms.objective not in (None, "response-time", "cost"):
        raise ArgumentError("objective", f"{terms.objective!r} is neither response-time nor cost")
    if terms.objective is not None and not tolerances:
        raise ArgumentError("objective", "it says what a tolerance saves: give --tolerance too")
    if tolerances and terms.min_accuracy is not None:
        raise ArgumentError("min_accuracy", "it contradicts --tolerance: ask for one of them")
    if target is not None and terms.deadline_s is None:
        raise ArgumentError("target", "it is the share that meets a deadline: give --deadline-ms too")


def _require_accepted(server: TargetServer, x: Any) -> None:
    """Raise ``ArgumentError`` with the server's sentence where it refuses a request of this tolerance: 5 is meant as
    5 %, and every request would end so."""
    from slotool.workloads.client import event_loop

    async def ask() -> RequestResult:
        channel = server.connect()
        try:
            return await channel.ask(server.examples(x)(0), 0)
        finally:
            await channel.close()

    result = event_loop.run(ask())
    if "tolerance" in result.error:
        raise ArgumentError("tolerance", result.error)


def _drive(run: LoadRun, out: Path | None, provenance: dict[str, Any], injection: FaultInjection | None) -> RequestLog:
    """Return the whole log, saved; on Ctrl-C what had finished is saved before the interruption goes on."""
    try:
        run.drive()
    except KeyboardInterrupt:
        if run.finished and out is not None:
            run.log({**provenance, "interrupted": True}).save(out)
        raise
    finally:
        if injection is not None:
            provenance["faults"] = injection.end()
    log = run.log(provenance)
    if out is not None:
        log.save(out)
    return log
