"""``slotool serve``: artifacts over HTTP, each answer at the operating point its request asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Json, cores_given

if TYPE_CHECKING:
    import socket
    from contextlib import AbstractContextManager

    from starlette.applications import Starlette

    from slotool.cli.output import Output
    from slotool.elastic import ElasticModel
    from slotool.rules.ruleset import RuleSet
    from slotool.serving import ServedModel
    from slotool.serving.server import Companion
    from slotool.tables import LatencyTable, OutcomeTable


def register(app: typer.Typer) -> None:
    app.command()(serve)


def serve(
    artifacts: Annotated[list[Path], typer.Argument(help="Networks, families or SLO-NNs.")],
    rules: Annotated[
        Path | None, typer.Option("--rules", help="Tolerance-tier rules, for the model that has their versions.")
    ] = None,
    latency: Annotated[
        Path | None, typer.Option("--latency", help="Latency table, to choose points by deadline and refuse early.")
    ] = None,
    outcomes: Annotated[
        list[Path] | None, typer.Option("--outcomes", help="Outcome table of a model, to choose points by accuracy.")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Name to serve under, once per artifact.", show_default="the artifact's"),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes any free one.")] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            "--grpc-port", min=0, max=65535, help="Serve gRPC too, on this port (Triton's is 8001); 0 takes any."
        ),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Compute threads per model call.")] = 1,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Most examples in one request.")] = 1_024,
    max_queue: Annotated[
        int, typer.Option("--max-queue", min=1, help="Waiting requests before refusing more.")
    ] = 1_000,
    drain: Annotated[float, typer.Option("--drain", min=1, help="Seconds to finish requests when told to end.")] = 10.0,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="Clients must show the token in this file (or in $SLOTOOL_TOKEN)."),
    ] = None,
    json: Json = False,
) -> None:
    """Serve artifacts over HTTP and gRPC, each answer at the operating point that its request asks for.

    Open Inference Protocol V2 under /v2 and, with --grpc-port (pip install 'slotool[grpc]'), over gRPC; one example per
    POST /compute; Prometheus at /metrics. A request may carry a deadline (timeout in µs, or Deadline-Ms), a tolerance
    and objective, a minimum accuracy and a priority; the answer says which operating point served it and why. Prints
    one line once it is ready; ends on SIGTERM (exit code 0) or Ctrl-C (130) after answering what is in flight.

    Example: slotool serve family --rules rules.json --latency latency.parquet
    """
    import signal
    from functools import partial

    import torch

    from slotool.cli.output import Output
    from slotool.serving import Limits, create_app
    from slotool.serving.guard import others_can_read, read_token
    from slotool.serving.server import bind, is_loopback, serve_until_told, url_of

    torch.set_num_threads(cores_given(threads))
    output = Output(as_json=json)
    token = read_token(token_file)
    if token_file is not None and others_can_read(token_file):
        output.warn(f"{token_file}: other users of this machine can read the token")
    # Before the models are loaded: a port in use should be known at once.
    with bind(host, port) as listener, _grpc_listener(host, grpc_port) as grpc_listener:
        models = _served_models(output, artifacts, name or [], rules, latency, outcomes or [], threads)
        app = create_app(models, limits=Limits(batch=max_batch, queue=max_queue), token=token)
        if not is_loopback(listener):
            who = "everyone who can reach this machine" if token is None else "everyone who overhears the token"
            output.warn(f"listening on {host}: {who} can use the server")
        beside, grpc_address = _grpc_front(app, grpc_listener)
        ready = partial(_ready, output, url_of(listener), grpc_address, models)
        ended_by = serve_until_told(app, listener, ready, drain_s=drain, beside=beside)
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


def _grpc_listener(host: str, port: int | None) -> AbstractContextManager[socket.socket | None]:
    """Keeps the port for gRPC, which can only be told a number; nobody can listen on it meanwhile."""
    from contextlib import nullcontext

    from slotool.serving.server import bind

    return nullcontext() if port is None else bind(host, port)


def _grpc_front(app: Starlette, listener: socket.socket | None) -> tuple[Companion | None, str | None]:
    """The front end for ``listener``'s address, and that address."""
    if listener is None:
        return None, None
    from slotool.errors import InputError
    from slotool.serving.server import address_of

    try:
        from slotool.serving.grpc_frontend import GrpcFrontEnd
    except ImportError as error:
        raise InputError(f"--grpc-port needs tritonclient's stubs: pip install 'slotool[grpc]' ({error})") from error
    address = address_of(listener)
    return GrpcFrontEnd(app.state.front, address), address


