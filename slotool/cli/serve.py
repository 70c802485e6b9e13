"""``slotool serve``: artifacts over HTTP, each answer at the operating point its request asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotool.cli import interrupts
from slotool.cli.commands import refuse_without_effect
from slotool.cli.options import Json, cores_given, parse_duration

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from starlette.applications import Starlette

    from slotool.cli.output import Output
    from slotool.serving import ServedModel
    from slotool.serving.engines import InferenceEngine
    from slotool.serving.events import Events
    from slotool.serving.runtime_settings import ReloadableSettings
    from slotool.serving.server import SecondaryFrontEnd


def register(app: typer.Typer) -> None:
    app.command()(serve)


_POINTS, _NETWORK, _WORKERS, _LIMITS, _RUN = (
    "Operating points",
    "Network",
    "Workers",
    "Limits",
    "Operation",
)


def serve(
    artifacts: Annotated[list[Path], typer.Argument(help="Networks, families, SLO-NNs or supernets.")],
    rules: Annotated[
        Path | None, typer.Option("--rules", help="Tolerance tiers, from gen-rules.", rich_help_panel=_POINTS)
    ] = None,
    latency: Annotated[
        Path | None,
        typer.Option("--latency", help="Latency table: choose points by deadline.", rich_help_panel=_POINTS),
    ] = None,
    outcomes: Annotated[
        list[Path] | None,
        typer.Option(
            "--outcomes", help="Outcome table of a model: choose points by accuracy.", rich_help_panel=_POINTS
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="by-demand, or a batching policy: value-iteration, slackfit, switching …",
            rich_help_panel=_POINTS,
        ),
    ] = "by-demand",
    deadline_ms: Annotated[
        float | None,
        typer.Option("--deadline-ms", min=0.001, help="Usual deadline, for policies.", rich_help_panel=_POINTS),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="Switching plan, for --policy switching.", rich_help_panel=_POINTS),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            help="Name to serve under, once per artifact.",
            show_default="the artifact's",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.", rich_help_panel=_NETWORK)] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="HTTP port; 0: any free one.", rich_help_panel=_NETWORK)
    ] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option("--grpc-port", min=0, max=65535, help="Serve gRPC on this port too.", rich_help_panel=_NETWORK),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="Bearer token that clients must send.",
            show_default="$SLOTOOL_TOKEN",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="Where calls run: inline (in the server), local (worker processes) or ray.",
            rich_help_panel=_WORKERS,
        ),
    ] = "inline",
    replicas: Annotated[
        int, typer.Option("--replicas", min=1, help="Workers of --engine local or ray.", rich_help_panel=_WORKERS)
    ] = 1,
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="Compute threads per call.", rich_help_panel=_WORKERS)
    ] = 1,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", help="Ray cluster: host:port or auto.", show_default="auto", rich_help_panel=_WORKERS
        ),
    ] = None,
    hang: Annotated[
        str, typer.Option("--hang", help="Restart a worker whose call takes longer.", rich_help_panel=_WORKERS)
    ] = "10s",
    max_batch: Annotated[
        int, typer.Option("--max-batch", min=1, help="Examples in one request.", rich_help_panel=_LIMITS)
    ] = 1_024,
    max_queue: Annotated[
        int,
        typer.Option("--max-queue", min=1, help="Waiting requests; later ones are rejected.", rich_help_panel=_LIMITS),
    ] = 1_000,
    default_deadline_ms: Annotated[
        float,
        typer.Option(
            "--default-deadline-ms",
            min=0,
            help="Longest wait of a request without a deadline; 0: unlimited.",
            rich_help_panel=_LIMITS,
        ),
    ] = 10_000.0,
    drain: Annotated[
        str, typer.Option("--drain", help="Time to finish requests on SIGTERM.", rich_help_panel=_RUN)
    ] = "10s",
    log: Annotated[
        Path | None,
        typer.Option("--log", help="Append events to this file, one JSON object a line.", rich_help_panel=_RUN),
    ] = None,
    json: Json = False,
) -> None:
    """Serve artifacts over HTTP and gRPC; each request gets the operating point that meets its options.

    Serves the Open Inference Protocol V2 under /v2 and over gRPC, one example per POST /compute, a live page at / and
    Prometheus metrics at /metrics. A request may set a deadline, a tolerance and objective, a minimum accuracy and a
    priority. Prints one line when ready. SIGTERM and Ctrl-C finish requests in flight; SIGHUP reloads tables and rules.

    Example: slotool serve family --rules rules.json --latency latency.parquet

    Example: slotool serve supernet --latency points.parquet --outcomes outcomes.parquet --policy value-iteration
    --engine local --replicas 2
    """
    import math
    import signal
    from functools import partial

    from slotool.cli.output import Output
    from slotool.process import limit_threads
    from slotool.serving import Limits, Router, create_app
    from slotool.serving.guard import others_can_read, read_token
    from slotool.serving.runtime_settings import ReloadableSettings
    from slotool.serving.server import bind, is_loopback, serve_until_signalled, url_of
    from slotool.serving.sources import Sources

    hang_s, drain_s = (parse_duration(text, option) for text, option in ((hang, "--hang"), (drain, "--drain")))
    assert hang_s is not None
    assert drain_s is not None
    if engine == "inline":
        refuse_without_effect(("address", "hang", "replicas"), "with --engine inline")
    elif engine == "local":
        refuse_without_effect(("address",), "with --engine local")
    limit_threads(cores_given(threads))
    output = Output(as_json=json)
    deadline_us = math.inf if deadline_ms is None else deadline_ms * 1e3
    files = (tuple(artifacts), tuple(name or ()), rules, latency, tuple(outcomes or ()))
    sources = Sources(*files, threads, policy, deadline_us, plan, replicas, mapped=engine != "inline")
    token = read_token(token_file)
    if token_file is not None and others_can_read(token_file):
        output.warn(f"{token_file}: other users of this machine can read the token")
    # Before the models are loaded: a port in use should be known at once.
    with bind(host, port) as listener, _grpc_listener(host, grpc_port) as grpc_listener, _log(log) as events:
        router = Router(
            sources.load(output.warn),
            _engine(engine, replicas, threads, max_batch, hang_s, address),
            max_queue=max_queue,
            default_deadline_us=1e3 * default_deadline_ms or math.inf,
            events=events,
        )
        runtime_settings = ReloadableSettings(sources, router, output.warn)
        app = create_app(router, limits=Limits(batch=max_batch), token=token, runtime_settings=runtime_settings)
        if not is_loopback(listener):
            risk = "anyone who can reach this machine" if token is None else "anyone who intercepts the token"
            output.warn(f"listening on {host}: {risk} can use the server")
        secondary, grpc_address = _grpc_front(app, grpc_listener)
        ready = partial(_ready, output, url_of(listener), grpc_address, router.models, default_deadline_ms)
        reload = partial(_reload, output, runtime_settings)
        # One that came while models were loading may have been lost in an import.
        interrupts.check()
        ended_by = serve_until_signalled(
            app, listener, ready, drain_s=drain_s, warn=output.warn, secondary=secondary, on_hangup=reload
        )
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


@contextmanager
def _log(path: Path | None) -> Iterator[Events]:
    """Events that are written to the file, if there is one."""
    from slotool.serving.events import Events, log_to, warn

    events = Events()
    if path is None:
        yield events
        return
    file = path.open("a")
    try:
        events.listen(log_to(file))
        yield events
    finally:
        try:
            file.close()
        except OSError as error:  # a full disk: what is buffered is lost, and the server has ended well all the same
            warn(f"{path} lacks the last events: {error}")


def _engine(
    name: str, replicas: int, threads: int, max_examples: int, hang_s: float, address: str | None
) -> InferenceEngine:
    from slotool.serving.engines import InlineInferenceEngine, LocalInferenceEngine

    if name == "ray":
        from slotool.serving.engines.ray import RayInferenceEngine

        return RayInferenceEngine(replicas, threads, address=address or "auto", hang_s=hang_s)
    if name == LocalInferenceEngine.name:
        return LocalInferenceEngine(replicas, threads, max_examples=max_examples, hang_s=hang_s)
    if name != InlineInferenceEngine.name:
        raise typer.BadParameter(
            f"no engine is called {name!r}; there are inline, local and ray", param_hint="--engine"
        )
    return InlineInferenceEngine()


def _reload(output: Output, runtime_settings: ReloadableSettings) -> None:
    """Reload tables and rules; where one is invalid, the server keeps the old ones."""
    from slotool.errors import InputError

    try:
        runtime_settings.reload()
    except InputError as error:
        output.warn(f"not reloaded, the old tables and rules stay in use: {error}")
    else:
        output.note("tables and rules reloaded")


def _grpc_listener(host: str, port: int | None) -> AbstractContextManager[socket.socket | None]:
    """Reserve the port for gRPC, which only takes a number."""
    from contextlib import nullcontext

    from slotool.extras import import_failed
    from slotool.serving.server import bind

    if port is None:
        return nullcontext()
    try:
        import slotool.serving.grpc_frontend  # noqa: F401
    except ImportError as error:
        raise import_failed(error, "tritonclient", "--grpc-port") from error
    return bind(host, port)


def _grpc_front(app: Starlette, listener: socket.socket | None) -> tuple[SecondaryFrontEnd | None, str | None]:
    """The front end for ``listener``'s address, and that address."""
    if listener is None:
        return None, None
    from slotool.serving.grpc_frontend import GrpcFrontEnd
    from slotool.serving.server import address_of

    address = address_of(listener)
    return GrpcFrontEnd(app.state.front, address), address


def _ready(
    output: Output, url: str, grpc_address: str | None, models: Mapping[str, ServedModel], default_deadline_ms: float
) -> None:
    import sys
    from urllib.parse import urlsplit

    points = {served.name: [point.key for point in served.model.points] for served in models.values()}
    document = {
        "url": url,
        "port": urlsplit(url).port,
        "grpc": grpc_address,
        "models": points,
        "default_deadline_ms": default_deadline_ms or None,
    }
    and_grpc = f" and, over gRPC, at {grpc_address}" if grpc_address else ""
    wait = f"; requests without a deadline wait up to {default_deadline_ms * 1e-3:g} s" if default_deadline_ms else ""
    output.result("serve", document, f"serving {', '.join(models)} at {url}{and_grpc}{wait}")
    sys.stdout.flush()
