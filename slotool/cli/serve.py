"""``slotool serve``: artifacts over HTTP, each answer at the operating point its request asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import typer

from slotool.cli import interrupts
from slotool.cli.commands import config_file, refuse_without_effect
from slotool.cli.serve_logs import access_log_at, events_to, traces_to
from slotool.cli.serve_sources import beside_config, devices_of, first_read, keys_in_force, reader
from slotool.cli.serve_workers import (
    autoscaler_of,
    chosen_engine,
    engine_of,
    stated_engine,
    with_faults,
)
from slotool.commands.inputs import cores_given
from slotool.machine import quota_warning

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from starlette.applications import Starlette

    from slotool.cli.output import Output
    from slotool.serving import ServedModel
    from slotool.serving.access.clients import AddressRates
    from slotool.serving.access.tls import Certificate
    from slotool.serving.operations.runtime_settings import ReloadableSettings
    from slotool.serving.operations.service_file import KeysInForce
    from slotool.serving.server.server import SecondaryFrontEnd

PORT = 8000


def run(options: SimpleNamespace, output: Output) -> None:
    """Serve in this process until a signal ends it. ``options``: the arguments of ``slotool.serve``, and ``models`` of
    the service file."""
    import signal

    # What it would load again is not loaded yet; a terminal that closes ends a server as SIGTERM does, once it listens.
    # Before the imports below, which take seconds.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    import math
    from functools import partial

    from slotool.serving import RequestLimits, Router, create_app
    from slotool.serving.access.clients import read_clients
    from slotool.serving.access.guard import others_can_read
    from slotool.serving.access.tls import Certificate
    from slotool.serving.operations.runtime_settings import ReloadableSettings
    from slotool.serving.operations.sources import Sources
    from slotool.serving.operations.worker_changes import Autoscaling, WorkerSwitching
    from slotool.serving.server.server import bind, is_loopback, serve_until_signalled, url_of

    engine, max_replicas = stated_engine(options.engine, options.device), options.max_replicas
    _check_scaling(options, engine)
    given = Sources(
        tuple(options.artifacts),
        tuple(options.names),
        options.rules,
        options.latency,
        tuple(options.outcomes),
        options.threads or 1,
        options.policy,
        math.inf if options.deadline_ms is None else options.deadline_ms * 1e3,
        options.plan,
        options.replicas or 1,
        mapped=engine != "inline",
        devices=devices_of(options.device, engine, max_replicas, options.switch_workers),
    )
    lists_models = bool(options.models)
    _require_models(options)
    read = reader(given, lists_models)
    replicas, threads = (sources := first_read(read, options.switch_workers)).workers
    _take_threads(threads, 0 if engine == "ray" else max(replicas or 1, max_replicas or 1), output)
    token_file, log, tls_file, tls_key, tls_clients = (
        beside_config(getattr(options, key), key) if lists_models else getattr(options, key)
        for key in ("token_file", "log", "tls_certificate", "tls_key", "tls_clients")
    )
    certificate = None if tls_file is None else Certificate(tls_file, tls_key, tls_clients)
    clients = read_clients(token_file)
    if token_file is not None and others_can_read(token_file):
        output.warn(f"{token_file}: other users of this machine can read its tokens")
    # Before the models are loaded: a port in use should be known at once.
    with (
        bind(options.host, PORT if options.port is None else options.port) as listener,
        _grpc_listener(options.host, options.grpc_port) as grpc_listener,
        events_to(log) as events,
        access_log_at(options.access_log) as accesses,
        traces_to(options.traces, options.traces_share) as spans,
    ):
        engine = chosen_engine(engine, served := sources.load(output.warn), replicas)
        router = Router(
            served,
            engine_of(
                engine,
                *sources.workers,
                max_examples=options.max_batch,
                hang_s=options.hang_s,
                address=options.address,
                max_replicas=max_replicas,
                devices=sources.devices,
            ),
            max_queue=options.max_queue,
            default_deadline_us=1e3 * options.default_deadline_ms or math.inf,
            events=events,
        )
        runtime_settings = ReloadableSettings(sources, router, output.warn, read)
        following: list[Any] = [WorkerSwitching(router, runtime_settings)] if options.switch_workers else []
        if max_replicas is not None:
            scaler = autoscaler_of(served, replicas, max_replicas, options.requests_per_worker)
            following = [Autoscaling(router, scaler)]
        app = create_app(
            router,
            limits=RequestLimits.of(options.max_batch, options.max_body_mib),
            clients=clients,
            addresses=_address_rates(options),
            runtime_settings=runtime_settings,
            access_log=accesses,
            traces=spans,
            following=following,
            faults=with_faults(router.engine, listener) if options.allow_faults else None,
            shared_memory=options.shared_memory and _only_here(listener, "--shared-memory"),
        )
        if not is_loopback(listener) and options.tls_clients is None and (clients is None or certificate is None):
            risk = "anyone who can reach this machine" if clients is None else "anyone who intercepts a token"
            output.warn(f"listening on {options.host}: {risk} can use the server")
        secondary, grpc_address = _grpc_front(app, grpc_listener, certificate)
        url = url_of(listener, encrypted=certificate is not None)
        ready = partial(_ready, output, url, grpc_address, router.models, options.default_deadline_ms, sources.devices)
        reload = partial(_reload, output, runtime_settings, certificate, app, token_file, keys_in_force(lists_models))
        # One that came while models were loading may have been lost in an import.
        interrupts.check()
        # A balancer sees twice that the server is not ready; scripts on this machine wait for its end.
        usual_lame_duck_s = 0.0 if is_loopback(listener) else 5.0
        ended_by = serve_until_signalled(
            app,
            listener,
            ready,
            drain_s=options.drain_s,
            lame_duck_s=usual_lame_duck_s if options.lame_duck_s is None else options.lame_duck_s,
            warn=output.warn,
            secondary=secondary,
            on_hangup=reload,
            tls=None if certificate is None else certificate.context,
        )
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


def _take_threads(threads: int | None, workers: int, output: Output) -> None:
    """Limit this process to its threads, and warn where ``workers`` of as many have more than the CPU quota."""
    from slotool.process import limit_threads

    limit_threads(cores := cores_given(threads))
    if warning := quota_warning(workers * cores):
        output.warn(warning)


def _check_scaling(options: SimpleNamespace, engine: str) -> None:
    """Raise usage errors of autoscaling that show before models are loaded."""
    if engine not in ("inline", "auto", "local", "ray"):
        refuse_without_effect(("max_replicas",), f"with --engine {engine}")
    most, least = options.max_replicas, options.replicas or 1
    if most is None:
        return
    refuse_without_effect(("switch_workers",), "with --max-replicas, by which workers come and go")
    if most < least:
        raise typer.BadParameter(f"{most} workers at most, and {least} at least", param_hint="--max-replicas")
    if options.requests_per_worker is None and options.latency is None and not options.models:
        raise typer.BadParameter(
            "say for how many requests per second a worker is good: there is no latency table",
            param_hint="--requests-per-worker",
        )


def _require_models(options: SimpleNamespace) -> None:
    if not (options.artifacts or options.models):
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


def _address_rates(options: SimpleNamespace) -> AddressRates | None:
    from slotool.serving.access.clients import AddressRates

    rate, proxies = options.address_rate, options.trusted_proxies
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
        import slotool.serving.grpc.grpc_front_end  # noqa: F401
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
    from slotool.serving.grpc.grpc_front_end import GrpcFrontEnd
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
