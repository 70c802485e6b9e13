"""Where ``slotool serve`` computes: its engine, and what changes the workers while it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from slotool.cli.commands import STATED, stated_in
from slotool.commands.serving.serve import OF_WORKERS

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from slotool.scheduling.autoscaler import Autoscaler
    from slotool.serving import ServedModel
    from slotool.serving.engines import InferenceEngine, LocalInferenceEngine
    from slotool.serving.operations.autoscaling import Autoscaling
    from slotool.serving.operations.reprofiling import Reprofiling
    from slotool.serving.operations.runtime_settings import AnySources, ReloadableSettings
    from slotool.serving.operations.worker_switching import WorkerSwitching
    from slotool.serving.routing.pools import AnyRouter, PooledEngine
    from slotool.serving.routing.router import Router


def stated_engine(engine: str, device: str, has_pools: bool) -> str:
    """Return the engine that the options ask for: ``auto`` only while that depends on the models."""
    of_workers = has_pools or device != "cpu" or any(stated_in(option) in STATED for option in OF_WORKERS)
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
    from slotool.serving.routing.pools import PooledEngine
    from slotool.serving.server.server import is_loopback

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


def _by_pool(router: AnyRouter) -> list[tuple[str, Router]]:
    """Names of pools, each with its router; without pools the name is empty."""
    from slotool.serving.routing.router import Router

    return [("", router)] if isinstance(router, Router) else [(pool.name, own) for pool, own in router.by_pool]


def reprofiling_of(router: AnyRouter, settings: ReloadableSettings) -> list[Reprofiling]:
    """Of the workers, or of each pool of them that has latencies."""
    from slotool.serving.operations.reprofiling import Reprofiling

    def known(own: Router) -> bool:
        spaces = [served.space for served in own.models.values() if served.space is not None]
        return any(space.batch_sizes(point) for space in spaces for point in space.points)

    found = [Reprofiling(own, settings, pool) for pool, own in _by_pool(router) if known(own)]
    if not found:
        raise typer.BadParameter("there are no latencies to correct: give --latency too", param_hint="--reprofile")
    return found


def worker_changes(
    router: AnyRouter, settings: ReloadableSettings, autoscalers: Sequence[Autoscaler | None], switch_workers: bool
) -> list[Autoscaling | WorkerSwitching]:
    """What changes the workers with the load, if anything. ``autoscalers``: as of ``autoscalers_of``."""
    from slotool.serving.operations.autoscaling import Autoscaling
    from slotool.serving.operations.worker_switching import WorkerSwitching
    from slotool.serving.routing.router import Router

    if switch_workers:
        assert isinstance(router, Router)  # refused with pools
        return [WorkerSwitching(router, settings)]
    routers = [own for _, own in _by_pool(router)]
    return [Autoscaling(own, scaler) for own, scaler in zip(routers, autoscalers, strict=True) if scaler is not None]


def autoscalers_of(
    sources: AnySources, models: Mapping[str, ServedModel], most: int | None, per_worker_per_s: float | None
) -> list[Autoscaler | None]:
    """Of the workers, or of each pool of them, which says so for itself; None of those that stay as they are."""
    from slotool.serving.operations.pooled_sources import PooledSources

    if not isinstance(sources, PooledSources):
        return [None if most is None else autoscaler_of(models, sources.workers[0], most, per_worker_per_s)]
    scalers: list[Autoscaler | None] = []
    for number, pool in enumerate(sources.pools):
        own = {name: served.by_pool[number] for name, served in models.items()}
        rate_per_s = pool.requests_per_worker
        scalers.append(
            None if pool.max_replicas is None else autoscaler_of(own, pool.replicas, pool.max_replicas, rate_per_s)
        )
    return scalers


def autoscaler_of(
    models: Mapping[str, ServedModel], least: int, most: int, per_worker_per_s: float | None
) -> Autoscaler:
    from slotool.scheduling.autoscaler import Autoscaler
    from slotool.serving.operations.autoscaling import good_for_per_s

    if per_worker_per_s is None:
        rates = [good_for_per_s(served) for served in models.values()]
        if len(rates) != 1 or rates[0] is None:
            why = "there are several models" if len(rates) > 1 else "there is no latency table"
            raise typer.BadParameter(
                f"say for how many requests per second a worker is good: {why}", param_hint="--requests-per-worker"
            )
        per_worker_per_s = rates[0]
    return Autoscaler(least, most, per_worker_per_s)
