"""Server from its settings: what it listens on, loads and writes, until a signal ends it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from starlette.applications import Starlette

from slotool.errors import ArgumentError, InputError, SlotoolError
from slotool.extras import import_failed
from slotool.machine import given_cores, quota_warning
from slotool.printable import described
from slotool.process import limit_threads, notify_service_manager
from slotool.progress import named_if_slow
from slotool.serving.access import Certificate, others_can_read, read_clients
from slotool.serving.engines import InferenceEngine, LocalInferenceEngine
from slotool.serving.engines.choice import chosen_engine, make_engine
from slotool.serving.events import Events, log_to, warn
from slotool.serving.monitoring.access_log import STDOUT, AccessLog
from slotool.serving.monitoring.traces import Traces, otlp_exporter
from slotool.serving.operations.app import create_app
from slotool.serving.operations.runtime_changes import AnySources, ReloadableSettings
from slotool.serving.operations.server import (
    SecondaryFrontEnd,
    address_of,
    bind,
    is_loopback,
    release,
    serve_until_signalled,
    url_of,
)
from slotool.serving.operations.service_file import KeysInForce
from slotool.serving.operations.settings import ServerSettings
from slotool.serving.protocol.bounds import RequestLimits
from slotool.serving.request_options import set_deadline_headers
from slotool.serving.routing.router import Router
from slotool.serving.served import ServedModel
from slotool.transfers import EAGER_VARIABLE

PORT = 8000
# Long enough for a balancer to see twice that the server is not ready; local scripts wait for its end.
LAME_DUCK_S = 5.0


class Report(Protocol):
    """Output for the operator."""

    def warn(self, sentence: str) -> None: ...

    def note(self, sentence: str) -> None: ...

    def ready(self, document: dict[str, Any], sentence: str) -> None:
        """Report that the server accepts requests, or could start. ``document``: its address, models and points."""


def serve(settings: ServerSettings, report: Report, before_serving: Callable[[], None]) -> int:
    """Serve in this process until a signal ends it; return its number, 0 if settings are only checked.

    Args:
        settings: Options of the server.
        report: Receives warnings, notes and the address.
        before_serving: Called when all is loaded; it may raise, to end the server.

    Raises:
        ArgumentError: A setting is impossible here.
        InputError: A file or model cannot be used.
        RunError: A model cannot run.
    """
    if settings.eager:
        os.environ[EAGER_VARIABLE] = "1"
    try:
        set_deadline_headers(settings.deadline_headers)
    except InputError as error:
        raise ArgumentError("deadline_headers", str(error)) from None
    read = settings.reader()
    sources = read()
    replicas, threads = sources.workers
    _limit_threads(settings, replicas, threads, report)
    certificate = None
    if settings.tls_certificate is not None:
        certificate = Certificate(settings.tls_certificate, settings.tls_key, settings.tls_clients)
    clients = read_clients(settings.token_file)
    if settings.token_file is not None and others_can_read(settings.token_file):
        report.warn(f"{settings.token_file}: other users of this machine can read its tokens")
    addresses = settings.address_rates()
    with ExitStack() as stack:
        if settings.check_config:
            settings = _for_check(settings, stack)
        # Before the models are loaded, to fail at once on a port in use.
        listener = stack.enter_context(bind(settings.host, PORT if settings.port is None else settings.port))
        if settings.shared_memory and not is_loopback(listener):
            raise ArgumentError("shared_memory", "it is for clients on this machine: leave --host at 127.0.0.1")
        grpc_listener = _grpc_listener(settings, stack)
        events = stack.enter_context(_events_to(settings.log))
        access_log = None if settings.access_log is None else AccessLog(settings.access_log)
        if access_log is not None:
            stack.callback(access_log.close)
        traces = None if settings.traces is None else Traces(otlp_exporter(settings.traces), settings.traces_share)
        if traces is not None:
            stack.callback(traces.close)
        served = sources.load(report.warn, report.note)
        with named_if_slow(report.note, f"warming up {', '.join(served)}"):
            engine = _engine(settings, sources, served)
            faults = _faulty(engine, listener) if settings.allow_faults else None
            if settings.check_config:
                return _checked(settings, report, sources, served)
            router = Router(
                served,
                engine,
                max_queue=settings.max_queue,
                default_deadline_us=settings.default_deadline_us,
                events=events,
            )
        if certificate is not None:
            router.metrics.certificate_expiry_s.labels(certificate.file).set_function(certificate.expires_s)
        runtime_settings = ReloadableSettings(sources, router, report.warn, read)
        app = create_app(
            router,
            limits=RequestLimits.of(settings.max_batch, settings.max_body_mib),
            clients=clients,
            addresses=addresses,
            runtime_settings=runtime_settings,
            access_log=access_log,
            traces=traces,
            faults=faults,
            shared_memory=settings.shared_memory,
        )
        if not is_loopback(listener) and settings.tls_clients is None and (clients is None or certificate is None):
            risk = "anyone who can reach this machine" if clients is None else "anyone who intercepts a token"
            report.warn(f"listening on {settings.host}: {risk} can use the server")
        in_force = settings.keys_in_force()
        before_serving()
        lame_duck_s = 0.0 if is_loopback(listener) else LAME_DUCK_S
        return serve_until_signalled(
            app,
            listener,
            lambda: _report_ready(settings, report, router, listener, grpc_listener),
            drain_s=settings.drain_s,
            lame_duck_s=lame_duck_s if settings.lame_duck_s is None else settings.lame_duck_s,
            warn=report.warn,
            secondary=_grpc_front(app, grpc_listener, certificate),
            on_hangup=lambda: _reload(settings, report, runtime_settings, certificate, app, in_force),
            tls=None if certificate is None else certificate.context,
        )


def _for_check(settings: ServerSettings, stack: ExitStack) -> ServerSettings:
    """Return settings for a check: other ports than those of a server that may run, and no new log remains."""
    for log in (settings.log, settings.access_log):
        if log and str(log) != STDOUT and not Path(log).exists():
            stack.callback(Path(log).unlink, missing_ok=True)
    return replace(settings, port=0, grpc_port=None if settings.grpc_port is None else 0)


def _checked(settings: ServerSettings, report: Report, sources: AnySources, served: Mapping[str, ServedModel]) -> int:
    """Report that a server could start. Raises ``InputError`` if a model could not be loaded."""
    if sources.unloaded:
        raise InputError(f"not all models can be served: {', '.join(sources.unloaded)}")
    report.ready(_document(settings, served.values(), sources.devices), f"checked: {', '.join(served)} can be served")
    return 0


def _engine(settings: ServerSettings, sources: AnySources, served: Mapping[str, ServedModel]) -> InferenceEngine:
    """Make the engine, which has no workers yet."""
    replicas, threads = sources.workers
    return make_engine(
        chosen_engine(settings.wanted_engine, served, replicas),
        replicas,
        threads,
        max_examples=settings.max_batch,
        hang_s=settings.hang_s,
        address=settings.address,
        devices=sources.devices,
        precision=settings.precision,
    )


def _limit_threads(settings: ServerSettings, replicas: int, threads: int, report: Report) -> None:
    """Limit this process to the threads of a call; warn if those of all workers exceed the CPU quota."""
    if threads > given_cores():
        raise ArgumentError("threads", f"{threads} threads, but only {given_cores()} cores are given to this process")
    limit_threads(threads)
    if settings.wanted_engine != "ray" and (warning := quota_warning(replicas * threads)):
        report.warn(warning)


@contextmanager
def _events_to(path: Path | None) -> Iterator[Events]:
    """Open the event log, if there is one."""
    events = Events()
    if path is None:
        yield events
        return
    try:
        file = path.open("a")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise ArgumentError("log", f"{path} is no file that can be written ({error.strerror})") from error
    try:
        events.listen(log_to(file))
        yield events
    finally:
        try:
            file.close()
        except OSError as error:  # a full disk: buffered events are lost, and the server still ends well
            warn(f"{path} lacks the last events: {error}")


def _faulty(engine: InferenceEngine, listener: socket.socket) -> LocalInferenceEngine:
    """Return the engine, whose workers clients on this machine may kill, stop and slow."""
    if not isinstance(engine, LocalInferenceEngine):
        raise ArgumentError("allow_faults", "faults are of --engine local, whose workers are processes")
    if not is_loopback(listener):
        raise ArgumentError("allow_faults", "other machines could stop the workers: leave --host at 127.0.0.1")
    return engine


def _grpc_listener(settings: ServerSettings, stack: ExitStack) -> socket.socket | None:
    """Reserve the port for gRPC, which only takes a number."""
    if settings.grpc_port is None:
        return None
    try:
        import slotool.serving.grpc.grpc_front_end  # noqa: F401
    except ImportError as error:
        raise import_failed(error, "tritonclient", "--grpc-port") from error
    try:
        return stack.enter_context(bind(settings.host, settings.grpc_port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        problem = f"{error.filename}: the address is in use; choose another, or 0 for any free one"
        raise ArgumentError("grpc_port", problem) from error


def _grpc_front(
    app: Starlette, listener: socket.socket | None, certificate: Certificate | None
) -> SecondaryFrontEnd | None:
    if listener is None:
        return None
    from slotool.serving.grpc.grpc_front_end import GrpcFrontEnd

    release(listener)
    return GrpcFrontEnd(app.state.front, address_of(listener), certificate)


def _document(
    settings: ServerSettings,
    models: Iterable[ServedModel],
    devices: Sequence[str],
    url: str | None = None,
    port: int | None = None,
    grpc: str | None = None,
) -> dict[str, Any]:
    """Return the server's address (None if it is only checked) and the points of its models."""
    return {
        "url": url,
        "port": port,
        "grpc": grpc,
        "models": {served.name: [point.key for point in served.model.points] for served in models},
        "default_deadline_ms": settings.default_deadline_ms or None,
        "devices": list(devices),
    }


