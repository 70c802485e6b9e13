"""``slotool loadtest``: real requests at drawn or recorded instants against a server, and what became of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.commands import refuse_without_effect
from slotool.cli.options import (
    DataImages,
    DataInputs,
    DataLabel,
    DataName,
    Force,
    Json,
    Out,
    Seed,
    data_source,
    panel,
    parse_duration,
)

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.data import Dataset
    from slotool.workloads import ArrivalProcess
    from slotool.workloads.channels import TargetServer
    from slotool.workloads.client import LoadPlan, LoadRun
    from slotool.workloads.requests import RequestLog

# A send delay above this share of the deadline (or of the median latency) distorts the result.
NOTICEABLE_SEND_DELAY = 0.1
# Below this share of the target rate the client could not keep up.
ACHIEVED = 0.98

_load, _server, _requests = map(panel, ("Load", "Server", "Request options"))


def register(app: typer.Typer) -> None:
    app.command()(loadtest)


def loadtest(
    url: Annotated[str, typer.Argument(help="The server, e.g. http://127.0.0.1:8000.")],
    out: Out,
    model: Annotated[
        str | None, _server("--model", help="Which model.", show_default="the first the server lists")
    ] = None,
    rate: Annotated[float, _load("--rate", min=0.001, help="Mean requests per second.")] = 200.0,
    duration: Annotated[str, _load("--duration", help="How long to send, e.g. 30s or 2min.")] = "10s",
    arrivals_file: Annotated[
        Path | None, _load("--arrivals", help="Replay this file of generate arrivals, not Poisson arrivals.")
    ] = None,
    data: DataName = "auto",
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    protocol: Annotated[str, _server("--protocol", help="http or grpc.")] = "http",
    endpoint: Annotated[str, _server("--endpoint", help="infer (Open Inference Protocol V2) or compute.")] = "infer",
    processes: Annotated[int, _load("--processes", min=1, max=256, help="Client processes.")] = 1,
    deadline_ms: Annotated[
        float | None, _requests("--deadline-ms", min=0.001, help="Deadline of every request.")
    ] = None,
    tolerance: Annotated[
        float | None, _requests("--tolerance", min=0.0, help="Error degradation accepted, e.g. 0.05.")
    ] = None,
    objective: Annotated[
        str | None, _requests("--objective", help="What the tolerance saves: response-time or cost.")
    ] = None,
    min_accuracy: Annotated[
        float | None, _requests("--min-accuracy", min=0.0, max=1.0, help="Accuracy that every answer should have.")
    ] = None,
    priority: Annotated[
        str | None, _requests("--priority", help="Of every request, 1 the highest; or shares: 1=0.2,2=0.3.")
    ] = None,
    target: Annotated[
        float | None,
        _requests("--target", min=0.0, max=1.0, help="Exit 1 when a smaller share meets the deadline."),
    ] = None,
    timeout: Annotated[float, _server("--timeout", min=0.1, help="Seconds until a request counts as failed.")] = 10.0,
    allow_remote: Annotated[
        bool, _server("--allow-remote", help="Allow another machine, whose owner expects this load.")
    ] = False,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Send test examples to a server, open loop, and log each request.

    Every request is sent when it is due, at a Poisson or recorded instant, however many are outstanding, and its
    latency counts from then. Effective accuracy is the share of all requests answered correctly and in time. A client
    too late to judge the server is a failed run (exit 3). $SLOTOOL_TOKEN holds the server's bearer token.

    Example: slotool loadtest http://127.0.0.1:8000 -o requests.parquet --rate 200 --duration 10s --deadline-ms 20
    """
    form, shares = _form(protocol, endpoint), _shares(priority)
    _check_terms(deadline_ms, tolerance, objective, min_accuracy, target)
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.data import DataOptions, load_dataset
    from slotool.data.registry import locate
    from slotool.workloads import ArrivalTable, Poisson, RecordedInstants
    from slotool.workloads.channels import TargetServer, ask_first_model
    from slotool.workloads.client import LoadPlan, drawn_times
    from slotool.workloads.endpoint import Terms
    from slotool.workloads.target import server_address

    duration_s = parse_duration(duration, "--duration")
    assert duration_s is not None
    address = server_address(url, scheme=protocol, allow_remote=allow_remote)
    refuse_existing(out, force)
    arrivals: ArrivalProcess = Poisson(rate)
    if arrivals_file is not None:
        refuse_without_effect(("rate", "duration"), "with --arrivals")
        arrivals = RecordedInstants(ArrivalTable.load(arrivals_file).times_s, from_start=True)
        rate, duration_s = arrivals.mean_rate_per_s, arrivals.duration_s
    drawn_times(arrivals, duration_s, seed)
    locate((source := data_source(data, label, inputs, images)).name, DataOptions())
    terms = Terms(None if deadline_ms is None else deadline_ms / 1e3, tolerance, objective, min_accuracy)
    server = TargetServer(address, form, model or ask_first_model(address, form), terms, timeout).described()
    tensors = server.signature.inputs if server.signature else ()
    dataset = load_dataset(source, tensors=tensors, target="any", stored=True)
    plan = LoadPlan.draw(arrivals, duration_s, dataset.test, seed, shares).loaded()
    server.examples(plan.split.x)
    provenance = _provenance(server, dataset, arrivals.name, rate, duration_s, seed)
    provenance |= {"processes": processes, "priority": priority}
    output = Output(as_json=json)
    with output.progress(f"{address}: {rate:g} requests/s for {duration_s:g} s", total=len(plan)) as progress:
        log = _drive(_run(plan, server, processes, progress.advance), out, provenance)
    _report(output, log, out, target)
    _refuse_late(log, len(plan))
    if target is not None and deadline_ms is not None:
        _judge(log.summary(), target, deadline_ms)


