"""``slotool serve``: artifacts over HTTP, each answer at the operating point its request asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slotool.api.inputs import cores_given
from slotool.cli import interrupts
from slotool.cli.commands import config_file, refuse_without_effect, stated_in
from slotool.cli.options import Json, panel, parse_duration

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from starlette.applications import Starlette

    from slotool.cli.output import Output
    from slotool.scheduling.autoscaler import Autoscaler
    from slotool.serving import Router, ServedModel
    from slotool.serving.access_log import AccessLog
    from slotool.serving.autoscaling import Autoscaling
    from slotool.serving.engines import InferenceEngine, LocalInferenceEngine
    from slotool.serving.events import Events
    from slotool.serving.reprofiling import Reprofiling
    from slotool.serving.runtime_settings import ReloadableSettings
    from slotool.serving.server import SecondaryFrontEnd
    from slotool.serving.sources import CombinedSources, Sources
    from slotool.serving.tls import Certificate
    from slotool.serving.traces import Traces
    from slotool.serving.worker_switching import WorkerSwitching


def register(app: typer.Typer) -> None:
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
        _network("--name", help="Name to serve under, once per artifact.", show_default="the artifact's"),
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
    engine: Annotated[str, _workers("--engine", help="inline (this process), local (processes) or ray.")] = "inline",
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
    drain: Annotated[str, _limits("--drain", help="Time to finish requests on SIGTERM.")] = "10s",
    log: Annotated[Path | None, _limits("--log", help="Append events to this file, one JSON object a line.")] = None,
    access_log: Annotated[str | None, typer.Option("--access-log", hidden=True)] = None,
    http: Annotated[Literal["fast", "uvicorn"], typer.Option("--http", hidden=True)] = "fast",
    reprofile: Annotated[bool, typer.Option("--reprofile", hidden=True)] = False,
    traces: Annotated[str | None, typer.Option("--traces", hidden=True)] = None,
    traces_share: Annotated[float, typer.Option("--traces-share", min=0, max=1, hidden=True)] = 1.0,
    shared_memory: Annotated[bool, typer.Option("--shared-memory", hidden=True)] = False,
    max_replicas: Annotated[int | None, typer.Option("--max-replicas", min=1, hidden=True)] = None,
    requests_per_worker: Annotated[float | None, typer.Option("--requests-per-worker", hidden=True)] = None,
    switch_workers: Annotated[bool, typer.Option("--switch-workers", hidden=True)] = False,
    device: Annotated[str, typer.Option("--device", hidden=True)] = "cpu",
    canary: Annotated[Path | None, typer.Option("--canary", hidden=True)] = None,
    canary_share: Annotated[float, typer.Option("--canary-share", min=0, max=1, hidden=True)] = 0.1,
    shadow: Annotated[Path | None, typer.Option("--shadow", hidden=True)] = None,
    shadow_share: Annotated[float, typer.Option("--shadow-share", min=0, max=1, hidden=True)] = 1.0,
    models: Annotated[list[Any] | None, typer.Option("--models", hidden=True, parser=lambda entry: entry)] = None,
    json: Json = False,
) -> None:
    """Serve artifacts, each request at a point that meets its options.

    Speaks the Open Inference Protocol V2 over HTTP and gRPC. POST /compute takes one example, / is a live page,
    /metrics for Prometheus. SIGTERM finishes requests first, SIGHUP reloads models.
    Further ones: docs/reference/service-file.md (--device, --shared-memory, --traces, --canary …).

    Example: slotool serve family --rules rules.json --latency latency.parquet
    """
    import math
    import signal
    from functools import partial

    from slotool.cli.output import Output
    from slotool.process import limit_threads
    from slotool.serving import Limits, Router, create_app
    from slotool.serving.clients import read_clients
    from slotool.serving.guard import others_can_read
    from slotool.serving.runtime_settings import ReloadableSettings
    from slotool.serving.server import bind, is_loopback, serve_until_signalled, url_of
    from slotool.serving.sources import Sources

    # What it would load again is not loaded yet; a terminal that closes ends a server as SIGTERM does, once it listens.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    hang_s, drain_s = (parse_duration(text, option) for text, option in ((hang, "--hang"), (drain, "--drain")))
    assert hang_s is not None
    assert drain_s is not None
    _refuse_options_without_effect(engine, max_replicas)
    _check_scaling(replicas, max_replicas, requests_per_worker, latency is not None or bool(models))
    output = Output(as_json=json)
    deadline_us = math.inf if deadline_ms is None else deadline_ms * 1e3
    subjects = (tuple(artifacts or ()), tuple(name or ()), rules, latency, tuple(outcomes or ()))
    on = _devices(device, engine, max_replicas, switch_workers)
    given = Sources(*subjects, threads, policy, deadline_us, plan, replicas, mapped=engine != "inline", devices=on)
    _require_models(artifacts, models)
    read = _reader(given, bool(models), {"canary": (canary, canary_share), "shadow": (shadow, shadow_share)})
    replicas, threads = (sources := _first_read(read, switch_workers)).workers
    limit_threads(cores_given(threads))
    files = {"token_file": token_file, "log": log, "tls_certificate": tls_certificate, "tls_key": tls_key,
             "tls_clients": tls_clients}  # fmt: skip
    token_file, log, *tls = (_beside_config(path, key) if models else path for key, path in files.items())
    certificate = _certificate(*tls)
    clients = read_clients(token_file)
    if token_file is not None and others_can_read(token_file):
        output.warn(f"{token_file}: other users of this machine can read its tokens")
    # Before the models are loaded: a port in use should be known at once.
    with (
        bind(host, port) as listener,
        _grpc_listener(host, grpc_port) as grpc_listener,
        _log(log) as events,
        _access_log(access_log) as accesses,
        _traces(traces, traces_share) as spans,
    ):
        served = sources.load(output.warn)
        autoscaler = None if max_replicas is None else _autoscaler(served, replicas, max_replicas, requests_per_worker)
        router = Router(
            served,
            _engine(engine, replicas, threads, max_batch, hang_s, address, max_replicas, on),
            max_queue=max_queue,
            default_deadline_us=1e3 * default_deadline_ms or math.inf,
            events=events,
        )
        runtime_settings = ReloadableSettings(sources, router, output.warn, read)
        app = create_app(
            router,
            limits=Limits(batch=max_batch),
            clients=clients,
            runtime_settings=runtime_settings,
            access_log=accesses,
            traces=spans,
            reprofiling=_reprofiling(router, runtime_settings) if reprofile else None,
            worker_changes=_worker_changes(router, runtime_settings, autoscaler, switch_workers),
            faults=_with_faults(router.engine, listener) if allow_faults else None,
            shared_memory=shared_memory and _only_here(listener, "--shared-memory"),
        )
        if not is_loopback(listener) and tls_clients is None and (clients is None or certificate is None):
            risk = "anyone who can reach this machine" if clients is None else "anyone who intercepts a token"
            output.warn(f"listening on {host}: {risk} can use the server")
        secondary, grpc_address = _grpc_front(app, grpc_listener, certificate)
        url = url_of(listener, encrypted=certificate is not None)
        ready = partial(_ready, output, url, grpc_address, router.models, default_deadline_ms, on)
        reload = partial(_reload, output, runtime_settings, certificate, app, token_file)
        # One that came while models were loading may have been lost in an import.
        interrupts.check()
        ended_by = serve_until_signalled(
            app,
            listener,
            ready,
            drain_s=drain_s,
            warn=output.warn,
            secondary=secondary,
            on_hangup=reload,
            tls=None if certificate is None else certificate.context,
            http=http,
        )
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


def _refuse_options_without_effect(engine: str, max_replicas: int | None) -> None:
    if engine == "inline":
        of_workers = ("address", "allow_faults", "hang", "max_replicas", "replicas", "switch_workers")
        refuse_without_effect(of_workers, "with --engine inline")
    elif engine == "local":
        refuse_without_effect(("address",), "with --engine local")
    else:
        refuse_without_effect(("max_replicas",), f"with --engine {engine}")
    if max_replicas is None:
        refuse_without_effect(("requests_per_worker",), "without --max-replicas")
    else:
        refuse_without_effect(("switch_workers",), "with --max-replicas, by which workers come and go")


def _devices(given: str, engine: str, max_replicas: int | None, switch_workers: bool) -> tuple[str, ...]:
    """That workers compute on. Several GPUs have a worker each."""
    from slotool import devices

    on = devices.several(given)
    if devices.is_cuda(on[0]) and engine not in ("inline", "local"):
        raise typer.BadParameter(
            f"workers of --engine {engine} compute on the CPU: leave it out", param_hint="--device"
        )
    if len(on) > 1 and (engine == "inline" or max_replicas is not None or switch_workers):
        raise typer.BadParameter(
            "several GPUs have a worker process each: --engine local, without --max-replicas and --switch-workers",
            param_hint="--device",
        )
    return on


def _with_a_worker_each(sources: Sources | CombinedSources, devices: tuple[str, ...]) -> Sources | CombinedSources:
    """Of several GPUs."""
    replicas, threads = sources.workers
    if len(devices) == 1:
        return sources
    if replicas not in (1, len(devices)):
        raise typer.BadParameter(
            f"{replicas} workers for {len(devices)} GPUs, which have one each: leave it out", param_hint="--replicas"
        )
    return sources.with_workers(len(devices), threads)


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


def _reader(
    given: Sources, lists_models: bool, candidates: Mapping[str, tuple[Path | None, float]]
) -> Callable[[], Sources | CombinedSources]:
    """What is served, whenever it is read: by the file that lists models, or by the command line."""
    read = _described(given, candidates) if lists_models else _planned(_with_candidates(given, candidates))
    return lambda: _with_a_worker_each(read(), given.devices)


def _with_candidates(given: Sources, candidates: Mapping[str, tuple[Path | None, float]]) -> Sources | CombinedSources:
    """The artifacts, and candidates for the place of the only one, by role: an artifact, and its share of requests."""
    from dataclasses import replace

    from slotool.serving.candidates import candidate_name
    from slotool.serving.sources import CombinedSources

    parts: list[Sources] = []
    for role, (artifact, share) in candidates.items():
        if artifact is None:
            refuse_without_effect((f"{role}_share",), f"without --{role}")
            continue
        if len(given.artifacts) != 1 or len(given.names) > 1:
            raise typer.BadParameter(
                "a candidate is for the place of one artifact; those of several models are listed in a file:"
                " --config service.toml",
                param_hint=f"--{role}",
            )
        given = replace(given, names=given.names or (given.artifacts[0].resolve().name,))
        named = (candidate_name(given.names[0], role),)
        parts.append(replace(given, artifacts=(artifact,), names=named, role=role, share=share))
    return CombinedSources((given, *parts)) if parts else given


def _described(
    given: Sources, candidates: Mapping[str, tuple[Path | None, float]]
) -> Callable[[], Sources | CombinedSources]:
    """Reads the models that the file lists; what the command line states goes before it."""
    from slotool.serving.service_file import ServiceFile

    file = config_file()
    if file is None:
        raise typer.BadParameter("models are listed in a file: --config service.toml", param_hint="--models")
    if given.artifacts or given.names:
        what = "ARTIFACTS" if given.artifacts else "--name"
        raise typer.BadParameter(f"{file} lists the models: leave them out", param_hint=what)
    for role, (artifact, _) in candidates.items():
        if artifact is not None:
            raise typer.BadParameter(f"{file} lists the models: name it in [models.{role}]", param_hint=f"--{role}")
    if len(given.outcomes) > 1:
        raise typer.BadParameter(f"one table for each of the models: name it in {file}", param_hint="--outcomes")
    values = {
        "rules": given.rules,
        "latency": given.latency,
        "outcomes": given.outcomes[0] if given.outcomes else None,
        "plan": given.plan,
        "policy": given.policy,
        "deadline-ms": given.deadline_us * 1e-3,
    }
    overriding = {
        key: value.absolute() if isinstance(value, Path) else value
        for key, value in values.items()
        if stated_in(key.replace("-", "_")) == "COMMANDLINE"
    }
    fixed = frozenset(key for key in ("replicas", "threads") if stated_in(key) == "COMMANDLINE")
    workers = (given.replicas if "replicas" in fixed else 1, given.threads if "threads" in fixed else 1)
    return ServiceFile(file, overriding, given.with_workers(*workers), fixed, follows_plan=given.mapped).read


def _planned(given: Sources | CombinedSources) -> Callable[[], Sources | CombinedSources]:
    """``given``, whose workers are those of the switching plan where nothing else says so."""
    from slotool.serving.sources import Sources

    silent = stated_in("replicas") == stated_in("threads") == "DEFAULT"
    first = given if isinstance(given, Sources) else given.parts[0]
    return given.as_planned if first.mapped and silent else lambda: given


def _beside_config(path: Path | None, option: str) -> Path | None:
    """A path that the file of a service states is relative to that file. What is read must exist."""
    file = config_file()
    if path is None or file is None or stated_in(option) != "DEFAULT_MAP":
        return path
    found = file.parent / path
    if option not in ("log", "access_log") and not found.is_file():
        key = option.replace("_", "-")
        raise typer.BadParameter(f"{file}: {key}: there is no file {found}", param_hint="--config")
    return found


@contextmanager
def _access_log(given: str | None) -> Iterator[AccessLog | None]:
    """The log of every request, if there is one."""
    from slotool.serving.access_log import STDOUT, AccessLog

    if given is None:
        yield None
        return
    log = AccessLog(given if given == STDOUT else _beside_config(Path(given), "access_log") or given)
    try:
        yield log
    finally:
        log.close()


@contextmanager
def _traces(collector: str | None, share: float) -> Iterator[Traces | None]:
    """What makes spans of requests and sends them to the collector, if there is one."""
    from slotool.serving.traces import Traces, otlp_exporter

    if collector is None:
        refuse_without_effect(("traces_share",), "without --traces")
        yield None
        return
    traces = Traces(otlp_exporter(collector), share)
    try:
        yield traces
    finally:
        traces.close()


@contextmanager
def _log(path: Path | None) -> Iterator[Events]:
    """Events that are written to the file, if there is one."""
    from slotool.serving.events import Events, log_to, warn

    events = Events()
    if path is None:
        yield events
        return
    try:
        file = path.open("a")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise typer.BadParameter(
            f"{path} is no file that can be written ({error.strerror})", param_hint="--log"
        ) from error
    try:
        events.listen(log_to(file))
        yield events
    finally:
        try:
            file.close()
        except OSError as error:  # a full disk: what is buffered is lost, and the server has ended well all the same
            warn(f"{path} lacks the last events: {error}")


def _engine(
    name: str,
    replicas: int,
    threads: int,
    max_examples: int,
    hang_s: float,
    address: str | None,
    max_replicas: int | None = None,
    devices: tuple[str, ...] = ("cpu",),
) -> InferenceEngine:
    from slotool.serving.engines import InlineInferenceEngine, LocalInferenceEngine, registry

    if name == "ray":
        from slotool.serving.engines.ray import RayInferenceEngine

        return RayInferenceEngine(replicas, threads, address=address or "auto", hang_s=hang_s)
    if name == LocalInferenceEngine.name:
        return LocalInferenceEngine(
            replicas, threads, max_examples=max_examples, hang_s=hang_s, max_replicas=max_replicas, devices=devices
        )
    if name == InlineInferenceEngine.name:
        return InlineInferenceEngine(devices[0])
    if name not in registry.plugins:
        raise typer.BadParameter(registry.unknown(name), param_hint="--engine")
    made: Callable[..., InferenceEngine] = registry.load(name)
    return made(replicas, threads, max_examples=max_examples, hang_s=hang_s, address=address)


def _with_faults(engine: InferenceEngine, listener: socket.socket) -> LocalInferenceEngine:
    """The engine, whose workers this machine's clients may kill, stop and slow."""
    from slotool.serving.engines import LocalInferenceEngine
    from slotool.serving.server import is_loopback

    if not isinstance(engine, LocalInferenceEngine):
        raise typer.BadParameter(
            "faults are of --engine local, whose workers are processes", param_hint="--allow-faults"
        )
    if not is_loopback(listener):
        raise typer.BadParameter(
            "other machines could stop the workers: leave --host at 127.0.0.1", param_hint="--allow-faults"
        )
    return engine


