"""Worker process of the local engine as the router sees it: socket, shared tensors, call and state."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil

from slotool import devices
from slotool.data.columns import Inputs
from slotool.errors import RunError
from slotool.machine import read_system_file
from slotool.models.signature import RowCountError
from slotool.process import bound_to, module_command, schedule, thread_variables
from slotool.serving.engines.base import CallCancelled, Done
from slotool.serving.engines.messages import (
    CALL,
    CANCELLED,
    FAILED,
    MAX_MESSAGE_BYTES,
    MISCOUNTED,
    REPLY,
    SharedTensors,
    encode_point,
    outputs_of_tensors,
    tensors_of_inputs,
)
from slotool.serving.request import Outputs
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.serving.served import ServedModel


@dataclass(frozen=True, slots=True)
class _Call:
    """Call in progress; ``size``: bytes of its packed inputs."""

    model: str
    point: OperatingPoint
    size: int
    done: Done
    begun_s: float

    @property
    def terms(self) -> tuple[str, OperatingPoint, int]:
        """Facts that its latency depends on."""
        return self.model, self.point, self.size


class WorkerProcess:
    """Worker process as the router sees it.

    ``low_priority``: it loads ``models`` at low priority. ``device``: the only GPU that it sees, used in ``precision``.
    ``warns``: it prints which models it could not warm.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        cores: Sequence[int],
        threads: int,
        low_priority: bool,
        device: str = devices.CPU,
        precision: str = devices.FLOAT32,
        warns: bool = True,
    ):
        self._numbers = {name: number for number, name in enumerate(models)}
        self.loaded = models
        self._tensors = SharedTensors()
        self.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own_device, device_inside = devices.alone(device, os.environ)
        options = {
            "device": device_inside,
            "precision": precision,
            "parent": os.getpid(),
            "threads": threads,
            "low_priority": low_priority,
            "warns": warns,
            "socket_fd": other.fileno(),
            "tensors_fd": self._tensors.fd,
            "models": [_options(served) for served in models.values()],
        }
        try:
            with bound_to(cores), other:
                # A new session: Ctrl-C in the terminal is for the router, which drains first.
                self.popen = subprocess.Popen(
                    module_command("slotool.serving.engines.local_worker", json.dumps(options)),
                    pass_fds=(other.fileno(), self._tensors.fd),
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **thread_variables(threads), **own_device},
                    start_new_session=True,
                )
        except OSError:  # no memory, no process or no descriptor left just now
            self.socket.close()
            raise
        finally:
            os.close(self._tensors.fd)  # the memory stays mapped
        self.socket.setblocking(False)
        # ``starts_at_s``: start of this process or, after its end, of the next one.
        self.started_s = self.starts_at_s = time.monotonic()
        self.call: _Call | None = None
        self.is_removed = False
        self.was_warm = False
        self.pauses = 0
        # Delay of its replacement after its end, set by an injected fault.
        self.stays_dead_s = 0.0
        # It was killed because it took too long.
        self.has_hung = False
        self._was_stopped = False

    @property
    def is_open(self) -> bool:
        """True until its loss is noticed, which closes its socket."""
        return self.socket.fileno() >= 0

    @property
    def is_there(self) -> bool:
        """True if it is warm and not lost."""
        return self.was_warm and self.is_open

    def wait_until_warm(self, timeout_s: float) -> None:
        """Wait until its models have run. Raises ``RunError`` when they do not in time."""
        readable, _, _ = select.select([self.socket], [], [], timeout_s)
        message = self.socket.recv(MAX_MESSAGE_BYTES) if readable else b""
        if not message:
            what = "died while it started" if readable else f"was not warm within {timeout_s:.0f} s"
            raise RunError(f"a worker process {what}")
        kind, length = REPLY.unpack(message)
        if kind == FAILED:
            raise RunError(f"a worker process cannot run its models: {self._tensors.read_text(length)}")
        self.was_warm = True

    def memory_bytes(self) -> int:
        """Return the memory of this process alone: its own pages now, and the peak of its calls above them."""
        memory = psutil.Process(self.popen.pid).memory_full_info()
        status = (read_system_file(f"/proc/{self.popen.pid}/status") or "").split()
        peak = 1024 * int(status[status.index("VmHWM:") + 1]) if "VmHWM:" in status else memory.rss
        return int(memory.uss + max(0, peak - memory.rss))

    def begin(self, model: str, point: OperatingPoint, x: Inputs, done: Done) -> None:
        """Start a call. Raises ``OSError`` when the process is gone; the caller then calls ``done``."""
        self._tensors.cancelled = False
        size = self._tensors.pack(tensors_of_inputs(x))
        self.call = _Call(model, point, size, done, time.monotonic())
        self.socket.send(CALL.pack(self._numbers[model], size) + encode_point(point))

    def cancel(self) -> None:
        """Cancel the call; the worker checks between two operators."""
        self._tensors.cancelled = True

    def slow(self, factor: float) -> None:
        """Slow calls by ``factor`` from the next answer on; 1: normal speed."""
        self._tensors.slowed = factor

    def finish(self, message: bytes) -> Callable[[], None]:
        """Read the answer to the call; the returned function reports it."""
        call, self.call = self.call, None
        assert call is not None
        kind, length = REPLY.unpack(message)
        if kind == FAILED:
            outcome: Outputs | Exception = RunError(self._tensors.read_text(length))
        elif kind == MISCOUNTED:
            outcome = RowCountError(self._tensors.read_text(length))
        elif kind == CANCELLED:
            outcome = CallCancelled("the call was cancelled")
        else:
            outcome = self._computed(call, length)
        return partial(call.done, outcome)

    def _computed(self, call: _Call, length: int) -> Outputs | Exception:
        """Copy the outputs from shared memory."""
        try:
            tensors = self._tensors.unpack(length, after=call.size, copy=True)
            return outputs_of_tensors(tensors, self.loaded[call.model].model)
        except RunError as error:
            return error
        finally:
            self._tensors.release(call.size + length)

    def hangs(self, now_s: float, call_limit_s: float, start_limit_s: float) -> bool:
        """True if its call or its start takes too long, or if it was idle and stopped (SIGSTOP) at two checks."""
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
        """Kill the process and return its exit code."""
        self.socket.close()
        with suppress(ProcessLookupError):
            self.popen.kill()
        return self.popen.wait()


def _options(served: ServedModel) -> dict[str, Any]:
    return {
        "name": served.name,
        "path": str(served.path),
        "before": [str(path) for path in served.before],
        "max_batch": served.model.max_batch,
        "points": [encode_point(point).decode() for point in served.policy.points],
        "batch_sizes": served.policy.batch_sizes,
    }