def _form(protocol: str, endpoint: str) -> str:
    if protocol not in ("http", "grpc"):
        raise typer.BadParameter(f"{protocol!r} is neither http nor grpc", param_hint="--protocol")
    if endpoint not in ("infer", "compute"):
        raise typer.BadParameter(f"{endpoint!r} is neither infer nor compute", param_hint="--endpoint")
    if protocol == "grpc" and endpoint != "infer":
        raise typer.BadParameter("gRPC has the Open Inference Protocol only", param_hint="--endpoint")
    return "grpc" if protocol == "grpc" else endpoint


def _shares(text: str | None) -> dict[int, float]:
    """Shares by priority: ``1`` is all of 1, ``1=0.2,2=0.3`` leaves half of the requests without any."""
    if text is None:
        return {}
    try:
        pairs = [(int(left), float(share) if given else 1.0) for left, given, share in
                 (part.partition("=") for part in text.split(","))]  # fmt: skip
    except ValueError:
        pairs = []
    shares = dict(pairs)
    meant = shares and len(shares) == len(pairs) and min(shares) >= 1 and min(shares.values()) >= 0
    if not meant or not sum(shares.values()) <= 1.0 + 1e-9:
        raise typer.BadParameter(
            f"{text!r} is neither a priority from 1 on nor shares like 1=0.2,2=0.3 that add up to 1 at most",
            param_hint="--priority",
        )
    return shares


def _run(plan: LoadPlan, server: TargetServer, processes: int, advance: Callable[..., None]) -> LoadRun:
    from slotool.workloads.client import LocalRun
    from slotool.workloads.many_processes import ManyProcesses

    return LocalRun(plan, server, advance) if processes == 1 else ManyProcesses(plan, server, processes, advance)


def _refuse_late(log: RequestLog, planned: int) -> None:
    """Raises ``RunError`` when the client was so late that the log says nothing of the server."""
    import numpy as np

    from slotool.cli.output import duration
    from slotool.errors import RunError

    advice = "nothing can be judged; use more --processes or a lower --rate"
    if len(log) < planned:
        late_s = float(log.send_delay_s.max())
        raise RunError(
            f"the client was {duration(late_s)} late and stopped after {len(log):,} of {planned:,} requests: {advice}"
        )
    median_s = float(np.median(log.send_delay_s))
    if log.deadline_s is not None and median_s > log.deadline_s:
        raise RunError(
            f"the client sent half of the requests {duration(median_s)} late or more, beyond their deadline of "
            f"{duration(log.deadline_s)}: {advice}"
        )


def _judge(summary: dict[str, Any], target: float, deadline_ms: float) -> None:
    """Raises ``PromiseBroken`` when the server missed the target, ``RunError`` when the client's send delay may be the
    cause."""
    from slotool.errors import PromiseBroken, RunError

    met, met_from_sending = summary["deadline_meet_rate"], summary["deadline_meet_rate_from_sending"]
    sentence = f"{met:.2%} of the requests met their deadline of {deadline_ms:g} ms, the target is {target:.2%}"
    if met >= target:
        return
    if met_from_sending >= target:
        raise RunError(
            f"{sentence}, but {met_from_sending:.2%} counted from when the client sent them: the client was late, so "
            "there is no verdict; use more --processes or a lower --rate"
        )
    raise PromiseBroken(sentence)


def _check_terms(
    deadline_ms: float | None,
    tolerance: float | None,
    objective: str | None,
    min_accuracy: float | None,
    target: float | None,
) -> None:
    if objective not in (None, "response-time", "cost"):
        raise typer.BadParameter(f"{objective!r} is neither response-time nor cost", param_hint="--objective")
    if objective is not None and tolerance is None:
        raise typer.BadParameter("it says what a tolerance saves: give --tolerance too", param_hint="--objective")
    if tolerance is not None and min_accuracy is not None:
        raise typer.BadParameter("it contradicts --tolerance: ask for one of them", param_hint="--min-accuracy")
    if target is not None and deadline_ms is None:
        raise typer.BadParameter("it is the share that meets a deadline: give --deadline-ms too", param_hint="--target")


