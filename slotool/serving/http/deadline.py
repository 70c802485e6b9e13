"""A timer that is moved once a request, and so must cost next to nothing to move."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Deadline:
    """Calls ``on_late`` once the event loop's clock has passed the instant last set.

    Moving it later only writes a number down: the timer that stands looks at that number when it goes off.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_late: Callable[[], None]):
        self._loop, self._on_late = loop, on_late
        self._at_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        # When it goes off.
        self._timer_s = math.inf

    def set(self, at_s: float) -> None:
        """In seconds of the loop's clock; infinity for never."""
        self._at_s = at_s
        if at_s < self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_s = self._loop.call_at(at_s, self._look), at_s

    def cancel(self) -> None:
        self._at_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_s = None, math.inf

    def _look(self) -> None:
        self._timer, self._timer_s = None, math.inf
        if self._loop.time() < self._at_s:
            self.set(self._at_s)
        else:
            self._at_s = math.inf
            self._on_late()
