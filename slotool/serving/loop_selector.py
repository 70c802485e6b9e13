"""Admission control: while the event loop is overloaded, requests that cannot be in time are rejected unread."""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from collections.abc import Callable

from slotool.serving import rejections
from slotool.serving.rejections import Rejection

# After a shorter turn of the loop it makes no difference whether an event came before the loop looked for it.
LONG_TURN_S = 200e-6
# The loop has no idleness to spare when it has been idle for less than this share of the time.
MIN_IDLE_SHARE = 0.1
# Length of a measuring interval, and age after which a measurement is discarded.
INTERVAL_S, STALE_S = 0.1, 1.0
# The loop is overloaded after so many intervals in a row without idleness. One alone may hold a stall: a long call, a
# thousand connections that closed at once, other programs on the core. What came meanwhile is soon answered.
BUSY_INTERVALS = 2
# The rate of answers is the best of the last so many intervals: one in which others had the core says little.
INTERVALS = 5
# The share of its deadline that a request may be expected to wait: the estimate is rough, and a request that is read in
# vain costs much more than one that is rejected.
SHARE = 0.5
# So many are always admitted, so that the rate at which they are answered can be measured.
MIN_LIMIT = 8
# Rejections of an interval that are remembered, by deadline: to make one costs more than to reject with it.
MAX_REMEMBERED = 64


class IdleTrackingSelector(selectors.DefaultSelector):
    """Selector that measures its event loop's idle time, and when the bytes came that it reports.

    ``idle_s``: seconds in which the loop had nothing to do; ``ready``: sockets with an event in its last turn;
    ``arrived_us``: instant from which on these events may have waited, by ``time.monotonic``: bytes that were there
    when the loop looked came after its look before, and a loop that slept was woken before it had a core again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.idle_s, self.ready = 0.0, 0
        self._looked_s = time.monotonic()
        self.arrived_us = 1e6 * self._looked_s
        try:
            self._waits = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # no Linux, or one that keeps no such record
            self._waits = -1

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        began_s, looked_s = time.monotonic(), self._looked_s
        # What came during a long turn is told from what ends the wait after it.
        waits = timeout is None or timeout > 0
        events = super().select(0) if waits and began_s - looked_s > LONG_TURN_S else []
        if not waits:
            events = super().select(timeout)
        self._looked_s, arrived_s = began_s, looked_s
        if waits and not events:
            waited_s = self._waited_s()
            events = super().select(timeout)
            self._looked_s = ended_s = time.monotonic()
            self.idle_s += ended_s - began_s
            arrived_s = max(began_s, ended_s - self._waited_s() + waited_s)
        self.ready, self.arrived_us = len(events), 1e6 * arrived_s
        return events

    def _waited_s(self) -> float:
        """Return for how long this thread has waited for a core so far, in seconds; 0 where that is not known."""
        return 1e-9 * int(os.pread(self._waits, 64, 0).split()[1]) if self._waits >= 0 else 0.0

    def close(self) -> None:
        super().close()
        if self._waits >= 0:
            os.close(self._waits)
            self._waits = -1


class Admission:
    """Rejects requests before they are parsed while the event loop is overloaded and they cannot be in time.

    Policies decide what waits for a worker, by its deadline. But reading a request only to reject it costs the loop
    half of what an answer of a small network costs, and at several times its capacity nothing else would get done. So
    while the loop is hardly ever idle, a request is rejected unread if it has a deadline and those in progress take
    longer than half of that, at the rate at which requests have lately been answered. In progress are requests that
    were read to their end and are not answered yet: neither a half-sent request nor a rejected one counts.

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

    def end(self, *, answered: bool) -> None:
        """Count a request that has been answered or rejected."""
        self.in_progress -= 1
        self._answered += answered

    def is_overloaded(self) -> bool:
        """True if one more request may have to be rejected, should it have a short deadline."""
        now_s = self._clock_s()
        if now_s - self._began_s >= INTERVAL_S:
            self._end_interval(now_s)
        return self._spacing_us > 0 and self.in_progress >= MIN_LIMIT

    def rejection(self, timeout_us: float) -> Rejection | None:
        """Return why one more request that has so long is not admitted; None if it is."""
        if not self.is_overloaded() or self.in_progress * self._spacing_us <= SHARE * timeout_us:
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
