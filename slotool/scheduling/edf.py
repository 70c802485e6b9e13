"""Queries as policies see them, and their queue: earliest deadline first."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np

from slotool.tables import OperatingPoint

RESPONSE_TIME = "response-time"
DEADLINE_PASSED = "the deadline has passed"


class Query(NamedTuple):
    """Request in the scheduler.

    ``arrival_us`` and ``deadline_us`` are instants of one clock (any origin), in µs; no deadline is ``inf``.
    ``tolerance``: error degradation accepted against the best version (tolerance-tiers, IV-A), ``objective``: quantity
    to save at that tolerance. ``min_accuracy``: least expected accuracy of the answer (slo-aware, §2.2). ``priority``:
    1 is the most important, then 2 …; 0, the default, comes last (as in the Open Inference Protocol's servers). It
    decides between equal deadlines, and which query is shed when not all can be in time. ``examples``: number of
    examples to answer together. ``expected_accuracy``: of each point on this very input; None if points differ only on
    average. ``alone``: it shares no call with others. ``batch_key``: it shares a call only with queries of the same
    key, whose tensors can be joined; such a call may pass others that can still be in time.
    """

    id: str
    arrival_us: float
    deadline_us: float = math.inf
    tolerance: float | None = None
    objective: str = RESPONSE_TIME
    min_accuracy: float | None = None
    priority: int = 0
    examples: int = 1
    expected_accuracy: Mapping[OperatingPoint, float] | None = None
    alone: bool = False
    batch_key: Hashable = None

    def slack_us(self, now_us: float) -> float:
        """Return the time left until the deadline, µs; negative once it has passed, ``inf`` without one."""
        return self.deadline_us - now_us

    @property
    def urgency(self) -> tuple[float, float, float]:
        """Sort key of the queue, smallest first: deadline, then priority, then arrival."""
        return self.deadline_us, self.priority or math.inf, self.arrival_us

    @property
    def level(self) -> float:
        """``priority`` as a number that grows as importance falls: ``inf`` for none."""
        return self.priority or math.inf


# Number of stored arrivals, for policies that use the rate.
RECENT = 4_096
_FIRST_ROOM = 1_024


class WorkerState(Protocol):
    """State of the workers that serve a queue."""

    @property
    def free_us(self) -> np.ndarray: ...

    def concurrent_slots(self) -> int: ...


@dataclass(frozen=True)
class FixedWorkers:
    """Workers whose state does not change: one that is idle, where nothing else is given."""

    free_us: np.ndarray = field(default_factory=lambda: np.zeros(1))
    slots: int = 2

    def concurrent_slots(self) -> int:
        return self.slots


class EdfQueue:
    """Queries by deadline, then priority, then arrival, then order of pushing.

    Besides the queries the queue reports what a policy may need: ``deadlines_us``: float64 [examples waiting], one
    deadline per example, ascending. ``levels``: float64, their priorities, ``inf`` for none. ``arrived_us``: float64,
    instants of the last ``RECENT`` arrivals, ascending. ``free_us``: float64 [workers], for each of the queue's
    ``workers`` the instant at which it becomes idle (in the past: it is idle). ``concurrent_slots``: how many versions
    of one query could begin now, each on a worker.

    A push that comes last in the order, as with equal times allowed, costs O(1); any other moves what lies behind.
    The arrays are made when a policy first asks for one, and kept up from then on: most servers never ask.
    Source: superserve, §5 (the router's queue).
    """

    def __init__(self, workers: WorkerState | None = None):
        self._workers = workers or FixedWorkers()
        self._entries: list[tuple[tuple[float, float, float], int, Query]] = []
        self._first = 0
        self._pushed = 0
        self._examples: _WaitingExamples | None = None
        self._arrivals = _Arrivals()

    @property
    def free_us(self) -> np.ndarray:
        return self._workers.free_us

    def concurrent_slots(self) -> int:
        return self._workers.concurrent_slots()

    @property
    def deadlines_us(self) -> np.ndarray:
        return self._arrays().deadlines_us

    @property
    def levels(self) -> np.ndarray:
        return self._arrays().levels

    @property
    def is_mixed(self) -> bool:
        """True if queries of more than one priority wait."""
        return len(self._arrays().of_level) > 1

    @property
    def arrived_us(self) -> np.ndarray:
        return self._arrivals.recent_us()

    def push(self, query: Query, *, returning: bool = False) -> None:
        """Put ``query`` in its place. ``returning``: it was here before (its worker died), so it is no arrival."""
        entry = (query.urgency, self._pushed, query)
        self._pushed += 1
        if self._first < len(self._entries) and entry < self._entries[-1]:
            insort(self._entries, entry, lo=self._first)
        else:
            self._entries.append(entry)
        if self._examples is not None:
            self._examples.add(query)
        if not returning:
            self._arrivals.unread_us.append(query.arrival_us)

    def peek(self) -> Query | None:
        """Return the most urgent query, left where it is; None when the queue is empty."""
        return self._entries[self._first][2] if self._first < len(self._entries) else None

    def pop(self) -> Query:
        """Take the most urgent query. Raises ``IndexError`` when the queue is empty."""
        if self._first == len(self._entries):
            raise IndexError("pop from an empty queue")
        query = self._entries[self._first][2]
        self._first += 1
        if self._examples is not None:
            self._examples.pop(query)
        if 2 * self._first > len(self._entries) + _FIRST_ROOM:
            del self._entries[: self._first]
            self._first = 0
        return query

    def before(self, deadline_us: float) -> int:
        """Return the number of queries with an earlier deadline."""
        at = bisect_left(self._entries, deadline_us, lo=self._first, key=lambda entry: entry[0][0])
        return at - self._first

    def at(self, example: int) -> Query:
        """Return the query that the example at this place of ``deadlines_us`` belongs to."""
        for query in self:
            example -= query.examples
            if example < 0:
                return query
        raise IndexError("fewer examples wait")

    def remove(self, query: Query) -> bool:
        """Take ``query`` from wherever it lies; whether it was there."""
        key = (query.urgency, -1)
        at = bisect_left(self._entries, key, lo=self._first, key=lambda entry: entry[:2])
        while at < len(self._entries) and self._entries[at][0] == query.urgency:
            if self._entries[at][2] is query:
                break
            at += 1
        else:
            return False
        if at == self._first:
            self.pop()
            return True
        del self._entries[at]
        if self._examples is not None:
            self._examples.remove(query)
        return True

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
        late: list[Query] = []
        while self._first < len(self._entries) and self._entries[self._first][2].deadline_us <= now_us:
            late.append(self.pop())
        return late

    def __len__(self) -> int:
        return len(self._entries) - self._first

    def __iter__(self) -> Iterator[Query]:
        """Yield every query, most urgent first; the queue stays as it is."""
        return (self._entries[i][2] for i in range(self._first, len(self._entries)))

    def _arrays(self) -> _WaitingExamples:
        if self._examples is None:
            self._examples = _WaitingExamples()
            for query in self:
                self._examples.add(query)
        return self._examples


class _WaitingExamples:
    """Deadlines and priorities of the examples that wait, as arrays in the queue's order.

    ``of_level``: queries by priority.
    """

    def __init__(self) -> None:
        self._deadlines, self._levels = np.empty(_FIRST_ROOM), np.empty(_FIRST_ROOM)
        self._head = self._tail = 0
        self.of_level: Counter[float] = Counter()

    @property
    def deadlines_us(self) -> np.ndarray:
        return self._deadlines[self._head : self._tail]

    @property
    def levels(self) -> np.ndarray:
        return self._levels[self._head : self._tail]

    def add(self, query: Query) -> None:
        """Put its examples behind those that are as urgent."""
        count, level = query.examples, query.level
        self.of_level[level] += 1
        if self._tail + count > len(self._deadlines):
            self._make_room(count)
        tail = at = self._tail
        if tail > self._head and (query.deadline_us, level) < (self._deadlines[tail - 1], self._levels[tail - 1]):
            at = self._place(query, "right")
            for previous in (self._deadlines, self._levels):
                previous[at + count : tail + count] = previous[at:tail].copy()
        self._deadlines[at : at + count] = query.deadline_us
        self._levels[at : at + count] = level
        self._tail = tail + count

    def pop(self, query: Query) -> None:
        """Remove the most urgent query."""
        self._head += query.examples
        self._forget_level(query.level)

    def remove(self, query: Query) -> None:
        """Remove a query behind others."""
        self._forget_level(query.level)
        place, tail = self._place(query, "left"), self._tail
        for previous in (self._deadlines, self._levels):
            previous[place : tail - query.examples] = previous[place + query.examples : tail].copy()
        self._tail = tail - query.examples

    def _place(self, query: Query, side: Literal["left", "right"]) -> int:
        """Before (left) or behind (right) the examples of equal deadline and priority."""
        waiting = self.deadlines_us
        low = self._head + int(np.searchsorted(waiting, query.deadline_us, side="left"))
        high = self._head + int(np.searchsorted(waiting, query.deadline_us, side="right"))
        return low + int(np.searchsorted(self._levels[low:high], query.level, side=side))

    def _forget_level(self, level: float) -> None:
        self.of_level[level] -= 1
        if not self.of_level[level]:
            del self.of_level[level]

    def _make_room(self, examples: int) -> None:
        count, size = self._tail - self._head, len(self._deadlines)
        if count + examples > size // 2:
            size = 2 ** math.ceil(math.log2(2 * (count + examples)))
        for name in ("_deadlines", "_levels"):
            previous = getattr(self, name)
            moved = np.empty(size) if size > len(previous) else previous
            moved[:count] = previous[self._head : self._tail].copy()
            setattr(self, name, moved)
        self._head, self._tail = 0, count


class _Arrivals:
    """Instants of the last ``RECENT`` arrivals: appended to ``unread_us``, and an array for readers."""

    def __init__(self) -> None:
        self.unread_us: deque[float] = deque(maxlen=RECENT)
        self._us = np.empty(2 * RECENT)
        self._count = 0

    def recent_us(self) -> np.ndarray:
        """Return the instants in ascending order, including queries read late from their sockets."""
        while self.unread_us:
            arrival_us = self.unread_us.popleft()
            if self._count == len(self._us):
                self._us[:RECENT] = self._us[RECENT:]
                self._count = RECENT
            last_us = self._us[self._count - 1] if self._count else arrival_us
            self._us[self._count] = max(last_us, arrival_us)
            self._count += 1
        return self._us[max(0, self._count - RECENT) : self._count]
