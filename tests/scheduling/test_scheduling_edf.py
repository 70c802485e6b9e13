"""The queue: earliest deadline first, whatever the order of arrival."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.scheduling import EdfQueue, Query

# Few distinct values, so that ties are common.
deadlines = st.sampled_from([10.0, 20.0, 30.0, math.inf])
queries = st.builds(
    Query,
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


def test_given_priorities_come_before_none_and_one_comes_first() -> None:
    named = {priority: Query(str(priority), 0.0, 10.0, priority=priority) for priority in (0, 2, 1)}
    assert [query.priority for query in filled(list(named.values()))] == [1, 2, 0]


def test_slack_and_an_empty_queue() -> None:
    assert Query("a", 0.0, 10.0).slack_us(4.0) == 6.0
    assert Query("a", 0.0).slack_us(4.0) == math.inf
    with pytest.raises(IndexError):
        EdfQueue().pop()
