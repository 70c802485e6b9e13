"""The queue: earliest deadline first, whatever the order of arrival."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.scheduling import EdfQueue, Query
from slotool.scheduling.edf import RECENT

# Few distinct values, so that ties are common.
deadlines = st.sampled_from([10.0, 20.0, 30.0, math.inf])


def waiting(**known: Any) -> Query:
    """Of a named tuple itself every field would be drawn, also examples without limit."""
    return Query(**known)


queries = st.builds(
    waiting,
    id=st.uuids().map(str),
    arrival_us=st.sampled_from([0.0, 1.0, 2.0]),
    deadline_us=deadlines,
    priority=st.sampled_from([0, 1, 2]),
)


def filled(some: list[Query]) -> EdfQueue:
    queue = EdfQueue()
    for query in some:
        queue.push(query)
    return queue


@given(st.lists(queries, max_size=30))
def test_pops_by_deadline_then_priority_then_arrival_then_pushing(some: list[Query]) -> None:
    queue = filled(some)
    assert list(queue) == [queue.pop() for _ in range(len(queue))] == sorted(some, key=lambda query: query.urgency)
    assert queue.peek() is None


@given(st.lists(queries, max_size=30), st.sampled_from([0.0, 10.0, 25.0, 1e9]))
def test_expire_takes_just_those_whose_deadline_has_come(some: list[Query], now_us: float) -> None:
    queue = filled(some)
    late = queue.expire(now_us)
    assert {query.id for query in late} == {query.id for query in some if query.deadline_us <= now_us}
    assert all(query.deadline_us > now_us for query in queue)
    assert len(late) + len(queue) == len(some)


@given(st.lists(st.tuples(queries, st.integers(1, 3), st.booleans()), max_size=60))
def test_what_the_queue_tells_of_itself_is_what_lies_in_it(steps: list[tuple[Query, int, bool]]) -> None:
    queue, arrived = EdfQueue(), []
    for query, examples, pops in steps:
        queue.push(query._replace(examples=examples))
        arrived.append(max([query.arrival_us, *arrived[-1:]]))
        if pops:
            queue.pop()
        assert queue.deadlines_us.tolist() == [q.deadline_us for q in queue for _ in range(q.examples)]
    assert queue.arrived_us.tolist() == arrived


def test_a_long_queue_forgets_old_arrivals_and_keeps_every_deadline() -> None:
    queue = EdfQueue()
    for i in range(3 * RECENT):
        queue.push(Query(str(i), float(i), float(i + 50)))
        if i % 3 == 0:
            queue.pop()
    assert queue.arrived_us.tolist() == [float(i) for i in range(2 * RECENT, 3 * RECENT)]
    assert queue.deadlines_us.tolist() == [query.deadline_us for query in queue]
    queue.push(Query("back", 1.0, 1.0), returning=True)
    assert queue.arrived_us[-1] == 3 * RECENT - 1, "a query that returns is no arrival"
    assert queue.deadlines_us[0] == 1.0


def test_a_batch_is_a_run_of_the_queue_that_fits_and_is_served_by_the_point() -> None:
    sizes = [2, 1, 3, 1]
    queue = filled([Query(str(i), 0.0, float(i), examples=n) for i, n in enumerate(sizes)])
    assert [query.id for query in queue.take(4)] == ["0", "1"], "the third does not fit, and is not overtaken"
    assert [query.id for query in queue.take(1)] == ["2"], "the first goes whatever its size"
    queue.push(Query("9", 0.0, 99.0, min_accuracy=0.9))
    assert [query.id for query in queue.take(8, lambda query: query.min_accuracy is None)] == ["3"]


def test_given_priorities_come_before_none_and_one_comes_first() -> None:
    named = {priority: Query(str(priority), 0.0, 10.0, priority=priority) for priority in (0, 2, 1)}
    assert [query.priority for query in filled(list(named.values()))] == [1, 2, 0]


def test_slack_and_an_empty_queue() -> None:
    assert Query("a", 0.0, 10.0).slack_us(4.0) == 6.0
    assert Query("a", 0.0).slack_us(4.0) == math.inf
    with pytest.raises(IndexError):
        EdfQueue().pop()
