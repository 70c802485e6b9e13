"""The ray engine: workers are actors of a ray cluster, which places them and starts them again when they are lost."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slotool import factories
from slotool.artifacts.bundle import MANIFEST
from slotool.data.columns import Inputs
from slotool.errors import InputError, RunError
from slotool.models.packing import pack, unpack
from slotool.process import limit_threads
from slotool.profiling.engines.ray_cluster import connect, first_line, quiet_ray
from slotool.serving.engines.base import CallCancelled, Done, InferenceEngine, WorkerChange, WorkerLost
from slotool.serving.engines.protocol import (
    decode_point,
    encode_point,
    inputs_of_tensors,
    outputs_of_tensors,
    tensors_of_inputs,
    tensors_of_outputs,
)
from slotool.serving.ensemble import PointRunner
from slotool.serving.outputs import Computed, Scores
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint

START_TIMEOUT_S = 180.0
# ray starts a lost actor again by itself; it is asked so often whether it has.
ASK_AGAIN_S = 0.5
DONE, FAILED, CANCELLED, MISSING = "done", "failed", "cancelled", "missing"
# Of one bundle: what its files hold, by name.
Files = Mapping[str, bytes]


class Worker:
    """What an actor does. Everything it answers is a tuple of its kind and of plain data, never an exception.

    Calls come one at a time; ``cancel``, ``stay`` and ``where`` run in parallel, on threads of their own.
    """

    def __init__(self) -> None:
        self._runners: dict[str, PointRunner] = {}
        self._call = self._cancelled = 0
        self._received: list[tempfile.TemporaryDirectory[str]] = []

    def load(self, entries: list[dict[str, Any]], threads: int, files: Mapping[str, Files] | None = None) -> Any:
        """Make the models ready: ``DONE``, ``FAILED`` with a sentence, or ``MISSING`` with the names of those whose
        artifacts cannot be read here; their ``files`` are then wanted."""
        missing = [entry["name"] for entry in entries if not _has(entry)]
        if missing and files is None:
            return MISSING, missing
        try:
            limit_threads(threads)
            # Actors have the environment of their node, not the router's.
            if any(entry["allows_code"] for entry in entries):
                factories.allow_code()
            for entry in entries:
                self._load(entry, self._unpacked(files[entry["name"]]) if files and entry["name"] in missing else None)
        except Exception as error:
            return FAILED, f"{type(error).__name__}: {error}"
        return (DONE,)

    def compute(self, call: int, name: str, point: bytes, x: np.ndarray | bytes) -> Any:
        """``DONE`` with logits and confidences, ``FAILED`` with a sentence, or ``CANCELLED``.

        Of a model with a signature ``x`` is packed, and so are the outputs that come with ``DONE``.
        """
        self._call = call
        try:
            self._check_cancelled()
            inputs = inputs_of_tensors(unpack(x)) if isinstance(x, bytes) else x
            computed = self._runners[name].run(inputs, decode_point(point))
        except CallCancelled:
            return (CANCELLED,)
        except Exception as error:
            return FAILED, f"{type(error).__name__}: {error}"
        if isinstance(computed, Scores):
            return DONE, computed.logits, computed.confidence
        return DONE, pack(tensors_of_outputs(computed))

    def cancel(self, call: int) -> None:
        """``compute`` looks for this between two operators."""
        self._cancelled = call

    def stay(self) -> None:
        """Never returns: its failure reports that the actor was lost."""
        threading.Event().wait()

    def where(self) -> str:
        """The id of the node."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def _check_cancelled(self) -> None:
        if self._cancelled == self._call:
            raise CallCancelled("the call was cancelled")

    def _load(self, entry: Mapping[str, Any], instead: str | None) -> None:
        from slotool.elastic import load_served

        model = load_served(instead or entry["path"])
        runner = PointRunner(model, map(decode_point, entry["points"]))
        runner.warm()
        model.set_cancellation_check(self._check_cancelled)
        self._runners[entry["name"]] = runner

    def _unpacked(self, files: Files) -> str:
        """A folder with them, which lasts as long as this worker."""
        self._received.append(tempfile.TemporaryDirectory(prefix="slotool-"))
        for name, content in files.items():
            (Path(self._received[-1].name) / Path(name).name).write_bytes(content)
        return self._received[-1].name


