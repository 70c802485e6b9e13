"""The service file of a plan, which ``slotool serve --config`` runs as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotool.machine import usable_cores
from slotool.planning.fleet import Pool, WorkerType
from slotool.planning.promise import Promise
from slotool.planning.scaling import ScalingLimits


@dataclass(frozen=True)
class ServedModel:
    """One of the ``[[models]]``. ``name``: empty of a model that is served alone, under its artifact's name; ``files``:
    by key, without latencies; ``pool``: its policy, and its latencies on the workers; ``terms``: what requests are to
    ask for, where it is they who choose, in place of a policy."""

    name: str
    files: Mapping[str, Path]
    pool: Pool
    promise: Promise
    terms: Mapping[str, Any]


def service_text(
    models: Sequence[ServedModel], folder: Path, max_queue: int, limits: ScalingLimits | None = None
) -> str:
    """Return TOML with paths relative to ``folder``, where the file is to lie.

    Args:
        models: Models that share the workers.
        folder: Folder of the file.
        max_queue: Requests that may wait, of all models.
        limits: Limits of workers that come with the load.
    """
    pool, of_all = models[0].pool, f" for {len(models)} models" if len(models) > 1 else ""
    longest_ms = max(model.promise.deadline_us for model in models) / 1e3
    lines = [
        f"# {pool.replicas:,} worker{'s' if pool.replicas > 1 else ''} of {pool.worker.name}{of_all}.",
        *_engine(pool),
        f"default-deadline-ms = {longest_ms!r}",
        *([f"# Workers, each with a GPU of its own: {pool.replicas}."] if is_gpu(pool.worker) else []),
        *(_replicas(pool, limits) if not is_gpu(pool.worker) else []),
        f"threads = {pool.worker.threads}",
        *_device(pool),
        "# Of more waiting requests the last could not be answered in time, or more than a server reads within a "
        "deadline.",
        f"max-queue = {max_queue}",
    ]
    for model in models:
        promise, deadline_ms = model.promise, model.promise.deadline_us / 1e3
        lines += [
            "",
            f"# {promise.attainment:g} of the requests within {deadline_ms:g} ms, at confidence "
            f"{promise.confidence:g}.",
            "[[models]]",
            *([f"name = {_quoted(model.name)}"] if model.name else []),
            *(f"{key} = {_quoted(_relative(path, folder))}" for key, path in model.files.items()),
            f"latency = {_quoted(_relative(Path(str(model.pool.worker.source)), folder))}",
        ]
        if model.terms:
            asked = " and ".join(f"{name} {_stated(value)}" for name, value in model.terms.items())
            lines.append(f"# Requests are to ask for {asked}.")
        else:
            lines += [f"policy = {_quoted(model.pool.policy)}", f"deadline-ms = {deadline_ms!r}"]
    return "\n".join([*lines, ""])


def cluster_remark(pool: Pool) -> str:
    """Return a remark where workers take more cores than this machine has; empty where they do not, or take GPUs."""
    if runs_here(pool) or is_gpu(pool.worker):
        return ""
    return (
        f"The workers take {pool.replicas * pool.worker.threads} cores, this machine has {usable_cores()}: "
        'engine "ray" runs them on a ray cluster.'
    )


def runs_here(pool: Pool) -> bool:
    """True if this machine has a core for each thread of the workers."""
    return pool.replicas * pool.worker.threads <= usable_cores()


def is_gpu(worker: WorkerType) -> bool:
    """True for a device that ``serve --device`` takes; tables may name others, such as a maker's."""
    return worker.device.startswith("cuda")


def _engine(pool: Pool) -> list[str]:
    """Processes of this machine where it has the cores, or where GPUs are needed; else a cluster."""
    remark = cluster_remark(pool)
    return ['engine = "ray"', f"# {remark}"] if remark else ['engine = "local"']


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


def _device(pool: Pool) -> list[str]:
    """GPUs, one for each worker."""
    device = pool.worker.device
    if not is_gpu(pool.worker):
        return []
    named = [device] if pool.replicas == 1 else [f"cuda:{number}" for number in range(pool.replicas)]
    return [f"device = {_quoted(','.join(named))}"]


def _stated(value: Any) -> str:
    """A value that all requests have, or the shares of those that do."""
    if isinstance(value, Mapping):
        return ", ".join(f"{each} ({share:.0%} of them)" for each, share in value.items())
    return str(value)


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())


def _quoted(text: str) -> str:
    """Return a basic string of TOML, whose escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False)
