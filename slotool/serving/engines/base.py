"""What every engine offers: workers that compute one call at a time, wherever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slotool.data.columns import Inputs
from slotool.devices import CPU
from slotool.errors import InputError, WorkerError
from slotool.machine import usable_cores
from slotool.scheduling.workers import CallTimes
from slotool.serving.outputs import Outputs
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.serving.served import ServedModel


Done = Callable[[Outputs | Exception], None]
# Called when a worker is lost or not needed any more (False), and when it has come or is replaced (True).
WorkerChange = Callable[[int, bool], None]


class WorkerLost(WorkerError):
    """A worker died or hung in the middle of a call; the call may be made again elsewhere."""


class CallCancelled(WorkerError):
    """A call ended without an answer because it was cancelled."""


class InferenceEngine(ABC):
    """Computes calls on ``workers`` workers, one call at a time on each; the router tracks the busy workers.

    ``in_loop``: calls run in the event loop itself, so that the loop reads nothing meanwhile. ``can_reconfigure``: it
    takes other workers while it serves. Use an engine from one event loop.
    """

    name: str
    workers: int = 1
    in_loop: bool = False
    can_reconfigure: bool = False

    @abstractmethod
    def open(self, models: Mapping[str, ServedModel], on_change: WorkerChange) -> None:
        """Make every model ready on every worker, each run once at every point its policy may choose.

        Returns when all is warm. Raises ``RunError`` when a model cannot run, ``InputError`` when it cannot be served
        this way.
        """

    @abstractmethod
    def begin(self, worker: int, model: str, point: OperatingPoint, x: Inputs, done: Done) -> None:
        """Compute ``x`` at ``point`` on an idle worker.

        ``x``: the model's inputs. ``done`` is called once, from
        the event loop, perhaps before this returns: with the scores or outputs, with ``WorkerLost``, with
        ``CallCancelled``, or with what the model raised. Arrays given to ``done`` are its own, to keep.
        """

    def listen(self) -> None:
        """From now on notice, in the running event loop, workers that are lost while they are idle.

        ``begin`` does so too; a server does it before its first call. By default there is nothing to notice.
        """
        return

    def cores(self) -> int:
        """That there are for workers: of this process, by default."""
        return usable_cores()

    @property
    def devices(self) -> tuple[str, ...]:
        """That workers compute on: of worker n it is the n-th, from the first again after the last."""
        return (CPU,)

    def is_starting(self, worker: int) -> bool:
        """Of a worker that is not alive: whether another is loading the models in its place. By default one is."""
        return True

    def ready_in_s(self) -> float:
        """Seconds until one of the workers that were lost is expected to be ready again: an estimate, for clients."""
        return 1.0

    def room_for(self, workers: int) -> int | None:
        """How many of so many workers there could be now, those that there are included; None where that is only known
        once those that are starting have started. By default all of them."""
        return workers

    def scale_to(self, workers: int) -> bool:
        """Have so many workers from now on: new ones are reported when they are warm, and those that are too many end
        when they are idle, the last first. Whether it can be done now.

        By default an engine has as many workers as it began with, and this raises ``InputError``.
        """
        raise InputError(f"engine {self.name} cannot add and remove workers while it serves")

    def cancel(self, worker: int) -> None:
        """Cancel the call of ``worker``; its ``done`` is called when it ends, with any outcome. By default the call
        runs to its end."""
        return

    @abstractmethod
    def prepare(self, model: str, points: tuple[OperatingPoint, ...]) -> None:
        """Make points ready that a new policy may choose. Raises ``InputError`` for one the model does not have."""

    async def stage(
        self, models: Mapping[str, ServedModel], workers: tuple[int, int] | None = None
    ) -> Callable[[], None]:
        """Make ``models`` ready in place of those of ``open``, which serve meanwhile; the function that is returned
        changes over, from the event loop and at once.

        ``workers``: how many from then on, and the threads of each, where ``can_reconfigure`` (Model-Switching's
        ⟨R, T⟩). Calls started before are answered by the models they started on. Raises as ``open`` does, and
        ``InputError`` for other workers where they cannot be had; then nothing changed. By default an engine has one
        set of models for as long as it runs, and this raises ``InputError``.
        """
        raise InputError(f"engine {self.name} cannot take other models while it serves: start the server again")

    @abstractmethod
    def close(self) -> None:
        """Stop threads and processes; calls in progress are lost."""


# A busy machine makes calls several times as long, and stops all for a while: that is no hang. Where it can be, half of
# the limit is left, so that the requests of a frozen worker are answered by another.
USUAL_FACTOR, MIN_FACTOR, MIN_S = 20.0, 3.0, 2.0


class HangLimit:
    """Limits of calls in seconds, at most ``hang_s``, by model, operating point and power of two of their size."""

    def __init__(self, hang_s: float):
        self.hang_s = hang_s
        # Between two looks for calls that are longer.
        self.look_s = min(hang_s, MIN_S) / 4
        self._times: defaultdict[str, CallTimes] = defaultdict(CallTimes)

    def observe(self, model: str, point: OperatingPoint, size: int, took_s: float) -> None:
        self._times[model].observe(point, size.bit_length(), 1e6 * took_s)

    def of(self, model: str, point: OperatingPoint, size: int) -> float:
        usual_s = 1e-6 * self._times[model].of(point, size.bit_length())
        if not usual_s:
            return self.hang_s
        limit_s = max(MIN_S, MIN_FACTOR * usual_s, min(USUAL_FACTOR * usual_s, self.hang_s / 2))
        return min(self.hang_s, limit_s)