def _drive(run: LoadRun, out: Path, provenance: dict[str, Any]) -> RequestLog:
    """The whole log, saved; on Ctrl-C what had finished is saved before the interruption goes on."""
    try:
        run.drive()
    except KeyboardInterrupt:
        if run.finished:
            run.log({**provenance, "interrupted": True}).save(out)
        raise
    log = run.log(provenance)
    log.save(out)
    return log


def _provenance(
    server: TargetServer, dataset: Dataset, arrivals: str, rate: float, duration_s: float, seed: int
) -> dict[str, Any]:
    from dataclasses import asdict

    from slotool.machine import machine_id

    return {
        "subject": server.model,
        "server": server.address,
        "endpoint": server.form,
        "terms": asdict(server.terms),
        "arrivals": arrivals,
        "rate_per_s": rate,
        "duration_s": duration_s,
        "seed": seed,
        "data": dataset.name,
        "split": "test",
        "machine": machine_id(),
    }


def _report(output: Output, log: RequestLog, out: Path, target: float | None) -> None:
    from slotool.cli.output import duration, table

    summary, statuses, points = log.summary(), log.statuses(), log.points()
    document = {**log.provenance, **summary, "statuses": statuses, "points": points, "target": target, "log": str(out)}
    document["priorities"] = priorities = log.priorities()
    title = f"{summary['requests']:,} requests to {log.provenance['subject']}"
    shown: list[Any] = [table(title, ["figure", "value"], _figures(summary, target))]
    if len(statuses) > 1 or summary["answered"] < summary["requests"]:
        rows = [[str(s["status"] or "none"), f"{s['requests']:,}", s["error"]] for s in statuses]
        shown.append(table("HTTP status", ["status", "requests", "for example"], rows))
    if points:
        columns = ["operating point", "share", "accuracy", "median latency"]
        cells = [
            [p["point"], f"{p['share']:.1%}", _accuracy(p["accuracy"]), duration(p["median_latency_s"])] for p in points
        ]
        shown.append(table("Operating points", columns, cells))
    if len(priorities) > 1:
        columns = ["priority", "requests", "answered", "in time", "effective accuracy"]
        shown.append(table("By priority", columns, [_of_priority(found) for found in priorities]))
    output.result("loadtest", document, *shown, f"wrote {out}")
    _warn_of_send_delay(output, summary)


def _of_priority(found: dict[str, Any]) -> list[str]:
    shares = [f"{found[name]:.2%}" for name in ("answered", "deadline_meet_rate")]
    return [str(found["priority"] or "none"), f"{found['requests']:,}", *shares, _accuracy(found["effective_accuracy"])]


def _accuracy(share: float) -> str:
    """Unknown where answers or data have no classes, and where nothing was answered."""
    return f"{share:.4f}" if share >= 0 else "–"


def _figures(summary: dict[str, Any], target: float | None) -> list[list[str]]:
    import math

    from slotool.cli.output import duration

    def time(name: str) -> str:
        return "– (too few answers)" if math.isnan(summary[name]) else duration(summary[name])

    deadline_s = summary["deadline_s"]
    met = "answered (no deadline was set)" if deadline_s is None else f"met the deadline of {duration(deadline_s)}"
    verdict = "" if target is None else f" (target {target:.2%})"
    late = "send_delay_max_s" if math.isnan(summary["send_delay_p99_s"]) else "send_delay_p99_s"
    rates = [f"{summary[name]:.1f}/s" for name in ("achieved_rate_per_s", "target_rate_per_s")]
    return [
        ["p50 latency", time("p50_s")],
        ["p90 latency", time("p90_s")],
        ["p99 latency", time("p99_s")],
        [met, f"{summary['deadline_meet_rate']:.2%}{verdict}"],
        ["effective accuracy", _accuracy(summary["effective_accuracy"])],
        ["accuracy of answered", _accuracy(summary["accuracy_of_answered"])],
        ["achieved of target rate", f"{rates[0]} of {rates[1]}"],
        ["client send delay", f"{time(late)} ({'p99' if late == 'send_delay_p99_s' else 'worst'})"],
    ]


def _warn_of_send_delay(output: Output, summary: dict[str, Any]) -> None:
    import math

    from slotool.cli.output import duration

    p99_s, worst_s = summary["send_delay_p99_s"], summary["send_delay_max_s"]
    send_delay_s, share = (worst_s, "one request") if math.isnan(p99_s) else (p99_s, "1 % of the requests")
    measure_s = summary["deadline_s"] or summary["p50_s"]
    wanted, achieved = summary["target_rate_per_s"], summary["achieved_rate_per_s"]
    if achieved < ACHIEVED * wanted:
        output.warn(f"the client achieved {achieved:.1f}/s of the target rate {wanted:.1f}/s")
    if send_delay_s > NOTICEABLE_SEND_DELAY * measure_s:
        output.warn(
            f"the client sent {share} {duration(send_delay_s)} late or more, which counts in the latencies above; "
            "use more --processes or a lower --rate, or leave the client a core of its own"
        )
