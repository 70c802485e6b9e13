"""Co-located measurement: a barrier in shared memory that starts all co-runners at once, and the samples that count.

All co-runners call their models from the same instant on. A sample counts if it begins after each has finished its
first call, and ends before any of them stops. Abacus labels in the same way; this module also keeps raw time stamps.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.timing.timer import Call, stops

_GO, _STOP, _FAILED, _FIRST = 0, 1, 2, 3
_BYTES_PER_SLOT = 8
SPIN_S = 1e-4
MAX_SPANS = 1 << 20
# Interval at which a member reads its idle time: reading the system's counters takes some 20 µs, less than 1 % of it.
IDLE_CHECK_EVERY_S = 5e-3
# A shorter stop cannot be distinguished from steal time, which is counted in ticks of 10 ms per core.
MIN_STOP_S = 0.02


@dataclass(frozen=True)
class Spans:
    """Samples and stops of a member, in seconds of ``time.perf_counter``.

    ``samples`` float64 [n, 2]: begin and end of each. ``stops`` float64 [m, 3]: begin and end of each interval in which
    the process was stopped (SIGSTOP, a frozen container), and the seconds that it was.
    """

    samples: np.ndarray
    stops: np.ndarray


def _nothing() -> None:
    return None


class SharedMemoryBarrier:
    """Barrier of a parent and ``members`` workers: start, stop, and the number of samples of each.

    A counter is -1 until its member is ready. The parent makes the barrier with ``create``. It is anonymous memory that
    members open by ``path`` while the parent lives, so nothing remains when a process dies.
    """

    def __init__(self, path: str, members: int, descriptor: int | None = None):
        self.path, self.members, self._descriptor = path, members, descriptor
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), (_FIRST + members) * _BYTES_PER_SLOT)
        self._slots = memoryview(self._memory).cast("q")

    @classmethod
    def create(cls, members: int) -> SharedMemoryBarrier:
        descriptor = os.memfd_create("slotool-barrier")
        os.truncate(descriptor, (_FIRST + members) * _BYTES_PER_SLOT)
        barrier = cls(f"/proc/{os.getpid()}/fd/{descriptor}", members, descriptor)
        for member in range(members):
            barrier._slots[_FIRST + member] = -1
        return barrier

    @property
    def counts(self) -> list[int]:
        return [self._slots[_FIRST + member] for member in range(self.members)]

    def go(self, at_s: float) -> None:
        """Start all members at this reading of ``time.perf_counter``, which all processes of a machine share."""
        self._slots[_GO] = int(at_s * 1e9)

    def stop(self) -> None:
        self._slots[_STOP] = 1

    def run(
        self,
        member: int,
        call: Call,
        calls: int,
        idle: Callable[[], float] = lambda: 0.0,
        wait: Callable[[], None] = _nothing,
    ) -> Spans:
        """Run as a member: wait for the others, then call until ``stop``, ``calls`` times per sample.

        ``idle``: seconds since its last call in which no thread of this process ran or was ready to run
        (``Interference.idle_s``). ``wait``: returns when the device has finished; it is part of every sample.
        """
        slots, mine = self._slots, _FIRST + member
        spans: list[tuple[float, float]] = []
        checks: list[tuple[float, float]] = []
        self._await_go(member)
        idle()
        begun = check_at = time.perf_counter()
        while not slots[_STOP] and len(spans) < MAX_SPANS:
            started = time.perf_counter()
            for _ in range(calls):
                call()
            wait()
            ended = time.perf_counter()
            spans.append((started, ended))
            slots[mine] = len(spans)
            if ended >= check_at:
                checks.append((ended, idle()))
                check_at = ended + IDLE_CHECK_EVERY_S
        return Spans(np.array(spans).reshape(-1, 2), _stops(begun, np.array(checks).reshape(-1, 2)))

    def keep_busy(self, member: int, call: Call, wait: Callable[[], None] = _nothing) -> None:
        """Run as a member without recording samples, to keep the core or the device busy."""
        slots, mine = self._slots, _FIRST + member
        self._await_go(member)
        while not slots[_STOP]:
            call()
            # Calls without waiting would fill the device's queue.
            wait()
            slots[mine] += 1

    def fail(self) -> None:
        """Mark this member as failed, so that the others stop."""
        self._slots[_FAILED] = 1

    @property
    def failed(self) -> bool:
        return bool(self._slots[_FAILED])

    def _await_go(self, member: int) -> None:
        slots = self._slots
        slots[_FIRST + member] = 0
        while not slots[_GO] and not slots[_STOP]:
            time.sleep(SPIN_S)
        while time.perf_counter() * 1e9 < slots[_GO]:
            pass

    def close(self) -> None:
        self._slots.release()
        self._memory.close()
        if self._descriptor is not None:
            os.close(self._descriptor)


def colocated_samples(spans: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the seconds of each member's samples that lie wholly within the time in which all members ran.

    ``spans``: float64 [n, 2] for each member, begin and end of each sample in order. The co-located time begins when
    all members have ended their first sample, and ends when the first member stops.
    """
    if any(len(of_member) == 0 for of_member in spans):
        return [np.empty(0) for _ in spans]
    begin = max(of_member[0, 1] for of_member in spans)
    end = min(of_member[-1, 1] for of_member in spans)
    inside = [of_member[(of_member[:, 0] >= begin) & (of_member[:, 1] <= end)] for of_member in spans]
    return [of_member[:, 1] - of_member[:, 0] for of_member in inside]


