"""Who is turned away unread, so that an event loop that is asked for too much still answers what it can."""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Callable

from slotool.serving import refusals
from slotool.serving.refusals import Refusal

# Where a request's scope tells why it is not to be served, when that was known too late to refuse it unread.
REFUSAL = "refusal"
# The loop is behind when it has rested for less than this share of the time.
LEAST_REST = 0.1
# Then those in hand may be so many that the last of them waits for this share of the time that requests have.
SHARE = 0.5
# Requests without a deadline are taken to have so long.
MOST_PATIENCE_US = 1e6
# How often to look at what the loop can do.
LOOK_EVERY_S = 0.1
# The patience of so many requests is remembered.
REMEMBERED = 64
# So many are always let in, that it may be seen how fast they leave.
LEAST = 8


class RestingSelector(selectors.DefaultSelector):
    """Keeps count of the seconds in which its event loop had nothing to do, and of how many sockets had something for
    it in its last turn: ``ready``."""

    rested_s = 0.0
    ready = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            events = super().select(timeout)
        else:
            began_s = time.monotonic()
            events = super().select(timeout)
            self.rested_s += time.monotonic() - began_s
        self.ready = len(events)
        return events


class Admission:
    """Turns requests away before they are parsed, as long as the event loop is behind.

    A policy decides what waits for a worker. But who is read only to be refused has cost the loop half of what an
    answer costs, and at twice its capacity nothing else would get done. So while the loop hardly rests, no more are
    let in than it has lately answered in half of the time that requests have; that many is the ``limit``.

    ``rested_s``: seconds the loop has had nothing to do so far; ``clock_s``: what they are a part of.
    """

    def __init__(self, rested_s: Callable[[], float] = time.monotonic, clock_s: Callable[[], float] = time.monotonic):
        self._clock_s = clock_s
        self._in_hand: list[Callable[[], int]] = []
        self._patience_us = MOST_PATIENCE_US
        self._spacing_us = 0.0
        self.limit = math.inf
        self.listen_to(rested_s)

    def listen_to(self, rested_s: Callable[[], float]) -> None:
        """Look at another loop from now on."""
        self._rested_s = rested_s
        self._begin()

    def watch(self, in_hand: Callable[[], int]) -> None:
        """A front end tells how many requests it has begun to read and not yet answered."""
        self._in_hand.append(in_hand)

    def in_hand(self) -> int:
        """Requests begun and not yet answered, of all front ends."""
        return sum(count() for count in self._in_hand)

    def finished(self, timeout_us: float, *, answered: bool) -> None:
        """A request that was let in, and had so long, has been answered or refused."""
        self._answered += answered
        self._patience_us += (min(timeout_us, MOST_PATIENCE_US) - self._patience_us) / REMEMBERED
        if self._clock_s() - self._looked_s >= LOOK_EVERY_S:
            self._look()

    def refusal(self) -> Refusal | None:
        """Why one more request is not let in; None when it is."""
        in_hand = self.in_hand()
        if in_hand < self.limit:
            return None
        return refusals.overloaded(in_hand, self._spacing_us, self._patience_us)

    def _begin(self) -> None:
        self._looked_s, self._had_rested_s = self._clock_s(), self._rested_s()
        self._answered = 0

    def _look(self) -> None:
        spent_s = max(self._clock_s() - self._looked_s, 1e-9)
        rest = (self._rested_s() - self._had_rested_s) / spent_s
        self._spacing_us = 1e6 * spent_s / max(self._answered, 1)
        in_time = SHARE * self._patience_us // self._spacing_us
        self.limit = math.inf if rest >= LEAST_REST else max(LEAST, in_time)
        self._begin()
