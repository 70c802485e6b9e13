"""``slotool.loadtest``: real requests at drawn or recorded instants to a server, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from slotool.commands.command_line import command_line
from slotool.commands.inputs import tolerance_shares
from slotool.commands.outputs import writes
from slotool.commands.serving.load_tested import LoadTest
from slotool.commands.values import at_least, between, shares_by_priority
from slotool.commands.values import tolerance as tolerance_in
from slotool.errors import ArgumentError
from slotool.progress import Reporting, reporter_of
from slotool.sources import FilePath, loaded

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.workloads import ArrivalProcess, ArrivalTable
    from slotool.workloads.client.endpoint import Terms
    from slotool.workloads.client.faults import Fault

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

    A request is sent when it is due, regardless of others outstanding, and its latency counts from then. Effective
    accuracy is the share of all requests answered correctly and in time. If the client is too late to judge the server,
    the run fails (exit 3). $SLOTOOL_TOKEN holds the bearer token.

    Example: slotool loadtest http://127.0.0.1:8000 -o requests.parquet --rate 200 --duration 10s --deadline-ms 20

    Args:
        url: The server, such as ``http://127.0.0.1:8000``.
        out: File for the request log. After Ctrl-C it holds the finished requests.
        model: Model to load; None: the first one of the server.
        rate: Mean requests per second; None: 200.
        duration_s: Duration of the load; None: 10s.
        arrivals: Arrival table to replay, from ``generate_arrivals``.
        data: Data set of the examples.
        split: Split of the examples: test, validation, train or all.
        protocol: ``"http"`` or ``"grpc"``.
        endpoint: ``"infer"`` (Open Inference Protocol V2) or ``"compute"``.
        processes: Client processes.
        deadline_ms: Deadline of every request, milliseconds.
        tolerance: Accepted degradation, 0.05; or shares: 0=0.2,0.05=0.8.
        objective: Saving by the tolerance: response-time or cost.
        min_accuracy: Minimum accuracy of every answer.
        priority: Priority of every request, 1 the highest; or shares: 1=0.2,2=0.3.
        target: Exit 1 if a smaller share meets the deadline. The share holds for the requests of each tolerance too.
        timeout_s: Time after which a request counts as failed.
        allow_remote: Allow another machine, whose owner expects this load.
        faults: Schedule, or file: "5s:kill 1, 15s:slow 0 2x for 5s". It kills, stops and slows workers of a server on
            this machine that was started with --allow-faults.

    Returns:
        Figures (``summary``) and the log (``frame()``).

    Raises:
        ArgumentError: An argument has a value that it cannot have, or contradicts another.
        InputError: The server has no such model, does not answer, or needs other examples.
        DataError: The data set cannot be read.
        RunError: The load could not be sent.
    """
    from slotool.workloads import ArrivalTable, Poisson, RecordedInstants
    from slotool.workloads.client.endpoint import Terms
    from slotool.workloads.client.load import Load, priority_shares
    from slotool.workloads.client.target import server_address

    form, shares, tolerances = _form(protocol, endpoint), priority_shares(priority), tolerance_shares(tolerance)
    address = server_address(url, scheme=protocol, allow_remote=allow_remote)
    written = None if out is None else Path(out)
    process: ArrivalProcess
    if arrivals is None:
        process, duration_s = Poisson(rate or RATE_PER_S), duration_s or DURATION_S
    else:
        for argument, value in (("rate", rate), ("duration_s", duration_s)):
            if value is not None:
                raise ArgumentError(argument, "it has no effect with --arrivals; leave it out")
        process = RecordedInstants(loaded(ArrivalTable, arrivals).times_s, from_start=True)
        duration_s = process.duration_s
    terms = Terms(None if deadline_ms is None else deadline_ms / 1e3, None, objective, min_accuracy)
    _require_meant(terms, tolerances, target)
    load = Load(
        address, process, duration_s, data, terms, model=model, split=split, form=form, priorities=shares,
        tolerances=tolerances, timeout_s=timeout_s, seed=seed,
    )  # fmt: skip
    log, planned = load.send(reporter_of(progress), processes=processes, faults=faults, out=written)
    return LoadTest(log, planned, target, written)


def _form(protocol: str, endpoint: str) -> str:
    if protocol not in ("http", "grpc"):
        raise ArgumentError("protocol", f"{protocol!r} is neither http nor grpc")
    if endpoint not in ("infer", "compute"):
        raise ArgumentError("endpoint", f"{endpoint!r} is neither infer nor compute")
    if protocol == "grpc" and endpoint != "infer":
        raise ArgumentError("endpoint", "gRPC has the Open Inference Protocol only")
    return "grpc" if protocol == "grpc" else endpoint


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