def stopped_share(members: Sequence[Spans]) -> float:
    """Return the largest share of the co-located time (see ``colocated_samples``) in which a member was stopped.

    The other members ran alone meanwhile, so the round does not measure co-location.
    """
    if any(len(member.samples) == 0 for member in members):
        return 0.0
    begin = max(member.samples[0, 1] for member in members)
    end = min(member.samples[-1, 1] for member in members)
    if end <= begin:
        return 0.0
    stopped_s = []
    for member in members:
        within_s = np.minimum(member.stops[:, 1], end) - np.maximum(member.stops[:, 0], begin)
        stopped_s.append(float(np.clip(within_s, 0.0, member.stops[:, 2]).sum()))
    return max(stopped_s) / float(end - begin)


def _stops(begun: float, checks: np.ndarray) -> np.ndarray:
    """Return intervals with a stop, [m, 3]: begin, end and idle seconds.

    ``checks``: float64 [n, 2], the time of each check and the idle seconds since the one before.
    """
    begins = np.concatenate([[begun], checks[:-1, 0]]) if len(checks) else np.empty(0)
    pieces = np.column_stack([begins, checks])
    stopped: np.ndarray = pieces[stops(pieces[:, 2], pieces[:, 1] - pieces[:, 0], MIN_STOP_S)]
    return stopped


def coordinate(
    barrier: SharedMemoryBarrier,
    samples: int,
    seconds: tuple[float, float],
    alive: Callable[[], bool],
    poll_s: float = 0.01,
) -> bool:
    """Run as the parent: start all members at once, stop them when each has ``samples`` co-located samples.

    ``seconds``: minimum and maximum co-located time. It ends early when a member dies or fails; returns True if all are
    alive.
    """
    while min(barrier.counts) < 0 and alive() and not barrier.failed:
        time.sleep(poll_s)
    min_s, max_s = seconds
    started = time.perf_counter() + 2 * poll_s
    barrier.go(started)
    while alive() and not barrier.failed:
        lasted = time.perf_counter() - started
        # The first and the last sample lie partly outside of the co-located time.
        if lasted >= max_s or (lasted >= min_s and min(barrier.counts) >= samples + 2):
            break
        time.sleep(poll_s)
    barrier.stop()
    return alive()
