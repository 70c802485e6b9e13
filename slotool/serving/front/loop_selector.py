"""Selector of the event loop: how many sockets a turn reads, and since when their bytes may have waited."""

from __future__ import annotations

import os
import selectors
import time

# After a shorter turn of the loop it makes no difference whether an event came before the loop looked for it.
LONG_TURN_S = 200e-6
# Sockets that a turn reads. Requests share calls within a turn, and reading so many takes a millisecond. Others stay
# unread, first come, first served: a server that read whatever there is would spend the deadlines on reading.
MAX_READY = 32


class LoopSelector(selectors.DefaultSelector):
    """Selector that reports at most ``MAX_READY`` sockets at once, and when their bytes may have come.

    ``ready``: sockets with an event in the last turn; ``arrived_us``: instant from which on these events may have
    waited, by ``time.monotonic``: bytes that were there when the loop looked came after its look before, and a loop
    that slept was woken before it had a core again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ready = 0
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
            arrived_s = max(began_s, ended_s - self._waited_s() + waited_s)
        # The system reports the others next time, before those that have more to read by then.
        del events[MAX_READY:]
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
