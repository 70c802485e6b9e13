"""Ray engine: workers are actors of a ray cluster, which places them and restarts lost ones."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from slotool.data.columns import Inputs
from slotool.elastic import ElasticModel
from slotool.errors import RunError
from slotool.models.packing import pack, unpack
from slotool.models.signature import RowCountError
from slotool.printable import counted
from slotool.serving.engines.base import CallCancelled, Done, ReplicatedEngine, WorkerChange, WorkerLost
from slotool.serving.engines.ensemble import PointRunner
from slotool.serving.engines.messages import encode_point, outputs_of_tensors, tensors_of_inputs
from slotool.serving.engines.ray_cluster import connect, first_line, quiet_ray, with_cause
from slotool.serving.engines.ray_worker import CANCELLED, DONE, FAILED, MISCOUNTED, MISSING, Load, Worker
from slotool.serving.request import Outputs
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint

START_TIMEOUT_S = 180.0
# Interval of asking whether ray has restarted a lost actor.
ASK_AGAIN_S = 0.5
# Losses at the start after which a worker is given up. A busy machine answers late, which ray takes for a loss.
MAX_START_LOSSES = 4


@dataclass(slots=True)
class _Call:
    number: int
    model: ElasticModel
    done: Done
    begun_s: float
    # Model name, point and examples.
    terms: tuple[str, OperatingPoint, int]
    # Its actor was killed as it took too long; ray has not reported that yet.
    is_ended: bool = False


# Numbers that identify lives of workers.
_LIVES = itertools.count()


@dataclass(slots=True)
class _Place:
    """Worker as the router sees it.

    ``life`` changes whenever the worker ends, so that late answers are recognised; ``lost_s``: when it was lost, else
    None; ``start_losses``: losses before it served.
    """

    actor: Any
    loaded: Load
    call: _Call | None = None
    lost_s: float | None = None
    is_removed: bool = False
    start_losses: int = 0
    life: int = field(default_factory=_LIVES.__next__)

    @property
    def is_there(self) -> bool:
        """True unless it is lost or not needed any more."""
        return self.lost_s is None and not self.is_removed


def _described(workers: int, threads: int) -> str:
    return f"{counted(workers, 'worker')} of {counted(threads, 'CPU')} each"


class RayInferenceEngine(ReplicatedEngine[_Place]):
    """Engine of ``replicas`` actors of ``threads`` CPUs each, spread over a cluster, each with every model warm.

    ``address``: that of ``ray.init``: ``auto``, ``host:port``, ``ray://host:port``; ``local`` starts a cluster on this
    machine. A process that is connected already stays so. ray restarts a lost actor as soon as it has the CPUs, on
    another node if its node is lost; one whose call exceeds the ``HangLimit`` of ``hang_s`` counts as lost. Nodes need
    this version of slotool. A model is read at its path if it is there, else its files are sent. While other models or
    workers load, the cluster needs CPUs for both.

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
    ):
        super().__init__(replicas, threads, hang_s)
        self._address = address
        self._calls = 0
        self._connected = False
        self._warm_took_s = 0.0

    def open(self, models: Mapping[str, ServedModel], on_change: WorkerChange) -> None:
        self._loaded, self._on_change = Load(models, self._threads), on_change
        self._ray = quiet_ray()
        self._connected = connect(self._ray, self._address)
        self._replicas = self._new_places(self._loaded, self.workers)
        try:
            began_s = time.monotonic()
            self._wait_until_warm(self._replicas, _described(self.workers, self._threads))
            self._warm_took_s = time.monotonic() - began_s
        except BaseException:
            self.close()
            raise

    async def stage(
        self, models: Mapping[str, ServedModel], workers: tuple[int, int] | None = None
    ) -> Callable[[], None]:
        """Load new actors beside those that serve. Raises ``RunError`` if the cluster has no CPUs for them."""
        count, threads = workers or (self.workers, self._threads)
        self.listen()
        load = Load(models, threads)
        staged = self._staged = self._new_places(load, count)
        description = f"{_described(count, threads)}, beside those that serve,"
        try:
            await asyncio.to_thread(self._wait_until_warm, staged, description)
        except BaseException:
            for place in () if self._closed else staged:
                self._ray.kill(place.actor)
            self._staged = []
            raise
        return partial(self._change_over, load, staged, threads)

    def prepare(self, model: str, points: tuple[OperatingPoint, ...]) -> None:
        PointRunner(self._loaded.models[model].model, points)

    def cores(self) -> int:
        """Return the number of CPUs of the whole cluster."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def listen(self) -> None:
        if self._loop is None:
            self._listen_in(asyncio.get_running_loop())

    def ready_in_s(self) -> float:
        """Expect a lost actor to take as long as all actors took together at the start."""
        lost_s = [place.lost_s for place in self._replicas if place.lost_s is not None]
        return max(0.0, min(lost_s) + self._warm_took_s - time.monotonic()) if lost_s else 0.0

    def begin(self, worker: int, model: str, point: OperatingPoint, x: Inputs, done: Done) -> None:
        self.listen()
        place = self._replicas[worker]
        self._calls += 1
        served = place.loaded.models[model].model
        call = place.call = _Call(self._calls, served, done, time.monotonic(), (model, point, len(x)))
        packed = pack(tensors_of_inputs(x))
        answer = place.actor.compute.remote(call.number, model, encode_point(point), packed)
        self._when_done(answer, partial(self._answered, worker, place.life))

    def cancel(self, worker: int) -> None:
        place = self._replicas[worker]
        if place.call is not None:
            place.actor.cancel.options(concurrency_group="control").remote(place.call.number)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        for place in (*self._replicas, *self._staged, *self._successors.values()):
            if not place.is_removed:
                self._ray.kill(place.actor)
        if self._connected:
            self._ray.shutdown()

    def _end(self, replica: _Place) -> None:
        replica.lost_s, replica.life = None, next(_LIVES)
        self._ray.kill(replica.actor)

    def _attend(self, worker: int) -> None:
        place = self._replicas[worker]
        if place.lost_s is None:
            self._stay_with(worker)
        else:
            self._back(worker, place)

    def node(self, worker: int) -> str:
        """Return the id of the node that runs ``worker``."""
        reference = self._replicas[worker].actor.where.options(concurrency_group="control").remote()
        return str(self._ray.get(reference))

    def _new_places(self, load: Load, workers: int) -> list[_Place]:
        return [_Place(self._new_actor(load.threads), load) for _ in range(workers)]

    def _new_actor(self, threads: int) -> Any:
        remote = self._ray.remote(
            num_cpus=threads, max_restarts=-1, concurrency_groups={"control": 2}, scheduling_strategy="SPREAD"
        )
        return remote(Worker).remote()

    def _wait_until_warm(self, places: Sequence[_Place], description: str) -> None:
        """Wait for all workers. Raises ``RunError``, with their ``description``, if some do not get warm."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        loading = {place.loaded.on(place.actor): place for place in places}
        while loading:
            done, _ = self._ray.wait(list(loading), timeout=ASK_AGAIN_S)
            if self._closed:
                raise RunError("the server ends")
            if not done:
                if time.monotonic() > deadline_s:
                    raise RunError(f"the cluster did not have {description} warm within {START_TIMEOUT_S:.0f} s")
                continue
            place = loading.pop(done[0])
            try:
                kind, *message = self._ray.get(done[0])
            except self._ray.exceptions.RayError as error:
                self._require_to_come(place, error)
                time.sleep(ASK_AGAIN_S)
                loading[place.loaded.on(place.actor)] = place
                continue
            if kind == FAILED:
                raise RunError(f"a worker cannot run its models: {message[0]}")
            if kind == MISSING:
                loading[place.loaded.on(place.actor, message[0])] = place

    def _require_to_come(self, place: _Place, error: Exception) -> None:
        """Raise ``RunError`` for a worker lost while it started, unless ray starts it again by itself."""
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
        """Report the loss of the actor, even while it is idle."""
        place = self._replicas[worker]
        vigil = place.actor.stay.options(concurrency_group="control").remote()
        self._when_done(vigil, partial(self._lost, worker, place.life))

    def _when_done(self, reference: Any, then: Callable[[Any], None]) -> None:
        """Call ``then`` in the event loop, with the answer of the reference or ray's error."""
        loop = self._loop
        assert loop is not None

        def forward(future: Any) -> None:
            if not self._closed and not loop.is_closed():
                loop.call_soon_threadsafe(then, future.exception() or future.result())

        reference.future().add_done_callback(forward)

    def _answered(self, worker: int, life: int, answer: Any) -> None:
        place = self._replicas[worker]
        if isinstance(answer, Exception):
            self._lost(worker, life, answer)
            return
        if place.life != life or place.call is None:
            return  # already counted as lost
        call, place.call = place.call, None
        kind, *message = answer
        if kind == DONE:
            self._hang.observe(*call.terms, time.monotonic() - call.begun_s)
            outcome: Outputs | Exception = outputs_of_tensors(unpack(message[0]), call.model)
        elif kind == CANCELLED:
            outcome = CallCancelled("the call was cancelled")
        else:
            outcome = RowCountError(message[0]) if kind == MISCOUNTED else RunError(message[0])
        if worker in self._successors:  # before the worker is given another call
            self._put(worker, self._successors.pop(worker))
        call.done(outcome)
        if worker >= self.workers:
            self._remove_if_idle(worker)

    def _lost(self, worker: int, life: int, why: Any) -> None:
        """Report a loss once, and wait until ray has restarted the actor, if it is still needed."""
        place, successor = self._replicas[worker], self._successors.get(worker)
        if self._closed or place.life != life:
            return
        place.life = next(_LIVES)
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
            self._put(worker, self._successors.pop(worker))
            assert self._loop is not None
            self._loop.call_soon(self._on_change, worker, True)  # after the router has recorded the loss

    def _back(self, worker: int, place: _Place, missing: list[str] | None = None) -> None:
        """Load the models of a restarted worker; try again while ray has not restarted it."""
        if not self._closed and self._replicas[worker] is place and not place.is_removed:
            self._when_done(place.loaded.on(place.actor, missing), partial(self._is_back, worker, place))

    def _is_back(self, worker: int, place: _Place, answer: Any) -> None:
        loop = self._loop
        assert loop is not None
        if self._replicas[worker] is not place or place.is_removed:
            return
        if isinstance(answer, self._ray.exceptions.ActorUnavailableError):
            loop.call_later(ASK_AGAIN_S, self._back, worker, place)
        elif isinstance(answer, Exception) or answer[0] == FAILED:
            self._on_change(worker, False)
            self._ray.kill(place.actor)
            place.actor = self._new_actor(place.loaded.threads)
            loop.call_later(ASK_AGAIN_S, self._back, worker, place)
        elif answer[0] == MISSING:
            self._back(worker, place, answer[1])
        else:
            place.lost_s = None
            self._stay_with(worker)
            self._on_change(worker, True)

    def _look_for_hung(self) -> None:
        now_s = time.monotonic()
        for place in self._replicas:
            call = place.call
            if call is None or call.is_ended or now_s - call.begun_s <= self._hang.of(*call.terms):
                continue
            self._hang.was_exceeded(*call.terms)
            # Only once: ray may report the loss late, and a second kill would end the restarted actor.
            call.is_ended = True
            self._ray.kill(place.actor, no_restart=False)  # its calls then fail
        assert self._loop is not None
        self._watch = self._loop.call_later(self._hang.look_s, self._look_for_hung)
