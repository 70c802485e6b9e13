"""Interference by other processes: waiting for a core, time stolen by the host, time stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from slotool.process import cpu_seconds_of_others

NANOSECOND = 1e-9
STEAL_FIELD = 8  # of a line "cpuN user nice system idle iowait irq softirq steal …", in clock ticks


# Cores that other processes may keep busy during measurements of whole seconds.
QUIET_CORES = 0.1
# Medians of rounds within this share of each other agree.
AGREEMENT = 0.05
NOT_DECIDED = "not decided: the machine was disturbed"


class OtherWork:
    """Cores that processes other than this one and its children keep busy from now on."""

    def __init__(self) -> None:
        self._began_s, self._busy_s = time.perf_counter(), cpu_seconds_of_others()

    def read(self) -> tuple[float, float]:
        """Return seconds since the beginning, and the mean number of busy cores."""
        seconds = time.perf_counter() - self._began_s
        return seconds, max(0.0, cpu_seconds_of_others() - self._busy_s) / seconds


def state(stable: bool) -> str:
    """Return the state of a measurement, for tables and documents."""
    return "stable" if stable else "disturbed"


def sentence(timing: Mapping[str, Any]) -> str:
    """Return the sentence for a ``Turns.document``."""
    parts = [f"timing: {timing['state']}"]
    if timing["state"] != state(True):
        parts.append(f"other processes ran during {timing['disturbed']:.1%} of the calls")
        parts.append(f"rounds of {timing['differ']:.0%} of the medians differ by more than {AGREEMENT:.0%}")
    return "; ".join(parts)


class Interference:
    """Counter of the seconds that other processes took since its last call: 0 on an idle machine.

    It adds the longest run-queue delay of any thread of this process (runnable, but another process had the core), as
    the other threads wait for that one, and the largest steal time of ``cores`` (the hypervisor ran another guest, in
    ticks of 10 ms). Without these counters in the kernel it is always 0. A call takes one short read per thread, so it
    can follow every sample.

    ``oversubscribed``: this process has more busy threads than cores, which wait for each other. Their delay then does
    not show other processes, and only steal time is counted.
    """

    def __init__(self, cores: Sequence[int], *, oversubscribed: bool = False):
        self._oversubscribed = oversubscribed
        self._cores = {f"cpu{core}".encode() for core in cores}
        self._tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        self._threads: dict[str, int] = {}
        self._stat = _opened("/proc/stat")
        self.look_again()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in (*self._threads.values(), *([] if self._stat is None else [self._stat])):
            os.close(descriptor)
        self._threads, self._stat = {}, None

    def look_again(self) -> None:
        """Open the counters of the present threads; call it when a model has run once and its pools exist."""
        alive = set() if self._oversubscribed else set(os.listdir("/proc/self/task"))
        for gone in self._threads.keys() - alive:
            os.close(self._threads.pop(gone))
        for thread in sorted(alive - self._threads.keys()):
            descriptor = _opened(f"/proc/self/task/{thread}/schedstat")
            if descriptor is not None:
                self._threads[thread] = descriptor
        self._waited, self._stolen = self._waited_s(), self._stolen_s()
        self._not_idle = self._beyond_s()

    def __call__(self) -> float:
        waited, stolen = self._waited_s(), self._stolen_s()
        lost = _longest(waited, self._waited) + _longest(stolen, self._stolen)
        self._waited, self._stolen = waited, stolen
        return lost

    def idle_s(self) -> float:
        """Return seconds since the last call without a running or runnable thread of this process.

        A call that computes has next to none; one that waits for a device has some. If the process was stopped
        (SIGSTOP, a frozen container, a debugger), all of that time counts here. No counter of the system shows it: the
        clock goes on, but neither CPU time nor run-queue delay does.
        """
        now = self._beyond_s()
        idle, self._not_idle = now - self._not_idle, now
        return max(0.0, idle)

    def _beyond_s(self) -> float:
        """Return the seconds of the clock beyond those in which threads ran, waited for a core or were stolen."""
        counted = sum(self._waited_s().values()) + sum(self._stolen_s().values())
        return time.perf_counter() - time.process_time() - counted

    def _waited_s(self) -> dict[str, float]:
        waited = {}
        for thread, descriptor in self._threads.items():
            with suppress(OSError):  # the thread has ended
                waited[thread] = int(os.pread(descriptor, 80, 0).split()[1]) * NANOSECOND
        return waited

    def _stolen_s(self) -> dict[bytes, float]:
        if self._stat is None:
            return {}
        stolen = {}
        for line in os.pread(self._stat, 1 << 14, 0).splitlines():
            if not line.startswith(b"cpu"):
                break
            fields = line.split()
            if fields[0] in self._cores and len(fields) > STEAL_FIELD:
                stolen[fields[0]] = int(fields[STEAL_FIELD]) * self._tick_s
        return stolen


def _longest(now_s: Mapping[Any, float], before_s: Mapping[Any, float]) -> float:
    """Return the largest increase; 0 without one."""
    return max((seconds - before_s.get(key, seconds) for key, seconds in now_s.items()), default=0.0)


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
