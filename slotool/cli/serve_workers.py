"""Where ``slotool serve`` computes: its engine, and what changes the workers while it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from slotool.scheduling.autoscaler import Autoscaler
    from slotool.serving import ServedModel
    from slotool.serving.autoscaling import Autoscaling
    from slotool.serving.engines import InferenceEngine, LocalInferenceEngine
    from slotool.serving.pools import AnyRouter, PooledEngine
    from slotool.serving.reprofiling import Reprofiling
    from slotool.serving.runtime_settings import ReloadableSettings
    from slotool.serving.worker_switching import WorkerSwitching


def engine_of(
    name: str,
    replicas: int,
    threads: int,
    max_examples: int,
    hang_s: float,
    address: str | None,
    max_replicas: int | None = None,
    devices: tuple[str, ...] = ("cpu",),
    cores: Sequence[int] = (),
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
            max_examples=max_examples,
            hang_s=hang_s,
            max_replicas=max_replicas,
            devices=devices,
            cores=cores,
        )
    if name == InlineInferenceEngine.name:
        return InlineInferenceEngine(devices[0])
    if name not in registry.plugins:
        raise typer.BadParameter(registry.unknown(name), param_hint="--engine")
    made: Callable[..., InferenceEngine] = registry.load(name)
    return made(replicas, threads, max_examples=max_examples, hang_s=hang_s, address=address)


def with_faults(engine: InferenceEngine | PooledEngine, listener: socket.socket) -> LocalInferenceEngine | PooledEngine:
    """The engine, whose workers this machine's clients may kill, stop and slow."""
    from slotool.serving.engines import LocalInferenceEngine
    from slotool.serving.pools import PooledEngine
    from slotool.serving.server import is_loopback

    engines = engine.engines if isinstance(engine, PooledEngine) else (engine,)
    if not all(isinstance(each, LocalInferenceEngine) for each in engines):
        raise typer.BadParameter(
            "faults are of --engine local, whose workers are processes", param_hint="--allow-faults"
        )
    if not is_loopback(listener):
        raise typer.BadParameter(
            "other machines could stop the workers: leave --host at 127.0.0.1", param_hint="--allow-faults"
        )
    assert isinstance(engine, LocalInferenceEngine | PooledEngine)
    return engine


def reprofiling_of(router: AnyRouter, settings: ReloadableSettings) -> Reprofiling:
    from slotool.serving.reprofiling import Reprofiling
    from slotool.serving.router import Router

    assert isinstance(router, Router)  # refused with pools

    spaces = [served.space for served in router.models.values() if served.space is not None]
    if not any(space.batch_sizes(point) for space in spaces for point in space.points):
        raise typer.BadParameter("there are no latencies to correct: give --latency too", param_hint="--reprofile")
    return Reprofiling(router, settings)


def worker_changes(
    router: AnyRouter, settings: ReloadableSettings, autoscaler: Autoscaler | None, switch_workers: bool
) -> Autoscaling | WorkerSwitching | None:
    """What changes the workers with the load, if anything."""
    from slotool.serving.autoscaling import Autoscaling
    from slotool.serving.pools import PooledRouter
    from slotool.serving.worker_switching import WorkerSwitching

    if isinstance(router, PooledRouter):
        return None
    if autoscaler is not None:
        return Autoscaling(router, autoscaler)
    return WorkerSwitching(router, settings) if switch_workers else None


def autoscaler_of(
    models: Mapping[str, ServedModel], least: int, most: int, per_worker_per_s: float | None
) -> Autoscaler:
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
