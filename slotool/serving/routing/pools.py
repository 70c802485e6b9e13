"""Several pools of workers behind one port: each a router with workers, queue and policies of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from slotool.data.columns import Inputs
from slotool.errors import InputError
from slotool.scheduling.shares import WeightedTurns
from slotool.serving import rejections
from slotool.serving.engines import InferenceEngine, LocalInferenceEngine
from slotool.serving.events import Events
from slotool.serving.monitoring.metrics import Metrics
from slotool.serving.rejections import Rejection
from slotool.serving.request import InferenceResult, Request, answer_of
from slotool.serving.request_options import RequestOptions
from slotool.serving.routing.router import Router
from slotool.serving.served import ServedModel

# A pool gets no requests while each of its workers has been at a call longer than this, and far longer than planned.
STALLED_US = 0.5e6


@dataclass(frozen=True)
class Pool:
    """``share`` of the requests come to it, of the sum of all shares; ``max_queue`` of them may wait for its workers.

    There are ``replicas`` of them with ``threads`` each. ``max_replicas``: workers come and go with the requests of the
    pool, so many at most, each good for ``requests_per_worker`` a second; None where a latency table says so.
    """

    name: str
    share: float
    max_queue: int
    threads: int = 1
    replicas: int = 1
    max_replicas: int | None = None
    requests_per_worker: float | None = None


class PoolEvents(Events):
    """Hands on to ``events``, saying which pool they are of."""

    def __init__(self, events: Events, pool: str):
        super().__init__()
        self._pool = pool
        self.listen(lambda kind, sentence, fields: events.emit(kind, f"{pool}: {sentence}", pool=pool, **fields))


class PooledRouter:
    """Shares requests out to pools of workers; to everybody else it is a ``Router``.

    Each pool gets its share of the requests in turn (``WeightedTurns``), as a plan of a mixed fleet simulates it. One
    that would turn a request away, as its queue is full or none of its workers is there, leaves it to the next; so does
    one whose workers all seem to hang. What waits in a pool whose last worker is lost or hangs goes to another.
    ``engines``: of each pool; ``models``: whose ``by_pool`` say how each serves them. Raises as ``Router`` does.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        models: Mapping[str, ServedModel],
        engines: Sequence[InferenceEngine],
        *,
        default_deadline_us: float,
        events: Events,
    ):
        self.pools, self.events, self.metrics = tuple(pools), events, Metrics()
        self._turns = WeightedTurns([pool.share for pool in pools])
        self._routers: list[Router] = []
        try:
            for number, (pool, engine) in enumerate(zip(pools, engines, strict=True)):
                router = Router(
                    _in_pool(models, number),
                    engine,
                    self.metrics,
                    max_queue=pool.max_queue,
                    default_deadline_us=default_deadline_us,
                    events=PoolEvents(events, pool.name),
                )
                router.listen_to_losses(partial(self._worker_lost, router))
                router.alive_elsewhere = self.alive
                router.models_listener = self._models_changed
                self._routers.append(router)
        except BaseException:
            self.close()
            raise
        self.engine = PooledEngine(engines)
        self.now_us = self._routers[0].now_us
        self._models = dict(models)
        self.models_listener: Callable[[], None] | None = None
        # As reported by the last pool that was made.
        self.metrics.watch_queue(self.waiting)
        self.metrics.watch_workers(self.alive)
        for device in self.engine.devices:
            self.metrics.watch_device(device, partial(self.alive_on, device))
        self._count = [
            self.metrics.watch_pool(pool.name, pool.threads, router.alive, router.waiting)
            for pool, router in zip(self.pools, self._routers, strict=True)
        ]

    @property
    def by_pool(self) -> list[tuple[Pool, Router]]:
        """Each pool with its router."""
        return list(zip(self.pools, self._routers, strict=True))

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """The served models, by name; without those that take no further requests."""
        return {name: self._models[name] for name in self._routers[0].models if name in self._models}

    def model(self, name: str) -> ServedModel | None:
        """The served model of this name, or None."""
        return self._models.get(name) if self._routers[0].model(name) is not None else None

    def waiting(self, model: str | None = None) -> int:
        """Requests in the queues of a model, by default of all."""
        return sum(router.waiting(model) for router in self._routers)

    def alive(self) -> int:
        """Number of live workers, busy or not."""
        return sum(router.alive() for router in self._routers)

    def alive_on(self, device: str) -> int:
        """Number of live workers that compute on ``device``."""
        return sum(router.alive_on(device) for router in self._routers if device in router.engine.devices)

    def workers(self) -> int:
        """Number of workers, those included that are dead or not warm yet."""
        return self.engine.workers

    def busy(self) -> int:
        """Number of workers with a call in progress."""
        return sum(router.busy() for router in self._routers)

    def worker_states(self) -> list[dict[str, Any]]:
        """As ``Router.worker_states``, with ``pool``: the name of each worker's, and ``threads``."""
        return [
            {**state, "pool": pool.name, "threads": pool.threads}
            for pool, router in self.by_pool
            for state in router.worker_states()
        ]

    @property
    def arrived(self) -> int:
        """Requests that have come, whatever became of them."""
        return sum(router.arrived for router in self._routers)

    def unready(self) -> Rejection | None:
        """Why the server is not ready; None while some pool is."""
        reasons = [router.unready() for router in self._routers]
        return None if None in reasons else reasons[0]

    def listen(self) -> None:
        """As ``Router.listen``."""
        for router in self._routers:
            router.listen()

    def begin_drain(self) -> None:
        """Report not ready from now on; requests that come all the same are still answered."""
        for router in self._routers:
            router.begin_drain()

    def end(self) -> None:
        """Reject all requests in the queues and in progress, and all later ones."""
        for router in self._routers:
            router.end()

    def close(self) -> None:
        """Close the engines, the first last: others may use its connection."""
        for router in reversed(self._routers):
            router.close()

    def replace(self, served: ServedModel) -> None:
        """As ``Router.replace``, in each pool."""
        for number, router in enumerate(self._routers):
            router.replace(served.by_pool[number])
        self._models[served.name] = served

    async def exchange(self, models: Mapping[str, ServedModel], workers: tuple[int, int] | None = None) -> None:
        """As ``Router.exchange``, once all pools are ready for it.

        Raises ``InputError`` also for other workers, which pools cannot take while they serve.
        """
        if workers is not None:
            raise InputError("pools have the workers that they began with: start the server again")
        finish: list[Callable[[], Awaitable[None]]] = []
        try:
            for number, router in enumerate(self._routers):
                finish.append(await router.stage(_in_pool(models, number)))
        except BaseException:
            for router in self._routers[: len(finish)]:
                router.engine.unstage()
            raise
        await asyncio.gather(*(each() for each in finish))
        self._models = dict(models)
        self._models_changed()

    async def answer(
        self,
        name: str,
        x: Inputs,
        options: RequestOptions,
        arrival_us: float,
        is_disconnected: Callable[[], bool],
        *,
        alone: bool = False,
    ) -> InferenceResult:
        """As ``Router.answer``."""
        return await answer_of(self, name, x, options, arrival_us, is_disconnected, alone=alone)

    def submit(self, request: Request, *, alone: bool = False) -> None:
        """As ``Router.submit``, in the pool whose turn it is, or in one that takes the request."""
        if self.model(request.served.name) is None:
            request.end(rejections.no_longer_served(request.served.name))
            return
        due = self._turns.next()
        number = self._taking(due, request.options.timeout_us)
        if number != due and self._routers[due].is_stalled(STALLED_US):
            self._routers[due].give_waiting_to(self._routers[number])
        self._count[number]()
        self._routers[number].submit(request, alone=alone)

    def listen_to_batches(self, listener: Callable[[], None]) -> None:
        """As ``Router.listen_to_batches``, in all pools."""
        for router in self._routers:
            router.listen_to_batches(listener)

    def _models_changed(self) -> None:
        if self.models_listener is not None:
            self.models_listener()

    def _taking(self, first: int, timeout_us: float) -> int:
        """``first`` or, where it turns requests away or hangs, the next pool that has workers and room, if any."""
        for step in range(len(self._routers)):
            number = (first + step) % len(self._routers)
            router = self._routers[number]
            takes = router.alive() and router.rejection_on_arrival(timeout_us) is None
            if takes and not router.is_stalled(STALLED_US):
                return number
        return first

    def _worker_lost(self, router: Router) -> None:
        """What waits for the last worker of a pool goes to the pool with the most of them, if any has one."""
        if router.alive() or not router.waiting():
            return
        other = max(self._routers, key=Router.alive)
        if other.alive():
            router.give_waiting_to(other)