def _has(entry: Mapping[str, Any]) -> bool:
    """Whether the very artifact lies at the same path here."""
    manifest = Path(entry["path"]) / MANIFEST
    try:
        return bool(manifest.read_bytes() == entry["manifest"])
    except OSError:
        return False


@dataclass(slots=True)
class _Call:
    number: int
    model: str
    done: Done
    begun_s: float


@dataclass(slots=True)
class _Place:
    """A worker as the router sees it; ``life`` counts how often it was lost, ``lost_s`` is since when, if it is now."""

    actor: Any
    life: int = 0
    call: _Call | None = None
    lost_s: float | None = None


class RayInferenceEngine(InferenceEngine):
    """``replicas`` actors of ``threads`` CPUs each, spread over a cluster, each with every model warm.

    ``address``: as of ``ray.init``: ``auto``, ``host:port``, ``ray://host:port``; ``local`` starts a cluster, of this
    machine. A process that is connected already stays so. ray starts an actor that is lost again, on another node where
    its own is lost too, as soon as it has the CPUs; one that takes longer than ``hang_s`` over a call counts as lost.
    Nodes need this version of slotool. An artifact is read at its path where it lies there, else its files are sent.

    ``open`` raises ``InputError`` when ray is not installed, no cluster answers or a model does not come from an
    artifact, ``RunError`` when the workers do not get warm.
    """

    name = "ray"

    def __init__(self, replicas: int = 1, threads: int = 1, *, address: str = "auto", hang_s: float = 60.0):
        self.workers = replicas
        self._threads, self._address, self._hang_s = threads, address, hang_s
        self._models: dict[str, ServedModel] = {}
        self._entries: list[dict[str, Any]] = []
        self._places: list[_Place] = []
        self._calls = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_change: WorkerChange = lambda worker, alive: None
        self._watch: asyncio.TimerHandle | None = None
        self._connected = False
        self._closed = False
        self._warm_took_s = 0.0

    def open(self, models: Mapping[str, ServedModel], on_change: WorkerChange) -> None:
        for name, served in models.items():
            if served.path is None:
                raise InputError(f"{name} does not come from an artifact: the nodes of a cluster cannot load it")
            PointRunner(served.model, served.policy.points)
        self._models, self._on_change = dict(models), on_change
        self._entries = [_entry(name, served) for name, served in models.items()]
        self._ray = quiet_ray()
        self._connected = connect(self._ray, self._address)
        self._places = [_Place(self._new_actor()) for _ in range(self.workers)]
        try:
            began_s = time.monotonic()
            self._wait_until_warm()
            self._warm_took_s = time.monotonic() - began_s
        except BaseException:
            self.close()
            raise

    def prepare(self, model: str, points: tuple[OperatingPoint, ...]) -> None:
        PointRunner(self._models[model].model, points)

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
        call = place.call = _Call(self._calls, model, done, time.monotonic())
        has_signature = self._models[model].model.signature is not None
        sent = pack(tensors_of_inputs(x)) if has_signature else x
        answer = place.actor.compute.remote(call.number, model, encode_point(point), sent)
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
        for place in self._places:
            self._ray.kill(place.actor)
        if self._connected:
            self._ray.shutdown()

    def node(self, worker: int) -> str:
        """The id of the node that ``worker`` runs on."""
        asked = self._places[worker].actor.where.options(concurrency_group="control").remote()
        return str(self._ray.get(asked))

    def _new_actor(self) -> Any:
        remote = self._ray.remote(
            num_cpus=self._threads, max_restarts=-1, concurrency_groups={"control": 2}, scheduling_strategy="SPREAD"
        )
        return remote(Worker).remote()

    def _load(self, place: _Place, missing: list[str] | None = None) -> Any:
        return place.actor.load.remote(self._entries, self._threads, missing and self._files(missing))

    def _files(self, names: list[str]) -> dict[str, Files]:
        paths = {name: self._models[name].path for name in names}
        return {name: {file.name: file.read_bytes() for file in path.iterdir()} for name, path in paths.items() if path}

    def _wait_until_warm(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        loading = {self._load(place): place for place in self._places}
        while loading:
            done, _ = self._ray.wait(list(loading), timeout=max(0.0, deadline_s - time.monotonic()))
            if not done:
                wanted = f"{self.workers} workers of {self._threads} CPUs each"
                raise RunError(f"the cluster did not have {wanted} warm within {START_TIMEOUT_S:.0f} s")
            place = loading.pop(done[0])
            try:
                kind, *said = self._ray.get(done[0])
            except self._ray.exceptions.RayError as error:
                raise RunError(f"a worker was lost while it started: {first_line(error)}") from error
            if kind == FAILED:
                raise RunError(f"a worker cannot run its models: {said[0]}")
            if kind == MISSING:
                loading[self._load(place, said[0])] = place

    def _listen_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        for worker in range(self.workers):
            self._stay_with(worker)
        self._watch = loop.call_later(self._hang_s / 4, self._look_for_hung)

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
            call.done(self._computed(call.model, said))
        else:
            call.done(CallCancelled("the call was cancelled") if kind == CANCELLED else RunError(said[0]))

    def _computed(self, model: str, said: list[Any]) -> Computed:
        served = self._models[model].model
        return Scores(*said) if served.signature is None else outputs_of_tensors(unpack(said[0]), served)

    def _lost(self, worker: int, life: int, why: Any) -> None:
        """Say so once, and wait until ray has started the actor again."""
        place = self._places[worker]
        if self._closed or place.life != life:
            return
        place.life += 1
        place.lost_s = time.monotonic()
        call, place.call = place.call, None
        self._back(worker)
        if call is None:
            self._on_change(worker, False)
        else:
            call.done(WorkerLost(f"worker {worker} was lost in the middle of a call: {first_line(why)}"))

    def _back(self, worker: int, missing: list[str] | None = None) -> None:
        """Have a worker that was lost make its models ready; ask again where ray has not started it yet."""
        if not self._closed:
            self._when_done(self._load(self._places[worker], missing), partial(self._is_back, worker))

    def _is_back(self, worker: int, answer: Any) -> None:
        place, loop = self._places[worker], self._loop
        assert loop is not None
        if isinstance(answer, self._ray.exceptions.ActorUnavailableError):
            loop.call_later(ASK_AGAIN_S, self._back, worker)
        elif isinstance(answer, Exception) or answer[0] == FAILED:
            self._ray.kill(place.actor)
            place.actor = self._new_actor()
            loop.call_later(ASK_AGAIN_S, self._back, worker)
        elif answer[0] == MISSING:
            self._back(worker, answer[1])
        else:
            place.lost_s = None
            self._stay_with(worker)
            self._on_change(worker, True)

    def _look_for_hung(self) -> None:
        now_s = time.monotonic()
        for place in self._places:
            if place.call is not None and now_s - place.call.begun_s > self._hang_s:
                self._ray.kill(place.actor, no_restart=False)  # its calls then fail
        assert self._loop is not None
        self._watch = self._loop.call_later(self._hang_s / 4, self._look_for_hung)


def _entry(name: str, served: ServedModel) -> dict[str, Any]:
    assert served.path is not None
    return {
        "name": name,
        "path": str(served.path.resolve()),
        "manifest": (served.path / MANIFEST).read_bytes(),
        "allows_code": factories.is_allowed(),
        "points": [encode_point(point) for point in served.policy.points],
    }
