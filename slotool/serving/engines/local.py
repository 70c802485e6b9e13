"""Local engine: worker processes on cores of their own, tensors in shared memory."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import psutil

from slotool.data.columns import Inputs
from slotool.devices import CPU, FLOAT32
from slotool.elastic.loading import file_bytes
from slotool.errors import ArgumentError, InputError, RunError
from slotool.machine import usable_memory
from slotool.printable import counted, size_text
from slotool.process import cores_by_preference
from slotool.serving.engines.base import Done, ReplicatedEngine, WorkerChange, WorkerLost
from slotool.serving.engines.ensemble import PointRunner
from slotool.serving.engines.messages import MAX_MESSAGE_BYTES, READY, REPLY
from slotool.serving.engines.worker_process import WorkerProcess
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.serving.served import ServedModel

START_TIMEOUT_S = 180.0
# Delay before a worker that died while it started is restarted; it doubles each time.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
# A replacement loads at low priority for this time, then at normal priority.
LOW_PRIORITY_S = 5.0
# A start that takes this many times the last one counts as hung; the limit doubles with each such replacement.
START_FACTOR, MIN_START_LIMIT_S = 10.0, 20.0


class LocalInferenceEngine(ReplicatedEngine[WorkerProcess]):
    """Engine of ``replicas`` processes of ``threads`` threads, all with every model (Model-Switching's ⟨R, T⟩).

    Each process runs on as many cores as it has threads, if there are enough for all. A worker that dies, or whose call
    exceeds the ``HangLimit`` of ``hang_s``, is replaced.
    ``devices``: the workers' devices in turn, used in ``precision``; a process sees no other GPU. A cancelled call ends
    before its next operator, where the model can (``ElasticModel.set_cancellation_check``). Models must come from
    artifacts (``ServedModel.path``).
    """

    name = "local"

    def __init__(
        self,
        replicas: int = 1,
        threads: int = 1,
        *,
        hang_s: float = 10.0,
        devices: Sequence[str] = (CPU,),
        precision: str = FLOAT32,
    ):
        super().__init__(replicas, threads, hang_s)
        self._devices, self._precision = tuple(devices), precision
        self._start_took_s = 0.0
        self._worker_bytes = 0
        # Models whose first worker has printed its warnings.
        self._warned_of: Mapping[str, ServedModel] = {}

    def open(self, models: Mapping[str, ServedModel], on_change: WorkerChange) -> None:
        _require_loadable(models)
        self._loaded, self._on_change = dict(models), on_change
        cores = self._cores(self.workers, self._threads)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        try:
            # The others start once the memory of a worker is known, unless memory is plenty.
            for first, last in pairwise(
                [0, self.workers] if _is_plenty(models, self.workers) else [0, 1, self.workers]
            ):
                self._require_memory(last - first)
                self._replicas += [
                    self._new(worker, self._loaded, cores[worker], self._threads, low_priority=False)
                    for worker in range(first, last)
                ]
                for process in self._replicas[first:]:
                    process.wait_until_warm(max(0.0, deadline_s - time.monotonic()))
                    self._note_start(process)
        except (InputError, RunError):
            self.close()
            raise

    def _require_memory(self, more: int) -> None:
        """Raise ``ArgumentError`` if ``more`` workers do not fit into the free memory."""
        free = usable_memory()
        if more * self._worker_bytes > free:
            fitting = len(self._replicas) + free // self._worker_bytes
            raise ArgumentError(
                "replicas",
                f"{counted(self.workers, 'worker')} cannot fit: each takes {size_text(self._worker_bytes)} of memory "
                f"by itself, as measured, and {size_text(free)} are left beside {len(self._replicas)}; {fitting} fit",
            )

    def worker_bytes(self) -> int:
        return self._worker_bytes

    async def stage(
        self, models: Mapping[str, ServedModel], workers: tuple[int, int] | None = None
    ) -> Callable[[], None]:
        """Load new processes on their cores beside those that serve."""
        count, threads = workers or (self.workers, self._threads)
        _require_loadable(models)
        if count * self._worker_bytes > (free := usable_memory()):
            raise RunError(
                f"{counted(count, 'worker')} cannot fit beside those that serve: each takes "
                f"{size_text(self._worker_bytes)} of memory, and {size_text(free)} are left; start the server again"
            )
        self.listen()
        models = dict(models)
        loop = asyncio.get_running_loop()
        staged: list[WorkerProcess] = []
        raising: list[asyncio.TimerHandle] = []
        self._staged = staged
        try:
            for worker, cores in enumerate(self._cores(count, threads)):
                staged.append(self._new(worker, models, cores, threads, low_priority=True))
                raising.append(loop.call_later(LOW_PRIORITY_S, staged[-1].raise_priority))
            async with asyncio.timeout(START_TIMEOUT_S):
                for process in staged:
                    await _readable(loop, process)
                    process.wait_until_warm(0.0)
            if self._closed:
                raise RunError("the server ends")
        except BaseException as error:
            for process in staged:
                process.end()
            self._staged = []
            if isinstance(error, TimeoutError):
                raise RunError(f"worker processes were not warm within {START_TIMEOUT_S:.0f} s") from None
            if isinstance(error, OSError):  # no memory, no process or no descriptor left just now
                raise RunError(f"worker processes cannot be started ({error.strerror})") from None
            raise
        finally:
            for timer in raising:
                timer.cancel()
        return partial(self._change_over, models, staged, threads)

    def prepare(self, model: str, points: tuple[OperatingPoint, ...]) -> None:
        PointRunner(self._loaded[model].model, points)

    @property
    def devices(self) -> tuple[str, ...]:
        return self._devices

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._listen_in(loop)

    def is_starting(self, worker: int) -> bool:
        process = self._replicas[worker] if worker < len(self._replicas) else None
        return process is not None and process.is_open and not process.was_warm

    def ready_in_s(self) -> float:
        """Expect a replacement to start as fast as the last worker did."""
        now_s = time.monotonic()
        expected = self._replicas[: self.workers]
        return max(0.0, min(process.starts_at_s + self._start_took_s - now_s for process in expected))

    def begin(self, worker: int, model: str, point: OperatingPoint, x: Inputs, done: Done) -> None:
        self.listen()
        process = self._replicas[worker]
        try:
            process.begin(model, point, x, done)
        except OSError:
            self._lost(worker)

    def cancel(self, worker: int) -> None:
        self._replicas[worker].cancel()

    def close(self) -> None:
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        for process in (*self._staged, *self._successors.values(), *self._replicas):
            self._end(process)

    def _end(self, replica: WorkerProcess) -> None:
        # A worker without a replacement yet has no socket.
        if replica.is_open and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(replica.socket)
        replica.end()

    def _attend(self, worker: int) -> None:
        assert self._loop is not None
        self._loop.add_reader(self._replicas[worker].socket, self._hear, worker)

    def pid(self, worker: int) -> int:
        """Return the process id of ``worker``."""
        return self._replicas[worker].popen.pid

    def inject(self, worker: int, action: str, factor: float = 1.0, lasts_s: float | None = None) -> int:
        """Kill, stop or slow a worker, to test what happens to its requests; return its process id.

        ``action``: ``kill`` (restarted after ``lasts_s``, by default at once), ``stop`` (continued after ``lasts_s``,
        by default until it counts as hung) or ``slow`` (calls take ``factor`` times as long, for ``lasts_s``). Raises
        ``InputError`` for a worker that does not exist or run.
        """
        self.listen()
        assert self._loop is not None
        if not 0 <= worker < self.workers:
            raise InputError(f"there is no worker {worker}; there are {self.workers}, numbered from 0")
        process = self._replicas[worker]
        if process.popen.poll() is not None:
            raise InputError(f"worker {worker} is not running")
        if action == "kill":
            process.stays_dead_s = lasts_s or 0.0
            process.popen.kill()  # its socket closes, which is noticed
        elif action == "stop":
            process.popen.send_signal(signal.SIGSTOP)
            if lasts_s is not None:
                self._loop.call_later(lasts_s, process.popen.send_signal, signal.SIGCONT)
        else:
            process.slow(factor)
            if lasts_s is not None:
                self._loop.call_later(lasts_s, process.slow, 1.0)
        return process.popen.pid

    def _start(self, worker: int) -> WorkerProcess:
        cores = self._cores(max(self.workers, worker + 1), self._threads)[worker]
        return self._new(worker, self._loaded, cores, self._threads, low_priority=True)

    def _new(
        self, worker: int, models: Mapping[str, ServedModel], cores: list[int], threads: int, *, low_priority: bool
    ) -> WorkerProcess:
        device, warns = self._devices[worker % len(self._devices)], models is not self._warned_of
        self._warned_of = models
        return WorkerProcess(models, cores, threads, low_priority, device, self._precision, warns)

    def _cores(self, workers: int, threads: int) -> list[list[int]]:
        """Give each worker its own cores, or all cores to all where there are too few."""
        cores = cores_by_preference()
        if workers * threads > len(cores):
            return [cores] * workers
        return [cores[first : first + threads] for first in range(0, workers * threads, threads)]

    def _listen_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        for worker, process in enumerate(self._replicas):
            loop.add_reader(process.socket, self._hear, worker)
        self._watch = loop.call_later(self._hang.look_s, self._look_for_hung)

    def _hear(self, worker: int) -> None:
        process = self._replicas[worker]
        try:
            message = process.socket.recv(MAX_MESSAGE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            message = b""
        if not message:
            self._lost(worker)
        elif process.call is not None:
            call = process.call
            self._hang.observe(*call.terms, time.monotonic() - call.begun_s)
            report = process.finish(message)
            if worker in self._successors:
                self._put(worker, self._successors.pop(worker))
            report()
            if worker >= self.workers:
                self._remove_if_idle(worker)
        elif REPLY.unpack(message)[0] == READY:
            process.was_warm = True
            self._note_start(process)
            self._on_change(worker, True)

    def _note_start(self, process: WorkerProcess) -> None:
        self._start_took_s = time.monotonic() - process.started_s
        with suppress(psutil.Error):  # it has ended meanwhile
            self._worker_bytes = process.memory_bytes()

    def _lost(self, worker: int) -> None:
        """Replace the process; its call ends as lost."""
        process, loop = self._replicas[worker], self._loop
        assert loop is not None
        loop.remove_reader(process.socket)
        code = process.end()
        call, process.call = process.call, None
        if call is None:
            self._on_change(worker, False, code)
        process.starts_at_s = time.monotonic()
        if worker >= self.workers:
            self._remove_if_idle(worker)
        elif worker in self._successors:
            self._put(worker, self._successors.pop(worker))
            loop.call_soon(self._on_change, worker, True)  # after the router has recorded the loss
        elif process.stays_dead_s:
            process.starts_at_s += process.stays_dead_s
            loop.call_later(process.stays_dead_s, self._replace, worker, 0)
        elif process.was_warm:
            loop.call_soon(self._replace, worker, 0)
        else:
            self._replace_later(worker, process.pauses)
        if call is not None:
            ended = f"worker {worker} ended in the middle of a call (exit code {code})"
            limit_s = self._hang.of(*call.terms)
            hung = f"worker {worker} was ended: a call took longer than {limit_s:.3g} s, the limit of calls like it"
            hung += f" (at most {self._hang.hang_s:g} s, --hang)" if limit_s < self._hang.hang_s else " (--hang)"
            if process.has_hung:
                self._hang.was_exceeded(*call.terms)
            call.done(WorkerLost(hung if process.has_hung else ended))

    def _replace_later(self, worker: int, pauses: int) -> None:
        assert self._loop is not None
        pause_s = min(FIRST_PAUSE_S * 2**pauses, MAX_PAUSE_S)
        self._replicas[worker].starts_at_s = time.monotonic() + pause_s
        self._loop.call_later(pause_s, self._replace, worker, pauses + 1)

    def _replace(self, worker: int, pauses: int) -> None:
        if self._closed or self._loop is None or self._replicas[worker].is_open:  # replaced already
            return
        if worker >= self.workers:  # not needed any more
            self._replicas[worker].is_removed = True
            return
        try:
            process = self._start(worker)
        except OSError:  # no memory, no process or no descriptor left just now
            self._replace_later(worker, pauses)
            return
        process.pauses = pauses
        self._put(worker, process)

    def _look_for_hung(self) -> None:
        now_s = time.monotonic()
        for process in self._replicas:
            if process.is_removed:
                continue
            call = process.call
            limit_s = math.inf if call is None else self._hang.of(*call.terms)
            if process.hangs(now_s, limit_s, max(START_FACTOR * self._start_took_s, MIN_START_LIMIT_S)):
                process.has_hung = True
                process.popen.kill()  # its socket closes, which is noticed
            elif not process.was_warm and now_s - process.started_s > LOW_PRIORITY_S:
                process.raise_priority()
        assert self._loop is not None
        self._watch = self._loop.call_later(self._hang.look_s, self._look_for_hung)


# Assumed memory of a worker, in sizes of its models' files, beside that of this process, which loaded them too.
COPIES = 3


def _is_plenty(models: Mapping[str, ServedModel], workers: int) -> bool:
    """True if half of the free memory certainly holds so many workers."""
    if workers == 1:
        return True
    files = sum(file_bytes(path) for served in models.values() for path in (*served.before, served.path) if path)
    most = psutil.Process().memory_info().rss + COPIES * files
    return bool(2 * workers * most < usable_memory())


def _require_loadable(models: Mapping[str, ServedModel]) -> None:
    for name, served in models.items():
        if served.path is None:
            raise InputError(f"{name} does not come from an artifact: worker processes cannot load it")
        PointRunner(served.model, served.policy.points)


async def _readable(loop: asyncio.AbstractEventLoop, process: WorkerProcess) -> None:
    """Wait until the process has sent a message, or has ended."""
    is_readable = asyncio.Event()
    loop.add_reader(process.socket, is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(process.socket)
