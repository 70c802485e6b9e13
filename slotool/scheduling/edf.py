"""The queue of the scheduler: earliest deadline first."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator

import numpy as np

from slotool.scheduling.query import Query

# How many of the last arrivals are remembered, for policies that want to know the rate.
RECENT = 4_096
_FIRST_ROOM = 1_024


class EdfQueue:
    """Queries by deadline, then priority, then arrival, then order of pushing.

    Besides the queries the queue says what a policy may want to know of its surroundings:
    ``deadlines_us``: float64 [examples waiting], one deadline per example, ascending. ``arrived_us``: float64, instants
    of the last ``RECENT`` arrivals, ascending. ``free_us``: float64 [workers], for each worker that serves this queue
    the instant at which it comes free (in the past: it is idle); the dispatcher sets it, one idle worker unless told.

    A push that comes last in the order, as with equal times allowed, costs O(1); any other moves what lies behind.
    Source: superserve, §5 (the router's queue).
    """

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[float, float, float], int, Query]] = []
        self._first = 0
        self._pushed = 0
        self._deadlines = np.empty(_FIRST_ROOM)
        self._head = self._tail = 0
        self._arrivals = np.empty(2 * RECENT)
        self._arrived = 0
        self.free_us: np.ndarray = np.zeros(1)

    @property
    def deadlines_us(self) -> np.ndarray:
        return self._deadlines[self._head : self._tail]

    @property
    def arrived_us(self) -> np.ndarray:
        return self._arrivals[max(0, self._arrived - RECENT) : self._arrived]

    def push(self, query: Query, *, returning: bool = False) -> None:
        """Put ``query`` in its place. ``returning``: it was here before (its worker died), so it is no arrival."""
        entry = (query.urgency, self._pushed, query)
        self._pushed += 1
        if len(self) and entry < self._entries[-1]:
            insort(self._entries, entry, lo=self._first)
        else:
            self._entries.append(entry)
        self._insert_deadline(query.deadline_us, query.examples)
        if not returning:
            self._note_arrival(query.arrival_us)

    def peek(self) -> Query | None:
        """The most urgent query, left where it is; None when the queue is empty."""
        return self._entries[self._first][2] if len(self) else None

    def pop(self) -> Query:
        """Take the most urgent query. Raises ``IndexError`` when the queue is empty."""
        if not len(self):
            raise IndexError("pop from an empty queue")
        query = self._entries[self._first][2]
        self._first += 1
        self._head += query.examples
        if 2 * self._first > len(self._entries) + _FIRST_ROOM:
            del self._entries[: self._first]
            self._first = 0
        return query

    def take(self, most_examples: int, serves: Callable[[Query], bool] = lambda query: True) -> list[Query]:
        """Pop a batch: the most urgent query, then those that follow while they fit and ``serves`` holds for them.

        The first is taken whatever its size. Raises ``IndexError`` when the queue is empty.
        """
        batch = [self.pop()]
        room = most_examples - batch[0].examples
        while (query := self.peek()) is not None and query.examples <= room and serves(query):
            room -= query.examples
            batch.append(self.pop())
        return batch

    def expire(self, now_us: float) -> list[Query]:
        """Take every query whose deadline has come: no answer can reach it in time."""
        late = []
        while (query := self.peek()) is not None and query.deadline_us <= now_us:
            late.append(self.pop())
        return late

    def __len__(self) -> int:
        return len(self._entries) - self._first

    def __iter__(self) -> Iterator[Query]:
        """Every query, most urgent first; the queue stays as it is."""
        return (self._entries[i][2] for i in range(self._first, len(self._entries)))

    def _insert_deadline(self, deadline_us: float, examples: int) -> None:
        if self._tail + examples > len(self._deadlines):
            self._make_room(examples)
        kept, tail = self._deadlines, self._tail
        at = tail
        if tail > self._head and deadline_us < kept[tail - 1]:
            at = self._head + int(np.searchsorted(self.deadlines_us, deadline_us, side="right"))
            kept[at + examples : tail + examples] = kept[at:tail].copy()
        kept[at : at + examples] = deadline_us
        self._tail = tail + examples

    def _make_room(self, examples: int) -> None:
        waiting = self.deadlines_us
        if len(waiting) + examples > len(self._deadlines) // 2:
            self._deadlines = np.empty(2 ** math.ceil(math.log2(2 * (len(waiting) + examples))))
        self._deadlines[: len(waiting)] = waiting.copy()
        self._head, self._tail = 0, len(waiting)

    def _note_arrival(self, arrival_us: float) -> None:
        if self._arrived == len(self._arrivals):
            self._arrivals[:RECENT] = self._arrivals[RECENT:]
            self._arrived = RECENT
        # A query read late from its socket must not turn the order round.
        last = self._arrivals[self._arrived - 1] if self._arrived else arrival_us
        self._arrivals[self._arrived] = max(last, arrival_us)
        self._arrived += 1
