"""The service file of a planned fleet, which ``slotool serve --config`` runs as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotool.planning.fleet import Pool, WorkerType
from slotool.planning.promise import Promise
from slotool.planning.scaling import ScalingLimits


def service_text(
    pool: Pool,
    promise: Promise,
    folder: Path,
    files: Mapping[str, Path],
    terms: Mapping[str, Any],
    max_queue: int,
    limits: ScalingLimits | None = None,
) -> str:
    """TOML with paths relative to ``folder``, where the file is to lie.

    ``files``: of the model, by key. ``terms``: what requests are to ask for, where it is they who choose; no policy is
    named then. ``max_queue``: what the workers can answer at their fastest point, or by the requests' own tiers, within
    a deadline: more could not be in time. ``limits``: of workers that come with the load.
    """
    here, on_gpus = runs_here(pool), is_gpu(pool.worker)
    deadline_ms = promise.deadline_us / 1e3
    policy = [f"policy = {_quoted(pool.policy)}", f"deadline-ms = {deadline_ms!r}"]
    asked = " and ".join(f"{name} {_stated(value)}" for name, value in terms.items())
    asking = [f"# Requests are to ask for {asked}."]
    lines = [
        f"# {pool}: {promise.attainment:g} of the requests within {deadline_ms:g} ms, at confidence "
        f"{promise.confidence:g}.",
        *(() if pool.share == 1 else (f"# A load balancer is to send {pool.share:.1%} of the requests here.",)),
        f"engine = {_quoted('local' if here or on_gpus else 'ray')}",
        *(
            ()
            if here or on_gpus
            else (f"# More workers than this machine has cores ({_cores()}): start a ray cluster of them.",)
        ),
        *([f"# Workers, each with a GPU of its own: {pool.replicas}."] if on_gpus else _replicas(pool, limits)),
        f"threads = {pool.worker.threads}",
        *_device(pool),
        *(asking if terms else policy),
        f"default-deadline-ms = {deadline_ms!r}",
        "# Of more waiting requests the last could not be answered in time"
        f"{'' if terms else ', even at the fastest point'}.",
        f"max-queue = {max_queue}",
        "",
        "[[models]]",
        *(f"{key} = {_quoted(_relative(path, folder))}" for key, path in files.items()),
        "",
    ]
    return "\n".join(lines)


def runs_here(pool: Pool) -> bool:
    """Whether this machine has a core for each thread of its workers."""
    return pool.replicas * pool.worker.threads <= _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


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
    return [f"device = {_quoted(','.join(named))}"]


def _stated(value: Any) -> str:
    """A value that all requests have, or the shares of those that do."""
    if isinstance(value, Mapping):
        return ", ".join(f"{each} ({share:.0%} of them)" for each, share in value.items())
    return str(value)


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())


def _quoted(text: str) -> str:
    """As a basic string of TOML, whose escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False)
