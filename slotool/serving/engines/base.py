"""Interface of engines: workers that compute one call at a time each, wherever they are."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from slotool.data.columns import Inputs
from slotool.devices import CPU
from slotool.errors import InputError, RunError, WorkerError
from slotool.machine import usable_cores
from slotool.scheduling.workers import CallTimes
from slotool.serving.request import Outputs
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.serving.served import ServedModel


Done = Callable[[Outputs | Exception], None]


class WorkerChange(Protocol):
    """Called when a worker is lost or removed, and when it is added or replaced (``alive``)."""

    def __call__(self, worker: int, alive: bool, exit_code: int | None = None, /) -> None: ...


class WorkerLost(WorkerError):
    """Death or hang of a worker during a call, which may be made again elsewhere."""


class CallCancelled(WorkerError):
    """End of a cancelled call, without an answer."""


class InferenceEngine(ABC):
    """Engine of ``workers`` workers with one call at a time on each; the router tracks the busy workers.

    ``in_loop``: calls run in the event loop itself, which reads nothing meanwhile. ``can_reconfigure``: workers can be
    changed while it serves. Use an engine from one event loop.
    """

    name: str
    workers: int = 1
    in_loop: bool = False
    can_reconfigure: bool = False

    @abstractmethod
    def open(self, models: Mapping[str, ServedModel], on_change: WorkerChange) -> None:
        """Make every model ready on every worker: run each once at every point of its policy, then return.

        Raises ``RunError`` when a model cannot run, ``InputError`` when this engine cannot serve it.
        """

    @abstractmethod
    def begin(self, worker: int, model: str, point: OperatingPoint, x: Inputs, done: Done) -> None:
        """Compute the model's inputs ``x`` at ``point`` on an idle worker.

        ``done`` is called once, from the event loop, perhaps before this returns: with outputs, ``WorkerLost``,
        ``CallCancelled``, or the model's exception. It may keep its arrays.
        """

    def listen(self) -> None:
        """Watch idle workers for losses, in the running event loop; a server calls this before its first call.

        ``begin`` does so too. By default there is nothing to watch.
        """
        return

    def cores(self) -> int:
        """Return the number of cores for workers, by default those of this process."""
        return usable_cores()

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of the workers: worker n uses the n-th, and counting starts again after the last."""
        return (CPU,)

    def worker_bytes(self) -> int:
        """Return the memory of one worker process as measured when the first was warm; 0 if unknown."""
        return 0

    def is_starting(self, worker: int) -> bool:
        """True if a replacement of this dead worker is loading the models, as by default."""
        return True

    def ready_in_s(self) -> float:
        """Return the estimated seconds until one of the lost workers is ready again."""
        return 1.0

    def cancel(self, worker: int) -> None:
        """Cancel the call of ``worker``, whose ``done`` is still called. By default the call runs to its end."""
        return

    @abstractmethod
    def prepare(self, model: str, points: tuple[OperatingPoint, ...]) -> None:
        """Make the points of a new policy ready. Raises ``InputError`` for one that the model lacks."""

    async def stage(
        self, models: Mapping[str, ServedModel], workers: tuple[int, int] | None = None
    ) -> Callable[[], None]:
        """Load ``models`` while the current ones serve; the returned function switches to them, in the event loop.

        ``workers``: their new number, and the threads of each, where ``can_reconfigure`` (Model-Switching's ⟨R, T⟩).
        Calls in progress end on the models that they began with. Raises as ``open`` does, and ``InputError`` where
        other workers are impossible; then nothing has changed. By default models are fixed, and this raises
        ``InputError``.
        """
        raise InputError(f"engine {self.name} cannot take other models while it serves: start the server again")

    @abstractmethod
    def close(self) -> None:
        """Stop threads and processes; calls in progress are lost."""


# A busy machine slows calls several times, and stops all for a while: that is no hang. Where possible half of the limit
# is left, so that another worker can answer the requests of a frozen one.
USUAL_FACTOR, MIN_FACTOR, MIN_S = 20.0, 3.0, 2.0


