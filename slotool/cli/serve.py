"""``slotool serve``: artifacts over HTTP, each answer at the operating point its request asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slotool.api.inputs import cores_given
from slotool.cli import interrupts
from slotool.cli.commands import config_file, refuse_without_effect
from slotool.cli.options import Json, panel, parse_duration
from slotool.cli.serve_logs import access_log_at, events_to, traces_to
from slotool.cli.serve_pools import of_only_pool, router_of, scaling_of
from slotool.cli.serve_sources import beside_config, devices_of, first_read, keys_in_force, reader
from slotool.cli.serve_workers import (
    OF_WORKERS,
    autoscalers_of,
    chosen_engine,
    engine_of,
    reprofiling_of,
    stated_engine,
    with_faults,
    worker_changes,
)
from slotool.machine import quota_warning

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from starlette.applications import Starlette

    from slotool.cli.output import Output
    from slotool.serving import ServedModel
    from slotool.serving.access.addresses import AddressRates
    from slotool.serving.access.tls import Certificate
    from slotool.serving.operations.runtime_settings import ReloadableSettings
    from slotool.serving.operations.service_file import KeysInForce
    from slotool.serving.server.server import SecondaryFrontEnd


def register(app: typer.Typer) -> None:
    serve.writes = ("log",)  # type: ignore[attr-defined]  # a file that must not be one it reads
    app.command()(serve)


_points, _network, _workers, _limits = map(panel, ("Operating points", "Network", "Workers", "Limits and log"))


def serve(
    artifacts: Annotated[
        list[Path] | None, typer.Argument(help="Models to serve, unless --config lists [[models]].", show_default=False)
    ] = None,
    rules: Annotated[Path | None, _points("--rules", help="Tolerance tiers, from gen-rules.")] = None,
    latency: Annotated[Path | None, _points("--latency", help="Latency table: choose points by deadline.")] = None,
    outcomes: Annotated[
        list[Path] | None, _points("--outcomes", help="Outcome table of a model: choose points by accuracy.")
    ] = None,
    policy: Annotated[str, _points("--policy", help="by-demand, value-iteration, slackfit …")] = "by-demand",
    deadline_ms: Annotated[
        float | None, _points("--deadline-ms", min=0.001, help="Usual deadline, for policies.")
    ] = None,
    plan: Annotated[Path | None, _points("--plan", help="Switching plan, for --policy switching.")] = None,
    name: Annotated[
        list[str] | None,
        _network("--name", help="Name to serve under, per artifact.", show_default="the artifact's"),
    ] = None,
    host: Annotated[str, _network("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _network("--port", min=0, max=65535, help="HTTP port; 0: any free one.")] = 8000,
    grpc_port: Annotated[
        int | None, _network("--grpc-port", min=0, max=65535, help="Serve gRPC on this port too.")
    ] = None,
    token_file: Annotated[
        Path | None,
        _network(
            "--token-file",
            help="Token to send, or .toml of clients.",
            show_default="$SLOTOOL_TOKEN",
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None, _network("--tls-certificate", help="PEM file: speak TLS, and show this.")
    ] = None,
    tls_key: Annotated[Path | None, _network("--tls-key", help="Its key.", show_default="same file")] = None,
    tls_clients: Annotated[
        Path | None, _network("--tls-clients", help="PEM file: clients must show certificates of these.")
    ] = None,
    engine: Annotated[str, _workers("--engine", help="inline (this process), local (processes) or ray.")] = "auto",
    replicas: Annotated[int, _workers("--replicas", min=1, help="Workers of --engine local or ray.")] = 1,
    threads: Annotated[int, _workers("--threads", min=1, help="Compute threads per call.")] = 1,
    address: Annotated[
        str | None, _workers("--address", help="Ray cluster: host:port or auto.", show_default="auto")
    ] = None,
    hang: Annotated[str, _workers("--hang", help="Restart a worker whose call takes longer.")] = "10s",
    allow_faults: Annotated[bool, typer.Option("--allow-faults", hidden=True)] = False,
    max_batch: Annotated[int, _limits("--max-batch", min=1, help="Examples in one request.")] = 1_024,
    max_queue: Annotated[int, _limits("--max-queue", min=1, help="Requests that may wait.")] = 1_000,
    default_deadline_ms: Annotated[
        float,
        _limits("--default-deadline-ms", min=0, metavar="MS", help="Longest wait without a deadline; 0: any."),
    ] = 10_000.0,
    lame_duck: Annotated[
        str | None,
        _limits("--lame-duck", help="Answer on after SIGTERM.", show_default="5s; 0s on 127.0.0.1"),
    ] = None,
    drain: Annotated[str, _limits("--drain", help="Then: time to finish requests.")] = "10s",
    log: Annotated[Path | None, _limits("--log", help="Append events to this file, as JSON lines.")] = None,
    max_body_mib: Annotated[int, typer.Option("--max-body-mib", min=1, max=1_024, hidden=True)] = 16,
    access_log: Annotated[str | None, typer.Option("--access-log", hidden=True)] = None,
    http: Annotated[Literal["fast", "uvicorn"], typer.Option("--http", hidden=True)] = "fast",
    reprofile: Annotated[bool, typer.Option("--reprofile", hidden=True)] = False,
    traces: Annotated[str | None, typer.Option("--traces", hidden=True)] = None,
    traces_share: Annotated[float, typer.Option("--traces-share", min=0, max=1, hidden=True)] = 1.0,
    shared_memory: Annotated[bool, typer.Option("--shared-memory", hidden=True)] = False,
    address_rate: Annotated[float | None, typer.Option("--address-rate", min=1e-3, hidden=True)] = None,
    trusted_proxies: Annotated[str | None, typer.Option("--trusted-proxies", hidden=True)] = None,
    max_replicas: Annotated[int | None, typer.Option("--max-replicas", min=1, hidden=True)] = None,
    requests_per_worker: Annotated[float | None, typer.Option("--requests-per-worker", hidden=True)] = None,
    switch_workers: Annotated[bool, typer.Option("--switch-workers", hidden=True)] = False,
    device: Annotated[str, typer.Option("--device", hidden=True)] = "cpu",
    models: Annotated[list[Any] | None, typer.Option("--models", hidden=True, parser=lambda entry: entry)] = None,
    pools: Annotated[list[Any] | None, typer.Option("--pools", hidden=True, parser=lambda entry: entry)] = None,
    pool: Annotated[str | None, typer.Option("--pool", hidden=True)] = None,
    json: Json = False,
) -> None:
    """Serve artifacts, each request at a point that fits it.

    Speaks the Open Inference Protocol V2 over HTTP and gRPC. POST /compute takes one example, / is a live page,
    /metrics for Prometheus. SIGTERM finishes requests first, SIGHUP reloads models.
    Further ones: docs/reference/service-file.md (--device, --address-rate, --traces …).

    Example: slotool serve family --rules rules.json --latency latency.parquet
    """
    import signal

    # What it would load again is not loaded yet; a terminal that closes ends a server as SIGTERM does, once it listens.
    # Before the imports below, which take seconds.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    import math
    from functools import partial

    from slotool.cli.output import Output
    from slotool.serving import Limits, create_app
    from slotool.serving.access.clients import read_clients
    from slotool.serving.access.guard import others_can_read
    from slotool.serving.operations.runtime_settings import ReloadableSettings
    from slotool.serving.operations.sources import Sources
    from slotool.serving.server.server import bind, is_loopback, serve_until_signalled, url_of

    hang_s, drain_s = (parse_duration(text, option) for text, option in ((hang, "--hang"), (drain, "--drain")))
    assert hang_s is not None
    assert drain_s is not None
    _refuse_options_without_effect(engine := stated_engine(engine, device, pools is not None), max_replicas)
    _check_scaling(replicas, max_replicas, requests_per_worker, latency is not None or bool(models))
    output = Output(as_json=json)
    deadline_us = math.inf if deadline_ms is None else deadline_ms * 1e3
    subjects = (tuple(artifacts or ()), tuple(name or ()), rules, latency, tuple(outcomes or ()))
    max_replicas, requests_per_worker = scaling_of(pools, pool, engine, max_replicas, requests_per_worker)
    given = Sources(
        *subjects,
        threads,
        policy,
        deadline_us,
        plan,
        replicas,
        mapped=engine != "inline",
        devices=devices_of(device, engine, max_replicas, switch_workers),
    )
    _require_models(artifacts, models)
    read = reader(given, bool(models), pool, max_queue)
    replicas, threads = (sources := first_read(read, switch_workers)).workers
    _take_threads(threads, 0 if engine == "ray" else max(replicas or 1, max_replicas or 1), output)
    files = {"token_file": token_file, "log": log, "tls_certificate": tls_certificate, "tls_key": tls_key,
             "tls_clients": tls_clients}  # fmt: skip
    token_file, log, *tls = (beside_config(path, key) if models else path for key, path in files.items())
    certificate = _certificate(*tls)
    clients, addresses = read_clients(token_file), _address_rates(address_rate, trusted_proxies)
    if token_file is not None and others_can_read(token_file):
        output.warn(f"{token_file}: other users of this machine can read its tokens")
    # Before the models are loaded: a port in use should be known at once.
    with (
        bind(host, port) as listener,
        _grpc_listener(host, grpc_port) as grpc_listener,
        events_to(log) as events,
        access_log_at(access_log) as accesses,
        traces_to(traces, traces_share) as spans,
    ):
        engine = chosen_engine(engine, served := sources.load(output.warn), replicas)
        autoscalers = autoscalers_of(sources, served, max_replicas, requests_per_worker)
        router = router_of(
            sources,
            served,
            partial(
                engine_of, engine, max_examples=max_batch, hang_s=hang_s, address=address, max_replicas=max_replicas
            ),
            max_queue=of_only_pool(pools, pool, "max-queue", max_queue),
            default_deadline_us=1e3 * default_deadline_ms or math.inf,
            events=events,
        )
        runtime_settings = ReloadableSettings(sources, router, output.warn, read)
        app = create_app(
            router,
            limits=Limits.of(max_batch, max_body_mib),
            clients=clients,
            addresses=addresses,
            runtime_settings=runtime_settings,
            access_log=accesses,
            traces=spans,
            reprofiling=reprofiling_of(router, runtime_settings) if reprofile else (),
            worker_changes=worker_changes(router, runtime_settings, autoscalers, switch_workers),
            faults=with_faults(router.engine, listener) if allow_faults else None,
            shared_memory=shared_memory and _only_here(listener, "--shared-memory"),
        )
        if not is_loopback(listener) and tls_clients is None and (clients is None or certificate is None):
            risk = "anyone who can reach this machine" if clients is None else "anyone who intercepts a token"
            output.warn(f"listening on {host}: {risk} can use the server")
        secondary, grpc_address = _grpc_front(app, grpc_listener, certificate)
        url = url_of(listener, encrypted=certificate is not None)
        ready = partial(_ready, output, url, grpc_address, router.models, default_deadline_ms, sources.devices)
        reload = partial(_reload, output, runtime_settings, certificate, app, token_file, keys_in_force(bool(models)))
        # One that came while models were loading may have been lost in an import.
        interrupts.check()
        ended_by = serve_until_signalled(
            app,
            listener,
            ready,
            drain_s=drain_s,
            lame_duck_s=_lame_duck_s(lame_duck, listener),
            warn=output.warn,
            secondary=secondary,
            on_hangup=reload,
            tls=None if certificate is None else certificate.context,
            http=http,
        )
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


def _take_threads(threads: int | None, workers: int, output: Output) -> None:
    """Limit this process to its threads, and warn where ``workers`` of as many have more than the CPU quota."""
    from slotool.process import limit_threads

    limit_threads(cores := cores_given(threads))
    if warning := quota_warning(workers * cores):
        output.warn(warning)


def _lame_duck_s(stated: str | None, listener: socket.socket) -> float:
    """Seconds of --lame-duck. By default a balancer sees twice that the server is not ready; a server that only this
    machine reaches ends at once, as scripts wait for its end."""
    from slotool.serving.server.server import is_loopback

    seconds = parse_duration(stated, "--lame-duck", may_be_zero=True)
    if seconds is None:
        return 0.0 if is_loopback(listener) else 5.0
    return seconds


def _refuse_options_without_effect(engine: str, max_replicas: int | None) -> None:
    if engine == "inline":
        refuse_without_effect(("address", *OF_WORKERS), "with --engine inline")
    elif engine in ("auto", "local"):
        refuse_without_effect(("address",), f"with --engine {engine}")
    elif engine != "ray":
        refuse_without_effect(("max_replicas",), f"with --engine {engine}")
    if max_replicas is None:
        refuse_without_effect(("requests_per_worker",), "without --max-replicas")
    else:
        refuse_without_effect(("switch_workers",), "with --max-replicas, by which workers come and go")


def _check_scaling(least: int, most: int | None, per_worker_per_s: float | None, latency_known: bool) -> None:
    """What can be said of autoscaling before models are loaded."""
    if most is None:
        return
    if most < least:
        raise typer.BadParameter(f"{most} workers at most, and {least} at least", param_hint="--max-replicas")
    if per_worker_per_s is None and not latency_known:
        raise typer.BadParameter(
            "say for how many requests per second a worker is good: there is no latency table",
            param_hint="--requests-per-worker",
        )


def _require_models(artifacts: list[Path] | None, models: list[Any] | None) -> None:
    if not (artifacts or models):
        file = config_file()
        given_file = f"; {file} lists none" if file else ""
        raise typer.BadParameter(
            f"give one at least, or --config FILE.toml that lists [[models]]{given_file}", param_hint="ARTIFACTS"
        )


def _only_here(listener: socket.socket, option: str) -> bool:
    """True; refuses the option where other machines reach the server."""
    from slotool.serving.server.server import is_loopback

    if not is_loopback(listener):
        raise typer.BadParameter("it is for clients on this machine: leave --host at 127.0.0.1", param_hint=option)
    return True


def _certificate(file: Path | None = None, key: Path | None = None, clients: Path | None = None) -> Certificate | None:
    from slotool.serving.access.tls import Certificate

    for path, option in ((key, "--tls-key"), (clients, "--tls-clients")):
        if path is not None and file is None:
            raise typer.BadParameter("without --tls-certificate the server does not speak TLS", param_hint=option)
    return None if file is None else Certificate(file, key, clients)


def _address_rates(rate: float | None, proxies: str | None) -> AddressRates | None:
    from slotool.serving.access.addresses import AddressRates

    if rate is None and proxies is not None:
        raise typer.BadParameter("without --address-rate nobody asks for addresses", param_hint="--trusted-proxies")
    return None if rate is None else AddressRates(rate, proxies.split(",") if proxies else ())


async def _reload(
    output: Output,
    runtime_settings: ReloadableSettings,
    certificate: Certificate | None,
    app: Starlette,
    token_file: Path | None,
    in_force: KeysInForce | None,
) -> None:
    """Reload certificate and tokens, reopen the access log, and reload models, tables and rules; where one is invalid,
    the server keeps the old one. Changes of a service file that need a restart are named."""
    from slotool.errors import SlotoolError

    reloads: dict[str, Callable[[], None]] = {}
    if certificate is not None:
        reloads["certificate and clients' authorities"] = certificate.reload
    if token_file is not None:
        reloads["tokens"] = lambda: app.state.front.read_clients(token_file)
    if app.state.front.access_log is not None:
        reloads["access log"] = app.state.front.access_log.reopen
    for what, reload in reloads.items():
        try:
            reload()
        except SlotoolError as error:
            output.warn(f"not reloaded, the old {what} stay in use: {error}")
        else:
            output.note(f"{what} reloaded")
    if runtime_settings.reload_waits:
        output.note("models, tables and rules: read by the reload that waits, as their files are then")
        return
    later = " after the change in progress" if runtime_settings.is_changing else ""
    output.note(f"reloading models, tables and rules{later}")
    try:
        what = await runtime_settings.reload()
        changed = in_force.changed() if in_force is not None else []
    except Exception as error:
        # Another kind is a fault of ours, and is said all the same: nobody else waits for this.
        said = str(error) if isinstance(error, SlotoolError) else f"{type(error).__name__}: {error}"
        output.warn(f"not reloaded, the old models, tables and rules stay in use: {said}")
        runtime_settings.report_failed(said)
    else:
        output.note(f"{what} reloaded")
        if changed:
            output.warn(f"{', '.join(changed)}: changed in the service file, in force when the server starts again")


def _grpc_listener(host: str, port: int | None) -> AbstractContextManager[socket.socket | None]:
    """Reserve the port for gRPC, which only takes a number."""
    import errno
    from contextlib import nullcontext

    from slotool.extras import import_failed
    from slotool.serving.server.server import bind

    if port is None:
        return nullcontext()
    try:
        import slotool.serving.grpc.frontend  # noqa: F401
    except ImportError as error:
        raise import_failed(error, "tritonclient", "--grpc-port") from error
    try:
        return bind(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        problem = f"{error.filename}: the address is in use; choose another, or 0 for any free one"
        raise typer.BadParameter(problem, param_hint="--grpc-port") from error


def _grpc_front(
    app: Starlette, listener: socket.socket | None, certificate: Certificate | None
) -> tuple[SecondaryFrontEnd | None, str | None]:
    """The front end for ``listener``'s address, and that address."""
    if listener is None:
        return None, None
    from slotool.serving.grpc.frontend import GrpcFrontEnd
    from slotool.serving.server.server import address_of

    address = address_of(listener)
    return GrpcFrontEnd(app.state.front, address, certificate), address


def _ready(
    output: Output,
    url: str,
    grpc_address: str | None,
    models: Mapping[str, ServedModel],
    default_deadline_ms: float,
    devices: tuple[str, ...],
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
        "devices": list(devices),
    }
    and_grpc = f" and, over gRPC, at {grpc_address}" if grpc_address else ""
    wait = f"; requests without a deadline wait up to {default_deadline_ms * 1e-3:g} s" if default_deadline_ms else ""
    where = "" if devices == ("cpu",) else f", computed on {' and '.join(devices)}"
    output.result("serve", document, f"serving {', '.join(models)} at {url}{and_grpc}{where}{wait}")
    sys.stdout.flush()