def _only_here(listener: socket.socket, option: str) -> bool:
    """True; refuses the option where other machines reach the server."""
    from slotool.serving.server import is_loopback

    if not is_loopback(listener):
        raise typer.BadParameter("it is for clients on this machine: leave --host at 127.0.0.1", param_hint=option)
    return True


def _reprofiling(router: Router, settings: ReloadableSettings) -> Reprofiling:
    from slotool.serving.reprofiling import Reprofiling

    spaces = [served.space for served in router.models.values() if served.space is not None]
    if not any(space.batch_sizes(point) for space in spaces for point in space.points):
        raise typer.BadParameter("there are no latencies to correct: give --latency too", param_hint="--reprofile")
    return Reprofiling(router, settings)


def _first_read(read: Callable[[], Sources | CombinedSources], switch_workers: bool) -> Sources | CombinedSources:
    """What is served. Refuses --switch-workers where no plan says what to change to."""
    sources = read()
    plan = sources.switching_plan if switch_workers else None
    if switch_workers and (plan is None or len(plan.by_configuration) == 1):
        made = "there is no --plan of a single model" if plan is None else "the plan is for one of them only"
        raise typer.BadParameter(
            f"nothing says which replicas x threads serve which load: {made} (slotool gen-switching-plan "
            "--configurations 1x2,2x1)",
            param_hint="--switch-workers",
        )
    return sources


