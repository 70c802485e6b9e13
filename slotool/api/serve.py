"""``slotool.serve``: a server in a process of its own, for notebooks, tests and scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slotool.api.inputs import FilePath, paths_of
from slotool.api.outputs import writes

if TYPE_CHECKING:
    from slotool.planning.server_process import RunningServer


@writes("log")
def serve(
    artifacts: FilePath | Sequence[FilePath],
    *,
    rules: FilePath | None = None,
    latency: FilePath | None = None,
    outcomes: FilePath | Sequence[FilePath] = (),
    policy: str = "by-demand",
    deadline_ms: float | None = None,
    plan: FilePath | None = None,
    names: str | Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    grpc_port: int | None = None,
    token_file: FilePath | None = None,
    tls_certificate: FilePath | None = None,
    tls_key: FilePath | None = None,
    tls_clients: FilePath | None = None,
    engine: str = "auto",
    replicas: int | None = None,
    threads: int | None = None,
    max_batch: int | None = None,
    max_queue: int | None = None,
    default_deadline_ms: float | None = None,
    log: FilePath | None = None,
    access_log: FilePath | None = None,
    options: Sequence[str] = (),
    start_timeout_s: float = 120.0,
) -> RunningServer:
    """Start a server of artifacts, each request at a point that meets its options.

    It is ``slotool serve`` in a process of its own, ready when this returns. It ends with its ``with`` block, by
    ``stop()``, or with this process: ``with slotool.serve("models/family") as server: print(server.url)``.

    Args:
        artifacts: Networks, families, SLO-NNs or supernets: one folder or several.
        rules: Tolerance tiers, from ``gen_rules``.
        latency: Latency table: choose points by deadline.
        outcomes: Outcome table of a model, or of each: choose points by accuracy.
        policy: Scheduling policy: ``"by-demand"``, ``"value-iteration"``, ``"slackfit"`` …
        deadline_ms: Usual deadline, for policies, milliseconds.
        plan: Switching plan, for the policy ``"switching"``.
        names: Name to serve under, one per artifact; none: the artifacts' own.
        host: Address to listen on.
        port: HTTP port; 0: any free one.
        grpc_port: Serve gRPC on this port too; 0: any free one.
        token_file: File of the bearer token that clients must send.
        tls_certificate: PEM file of the server's certificate: it speaks TLS.
        tls_key: PEM file of its private key; None: the same file.
        tls_clients: PEM file of the authorities of which clients must show a certificate.
        engine: ``"inline"`` (the server's process), ``"local"`` (processes), ``"ray"``, or ``"auto"``: inline where no
            call takes longer than a millisecond, else local.
        replicas: Workers of ``"local"`` or ``"ray"``; None: 1, or the plan's.
        threads: Compute threads per call; None: 1, or the plan's.
        max_batch: Most examples in one request; None: the command's default.
        max_queue: Most requests that may wait; None: the command's default.
        default_deadline_ms: Longest wait of a request without a deadline, milliseconds; 0: any.
        log: Append events to this file, one JSON object a line.
        access_log: Append a JSON object for every answered request to this file.
        options: More options of ``slotool serve``, as on its command line.
        start_timeout_s: Seconds until it must be ready.

    Returns:
        The server: ``url``, ``grpc`` (address or None), ``models`` (points by model), ``log_text()`` and ``stop()``.

    Raises:
        InputError: It does not start because of what was given; the server's own sentence.
        RunError: It does not start for another reason.
        TimedOut: It was not ready in time.
    """
    from slotool.planning.server_process import RunningServer

    given = {
        "rules": rules,
        "latency": latency,
        "outcomes": paths_of(outcomes),
        "policy": policy,
        "deadline-ms": deadline_ms,
        "plan": plan,
        "name": [names] if isinstance(names, str) else list(names),
        "host": host,
        "port": port,
        "grpc-port": grpc_port,
        "token-file": token_file,
        "tls-certificate": tls_certificate,
        "tls-key": tls_key,
        "tls-clients": tls_clients,
        "engine": engine,
        "replicas": replicas,
        "threads": threads,
        "max-batch": max_batch,
        "max-queue": max_queue,
        "default-deadline-ms": default_deadline_ms,
        "log": log,
        "access-log": access_log,
    }
    arguments = [*map(str, paths_of(artifacts)), *_flags(given), *options]
    return RunningServer(arguments, start_timeout_s=start_timeout_s)


def _flags(given: dict[str, Any]) -> list[str]:
    """``--name VALUE`` for every option that has a value, repeated for lists."""
    flags = []
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                flags += [f"--{name}", str(each)]
    return flags
