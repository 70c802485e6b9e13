"""The service file of a planned fleet, which ``slotool serve --config`` runs as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotool.machine import usable_cores
from slotool.planning.fleet import Fleet, Pool
from slotool.planning.promise import Promise
from slotool.planning.scaling import ScalingLimits
from slotool.planning.worker import WorkerType


def service_text(
    fleet: Fleet,
    promise: Promise,
    folder: Path,
    files: Mapping[str, Path],
    terms: Mapping[str, Any],
    max_queue: int,
    limits: ScalingLimits | None = None,
) -> str:
    """Return TOML with paths relative to ``folder``, where the file is to lie.

    ``files``: of the model, by key, without latencies. ``terms``: what requests are to ask for, where it is they who
    choose; no policy is named then. ``max_queue``: what the workers can answer at their fastest point, or by the
    requests' own tiers, within a deadline, and at most what a server reads in that time. ``limits``: of workers that
    come with the load.
    """
    deadline_ms = promise.deadline_us / 1e3
    lines = [
        f"# {fleet}: {promise.attainment:g} of the requests within {deadline_ms:g} ms, at confidence "
        f"{promise.confidence:g}.",
        *engine_lines(fleet.pool),
        f"default-deadline-ms = {deadline_ms!r}",
    ]
    if terms:
        asked = " and ".join(f"{name} {_stated(value)}" for name, value in terms.items())
        lines.append(f"# Requests are to ask for {asked}.")
    else:
        lines.append(f"deadline-ms = {deadline_ms!r}")
    lines += _pool(fleet.pool, terms, max_queue, limits)
    files = {**files, "latency": source_of(fleet.pool)}
    lines += ["", "[[models]]", *(f"{key} = {quoted(relative(path, folder))}" for key, path in files.items()), ""]
    return "\n".join(lines)


def source_of(pool: Pool) -> Path:
    """Of its latencies."""
    return Path(str(pool.worker.source))


def engine_lines(pool: Pool) -> list[str]:
    """Processes of this machine where it has the cores, or where GPUs are needed; else a cluster."""
    remark = cluster_remark(pool)
    if not remark:
        return [f"engine = {quoted('local')}"]
    return [f"engine = {quoted('ray')}", f"# {remark}"]


def cluster_remark(pool: Pool) -> str:
    """Return a remark where workers take more cores than this machine has; empty where they do not, or take GPUs."""
    if runs_here(pool) or is_gpu(pool.worker):
        return ""
    return (
        f"The workers take {pool.replicas * pool.worker.threads} cores, this machine has {usable_cores()}: "
        'engine "ray" runs them on a ray cluster.'
    )


def _pool(pool: Pool, terms: Mapping[str, Any], max_queue: int, limits: ScalingLimits | None) -> list[str]:
    """Workers of one kind: their number, how they choose points, and how many requests may wait for them."""
    return [
        *worker_lines(pool, limits),
        *([] if terms else [f"policy = {quoted(pool.policy)}"]),
        "# Of more waiting requests the last could not be answered in time"
        f"{'' if terms else ', even at the fastest point'}, or more than a server reads within a deadline.",
        f"max-queue = {max_queue}",
    ]


def worker_lines(pool: Pool, limits: ScalingLimits | None = None) -> list[str]:
    """How many workers there are, and what each has."""
    one_gpu_each = is_gpu(pool.worker)
    return [
        *([f"# Workers, each with a GPU of its own: {pool.replicas}."] if one_gpu_each else _replicas(pool, limits)),
        f"threads = {pool.worker.threads}",
        *_device(pool),
    ]


def runs_here(pool: Pool) -> bool:
    """True if this machine has a core for each thread of the workers."""
    return pool.replicas * pool.worker.threads <= usable_cores()


def _replicas(pool: Pool, limits: ScalingLimits | None) -> list[str]:
    if limits is None:
        return [f"replicas = {pool.replicas}"]
    return [
        f"# {limits}.",
        f"# To have all of them always: replicas = {pool.replicas}, without max-replicas and requests-per-worker.",
        f"replicas = {limits.least}",
        f"max-replicas = {limits.most}",
        f"requests-per-worker = {limits.requests_per_worker!r}",
    ]


def is_gpu(worker: WorkerType) -> bool:
    """Of a name that ``serve --device`` takes; tables may have others, such as a maker's."""
    return worker.device.startswith("cuda")


def _device(pool: Pool) -> list[str]:
    """GPUs, one for each worker."""
    device = pool.worker.device
    if not is_gpu(pool.worker):
        return []
    named = [device] if pool.replicas == 1 else [f"cuda:{number}" for number in range(pool.replicas)]
    return [f"device = {quoted(','.join(named))}"]


def _stated(value: Any) -> str:
    """A value that all requests have, or the shares of those that do."""
    if isinstance(value, Mapping):
        return ", ".join(f"{each} ({share:.0%} of them)" for each, share in value.items())
    return str(value)


def relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())


def quoted(text: str) -> str:
    """As a basic string of TOML, whose escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False)
