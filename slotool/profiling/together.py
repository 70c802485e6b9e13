"""Running beside each other: a board in shared memory for the barrier, and which samples count.

Every co-runner calls its model over and over from the same instant on. A sample counts only while all of them were
live: it began after each had finished its first call in company, and ended before any of them stopped (Abacus' way of
labelling; here with the raw time stamps kept, so that the choice is one small function).
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.profiling.timer import Call, stops

_GO, _STOP, _FIRST = 0, 1, 2
_BYTES_PER_SLOT = 8
SPIN_S = 1e-4
MOST_SPANS = 1 << 20
# How often a member asks for its idle time: reading the system's counters takes some 20 µs, less than 1 % of this.
LOOK_EVERY_S = 5e-3
# A shorter stop cannot be told from time that the hypervisor took: it is counted in ticks of 10 ms per core.
MIN_STOP_S = 0.02


@dataclass(frozen=True)
class Spans:
    """What a member did: ``samples`` float64 [n, 2], begin and end of each sample in order, in seconds of
    ``time.perf_counter``; ``stops`` float64 [m, 3], begin and end of each piece of time in which the process was
    stopped (SIGSTOP, a frozen container), and for how many seconds."""

    samples: np.ndarray
    stops: np.ndarray


def _never_idle() -> float:
    return 0.0


class Board:
    """Shared between the parent and ``members`` workers: when to go, when to stop, how many samples each has.

    A counter is -1 until its member stands ready. The parent makes it with ``Board.create``; it is memory without a
    file, which members open by ``path`` while the parent lives, so that no death leaves anything behind.
    """

    def __init__(self, path: str, members: int, descriptor: int | None = None):
        self.path, self.members, self._descriptor = path, members, descriptor
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), (_FIRST + members) * _BYTES_PER_SLOT)
        self._slots = memoryview(self._memory).cast("q")

    @classmethod
    def create(cls, members: int) -> Board:
        descriptor = os.memfd_create("slotool-board")
        os.truncate(descriptor, (_FIRST + members) * _BYTES_PER_SLOT)
        board = cls(f"/proc/{os.getpid()}/fd/{descriptor}", members, descriptor)
        for member in range(members):
            board._slots[_FIRST + member] = -1
        return board

    @property
    def counts(self) -> list[int]:
        return [self._slots[_FIRST + member] for member in range(self.members)]

    def go(self, at_s: float) -> None:
        """Let all begin at this reading of ``time.perf_counter``, which all processes of a machine share."""
        self._slots[_GO] = int(at_s * 1e9)

    def stop(self) -> None:
        self._slots[_STOP] = 1

    def run(self, member: int, call: Call, calls: int, idle: Callable[[], float] = _never_idle) -> Spans:
        """As a member: wait for the others, then call until told to stop, ``calls`` times per sample. ``idle``: seconds
        since it was last asked in which no thread of this process ran or was to run (``Interference.idle_s``)."""
        slots, mine = self._slots, _FIRST + member
        spans: list[tuple[float, float]] = []
        looks: list[tuple[float, float]] = []
        self._await_go(member)
        idle()
        begun = look_at = time.perf_counter()
        while not slots[_STOP] and len(spans) < MOST_SPANS:
            started = time.perf_counter()
            for _ in range(calls):
                call()
            ended = time.perf_counter()
            spans.append((started, ended))
            slots[mine] = len(spans)
            if ended >= look_at:
                looks.append((ended, idle()))
                look_at = ended + LOOK_EVERY_S
        return Spans(np.array(spans).reshape(-1, 2), _stops(begun, np.array(looks).reshape(-1, 2)))

    def keep_busy(self, member: int, call: Call) -> None:
        """As a member of whom nothing is asked but to be busy: ``run`` without end and without its record."""
        slots, mine = self._slots, _FIRST + member
        self._await_go(member)
        while not slots[_STOP]:
            call()
            slots[mine] += 1

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


def samples_in_company(spans: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Seconds of the samples of each member that lie wholly within the time in which all members were live.

    ``spans``: per member float64 [n, 2], begin and end of each sample in order. The time in company begins when the
    slowest starter has ended its first sample and ends with the end of the member that stopped first.
    """
    if any(len(of_member) == 0 for of_member in spans):
        return [np.empty(0) for _ in spans]
    begin = max(of_member[0, 1] for of_member in spans)
    end = min(of_member[-1, 1] for of_member in spans)
    inside = [of_member[(of_member[:, 0] >= begin) & (of_member[:, 1] <= end)] for of_member in spans]
    return [of_member[:, 1] - of_member[:, 0] for of_member in inside]


def stopped_share(members: Sequence[Spans]) -> float:
    """The largest share of the time in company (see ``samples_in_company``) for which a member was stopped: the others
    had the machine to themselves meanwhile, so no sample of that round is what it is taken for. 0 to 1."""
    if any(len(of.samples) == 0 for of in members):
        return 0.0
    begin = max(of.samples[0, 1] for of in members)
    end = min(of.samples[-1, 1] for of in members)
    if end <= begin:
        return 0.0
    stopped_s = []
    for of in members:
        within_s = np.minimum(of.stops[:, 1], end) - np.maximum(of.stops[:, 0], begin)
        stopped_s.append(float(np.clip(within_s, 0.0, of.stops[:, 2]).sum()))
    return max(stopped_s) / float(end - begin)


def _stops(begun: float, looks: np.ndarray) -> np.ndarray:
    """Of [n, 2], when it was looked and how long the process had been idle since the last look: those with a stop, as
    [m, 3] of begin, end and idle seconds."""
    begins = np.concatenate([[begun], looks[:-1, 0]]) if len(looks) else np.empty(0)
    pieces = np.column_stack([begins, looks])
    return pieces[stops(pieces[:, 2], pieces[:, 1] - pieces[:, 0], MIN_STOP_S)]


def conduct(
    board: Board, samples: int, seconds: tuple[float, float], alive: Callable[[], bool], poll_s: float = 0.01
) -> bool:
    """As the parent: start all members at once, stop them when each has ``samples`` in company.

    ``seconds``: the least and the most they run together, whatever the samples. Ends early when one has died; returns
    whether all are alive.
    """
    while min(board.counts) < 0 and alive():
        time.sleep(poll_s)
    least, most = seconds
    started = time.perf_counter() + 2 * poll_s
    board.go(started)
    while alive():
        lasted = time.perf_counter() - started
        # One sample more at either end, which lie partly outside.
        if lasted >= most or (lasted >= least and min(board.counts) >= samples + 2):
            break
        time.sleep(poll_s)
    board.stop()
    return alive()