class _Place(NamedTuple):
    """A worker: its engine, and its number there."""

    engine: InferenceEngine
    worker: int


class PooledEngine:
    """The engines of several pools, for those who ask about workers; these are numbered through, pool by pool."""

    in_loop = False
    can_reconfigure = False

    def __init__(self, engines: Sequence[InferenceEngine]):
        self.engines = tuple(engines)

    @property
    def workers(self) -> int:
        """Of all pools."""
        return sum(engine.workers for engine in self.engines)

    @property
    def devices(self) -> tuple[str, ...]:
        """That any pool computes on."""
        return tuple(dict.fromkeys(device for engine in self.engines for device in engine.devices))

    def cores(self) -> int:
        """That there are for workers."""
        return self.engines[0].cores()

    def pid(self, worker: int) -> int:
        """As of ``LocalInferenceEngine``."""
        engine, number = self._local(worker)
        return engine.pid(number)

    def inject(self, worker: int, action: str, factor: float = 1.0, lasts_s: float | None = None) -> int:
        """As of ``LocalInferenceEngine``."""
        engine, number = self._local(worker)
        return engine.inject(number, action, factor, lasts_s)

    def _local(self, worker: int) -> tuple[LocalInferenceEngine, int]:
        places = [_Place(engine, number) for engine in self.engines for number in range(engine.workers)]
        if not 0 <= worker < len(places):
            raise InputError(f"there is no worker {worker}; there are {len(places)}, numbered from 0")
        engine = places[worker].engine
        assert isinstance(engine, LocalInferenceEngine)
        return engine, places[worker].worker


def _in_pool(models: Mapping[str, ServedModel], number: int) -> dict[str, ServedModel]:
    return {name: served.by_pool[number] for name, served in models.items()}


def combined(by_pool: Sequence[Mapping[str, ServedModel]]) -> dict[str, ServedModel]:
    """Models by name, from those of each pool."""
    return {
        name: replace(served, by_pool=tuple(models[name] for models in by_pool)) for name, served in by_pool[0].items()
    }


AnyRouter = Router | PooledRouter
