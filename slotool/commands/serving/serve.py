"""``slotool.serve``: a server in another process, for notebooks, tests and scripts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import Ineffective, command_line
from slotool.commands.outputs import writes
from slotool.commands.values import at_least, between, duration_or_zero
from slotool.errors import ArgumentError
from slotool.sources import FilePath

if TYPE_CHECKING:
    from slotool.planning.server_process import RunningServer

# Parameters of workers that are processes.
OF_WORKERS = ("allow_faults", "hang_s", "replicas")
_OF_PYTHON = ("options", "start_timeout_s")
_NETWORK = ("names", "host", "port", "grpc_port", "token_file", "tls_certificate", "tls_key", "tls_clients")
_LIMITS = ("max_batch", "max_queue", "default_deadline_ms", "lame_duck_s", "drain_s", "log", "check_config")


@command_line(
    arguments=("artifacts",),
    names={"names": "--name", "deadline_headers": "--deadline-header"},
    values={"names": list, "lame_duck_s": duration_or_zero, "access_log": str, "deadline_headers": list},
    repeatable=("names", "deadline_headers"),
    metavars={"names": "TEXT…", "default_deadline_ms": "MS", "lame_duck_s": "TIME"},
    panels={
        "Operating points": ("rules", "latency", "outcomes", "policy", "deadline_ms", "plan"),
        "Network": _NETWORK,
        "Workers": ("engine", "replicas", "threads", "address", "hang_s"),
        "Limits and log": _LIMITS,
    },
    hidden=(
        *("allow_faults", "max_body_mib", "access_log", "traces", "traces_share", "shared_memory"),
        *("address_rate", "trusted_proxies", "device", "precision", "eager", "deadline_headers"),
    ),
    python_only=_OF_PYTHON,
    tables=("models",),
    ineffective=(
        Ineffective(("address", *OF_WORKERS), "engine", when="inline"),
        Ineffective(("address",), "engine", when="auto"),
        Ineffective(("address",), "engine", when="local"),
        Ineffective(("tls_key", "tls_clients"), "tls_certificate"),
        Ineffective(("traces_share",), "traces"),
        Ineffective(("trusted_proxies",), "address_rate"),
    ),
)
@writes("log")
def serve(
    artifacts: FilePath | Sequence[FilePath] = (),
    *,
    rules: FilePath | None = None,
    latency: FilePath | None = None,
    outcomes: FilePath | Sequence[FilePath] = (),
    policy: str = "by-demand",
    deadline_ms: Annotated[float, at_least(0.001)] | None = None,
    plan: FilePath | None = None,
    names: str | Sequence[str] = (),
    host: str = "127.0.0.1",
    port: Annotated[int, between(0, 65_535)] | None = None,
    grpc_port: Annotated[int, between(0, 65_535)] | None = None,
    token_file: FilePath | None = None,
    tls_certificate: FilePath | None = None,
    tls_key: FilePath | None = None,
    tls_clients: FilePath | None = None,
    engine: str = "auto",
    replicas: Annotated[int, at_least(1)] | None = None,
    threads: Annotated[int, at_least(1)] | None = None,
    address: str | None = None,
    hang_s: float = 10.0,
    max_batch: Annotated[int, at_least(1)] = 1_024,
    max_queue: Annotated[int, at_least(1)] = 1_000,
    default_deadline_ms: Annotated[float, at_least(0)] = 10_000.0,
    lame_duck_s: float | None = None,
    drain_s: float = 10.0,
    log: FilePath | None = None,
    access_log: FilePath | None = None,
    max_body_mib: Annotated[int, between(1, 1_024)] = 16,
    traces: str | None = None,
    traces_share: Annotated[float, between(0, 1)] = 1.0,
    shared_memory: bool = False,
    address_rate: Annotated[float, at_least(1e-3)] | None = None,
    trusted_proxies: str | None = None,
    device: str = "cpu",
    precision: str = "float32",
    eager: bool = False,
    allow_faults: bool = False,
    deadline_headers: str | Sequence[str] = (),
    check_config: bool = False,
    options: Sequence[str] = (),
    start_timeout_s: float = 120.0,
) -> RunningServer:
    """Serve models, each request at a point that fits it.

    It implements the Open Inference Protocol V2 over HTTP and gRPC. POST /compute takes one example, / is a live page,
    /metrics is for Prometheus. SIGTERM finishes requests first, SIGHUP reloads models.
    All options: docs/reference/service-file.md.

    Example: slotool serve family --rules rules.json --latency l.parquet

    Args:
        artifacts: Artifacts, model.onnx or ``module:factory``; or [[models]]. The latter are those of ``--config``, and
            files of models are served as they are.
        rules: Tolerance tiers, from ``gen_rules``.
        latency: Latency table: choose points by deadline.
        outcomes: Outcome table of a model: choose points by accuracy. One for each of several models.
        policy: Such as value-iteration or slackfit.
        deadline_ms: Usual deadline, milliseconds, which policies plan for.
        plan: Switching plan, for ``policy=switching``; None: by ``latency``.
        names: Name to serve under, per artifact; None: the artifact's.
        host: Address to listen on.
        port: HTTP port; 0: any free one; None: 8000; in Python 0.
        grpc_port: Serve gRPC on this port too. 0: any free one.
        token_file: Token of clients, or .toml; None: $SLOTOOL_TOKEN.
        tls_certificate: PEM file of the server's certificate, for TLS.
        tls_key: PEM file of its key; None: same file.
        tls_clients: PEM file of the authorities of client certificates.
        engine: inline (this process), local (processes) or ray. ``"auto"``: inline if no call takes longer than a
            millisecond, else local.
        replicas: Workers of ``engine`` local or ray; None: 1, or the plan's.
        threads: Compute threads per call; None: 1, or the plan's.
        address: Ray cluster: host:port or auto; None: auto.
        hang_s: Restart a worker whose call takes longer.
        max_batch: Maximum number of examples in one request.
        max_queue: Maximum number of waiting requests.
        default_deadline_ms: Wait without a deadline, ms; 0: unlimited.
        lame_duck_s: Keep serving after SIGTERM; None: 5s; 0s on 127.0.0.1.
        drain_s: Time after that to finish requests.
        log: Append events to this file, as JSON lines.
        access_log: Append a JSON object for every answered request to this file. ``-``: to stdout.
        max_body_mib: Size limit of a request's body, MiB.
        traces: Address of an OpenTelemetry collector for spans.
        traces_share: Share of traced requests among those without a sampling decision.
        shared_memory: Accept tensors in shared memory, from clients on this machine.
        address_rate: Requests per second that one address may send.
        trusted_proxies: Proxies whose Forwarded headers are read, separated by commas.
        device: Device to compute on: cpu, cuda, or several such as cuda:0,cuda:1.
        precision: Number format of networks in torch: float32, bf16, fp16, or on a GPU tf32.
        eager: Launch work on GPUs kernel by kernel, not as CUDA graphs.
        allow_faults: Let clients on this machine kill, stop and slow the workers.
        deadline_headers: Header of a gateway that states deadlines, and its unit: ``x-request-timeout=s``. Units: us,
            ms and s.
        check_config: Check options, files and models, and exit. For the command only: in Python a server that cannot
            start raises an error.
        options: More options, as on the command line. A file of ``--config`` sets arguments that have their default
            here.
        start_timeout_s: Seconds until the server must be ready.

    Returns:
        The running server in another process: ``url``, ``grpc`` (address or None), ``models`` (points by model),
        ``log_text()`` and ``stop()``. It ends with its ``with`` block, by ``stop()``, or with this process:
        ``with slotool.serve("models/family") as server: print(server.url)``.

    Raises:
        InputError: It does not start because of an argument, which the server's message names.
        RunError: It does not start for another reason.
        TimedOut: It was not ready in time.
    """
    arguments = {name: value for name, value in locals().items() if name not in _OF_PYTHON}
    if check_config:
        raise ArgumentError("check_config", "it is of the command; in Python, a server that cannot start raises")
    from slotool.planning.server_process import RunningServer

    # Two servers of a script have a port each.
    arguments["port"] = port or 0
    return RunningServer([*_line(arguments), *options], start_timeout_s=start_timeout_s)


def _line(arguments: Mapping[str, Any]) -> list[str]:
    """Return the words of the command line for arguments of ``serve``, without defaults."""
    (declared,) = serve.command_lines  # type: ignore[attr-defined]  # as command_line declares it
    defaults = {name: part.default for name, part in inspect.signature(serve).parameters.items()}
    words = []
    for name, value in arguments.items():
        if value is None or value == defaults[name]:
            continue
        option = [] if name in declared.arguments else [declared.option(name)]
        if value is True:
            words += option
            continue
        for part in [value] if isinstance(value, str) or not isinstance(value, Sequence) else value:
            words += [*option, str(part)]
    return words