def _worker_changes(
    router: Router, settings: ReloadableSettings, autoscaler: Autoscaler | None, switch_workers: bool
) -> Autoscaling | WorkerSwitching | None:
    """What changes the workers with the load, if anything."""
    from slotool.serving.autoscaling import Autoscaling
    from slotool.serving.worker_switching import WorkerSwitching

    if autoscaler is not None:
        return Autoscaling(router, autoscaler)
    return WorkerSwitching(router, settings) if switch_workers else None


def _autoscaler(models: Mapping[str, ServedModel], least: int, most: int, per_worker_per_s: float | None) -> Autoscaler:
    from slotool.scheduling.autoscaler import Autoscaler
    from slotool.serving.autoscaling import good_for_per_s

    if per_worker_per_s is None:
        rates = [good_for_per_s(served) for served in models.values()]
        if len(rates) != 1 or rates[0] is None:
            why = "there are several models" if len(rates) > 1 else "there is no latency table"
            raise typer.BadParameter(
                f"say for how many requests per second a worker is good: {why}", param_hint="--requests-per-worker"
            )
        per_worker_per_s = rates[0]
    return Autoscaler(least, most, per_worker_per_s)


def _certificate(file: Path | None = None, key: Path | None = None, clients: Path | None = None) -> Certificate | None:
    from slotool.serving.tls import Certificate

    for path, option in ((key, "--tls-key"), (clients, "--tls-clients")):
        if path is not None and file is None:
            raise typer.BadParameter("without --tls-certificate the server does not speak TLS", param_hint=option)
    return None if file is None else Certificate(file, key, clients)


async def _reload(
    output: Output,
    runtime_settings: ReloadableSettings,
    certificate: Certificate | None,
    app: Starlette,
    token_file: Path | None,
) -> None:
    """Reload certificate and tokens, reopen the access log, and reload models, tables and rules; where one is invalid,
    the server keeps the old one."""
    from slotool.errors import SlotoolError

    reloads: dict[str, Callable[[], None]] = {}
    if certificate is not None:
        reloads["certificate"] = certificate.reload
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
    try:
        what = await runtime_settings.reload()
    except SlotoolError as error:
        output.warn(f"not reloaded, the old models, tables and rules stay in use: {error}")
        runtime_settings.report_failed(error)
    else:
        output.note(f"{what} reloaded")


def _grpc_listener(host: str, port: int | None) -> AbstractContextManager[socket.socket | None]:
    """Reserve the port for gRPC, which only takes a number."""
    import errno
    from contextlib import nullcontext

    from slotool.extras import import_failed
    from slotool.serving.server import bind

    if port is None:
        return nullcontext()
    try:
        import slotool.serving.grpc_frontend  # noqa: F401
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
    from slotool.serving.grpc_frontend import GrpcFrontEnd
    from slotool.serving.server import address_of

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
