"""The ray engine: workers are actors of a ray cluster, which places them and starts them again when they are lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from slotool.data.columns import Inputs
from slotool.elastic import ElasticModel
from slotool.errors import InputError, RunError
from slotool.models.packing import pack, unpack
from slotool.models.signature import RowCountError
from slotool.serving.engines.base import CallCancelled, Done, HangLimit, InferenceEngine, WorkerChange, WorkerLost
from slotool.serving.engines.ensemble import PointRunner
from slotool.serving.engines.messages import encode_point, outputs_of_tensors, tensors_of_inputs
from slotool.serving.engines.ray_cluster import connect, first_line, quiet_ray, with_cause, workers_that_fit
from slotool.serving.engines.ray_worker import CANCELLED, DONE, FAILED, MISCOUNTED, MISSING, Load, Worker
from slotool.serving.outputs import Outputs
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint

START_TIMEOUT_S = 180.0
# ray starts a lost actor again by itself; it is asked so often whether it has.
ASK_AGAIN_S = 0.5
# A worker that is lost so often while it starts will not come. A busy machine answers late, which ray takes for a loss.
MAX_START_LOSSES = 4


@dataclass(slots=True)
class _Call:
    number: int
    model: ElasticModel
    done: Done
    begun_s: float
    # Its name, point and examples.
    terms: tuple[str, OperatingPoint, int]


@dataclass(slots=True)
class _Place:
    """A worker as the router sees it; ``life`` counts how often it was lost or replaced, ``lost_s`` is since when it is
    lost, if it is now. ``removed``: it is not needed any more. ``start_losses``: losses before it served.
    """

    actor: Any
    load: Load
    life: int = 0
    call: _Call | None = None
    lost_s: float | None = None
    removed: bool = False
    start_losses: int = 0


class RayInferenceEngine(InferenceEngine):
    """``replicas`` actors of ``threads`` CPUs each, spread over a cluster, each with every model warm.

    ``address``: as of ``ray.init``: ``auto``, ``host:port``, ``ray://host:port``; ``local`` starts a cluster, of this
    machine. A process that is connected already stays so. ray starts an actor that is lost again, on another node where
    its own is lost too, as soon as it has the CPUs; one that takes longer over a call than ``HangLimit`` of ``hang_s``
    counts as lost.
    Nodes need this version of slotool. An artifact is read at its path where it lies there, else its files are sent.
    Other models or workers get ready beside those that serve, so that the cluster needs CPUs for both for that time.
    ``max_replicas``: workers come and go by ``scale_to``, so many at most.

    ``open`` raises ``InputError`` when ray is not installed, no cluster answers or a model does not come from an
    artifact, ``RunError`` when the workers do not get warm.
    """

    name = "ray"

    def __init__(
        self,
        replicas: int = 1,
        threads: int = 1,
        *,
        address: str = "auto",
        hang_s: float = 60.0,
        max_replicas: int | None = None,
    ):
        self.workers, self.can_reconfigure = replicas, max_replicas is None
        self._threads, self._address, self._hang = threads, address, HangLimit(hang_s)
        self._places: list[_Place] = []
        # Of other models or threads: on their way, and warm ones that wait for the call of the worker before them.
        self._staged: list[_Place] = []
        self._successors: dict[int, _Place] = {}
        self._calls = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_change: WorkerChange = lambda worker, alive: None
        self._watch: asyncio.TimerHandle | None = None
        self._connected = False
        self._closed = False
        self._warm_took_s = 0.0

    def open(self, models: Mapping[str, ServedModel], on_change: WorkerChange) -> None:
        self._load, self._on_change = Load(models, self._threads), on_change
        self._ray = quiet_ray()
        self._connected = connect(self._ray, self._address)
        self._places = self._new_places(self._load, self.workers)
        try:
            began_s = time.monotonic()
            self._wait_until_warm(self._places, f"{self.workers} workers of {self._threads} CPUs each")
            self._warm_took_s = time.monotonic() - began_s
        except BaseException:
            self.close()
            raise

    async def stage(
        self, models: Mapping[str, ServedModel], workers: tuple[int, int] | None = None
    ) -> Callable[[], None]:
        """New actors load beside those that serve.

        Raises ``RunError`` also where the cluster has no CPUs for them meanwhile, ``InputError`` for other workers
        where these come and go by ``scale_to``.
        """
        if workers is not None and not self.can_reconfigure:
            raise InputError("workers come and go with the load (--max-replicas): their number cannot be set as well")
        count, threads = workers or (self.workers, self._load.threads)
        self.listen()
        load = Load(models, threads)
        staged = self._staged = self._new_places(load, count)
        wanted = f"{count} workers of {threads} CPUs each, beside those that serve,"
        try:
            await asyncio.to_thread(self._wait_until_warm, staged, wanted)
        except BaseException:
            for place in () if self._closed else staged:
                self._ray.kill(place.actor)
            self._staged = []
            raise
        return partial(self._change_over, load, staged)

    def _change_over(self, load: Load, staged: list[_Place]) -> None:
        """Idle workers at once; a busy one when its call has ended, before it is given another."""
        self._load, self.workers, self._staged = load, len(staged), []
        for worker, place in enumerate(staged):
            before = self._places[worker] if worker < len(self._places) else None
            if worker in self._successors:  # of the change before, for which the call was too long
                self._ray.kill(self._successors.pop(worker).actor)
            if before is not None and before.call is not None:
                self._successors[worker] = place
                continue
            was_there = before is not None and before.lost_s is None and not before.removed
            self._succeed(worker, place)
            if not was_there:  # new or lost: the router has not heard of it
                self._on_change(worker, True)
        for worker in range(self.workers, len(self._places)):
            self._remove_if_idle(worker)

    def _succeed(self, worker: int, place: _Place) -> None:
        if worker < len(self._places):
            before, self._places[worker] = self._places[worker], place
            place.life = before.life + 1
            if not before.removed:
                self._ray.kill(before.actor)
        else:
            self._places.append(place)
        self._stay_with(worker)

    def _remove_if_idle(self, worker: int) -> None:
        place = self._places[worker]
        if place.call is not None or place.removed:
            return
        if worker in self._successors:
            self._ray.kill(self._successors.pop(worker).actor)
        was_there = place.lost_s is None
        place.removed, place.lost_s = True, None
        place.life += 1
        self._ray.kill(place.actor)
        if was_there:
            self._on_change(worker, False)

    def room_for(self, workers: int) -> int | None:
        """As many more as the nodes of the cluster have free CPUs for.

        Not known while workers start: they may have taken their CPUs, or not yet.
        """
        since_s = time.monotonic() - START_TIMEOUT_S
        if any(place.lost_s is not None and place.lost_s > since_s for place in self._places):
            return None
        there = sum(not place.removed for place in self._places[:workers])
        return min(workers, there + workers_that_fit(self._ray, self._load.threads))

    def scale_to(self, workers: int) -> bool:
        """Not while other models are on their way, nor while a worker that would be kept is still busy with the models
        before. One that was to end and is still busy with the models of now stays."""
        self.listen()
        if self._staged or any(map(self._is_outdated, range(min(workers, len(self._places))))):
            return False
        self.workers = workers
        for worker in range(workers):
            before = self._places[worker] if worker < len(self._places) else None
            if before is not None and not before.removed:
                continue
            place = _Place(self._new_actor(self._load.threads), self._load, lost_s=time.monotonic())
            place.life = 0 if before is None else before.life + 1
            self._places[worker:] = [place, *self._places[worker + 1 :]]
            self._back(worker, place)
        for worker in range(workers, len(self._places)):
            self._remove_if_idle(worker)
        return True

    def _is_outdated(self, worker: int) -> bool:
        """Whether a worker is still there that was not needed any more when other models came."""
        place = self._places[worker]
        return not place.removed and worker not in self._successors and place.load is not self._load

    def prepare(self, model: str, points: tuple[OperatingPoint, ...]) -> None:
        PointRunner(self._load.models[model].model, points)

    def cores(self) -> int:
        """Of the whole cluster."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def listen(self) -> None:
        if self._loop is None:
            self._listen_in(asyncio.get_running_loop())

    def ready_in_s(self) -> float:
        """A lost actor is expected to take as long to be warm again as all took together at first."""
        lost_s = [place.lost_s for place in self._places if place.lost_s is not None]
        return max(0.0, min(lost_s) + self._warm_took_s - time.monotonic()) if lost_s else 0.0

    def begin(self, worker: int, model: str, point: OperatingPoint, x: Inputs, done: Done) -> None:
        self.listen()
        place = self._places[worker]
        self._calls += 1
        served = place.load.models[model].model
        call = place.call = _Call(self._calls, served, done, time.monotonic(), (model, point, len(x)))
        packed = pack(tensors_of_inputs(x))
        answer = place.actor.compute.remote(call.number, model, encode_point(point), packed)
        self._when_done(answer, partial(self._answered, worker, place.life))

    def cancel(self, worker: int) -> None:
        place = self._places[worker]
        if place.call is not None:
            place.actor.cancel.options(concurrency_group="control").remote(place.call.number)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        for place in (*self._places, *self._staged, *self._successors.values()):
            if not place.removed:
                self._ray.kill(place.actor)
        if self._connected:
            self._ray.shutdown()

    def node(self, worker: int) -> str:
        """The id of the node that ``worker`` runs on."""
        asked = self._places[worker].actor.where.options(concurrency_group="control").remote()
        return str(self._ray.get(asked))

    def _new_places(self, load: Load, workers: int) -> list[_Place]:
        return [_Place(self._new_actor(load.threads), load) for _ in range(workers)]

    def _new_actor(self, threads: int) -> Any:
        remote = self._ray.remote(
            num_cpus=threads, max_restarts=-1, concurrency_groups={"control": 2}, scheduling_strategy="SPREAD"
        )
        return remote(Worker).remote()

    def _wait_until_warm(self, places: Sequence[_Place], wanted: str) -> None:
        """Raises ``RunError`` where some do not get warm. ``wanted``: what the cluster is to have, for a sentence."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        loading = {place.load.on(place.actor): place for place in places}
        while loading:
            done, _ = self._ray.wait(list(loading), timeout=ASK_AGAIN_S)
            if self._closed:
                raise RunError("the server ends")
            if not done:
                if time.monotonic() > deadline_s:
                    raise RunError(f"the cluster did not have {wanted} warm within {START_TIMEOUT_S:.0f} s")
                continue
            place = loading.pop(done[0])
            try:
                kind, *said = self._ray.get(done[0])
            except self._ray.exceptions.RayError as error:
                self._require_to_come(place, error)
                time.sleep(ASK_AGAIN_S)
                loading[place.load.on(place.actor)] = place
                continue
            if kind == FAILED:
                raise RunError(f"a worker cannot run its models: {said[0]}")
            if kind == MISSING:
                loading[place.load.on(place.actor, said[0])] = place

    def _require_to_come(self, place: _Place, error: Exception) -> None:
        """Raises ``RunError`` for a worker that was lost while it started, unless ray starts it again by itself."""
        place.start_losses += 1
        starts_again = isinstance(error, self._ray.exceptions.ActorUnavailableError)
        if not starts_again or place.start_losses >= MAX_START_LOSSES:
            times = f", {place.start_losses} times" if place.start_losses > 1 else ""
            raise RunError(f"a worker was lost while it started{times}: {with_cause(error)}") from error

    def _listen_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        for worker in range(self.workers):
            self._stay_with(worker)
        self._watch = loop.call_later(self._hang.look_s, self._look_for_hung)

    def _stay_with(self, worker: int) -> None:
        """Notice when the actor is lost, also while it is idle."""
        place = self._places[worker]
        vigil = place.actor.stay.options(concurrency_group="control").remote()
        self._when_done(vigil, partial(self._lost, worker, place.life))

    def _when_done(self, reference: Any, then: Callable[[Any], None]) -> None:
        """``then`` is called in the event loop, with what came of the reference: an answer, or what ray raises."""
        loop = self._loop
        assert loop is not None

        def forward(future: Any) -> None:
            if not self._closed and not loop.is_closed():
                loop.call_soon_threadsafe(then, future.exception() or future.result())

        reference.future().add_done_callback(forward)

    def _answered(self, worker: int, life: int, answer: Any) -> None:
        place = self._places[worker]
        if isinstance(answer, Exception):
            self._lost(worker, life, answer)
            return
        if place.life != life or place.call is None:
            return  # it counts as lost already
        call, place.call = place.call, None
        kind, *said = answer
        if kind == DONE:
            self._hang.observe(*call.terms, time.monotonic() - call.begun_s)
            outcome: Outputs | Exception = outputs_of_tensors(unpack(said[0]), call.model)
        elif kind == CANCELLED:
            outcome = CallCancelled("the call was cancelled")
        else:
            outcome = RowCountError(said[0]) if kind == MISCOUNTED else RunError(said[0])
        if worker in self._successors:  # before the worker is given another call
            self._succeed(worker, self._successors.pop(worker))
        call.done(outcome)
        if worker >= self.workers:
            self._remove_if_idle(worker)

    def _lost(self, worker: int, life: int, why: Any) -> None:
        """Say so once, and wait until ray has started the actor again, if it is still needed."""
        place, successor = self._places[worker], self._successors.get(worker)
        if self._closed or place.life != life:
            return
        place.life += 1
        place.lost_s = time.monotonic()
        call, place.call = place.call, None
        if successor is None and worker < self.workers:
            self._back(worker, place)
        if call is None:
            self._on_change(worker, False)
        else:
            call.done(WorkerLost(f"worker {worker} was lost in the middle of a call: {first_line(why)}"))
        if worker >= self.workers:
            self._remove_if_idle(worker)
        elif successor is not None:
            self._succeed(worker, self._successors.pop(worker))
            assert self._loop is not None
            self._loop.call_soon(self._on_change, worker, True)  # once the router knows of the loss

    def _back(self, worker: int, place: _Place, missing: list[str] | None = None) -> None:
        """Have a worker that was lost make its models ready; ask again where ray has not started it yet."""
        if not self._closed and self._places[worker] is place and not place.removed:
            self._when_done(place.load.on(place.actor, missing), partial(self._is_back, worker, place))

    def _is_back(self, worker: int, place: _Place, answer: Any) -> None:
        loop = self._loop
        assert loop is not None
        if self._places[worker] is not place or place.removed:
            return
        if isinstance(answer, self._ray.exceptions.ActorUnavailableError):
            loop.call_later(ASK_AGAIN_S, self._back, worker, place)
        elif isinstance(answer, Exception) or answer[0] == FAILED:
            self._on_change(worker, False)
            self._ray.kill(place.actor)
            place.actor = self._new_actor(place.load.threads)
            loop.call_later(ASK_AGAIN_S, self._back, worker, place)
        elif answer[0] == MISSING:
            self._back(worker, place, answer[1])
        else:
            place.lost_s = None
            self._stay_with(worker)
            self._on_change(worker, True)

    def _look_for_hung(self) -> None:
        now_s = time.monotonic()
        for place in self._places:
            if place.call is not None and now_s - place.call.begun_s > self._hang.of(*place.call.terms):
                self._ray.kill(place.actor, no_restart=False)  # its calls then fail
        assert self._loop is not None
        self._watch = self._loop.call_later(self._hang.look_s, self._look_for_hung)
