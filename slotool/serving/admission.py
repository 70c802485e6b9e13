"""Admission control: while the event loop is overloaded, requests that cannot be in time are rejected unread."""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable

from slotool.serving import rejections
from slotool.serving.rejections import Rejection

# The loop has no idleness to spare when it has been idle for less than this share of the time.
MIN_IDLE_SHARE = 0.1
# Length of a measuring interval, and age after which a measurement is discarded.
INTERVAL_S, STALE_S = 0.1, 1.0
# The loop is overloaded after so many intervals in a row without idleness. One alone may hold a stall: a long call, a
# thousand connections that closed at once, other programs on the core. What came meanwhile is soon answered.
BUSY_INTERVALS = 2
# The rate of answers is the best of the last so many intervals: one in which others had the core says little.
INTERVALS = 5
# So many are always admitted, so that the rate at which they are answered can be measured.
MIN_LIMIT = 8
# Rejections of an interval that are remembered, by deadline: to make one costs more than to reject with it.
MAX_REMEMBERED = 64


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
    """Rejects requests before they are parsed while the event loop is overloaded and they cannot be in time.

    Policies decide what waits for a worker, by its deadline. But reading a request only to reject it costs the loop
    half of what an answer of a small network costs, and at several times its capacity nothing else would get done. So
    while the loop is hardly ever idle, a request is rejected unread if it has a deadline and those in progress take
    longer than that, at the rate at which requests have lately been answered. In progress are requests that were read
    to their end and are not answered yet: neither a half-sent request nor a rejected one counts.

    The load is measured by the clock, at every request: the rate is at most ``INTERVAL_S`` old, and after ``STALE_S``
    without requests, or with an idle loop, all requests are admitted again. A stall, shorter than that and with
    idleness before and after it, rejects nothing.

    ``idle_s``: seconds the loop has had nothing to do so far; ``clock_s``: what they are a part of.
    """

    def __init__(self, idle_s: Callable[[], float] = time.monotonic, clock_s: Callable[[], float] = time.monotonic):
        self._clock_s = clock_s
        self._counts_per_s: deque[float] = deque(maxlen=INTERVALS)
        # Between two answers while the loop is overloaded; 0 while it is not.
        self._spacing_us = 0.0
        self.in_progress = 0
        self._rejections: dict[float, Rejection] = {}
        self.listen_to(idle_s)

    def listen_to(self, idle_s: Callable[[], float]) -> None:
        """Measure another loop from now on."""
        self._idle_s = idle_s
        self._begin_interval(self._clock_s())

    def begin(self) -> None:
        """Count a request that was read to its end."""
        self.in_progress += 1

    def leave(self, count: int) -> None:
        """Count requests that are in progress no more, whatever becomes of them."""
        self.in_progress -= count

    def end(self, *, answered: bool) -> None:
        """Count a request that has been answered or rejected."""
        self.in_progress -= 1
        self._answered += answered

    def answered_at_once(self, count: int) -> None:
        """Count requests that were answered and are in progress no more, or never were."""
        self._answered += count

    def is_overloaded(self) -> bool:
        """True if one more request may have to be rejected, should it have a short deadline."""
        now_s = self._clock_s()
        if now_s - self._began_s >= INTERVAL_S:
            self._end_interval(now_s)
        return self._spacing_us > 0 and self.in_progress >= MIN_LIMIT

    def rejection(self, timeout_us: float) -> Rejection | None:
        """Return why one more request that has so long is not admitted; None if it is."""
        if not self.is_overloaded() or self.in_progress * self._spacing_us <= timeout_us:
            return None
        if timeout_us not in self._rejections:
            if len(self._rejections) >= MAX_REMEMBERED:
                self._rejections.clear()
            self._rejections[timeout_us] = rejections.overloaded(self.in_progress, self._spacing_us, timeout_us)
        return self._rejections[timeout_us]

    def _begin_interval(self, now_s: float) -> None:
        self._rejections.clear()
        self._began_s, self._idle_before_s = now_s, self._idle_s()
        self._answered = 0

    def _end_interval(self, now_s: float) -> None:
        length_s = now_s - self._began_s
        idle_share = (self._idle_s() - self._idle_before_s) / length_s
        self._counts_per_s.append(max(self._answered, 1) / length_s)
        if idle_share >= MIN_IDLE_SHARE or length_s >= STALE_S:
            self._spacing_us = 0.0
            self._counts_per_s.clear()
        elif len(self._counts_per_s) >= BUSY_INTERVALS:
            self._spacing_us = 1e6 / max(self._counts_per_s)
        self._begin_interval(now_s)
