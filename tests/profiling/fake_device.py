"""An asynchronous device on the CPU, for tests of what measures and serves on one: a stream, events, limited memory.

All processes that open the same folder share the device: its memory, its time and its state, as contexts of one GPU do.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

# Where workers find the device of the test that started them.
FOLDER_VARIABLE = "SLOTOOL_FAKE_DEVICE"
# The host waits when it has asked for so much more than is done.
QUEUE_LENGTH = 1024
# Durations of one kernel differ by about this share.
JITTER = 1e-3
_FIELDS = (
    "memory_bytes",
    "throttled",
    "power_capped",
    "clock_permille",
    "wake_us",
    "fail_in",
    "busy_percent",
)
_CONTEXTS = 64


class OutOfMemoryError(RuntimeError):
    """The device has not so much memory left."""


class DeviceFailure(RuntimeError):
    """A kernel failed; the host hears of it when it waits next."""


class DeviceState:
    """What the contexts of one device share; the attributes are read and set at any moment, by any process.

    ``memory_bytes`` there is; ``throttled`` and ``power_capped`` are 0 or 1; ``clock_permille`` of the full clock;
    ``wake_us`` that the host takes to notice that the device is done; ``fail_in`` so many kernels from now one fails,
    0 never; ``busy_percent``
    is how busy it says it was of late.
    """

    memory_bytes: int
    throttled: int
    power_capped: int
    clock_permille: int
    wake_us: int
    fail_in: int
    busy_percent: int

    def __init__(self, folder: Path):
        with open(folder / "state", "r+b") as file:
            self._slots = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._lock = folder / "memory.lock"

    @classmethod
    def create(cls, folder: Path, memory_bytes: int = 8 << 30) -> DeviceState:
        """A new device in ``folder``, which ``FakeDevice`` opens."""
        (folder / "state").write_bytes(bytes(8 * (len(_FIELDS) + 2 * _CONTEXTS)))
        state = cls(folder)
        state.memory_bytes, state.clock_permille = memory_bytes, 1000
        return state

    def __getattr__(self, name: str) -> int:
        if name not in _FIELDS:
            raise AttributeError(name)
        return int(self._slots[_FIELDS.index(name)])

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIELDS:
            self._slots[_FIELDS.index(name)] = int(value)
        else:
            object.__setattr__(self, name, value)

    @property
    def processes(self) -> list[int]:
        """Ids of the living processes that hold memory."""
        return sorted({pid for pid, held in self._contexts() if held})

    @property
    def free_bytes(self) -> int:
        return self.memory_bytes - sum(held for _, held in self._contexts())

    def take(self, size: int) -> None:
        """Add to what this process holds; a negative size gives back. Raises ``OutOfMemoryError``."""
        # Opened anew, so that the lock is between two contexts of one process too.
        with open(self._lock, "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if size > self.free_bytes:
                raise OutOfMemoryError(f"fake device out of memory: {size:,} bytes wanted, {self.free_bytes:,} free")
            at = self._place(os.getpid())
            self._slots[at], self._slots[at + 1] = os.getpid(), self._slots[at + 1] + size

    def _contexts(self) -> Iterator[tuple[int, int]]:
        """Process id and bytes; a process that is gone holds nothing."""
        for at in range(len(_FIELDS), len(self._slots), 2):
            pid = self._slots[at]
            if pid and _is_alive(pid):
                yield pid, self._slots[at + 1]

    def _place(self, pid: int) -> int:
        places = range(len(_FIELDS), len(self._slots), 2)
        mine = next((at for at in places if self._slots[at] == pid), None)
        if mine is None:
            mine = next(at for at in places if not self._slots[at] or not _is_alive(self._slots[at]))
            self._slots[mine + 1] = 0
        return mine


@dataclass
class Event:
    """A mark in the stream; ``seconds`` of the device's clock once the device has reached it."""

    seconds: float = float("nan")
    reached: threading.Event = field(default_factory=threading.Event)

    def synchronize(self) -> None:
        self.reached.wait()

    def elapsed_s(self, later: Event) -> float:
        """Seconds from this to a ``later`` one, both reached."""
        return later.seconds - self.seconds


@dataclass
class Result:
    """What a kernel returns, once it has run."""

    value: Any = None


