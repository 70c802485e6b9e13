"""The service file of several models that share workers, which ``slotool serve --config`` runs as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slotool.planning.fleet import Fleet, Pool
from slotool.planning.promise import Promise
from slotool.planning.scaling import ScalingLimits
from slotool.planning.service_text import engine_lines, quoted, relative, source_of, worker_lines


def shared_service_text(
    alike: Fleet,
    promises: Mapping[str, Promise],
    folder: Path,
    files: Mapping[str, Mapping[str, Path]],
    pools: Mapping[str, Pool],
    max_queue: int,
    limits: ScalingLimits | None = None,
) -> str:
    """TOML with paths relative to ``folder``, where the file is to lie.

    ``alike``: the workers, as a fleet of any of the models. By model ``files``, by key, without latencies, and
    ``pools``: its policy, and its latencies on these workers; also of a model that the plan expects no requests of.
    ``max_queue``: requests that may wait, of all models; ``limits``: of workers that come with the load.
    """
    pool = alike.pool
    longest_ms = max(promise.deadline_us for promise in promises.values()) / 1e3
    lines = [
        f"# {pool.replicas:,} worker{'s' if pool.replicas > 1 else ''} of {pool.worker.name} for {len(files)} models.",
        *engine_lines(pool),
        f"default-deadline-ms = {longest_ms!r}",
        *worker_lines(pool, limits),
        "# Of more waiting requests, of all models, the last could not be answered in time even at the fastest point, "
        "or more than a server reads within a deadline.",
        f"max-queue = {max_queue}",
    ]
    for name, own in files.items():
        promise = promises[name]
        lines += [
            "",
            f"# {promise.attainment:g} of the requests within {promise.deadline_us / 1e3:g} ms, at confidence "
            f"{promise.confidence:g}.",
            "[[models]]",
            f"name = {quoted(name)}",
            *(f"{key} = {quoted(relative(path, folder))}" for key, path in own.items()),
            f"latency = {quoted(relative(source_of(pools[name]), folder))}",
            f"policy = {quoted(pools[name].policy)}",
            f"deadline-ms = {promise.deadline_us / 1e3!r}",
        ]
    return "\n".join([*lines, ""])