def _report_ready(
    settings: ServerSettings,
    report: Report,
    router: Router,
    listener: socket.socket,
    grpc_listener: socket.socket | None,
) -> None:
    url = url_of(listener, encrypted=settings.tls_certificate is not None)
    grpc_address = None if grpc_listener is None else address_of(grpc_listener)
    default_ms, devices = settings.default_deadline_ms, router.engine.devices
    port = listener.getsockname()[1]
    document = _document(settings, router.models.values(), devices, url, port, grpc_address)
    and_grpc = f" and, over gRPC, at {grpc_address}" if grpc_address else ""
    wait = f"; requests without a deadline wait up to {default_ms * 1e-3:g} s" if default_ms else ""
    where = "" if devices == ("cpu",) else f", computed on {' and '.join(devices)}"
    notify_service_manager("READY=1")
    report.ready(document, f"serving {', '.join(router.models)} at {url}{and_grpc}{where}{wait}")


async def _reload(
    settings: ServerSettings,
    report: Report,
    runtime_settings: ReloadableSettings,
    certificate: Certificate | None,
    app: Starlette,
    in_force: KeysInForce | None,
) -> None:
    """Reload certificate and tokens, reopen the access log, and reload models, tables and rules.

    An invalid file leaves the old state in use. Changes of a service file that need a restart are reported.
    """
    front, reloads = app.state.front, dict[str, Callable[[], None]]()
    if certificate is not None:
        reloads["certificate and clients' authorities"] = certificate.reload
    if settings.token_file is not None:
        reloads["tokens"] = lambda: front.read_clients(settings.token_file)
    if front.access_log is not None:
        reloads["access log"] = front.access_log.reopen
    metrics, failed = front.router.metrics, False
    for what, reload in reloads.items():
        try:
            reload()
        except SlotoolError as error:
            failed = True
            report.warn(f"not reloaded, the old {what} stay in use: {error}")
        else:
            report.note(f"{what} reloaded")
    if runtime_settings.reload_waits:
        report.note("models, tables and rules: read by the reload that waits, as their files are then")
        return
    later = " after the change in progress" if runtime_settings.is_changing else ""
    report.note(f"reloading models, tables and rules{later}")
    try:
        what = await runtime_settings.reload()
    except Exception as error:
        # Another kind is our fault, and is reported too: nobody else awaits this.
        failed = True
        report.warn(f"not reloaded, the old models, tables and rules stay in use: {described(error)}")
        runtime_settings.report_failed(described(error))
    else:
        report.note(f"{what} reloaded")
    if in_force is not None and (changed := in_force.changed()):
        report.warn(f"{', '.join(changed)}: changed in the service file, in force when the server starts again")
    metrics.reloaded(not failed)
