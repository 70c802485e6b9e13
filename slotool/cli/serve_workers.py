"""Where ``slotool serve`` computes: its engine, and what changes the workers while it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from slotool.cli.commands import STATED, stated_in
from slotool.commands.serving.serve import OF_WORKERS

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from slotool.scheduling.worker_counts import Autoscaler
    from slotool.serving import ServedModel
    from slotool.serving.engines import InferenceEngine, LocalInferenceEngine


def stated_engine(engine: str, device: str) -> str:
    """Return the engine that the options ask for: ``auto`` only while that depends on the models."""
    of_workers = device != "cpu" or any(stated_in(option) in STATED for option in OF_WORKERS)
    return "local" if engine == "auto" and of_workers else engine


def chosen_engine(engine: str, models: Mapping[str, ServedModel], replicas: int) -> str:
    """Return the engine, for ``auto`` as short as the calls of one worker are."""
    from slotool.serving.engines.choice import compute_in_loop

    if engine != "auto":
        return engine
    return "inline" if replicas == 1 and compute_in_loop(models) else "local"


def engine_of(
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

        return RayInferenceEngine(
            replicas, threads, address=address or "auto", hang_s=hang_s, max_replicas=max_replicas
        )
    if name == LocalInferenceEngine.name:
        return LocalInferenceEngine(
            replicas,
            threads,
            hang_s=hang_s,
            max_replicas=max_replicas,
            devices=devices,
        )
    if name == InlineInferenceEngine.name:
        return InlineInferenceEngine(devices[0])
    if name not in registry.plugins:
        raise typer.BadParameter(registry.unknown(name), param_hint="--engine")
    made: Callable[..., InferenceEngine] = registry.load(name)
    return made(replicas, threads, max_examples=max_examples, hang_s=hang_s, address=address)


def with_faults(engine: InferenceEngine, listener: socket.socket) -> LocalInferenceEngine:
    """The engine, whose workers this machine's clients may kill, stop and slow."""
    from slotool.serving.engines import LocalInferenceEngine
    from slotool.serving.server.server import is_loopback

    if not isinstance(engine, LocalInferenceEngine):
        raise typer.BadParameter(
            "faults are of --engine local, whose workers are processes", param_hint="--allow-faults"
        )
    if not is_loopback(listener):
        raise typer.BadParameter(
            "other machines could stop the workers: leave --host at 127.0.0.1", param_hint="--allow-faults"
        )
    return engine


def autoscaler_of(
    models: Mapping[str, ServedModel], least: int, most: int, per_worker_per_s: float | None
) -> Autoscaler:
    from slotool.scheduling.worker_counts import Autoscaler
    from slotool.serving.operations.worker_changes import good_for_per_s

    if per_worker_per_s is None:
        rates = [good_for_per_s(served) for served in models.values()]
        if len(rates) != 1 or rates[0] is None:
            why = "there are several models" if len(rates) > 1 else "there is no latency table"
            raise typer.BadParameter(
                f"say for how many requests per second a worker is good: {why}", param_hint="--requests-per-worker"
            )
        per_worker_per_s = rates[0]
    return Autoscaler(least, most, per_worker_per_s)