class Allocation:
    """Memory of the device, given back by ``free`` or when nobody has it any more."""

    def __init__(self, state: DeviceState, size: int):
        state.take(size)
        self._state, self._size = state, size

    def free(self) -> None:
        size, self._size = self._size, 0
        if size:
            self._state.take(-size)

    def __del__(self) -> None:
        # The folder may be gone before its last user.
        if "_size" in vars(self):
            with suppress(OSError):
                self.free()


class FakeDevice:
    """A process's context: ``run`` returns at once, a thread executes in order, one kernel of all processes at a time.

    A kernel lasts the seconds it is given, times a factor that ``seed`` and its number decide, over the clock. The
    device's clock is ``time.perf_counter`` with kernels that follow each other without a gap, so the seconds between
    two events are exact when the stream was never empty between them.
    """

    def __init__(self, folder: str | Path, seed: int = 0):
        self.state, self._chance = DeviceState(Path(folder)), np.random.default_rng(seed)
        self._turn = _opened(self, Path(folder) / "stream.lock")
        self._stream: queue.Queue[Callable[[], None] | None] = queue.Queue(QUEUE_LENGTH)
        self._end_s = time.perf_counter()
        self._error: Exception | None = None
        self._asked = self._done = 0
        # The thread knows the stream alone, and ends when nobody has the device any more.
        threading.Thread(target=_execute, args=(self._stream,), daemon=True, name="fake-device").start()
        weakref.finalize(self, self._stream.put, None)

    @property
    def pending(self) -> int:
        """Kernels that were asked for and are not done."""
        return self._asked - self._done

    def run(self, seconds: float, work: Callable[[], Any] = lambda: None) -> Result:
        """Ask for a kernel that lasts so long and computes ``work``."""
        result, asked_s = Result(), time.perf_counter()
        self._asked += 1
        factor = 1.0 + JITTER * float(self._chance.standard_normal())
        self._stream.put(lambda: self._kernel(seconds * factor, work, result, asked_s))
        return result

    def record(self, event: Event) -> None:
        """Ask for the time at this point of the stream."""
        asked_s = time.perf_counter()
        event.reached.clear()
        self._stream.put(lambda: self._reach(event, asked_s))

    def synchronize(self) -> None:
        """Return when all is done. Raises ``DeviceFailure``, and whatever ``work`` raised, since the last time."""
        end = Event()
        self.record(end)
        end.synchronize()
        if self.state.wake_us:
            time.sleep(1e-6 * self.state.wake_us)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def allocate(self, size: int) -> Allocation:
        """Raises ``OutOfMemoryError`` when less than ``size`` bytes are free."""
        return Allocation(self.state, size)

    def _kernel(self, seconds: float, work: Callable[[], Any], result: Result, asked_s: float) -> None:
        with self._others_waiting() as had_to_wait:
            begun_s = time.perf_counter() if had_to_wait else max(self._end_s, asked_s)
            try:
                self._count_down()
                result.value = work()
            except Exception as error:
                self._error = self._error or error
            self._end_s = begun_s + seconds * 1000 / self.state.clock_permille
            time.sleep(max(0.0, self._end_s - time.perf_counter()))
        self._done += 1

    def _count_down(self) -> None:
        left = self.state.fail_in
        if left:
            self.state.fail_in = left - 1
            if left == 1:
                raise DeviceFailure("the fake device failed as it was told to")

    @contextmanager
    def _others_waiting(self) -> Iterator[bool]:
        """Alone on the device; whether another process had it at first."""
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            waited = False
        except BlockingIOError:
            fcntl.flock(self._turn, fcntl.LOCK_EX)
            waited = True
        try:
            yield waited
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def _reach(self, event: Event, asked_s: float) -> None:
        event.seconds = max(self._end_s, asked_s)
        event.reached.set()


def _execute(stream: queue.Queue[Callable[[], None] | None]) -> None:
    while (task := stream.get()) is not None:
        task()
        # A closure holds what it computes with.
        del task


def _opened(owner: object, path: Path) -> int:
    """A descriptor of the file that is closed when its owner is gone."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    weakref.finalize(owner, os.close, descriptor)
    return descriptor


def _is_alive(pid: int) -> bool:
    try:
        # The third field: a process that has ended and was not waited for holds nothing.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
