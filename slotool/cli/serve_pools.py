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
    from slotool.serving.pools import AnyRouter
    from slotool.serving.runtime_settings import AnySources


def refuse_with_pools(pools: Sequence[Any] | None, only: str | None, engine: str) -> None:
    """What cannot be asked for where there are pools, or none. ``only``: the one that is served."""
    if pools is None:
        if only is not None:
            raise typer.BadParameter("pools are listed in a file: --config service.toml", param_hint="--pool")
        return
    of_one = ("replicas", "threads", "device", "switch_workers", "max_replicas", "requests_per_worker")
    refuse_without_effect(of_one, "with [[pools]], each of which has its own workers")
    if only is None:
        refuse_without_effect(("reprofile",), "with [[pools]]: calls take as long as their pool's workers need")
    if engine == "inline":
        raise typer.BadParameter("[[pools]] are workers of --engine local or ray", param_hint="--engine")


def pool_queue(pools: Sequence[Any] | None, only: str | None, max_queue: int) -> int:
    """Requests that may wait: as the only pool that is served says, where one does."""
    stated = [entry.get("max-queue") for entry in pools or () if entry.get("name") == only]
    return int(stated[0] or max_queue) if stated else max_queue


def router_of(
    sources: AnySources,
    served: Mapping[str, ServedModel],
    made: Callable[..., InferenceEngine],
    *,
    max_queue: int,
    default_deadline_us: float,
    events: Events,
) -> AnyRouter:
    """Of one pool of workers or several, each with cores of its own where there are enough. ``made``: an engine of so
    many replicas and threads."""
    from slotool.process import cores_by_preference
    from slotool.serving.pooled_sources import PooledSources
    from slotool.serving.pools import PooledRouter
    from slotool.serving.router import Router

    if not isinstance(sources, PooledSources):
        engine = made(*sources.workers, devices=sources.devices)
        return Router(served, engine, max_queue=max_queue, default_deadline_us=default_deadline_us, events=events)
    cores, wanted = cores_by_preference(), [replicas * threads for replicas, threads in sources.shapes]
    enough, engines, first = sum(wanted) <= len(cores), [], 0
    for part, (replicas, threads), count in zip(sources.parts, sources.shapes, wanted, strict=True):
        own = cores[first : first + count] if enough else []
        engines.append(made(replicas, threads, devices=part.devices, cores=own))
        first += count
    return PooledRouter(sources.pools, served, engines, default_deadline_us=default_deadline_us, events=events)
