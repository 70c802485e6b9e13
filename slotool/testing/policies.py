"""Conformance of scheduling policies.

A new one needs its file, and in the tests::

    class TestMine(PolicyConformance):
        make = staticmethod(Mine)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from slotool.scheduling.edf import EdfQueue, Query, WorkerState
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

NOW_US = 1_000_000.0
VERSIONS = {"small": (100.0, 0.90), "medium": (400.0, 0.95), "large": (2_000.0, 0.98)}
BATCH_SIZES = (1, 2, 4, 8)


def three_versions() -> ControlSpace:
    """Return versions of 100, 400 and 2,000 µs and accuracy .90, .95 and .98; a batch of n takes (n + 1) / 2 times."""
    points = [OperatingPoint.of(version=name) for name in VERSIONS]
    figures = list(zip(points, VERSIONS.values(), strict=True))
    latency_us = {(point, n): time * (n + 1) / 2 for point, (time, _) in figures for n in BATCH_SIZES}
    return ControlSpace(points, latency_us, {point: accuracy for point, (_, accuracy) in figures})


def demanding_queries() -> list[Query]:
    """Return every combination of slack, tolerance, minimum accuracy, own expectation and size."""
    small, medium, large = three_versions().points
    per_point = {small: 0.99, medium: 0.50, large: 0.60}
    return [
        Query(f"q{slack}-{tolerance}-{least}-{n}-{bool(expected)}", NOW_US - 10.0, NOW_US + slack, tolerance,
              min_accuracy=least, examples=n, expected_accuracy=expected)
        for slack in (-50.0, 0.0, 50.0, 250.0, 900.0, 5_000.0, math.inf)
        for tolerance in (None, 0.0, 0.001, 0.05, 1.0)
        for least in (None, 0.5, 0.94, 0.999)
        for n in (1, 3, 16)
        for expected in (None, per_point)
    ]  # fmt: skip


def queue_of(*queries: Query, workers: WorkerState | None = None) -> EdfQueue:
    queue = EdfQueue(workers)
    for query in queries:
        queue.push(query)
    return queue


class PolicyConformance:
    """``make``: a policy over the space it is given (``three_versions``)."""

    make: Callable[[ControlSpace], Policy]

    def test_an_empty_queue_is_answered_by_none(self) -> None:
        assert self.make(three_versions()).decide(NOW_US, EdfQueue()) is None

    def test_a_decision_is_one_of_the_three_answers_and_says_why(self) -> None:
        policy = self.make(three_versions())
        answers = [policy.decide(NOW_US, queue_of(query)) for query in demanding_queries()]
        assert any(isinstance(answer, Decision) for answer in answers), "it never decides anything"
        for answer in answers:
            assert answer is None or isinstance(answer, Decision | CannotMeet)
            assert answer is None or answer.reason.strip()

    def test_it_decides_within_its_points_and_serves_the_whole_query(self) -> None:
        policy = self.make(three_versions())
        for query in demanding_queries():
            answer = policy.decide(NOW_US, queue_of(query))
            if isinstance(answer, Decision):
                assert answer.point in policy.points
                assert answer.batch_size >= query.examples

    def test_a_decision_keeps_the_deadline_as_far_as_latencies_are_known(self) -> None:
        space = three_versions()
        policy = self.make(space)
        for query in demanding_queries():
            answer = policy.decide(NOW_US, queue_of(query))
            if isinstance(answer, Decision):
                took_us = space.latency_us(answer.point, answer.batch_size) or 0.0
                assert took_us <= query.slack_us(NOW_US), f"{query}: {answer} takes {took_us} µs"

    def test_the_same_instant_and_queue_give_the_same_answer(self) -> None:
        one, other = self.make(three_versions()), self.make(three_versions())
        for query in demanding_queries():
            first = one.decide(NOW_US, queue_of(query))
            assert first == one.decide(NOW_US, queue_of(query)) == other.decide(NOW_US, queue_of(query))

    def test_it_leaves_the_queue_as_it_was(self) -> None:
        policy = self.make(three_versions())
        queue = queue_of(*demanding_queries())
        before = list(queue)
        policy.decide(NOW_US, queue)
        assert list(queue) == before

    def test_it_answers_for_the_most_urgent_query(self) -> None:
        policy = self.make(three_versions())
        queries = demanding_queries()
        urgent = min(queries, key=lambda query: query.urgency)
        assert policy.decide(NOW_US, queue_of(*queries)) == policy.decide(NOW_US, queue_of(urgent))

    def test_the_clock_has_no_origin(self) -> None:
        policy = self.make(three_versions())
        for query in demanding_queries():
            moved = Query(query.id, query.arrival_us + 5e5, query.deadline_us + 5e5, query.tolerance, query.objective,
                          query.min_accuracy, query.priority, query.examples, query.expected_accuracy)  # fmt: skip
            assert policy.decide(NOW_US, queue_of(query)) == policy.decide(NOW_US + 5e5, queue_of(moved))
