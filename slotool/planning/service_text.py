"""The service file of a planned fleet, which ``slotool serve --config`` runs as it is."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from slotool.planning.fleet import Fleet
from slotool.planning.promise import Promise


def service_text(
    fleet: Fleet, promise: Promise, folder: Path, artifact: Path, latency: Path, outcomes: Path | None
) -> str:
    """TOML with paths relative to ``folder``, where the file is to lie.

    The queue holds what the fleet can answer at its fastest point within a deadline: more could not be in time.
    """
    cores = len(os.sched_getaffinity(0))
    here = fleet.replicas * fleet.worker.threads <= cores
    deadline_ms = promise.deadline_us / 1e3
    queue = max(fleet.replicas, math.ceil(fleet.best_rate_per_s * promise.deadline_us / 1e6))
    files = {"artifact": artifact, "latency": latency, "outcomes": outcomes}
    lines = [
        f"# {fleet.replicas} workers of {fleet.worker.name}: {promise.attainment:g} of the requests within "
        f"{deadline_ms:g} ms, at confidence {promise.confidence:g}.",
        f"engine = {_quoted('local' if here else 'ray')}",
        *(() if here else (f"# More workers than this machine has cores ({cores}): start a ray cluster of them.",)),
        f"replicas = {fleet.replicas}",
        f"threads = {fleet.worker.threads}",
        f"policy = {_quoted(fleet.policy)}",
        f"deadline-ms = {deadline_ms!r}",
        f"default-deadline-ms = {deadline_ms!r}",
        f"max-queue = {queue}",
        "",
        "[[models]]",
        *(f"{key} = {_quoted(_relative(path, folder))}" for key, path in files.items() if path is not None),
        "",
    ]
    return "\n".join(lines)


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())


def _quoted(text: str) -> str:
    """As a basic string of TOML, whose escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False)