def _ready(output: Output, url: str, grpc_address: str | None, models: dict[str, ServedModel]) -> None:
    import sys
    from urllib.parse import urlsplit

    points = {served.name: [point.key for point in served.model.points] for served in models.values()}
    document = {"url": url, "port": urlsplit(url).port, "grpc": grpc_address, "models": points}
    and_grpc = f" and, over gRPC, at {grpc_address}" if grpc_address else ""
    output.result("serve", document, f"serving {', '.join(models)} at {url}{and_grpc}")
    sys.stdout.flush()


def _served_models(
    output: Output,
    artifacts: list[Path],
    names: list[str],
    rules_path: Path | None,
    latency_path: Path | None,
    outcome_paths: list[Path],
    threads: int,
) -> dict[str, ServedModel]:
    """Everything is read and matched before the first request, so that a wrong table is an error and no surprise."""
    from slotool.elastic import load_model
    from slotool.rules.ruleset import RuleSet
    from slotool.scheduling import ControlSpace, by_demand
    from slotool.serving import ServedModel
    from slotool.tables import LatencyTable, OutcomeTable

    if names and len(names) != len(artifacts):
        raise typer.BadParameter(f"{len(names)} names for {len(artifacts)} artifacts", param_hint="--name")
    rules = RuleSet.load(rules_path) if rules_path else None
    latency = LatencyTable.load(latency_path) if latency_path else None
    tables = {path: OutcomeTable.load(path) for path in outcome_paths}
    loaded = [load_model(str(path)) for path in artifacts]
    served: dict[str, ServedModel] = {}
    for given, model in zip(names or [model.name for model in loaded], loaded, strict=True):
        if given in served or not given or "/" in given:
            raise typer.BadParameter(f"{given!r} cannot name another model; choose names", param_hint="--name")
        mine = rules if rules and _has_versions(model, rules) else None
        conditions = _conditions(output, model, latency, threads)
        space = ControlSpace.of_tables(model.name, model.points, latency, _outcomes_of(model, tables), **conditions)
        served[given] = ServedModel(given, model, by_demand(space, mine), mine)
    _nothing_unused(served, rules, rules_path, tables)
    return served


def _has_versions(model: ElasticModel, rules: RuleSet) -> bool:
    from slotool.elastic.evaluation import version_name

    return {*rules.versions, rules.best_version} <= {version_name(point) for point in model.points}


def _outcomes_of(model: ElasticModel, tables: dict[Path, OutcomeTable]) -> OutcomeTable | None:
    """The table evaluated from this model: its provenance says so, or it has all of the model's points."""
    from slotool.elastic.evaluation import version_name

    names = {version_name(point) for point in model.points}
    fitting = [table for table in tables.values() if names <= set(table.versions)]
    return next((table for table in fitting if table.provenance.get("subject", model.name) == model.name), None)


def _conditions(output: Output, model: ElasticModel, latency: LatencyTable | None, threads: int) -> dict[str, Any]:
    """Which latency rows describe this server; falls back with a warning where only others were measured."""
    from slotool.machine import machine_id

    if latency is None:
        return {}
    alone = {"co_runners": "", "replicas": 1}
    rows = latency.where(subject=model.name, status="ok", **alone).rows
    if rows.empty:
        output.warn(f"the latency table has no rows of {model.name}: its deadlines only bound the time in the queue")
        return {}
    if threads not in set(rows["threads"]):
        output.warn(f"the latencies of {model.name} were measured with other threads than {threads}; the slowest count")
    if machine_id() not in set(rows["machine"]):
        output.warn(f"the latencies of {model.name} were measured on another machine")
    return {**alone, "threads": threads} if threads in set(rows["threads"]) else alone


def _nothing_unused(
    served: dict[str, ServedModel], rules: RuleSet | None, rules_path: Path | None, tables: dict[Path, OutcomeTable]
) -> None:
    from slotool.errors import InputError

    models = [entry.model for entry in served.values()]
    if rules and not any(entry.rules for entry in served.values()):
        wanted = ", ".join(sorted({*rules.versions, rules.best_version}))
        raise InputError(f"{rules_path}: no served model has the versions these rules consult: {wanted}")
    for path, table in tables.items():
        if not any(_outcomes_of(model, tables) is table for model in models):
            raise InputError(f"{path}: these are the outcomes of none of the served models")
