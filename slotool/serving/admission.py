"""Admission control: while the event loop is overloaded, requests are rejected before they are parsed."""

from __future__ import annotations

import math
import selectors
import time
from collections import deque
from collections.abc import Callable

from slotool.serving import rejections
from slotool.serving.rejections import Rejection

# The key of a request's scope that holds its rejection, when it was known too late to reject it before parsing.
REJECTION = "rejection"
# The loop has no idleness to spare when it has been idle for less than this share of the time.
MIN_IDLE_SHARE = 0.1
# Then so many requests may be in progress that the last of them waits for this share of the time that requests have.
SHARE = 0.5
# Requests without a deadline are taken to have so long.
MAX_TIMEOUT_US = 1e6
# Length of a measuring interval, and age after which a measurement is discarded.
INTERVAL_S, STALE_S = 0.1, 1.0
# The loop is overloaded after so many intervals in a row without idleness. One alone may hold a stall: a long call, a
# thousand connections that closed at once, other programs on the core. What came meanwhile is soon answered.
BUSY_INTERVALS = 2
# The rate of answers is the best of the last so many intervals: one in which others had the core says little.
INTERVALS = 5
# The patience of so many requests is averaged.
REMEMBERED = 64
# So many are always admitted, so that the rate at which they are answered can be measured.
MIN_LIMIT = 8


class IdleTrackingSelector(selectors.DefaultSelector):
    """Counts the seconds in which its event loop had nothing to do (``idle_s``), and how many sockets had something for
    it in its last turn (``ready``)."""

    idle_s = 0.0
    ready = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            events = super().select(timeout)
        else:
            began_s = time.monotonic()
            events = super().select(timeout)
            self.idle_s += time.monotonic() - began_s
        self.ready = len(events)
        return events


class Admission:
    """Rejects requests before they are parsed while the event loop is overloaded.

    A policy decides what waits for a worker. But reading a request only to reject it costs the loop half of what an
    answer costs, and at twice its capacity nothing else would get done. So while the loop is hardly ever idle, no more
    requests are in progress than it has lately answered in half of the time that requests have; that many is the
    ``limit``. In progress are requests that were read to their end and are not answered yet: neither a half-sent
    request nor a rejected one counts.

    The load is measured by the clock, at every request: ``limit`` is at most ``INTERVAL_S`` old when it decides, and
    after ``STALE_S`` without requests, or with an idle loop, all requests are admitted again. A stall, shorter than
    that and with idleness before and after it, rejects nothing.

    ``idle_s``: seconds the loop has had nothing to do so far; ``clock_s``: what they are a part of.
    """

    def __init__(self, idle_s: Callable[[], float] = time.monotonic, clock_s: Callable[[], float] = time.monotonic):
        self._clock_s = clock_s
        self._mean_timeout_us = MAX_TIMEOUT_US
        self._spacing_us = 0.0
        self._counts_per_s: deque[float] = deque(maxlen=INTERVALS)
        self.in_progress = 0
        self.limit = math.inf
        self._rejection: Rejection | None = None
        self.listen_to(idle_s)

    def listen_to(self, idle_s: Callable[[], float]) -> None:
        """Measure another loop from now on."""
        self._idle_s = idle_s
        self._begin_interval(self._clock_s())

    def begin(self) -> None:
        """A request that was read to its end is admitted."""
        self.in_progress += 1

    def leave(self, count: int) -> None:
        """So many that were admitted are in progress no more, whatever becomes of them."""
        self.in_progress -= count

    def end(self, timeout_us: float, *, answered: bool) -> None:
        """It has been answered or rejected; it had so long."""
        self.in_progress -= 1
        self._answered += answered
        self._mean_timeout_us += (min(timeout_us, MAX_TIMEOUT_US) - self._mean_timeout_us) / REMEMBERED

    def answered_at_once(self, timeout_us: float, count: int = 1) -> None:
        """So many requests were answered that are in progress no more, or never were; each had so long."""
        self._answered += count
        timeout_us, kept = min(timeout_us, MAX_TIMEOUT_US), (1 - 1 / REMEMBERED) ** count
        self._mean_timeout_us = timeout_us + (self._mean_timeout_us - timeout_us) * kept

    def rejection(self) -> Rejection | None:
        """Why one more request is not admitted; None when it is."""
        now_s = self._clock_s()
        if now_s - self._began_s >= INTERVAL_S:
            self._end_interval(now_s)
        if self.in_progress < self.limit:
            return None
        if self._rejection is None:
            # One for all of an interval: to make one costs more than to reject with it.
            self._rejection = rejections.overloaded(self.in_progress, self._spacing_us, self._mean_timeout_us)
        return self._rejection

    def _begin_interval(self, now_s: float) -> None:
        self._rejection = None
        self._began_s, self._idle_before_s = now_s, self._idle_s()
        self._answered = 0

    def _end_interval(self, now_s: float) -> None:
        length_s = now_s - self._began_s
        idle_share = (self._idle_s() - self._idle_before_s) / length_s
        self._counts_per_s.append(max(self._answered, 1) / length_s)
        self._spacing_us = 1e6 / max(self._counts_per_s)
        if idle_share >= MIN_IDLE_SHARE or length_s >= STALE_S:
            self.limit = math.inf
            self._counts_per_s.clear()
        elif len(self._counts_per_s) >= BUSY_INTERVALS:
            self.limit = max(MIN_LIMIT, SHARE * self._mean_timeout_us // self._spacing_us)
        self._begin_interval(now_s)
