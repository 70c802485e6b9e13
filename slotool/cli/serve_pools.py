"""Several pools of workers of one ``slotool serve``, as the ``[[pools]]`` of its file describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from slotool.cli.commands import refuse_without_effect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slotool.serving import ServedModel
    from slotool.serving.engines import InferenceEngine
    from slotool.serving.events import Events
    from slotool.serving.operations.runtime_settings import AnySources
    from slotool.serving.routing.pools import AnyRouter


def _refuse_with_pools(pools: Sequence[Any] | None, only: str | None, engine: str) -> None:
    """What cannot be asked for where there are pools, or none. ``only``: the one that is served."""
    if pools is None:
        if only is not None:
            raise typer.BadParameter("pools are listed in a file: --config service.toml", param_hint="--pool")
        return
    of_one = ("replicas", "threads", "device", "max_replicas", "requests_per_worker")
    refuse_without_effect(of_one, "with [[pools]], each of which has its own workers")
    refuse_without_effect(("switch_workers",), "with [[pools]]: a switching plan is of workers of one kind")
    if engine == "inline":
        raise typer.BadParameter("[[pools]] are workers of --engine local or ray", param_hint="--engine")
    if engine not in ("local", "ray") and any(isinstance(pool, dict) and "max-replicas" in pool for pool in pools):
        raise typer.BadParameter(
            f"--engine {engine} cannot add workers: leave max-replicas out of the [[pools]]", param_hint="--engine"
        )


def scaling_of(
    pools: Sequence[Any] | None, only: str | None, engine: str, most: int | None, per_worker_per_s: float | None
) -> tuple[int | None, float | None]:
    """``--max-replicas`` and ``--requests-per-worker`` as given or as the only pool that is served says; several pools
    have their own. Refuses what cannot be asked for where there are pools, or none."""
    _refuse_with_pools(pools, only, engine)
    return of_only_pool(pools, only, "max-replicas", most), of_only_pool(
        pools, only, "requests-per-worker", per_worker_per_s
    )


def of_only_pool(pools: Sequence[Any] | None, only: str | None, key: str, otherwise: Any) -> Any:
    """What the only pool that is served says of ``key``, where one is and does."""
    named = [(entry.get("name") or f"pool {number}", entry) for number, entry in enumerate(pools or ())]
    stated = [entry.get(key) for name, entry in named if name == only]
    return stated[0] or otherwise if stated else otherwise


def router_of(
    sources: AnySources,
    served: Mapping[str, ServedModel],
    made: Callable[..., InferenceEngine],
    *,
    max_queue: int,
    default_deadline_us: float,
    events: Events,
) -> AnyRouter:
    """Of one pool of workers or several, each with cores of its own where there are enough, also for those that come
    with the load. ``made``: an engine of so many replicas and threads."""
    from slotool.process import cores_by_preference
    from slotool.serving.operations.pooled_sources import PooledSources
    from slotool.serving.routing.pools import PooledRouter
    from slotool.serving.routing.router import Router

    if not isinstance(sources, PooledSources):
        engine = made(*sources.workers, devices=sources.devices)
        return Router(served, engine, max_queue=max_queue, default_deadline_us=default_deadline_us, events=events)
    cores = cores_by_preference()
    wanted = [(pool.max_replicas or pool.replicas) * pool.threads for pool in sources.pools]
    enough, engines, first = sum(wanted) <= len(cores), [], 0
    for pool, part, count in zip(sources.pools, sources.parts, wanted, strict=True):
        own = cores[first : first + count] if enough else []
        engines.append(made(*part.workers, max_replicas=pool.max_replicas, devices=part.devices, cores=own))
        first += count
    return PooledRouter(sources.pools, served, engines, default_deadline_us=default_deadline_us, events=events)
