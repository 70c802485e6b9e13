"""``slotool loadtest``: real requests at drawn or recorded instants against a server, and what became of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
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
    parse_tolerance,
)

_load, _server, _requests = map(panel, ("Load", "Server", "Request options"))


def register(app: typer.Typer) -> None:
    app.command()(loadtest)


def loadtest(
    url: Annotated[str, typer.Argument(help="The server, e.g. http://127.0.0.1:8000.")],
    out: Out,
    model: Annotated[
        str | None, _server("--model", help="Which model.", show_default="the first the server lists")
    ] = None,
    rate: Annotated[
        float | None, _load("--rate", min=0.001, help="Mean requests per second.", show_default="200")
    ] = None,
    duration: Annotated[
        str | None, _load("--duration", help="How long to send, e.g. 30s or 2min.", show_default="10s")
    ] = None,
    arrivals: Annotated[Path | None, _load("--arrivals", help="Replay this file of generate arrivals.")] = None,
    faults: Annotated[
        str | None, _load("--faults", help='Schedule, or file: "5s:kill 1, 15s:slow 0 2x for 5s".')
    ] = None,
    data: DataName = "auto",
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    split: Annotated[str, _requests("--split", help="Which examples: test, validation, train or all.")] = "test",
    protocol: Annotated[str, _server("--protocol", help="http or grpc.")] = "http",
    endpoint: Annotated[str, _server("--endpoint", help="infer (Open Inference Protocol V2) or compute.")] = "infer",
    processes: Annotated[int, _load("--processes", min=1, max=256, help="Client processes.")] = 1,
    deadline_ms: Annotated[
        float | None, _requests("--deadline-ms", min=0.001, help="Deadline of every request.")
    ] = None,
    tolerance: Annotated[
        str | None, _requests("--tolerance", help="Degradation accepted, 0.05; or shares: 0=0.2,0.05=0.8.")
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
    """Send held-out examples to a server, and log each request.

    A request is sent when it is due, however many are outstanding, and its latency counts from then. Effective
    accuracy is the share of all requests answered correctly and in time. A client too late to judge the server is a
    failed run (exit 3). $SLOTOOL_TOKEN holds the server's bearer token.

    Example: slotool loadtest http://127.0.0.1:8000 -o requests.parquet --rate 200 --duration 10s --deadline-ms 20
    """
    from slotool.cli.output import Output

    output = Output(as_json=json)
    found = slotool.loadtest(
        url,
        out,
        model=model,
        rate=rate,
        duration_s=parse_duration(duration, "--duration"),
        arrivals=arrivals,
        data=data_source(data, label, inputs, images),
        split=split,
        protocol=protocol,
        endpoint=endpoint,
        processes=processes,
        deadline_ms=deadline_ms,
        tolerance=parse_tolerance(tolerance),
        objective=objective,
        min_accuracy=min_accuracy,
        priority=_shares(priority),
        target=target,
        timeout_s=timeout,
        allow_remote=allow_remote,
        seed=seed,
        faults=faults,
        force=force,
        progress=output,
    )
    output.show(found)
    found.judge()


def _shares(text: str | None) -> dict[int, float] | None:
    """Shares by priority: ``1`` is all of 1, ``1=0.2,2=0.3`` leaves half of the requests without any."""
    if text is None:
        return None
    try:
        pairs = [(int(left), float(share) if given else 1.0) for left, given, share in
                 (part.partition("=") for part in text.split(","))]  # fmt: skip
    except ValueError:
        pairs = []
    if not pairs or len(dict(pairs)) < len(pairs):
        raise typer.BadParameter(
            f"{text!r} is neither a priority from 1 on nor shares like 1=0.2,2=0.3 that add up to 1 at most",
            param_hint="--priority",
        )
    return dict(pairs)
