"""The local engine: worker processes on cores of their own, tensors in shared memory."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from slotool.data.columns import Inputs
from slotool.errors import InputError, RunError
from slotool.process import bound_to, cores_by_preference, schedule, thread_variables
from slotool.serving.engines.base import CallCancelled, Done, InferenceEngine, WorkerChange, WorkerLost
from slotool.serving.engines.protocol import (
    CALL,
    CANCELLED,
    FAILED,
    MAX_MESSAGE_BYTES,
    READY,
    REPLY,
    encode_point,
    outputs_of_tensors,
    tensors_of_inputs,
)
from slotool.serving.engines.shared_tensors import MAX_PACKED_BYTES, Shapes, SharedTensors
from slotool.serving.ensemble import PointRunner
from slotool.serving.outputs import Computed, Scores
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint

START_TIMEOUT_S = 180.0
# A worker that dies before it is warm is started again after so long, twice as long each time.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
# A replacement loads at low priority; after this time it gets its full share of the cores.
LOW_PRIORITY_S = 5.0
# A start that takes this many times the last one counts as hung; the limit doubles with each such replacement.
START_FACTOR, MIN_START_LIMIT_S = 10.0, 20.0


class LocalInferenceEngine(InferenceEngine):
    """``replicas`` processes of ``threads`` threads, each with every model warm (model-switching's ⟨R, T⟩).

    Each process runs on as many cores as it has threads, where there are enough for all. A worker that dies, or takes
    longer than ``hang_s`` over a call, is replaced. ``max_examples``: in one call. A cancelled call ends before its
    next operator, where the model can (``ElasticModel.set_cancellation_check``). Models must come from artifacts
    (``ServedModel.path``).
    """

    name = "local"

    def __init__(self, replicas: int = 1, threads: int = 1, *, max_examples: int = 1_024, hang_s: float = 10.0):
        self.workers = replicas
        self._threads, self._most_examples, self._hang_s = threads, max_examples, hang_s
        self._models: dict[str, ServedModel] = {}
        self._processes: list[_Process] = []
        self._on_change: WorkerChange = _nobody_listens
        self._watch: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._start_took_s = 0.0

    def open(self, models: Mapping[str, ServedModel], on_change: WorkerChange) -> None:
        for name, served in models.items():
            if served.path is None:
                raise InputError(f"{name} does not come from an artifact: worker processes cannot load it")
            PointRunner(served.model, served.policy.points)
        self._models, self._on_change = dict(models), on_change
        self._processes = [self._started(worker) for worker in range(self.workers)]
        deadline_s = time.monotonic() + START_TIMEOUT_S
        try:
            for process in self._processes:
                process.wait_until_warm(max(0.0, deadline_s - time.monotonic()))
                self._note_start(process)
        except RunError:
            self.close()
            raise

    def prepare(self, model: str, points: tuple[OperatingPoint, ...]) -> None:
        PointRunner(self._models[model].model, points)

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._listen_in(loop)

    def ready_in_s(self) -> float:
        """A replacement is expected to take as long to start as the last worker that did."""
        now_s = time.monotonic()
        return max(0.0, min(process.starts_at_s + self._start_took_s - now_s for process in self._processes))

    def begin(self, worker: int, model: str, point: OperatingPoint, x: Inputs, done: Done) -> None:
        self.listen()
        process = self._processes[worker]
        try:
            process.begin(model, point, x, done)
        except OSError:
            self._lost(worker)

    def cancel(self, worker: int) -> None:
        self._processes[worker].cancel()

    def close(self) -> None:
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        for process in self._processes:
            # One that could not be replaced yet has no socket any more.
            if self._loop is not None and not self._loop.is_closed() and process.socket.fileno() >= 0:
                self._loop.remove_reader(process.socket)
            process.end()

    def pid(self, worker: int) -> int:
        """Of the process that is ``worker`` now."""
        return self._processes[worker].popen.pid

    def inject(self, worker: int, action: str, factor: float = 1.0, lasts_s: float | None = None) -> int:
        """Kill, stop or slow a worker, to see what becomes of its requests; returns its process.

        ``action``: ``kill`` (started again after ``lasts_s``, at once without), ``stop`` (goes on after ``lasts_s``;
        without, until it counts as hung) or ``slow`` (its calls take ``factor`` times as long, for ``lasts_s``).
        Raises ``InputError`` for a worker that there is not, or that is not running.
        """
        self.listen()
        assert self._loop is not None
        if not 0 <= worker < self.workers:
            raise InputError(f"there is no worker {worker}; there are {self.workers}, numbered from 0")
        process = self._processes[worker]
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

    def _started(self, worker: int, *, low_priority: bool = False) -> _Process:
        cores = cores_by_preference()
        first = worker * self._threads
        own = cores[first : first + self._threads] if self.workers * self._threads <= len(cores) else cores
        return _Process(self._models, own, self._threads, self._most_examples, low_priority)

    def _listen_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        for worker, process in enumerate(self._processes):
            loop.add_reader(process.socket, self._hear, worker)
        self._watch = loop.call_later(self._hang_s / 4, self._look_for_hung)

    def _hear(self, worker: int) -> None:
        process = self._processes[worker]
        try:
            message = process.socket.recv(MAX_MESSAGE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            message = b""
        if not message:
            self._lost(worker)
        elif process.call is not None:
            process.finish(message)
        elif REPLY.unpack(message)[0] == READY:
            process.was_warm = True
            self._note_start(process)
            self._on_change(worker, True)

    def _note_start(self, process: _Process) -> None:
        self._start_took_s = time.monotonic() - process.started_s

    def _lost(self, worker: int) -> None:
        """Replace the process; its call ends as lost."""
        process, loop = self._processes[worker], self._loop
        assert loop is not None
        loop.remove_reader(process.socket)
        code = process.end()
        call, process.call = process.call, None
        if call is None:
            self._on_change(worker, False)
        process.starts_at_s = time.monotonic()
        if process.stays_dead_s:
            process.starts_at_s += process.stays_dead_s
            loop.call_later(process.stays_dead_s, self._replace, worker, 0)
        elif process.was_warm:
            loop.call_soon(self._replace, worker, 0)
        else:
            self._replace_later(worker, process.pauses)
        if call is not None:
            call.done(WorkerLost(f"worker {worker} ended in the middle of a call (exit code {code})"))

    def _replace_later(self, worker: int, pauses: int) -> None:
        assert self._loop is not None
        pause_s = min(FIRST_PAUSE_S * 2**pauses, MAX_PAUSE_S)
        self._processes[worker].starts_at_s = time.monotonic() + pause_s
        self._loop.call_later(pause_s, self._replace, worker, pauses + 1)

    def _replace(self, worker: int, pauses: int) -> None:
        if self._closed or self._loop is None:
            return
        try:
            process = self._processes[worker] = self._started(worker, low_priority=True)
        except OSError:  # no memory, no process or no descriptor left just now
            self._replace_later(worker, pauses)
            return
        process.pauses = pauses
        self._loop.add_reader(process.socket, self._hear, worker)

    def _look_for_hung(self) -> None:
        now_s = time.monotonic()
        for process in self._processes:
            if process.hangs(now_s, self._hang_s, max(START_FACTOR * self._start_took_s, MIN_START_LIMIT_S)):
                process.popen.kill()  # its socket closes, which is noticed
            elif not process.was_warm and now_s - process.started_s > LOW_PRIORITY_S:
                process.raise_priority()
        assert self._loop is not None
        self._watch = self._loop.call_later(self._hang_s / 4, self._look_for_hung)


@dataclass(frozen=True, slots=True)
class _Call:
    """``size``: its examples, or the bytes of its packed inputs."""

    model: str
    size: int
    done: Done
    begun_s: float


class _Process:
    """One worker process as the router sees it. ``low_priority``: it loads at low priority."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        cores: Sequence[int],
        threads: int,
        max_examples: int,
        low_priority: bool,
    ):
        self._numbers = {name: number for number, name in enumerate(models)}
        self._models = models
        shapes = {name: _shapes(served) for name, served in models.items() if served.model.signature is None}
        packed_bytes = MAX_PACKED_BYTES if len(shapes) < len(models) else 0
        self._tensors = SharedTensors(shapes, max_examples, packed_bytes)
        self.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        options = {
            "parent": os.getpid(),
            "threads": threads,
            "low_priority": low_priority,
            "max_examples": max_examples,
            "packed_bytes": packed_bytes,
            "socket_fd": other.fileno(),
            "tensors_fd": self._tensors.fd,
            "models": [_options(served, shapes.get(name)) for name, served in models.items()],
        }
        try:
            with bound_to(cores), other:
                # Its own session: Ctrl-C in the terminal is for the router, which drains first.
                self.popen = subprocess.Popen(
                    [sys.executable, "-m", "slotool.serving.engines.worker", json.dumps(options)],
                    pass_fds=(other.fileno(), self._tensors.fd),
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **thread_variables(threads)},
                    start_new_session=True,
                )
        finally:
            os.close(self._tensors.fd)  # the memory stays mapped
        self.socket.setblocking(False)
        # ``starts_at_s``: when it began to start or, once it has ended, when the next one will.
        self.started_s = self.starts_at_s = time.monotonic()
        self.call: _Call | None = None
        self.was_warm = False
        self.pauses = 0
        # Seconds until it is replaced once it has ended, where a fault says so.
        self.stays_dead_s = 0.0
        self._was_stopped = False

    def wait_until_warm(self, timeout_s: float) -> None:
        """Raises ``RunError`` when it does not get there."""
        readable, _, _ = select.select([self.socket], [], [], timeout_s)
        message = self.socket.recv(MAX_MESSAGE_BYTES) if readable else b""
        if not message:
            what = "died while it started" if readable else f"was not warm within {timeout_s:.0f} s"
            raise RunError(f"a worker process {what}")
        kind, length = REPLY.unpack(message)
        if kind == FAILED:
            raise RunError(f"a worker process cannot run its models: {self._tensors.read_text(length)}")
        self.was_warm = True

    def begin(self, model: str, point: OperatingPoint, x: Inputs, done: Done) -> None:
        """Raises ``OSError`` when the process is gone; the caller then calls ``done``."""
        self._tensors.cancelled = False
        if self._models[model].model.signature is not None:
            size = self._tensors.pack(tensors_of_inputs(x))
        else:
            assert isinstance(x, np.ndarray)
            size = len(x)
            self._tensors.inputs(model, size)[:] = x.reshape(size, -1)
        self.call = _Call(model, size, done, time.monotonic())
        self.socket.send(CALL.pack(self._numbers[model], size) + encode_point(point))

    def cancel(self) -> None:
        """The worker looks for this between two operators."""
        self._tensors.cancelled = True

    def slow(self, factor: float) -> None:
        """From the next answer on calls take so many times as long; 1: as they do."""
        self._tensors.slowed = factor

    def finish(self, message: bytes) -> None:
        """Report the answer of the call."""
        call, self.call = self.call, None
        assert call is not None
        kind, length = REPLY.unpack(message)
        if kind == FAILED:
            outcome: Computed | Exception = RunError(self._tensors.read_text(length))
        elif kind == CANCELLED:
            outcome = CallCancelled("the call was cancelled")
        else:
            outcome = self._computed(call, length)
        call.done(outcome)

    def _computed(self, call: _Call, length: int) -> Computed | Exception:
        """A copy of what the worker left."""
        model = self._models[call.model].model
        if model.signature is None:
            left = self._tensors.outputs(call.model, call.size)
            return Scores(left.logits.copy(), left.confidence.copy())
        try:
            return outputs_of_tensors(self._tensors.unpack(length, after=call.size, copy=True), model)
        except RunError as error:
            return error
        finally:
            self._tensors.release(call.size + length)

    def hangs(self, now_s: float, call_limit_s: float, start_limit_s: float) -> bool:
        """Whether its call or its start takes too long, or it was stopped (SIGSTOP) while idle now and before."""
        if self.call is not None:
            return now_s - self.call.begun_s > call_limit_s
        if not self.was_warm:
            return now_s - self.started_s > start_limit_s * (1 << self.pauses)
        was_stopped, self._was_stopped = self._was_stopped, self._is_stopped()
        return was_stopped and self._was_stopped

    def _is_stopped(self) -> bool:
        try:
            return bool(psutil.Process(self.popen.pid).status() == psutil.STATUS_STOPPED)
        except psutil.Error:  # it has ended, which is noticed elsewhere
            return False

    def raise_priority(self) -> None:
        """Load at normal priority from now on."""
        with suppress(OSError):  # it has ended, which is noticed elsewhere
            schedule(os.SCHED_OTHER, self.popen.pid)

    def end(self) -> int:
        """Its exit code."""
        self.socket.close()
        with suppress(ProcessLookupError):
            self.popen.kill()
        return self.popen.wait()


def _shapes(served: ServedModel) -> Shapes:
    return Shapes(int(np.prod(served.model.input_shape)), served.model.classes)


def _options(served: ServedModel, shapes: Shapes | None) -> dict[str, Any]:
    return {
        "name": served.name,
        "path": str(served.path),
        "shapes": shapes and [shapes.inputs, shapes.classes],
        "points": [encode_point(point).decode() for point in served.policy.points],
    }


def _nobody_listens(worker: int, alive: bool) -> None:
    raise RunError("the engine is not open")
