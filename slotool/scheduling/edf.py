"""The queue of the scheduler: earliest deadline first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from slotool.scheduling.query import Query


class EdfQueue:
    """Queries by deadline, then priority, then arrival, then order of pushing; push and pop in O(log n).

    Source: superserve, §5 (the router's queue).
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, float, float], int, Query]] = []
        self._pushed = 0

    def push(self, query: Query) -> None:
        heapq.heappush(self._heap, (query.urgency, self._pushed, query))
        self._pushed += 1

    def peek(self) -> Query | None:
        """The most urgent query, left where it is; None when the queue is empty."""
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Query:
        """Take the most urgent query. Raises ``IndexError`` when the queue is empty."""
        return heapq.heappop(self._heap)[2]

    def expire(self, now_us: float) -> list[Query]:
        """Take every query whose deadline has come: no answer can reach it in time."""
        late = []
        while self._heap and self._heap[0][2].deadline_us <= now_us:
            late.append(self.pop())
        return late

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Query]:
        """Every query, most urgent first; the queue stays as it is."""
        return (entry[2] for entry in sorted(self._heap))