class HangLimit:
    """Limits of calls in seconds, at most ``hang_s``, by model, operating point and power of two of their size."""

    def __init__(self, hang_s: float):
        self.hang_s = hang_s
        # Time between two checks.
        self.look_s = min(hang_s, MIN_S) / 4
        self._times: defaultdict[str, CallTimes] = defaultdict(CallTimes)

    def observe(self, model: str, point: OperatingPoint, size: int, took_s: float) -> None:
        self._times[model].observe(point, size.bit_length(), 1e6 * took_s)

    def was_exceeded(self, model: str, point: OperatingPoint, size: int) -> None:
        """Allow such calls ``hang_s`` until one has ended, so that a busier machine does not fail every retry."""
        self._times[model].forget(point, size.bit_length())

    def of(self, model: str, point: OperatingPoint, size: int) -> float:
        usual_s = 1e-6 * self._times[model].of(point, size.bit_length())
        if not usual_s:
            return self.hang_s
        limit_s = max(MIN_S, MIN_FACTOR * usual_s, min(USUAL_FACTOR * usual_s, self.hang_s / 2))
        return min(self.hang_s, limit_s)


class Replica(Protocol):
    """Worker of a ``ReplicatedEngine``.

    Attributes:
        call: call in progress, or None.
        loaded: models that are ready; the same object for all workers with the same models.
        is_removed: it has ended, and is not needed any more.
    """

    call: Any
    loaded: Any
    is_removed: bool

    @property
    def is_there(self) -> bool:
        """True if the router counts it among the live workers."""


AnyReplica = TypeVar("AnyReplica", bound=Replica)


class ReplicatedEngine(InferenceEngine, Generic[AnyReplica]):
    """Engine whose workers are added, removed and exchanged one by one, between calls."""

    can_reconfigure = True

    def __init__(self, replicas: int, threads: int, hang_s: float):
        self.workers = replicas
        self._threads, self._hang = threads, HangLimit(hang_s)
        # Models of all workers.
        self._loaded: Any = None
        self._replicas: list[AnyReplica] = []
        # Workers with other models: loading, and warm ones that wait for the end of a call, by worker number.
        self._staged: list[AnyReplica] = []
        self._successors: dict[int, AnyReplica] = {}
        self._on_change: WorkerChange = _nobody_listens
        self._watch: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @abstractmethod
    def _end(self, replica: AnyReplica) -> None:
        """End the worker and the watch of it."""

    @abstractmethod
    def _attend(self, worker: int) -> None:
        """Watch this worker from now on."""

    def _change_over(self, loaded: Any, staged: Sequence[AnyReplica], threads: int) -> None:
        """Exchange idle workers at once, and busy ones when their calls have ended."""
        self._loaded, self._threads, self._staged, self.workers = loaded, threads, [], len(staged)
        for worker, replica in enumerate(staged):
            before = self._replicas[worker] if worker < len(self._replicas) else None
            if worker in self._successors:  # of an earlier change, which the call outlasted
                self._end(self._successors.pop(worker))
            if before is not None and before.call is not None:
                self._successors[worker] = replica
                continue
            was_there = before is not None and before.is_there
            self._put(worker, replica)
            if not was_there:  # new, lost or not warm yet: the router does not count it
                self._on_change(worker, True)
        self._remove_spare()

    def _put(self, worker: int, replica: AnyReplica) -> None:
        """Replace the worker of this number by ``replica``."""
        if worker < len(self._replicas) and not self._replicas[worker].is_removed:
            self._end(self._replicas[worker])
        self._replicas[worker:] = [replica, *self._replicas[worker + 1 :]]
        self._attend(worker)

    def _remove_spare(self) -> None:
        for worker in range(self.workers, len(self._replicas)):
            self._remove_if_idle(worker)

    def _remove_if_idle(self, worker: int) -> None:
        replica = self._replicas[worker]
        if replica.call is not None or replica.is_removed:
            return
        if worker in self._successors:
            self._end(self._successors.pop(worker))
        was_there, replica.is_removed = replica.is_there, True
        self._end(replica)
        if was_there:
            self._on_change(worker, False)


def _nobody_listens(worker: int, alive: bool, exit_code: int | None = None, /) -> None:
    raise RunError("the engine is not open")
