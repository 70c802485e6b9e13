"""The state of a service: everybody is counted once, workers do one thing at a time, the important are in time."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotool.errors import InputError
from slotool.rules.ruleset.rules import Rule, RuleSet
from slotool.scheduling import (
    Batch,
    Decision,
    Dispatcher,
    EdfQueue,
    FirstApplicable,
    FixedPoint,
    Query,
    RequestOutcome,
    ToleranceTiers,
    Workers,
    by_demand,
)
from slotool.scheduling.batching import BatchingPolicy, ControlGrid, MaxBatch, SlackFit, ValueIteration
from slotool.scheduling.dispatcher import MAX_PASSED
from slotool.scheduling.edf import FixedWorkers
from slotool.scheduling.policy import PolicyFailure
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint
from slotool.testing.policies import NOW_US, queue_of, three_versions

GRID = ControlGrid(three_versions())


def query(**fields: Any) -> Query:
    """The others as they are by default; hypothesis would make up all fields of a named tuple."""
    return Query(**fields)


queries = st.builds(
    query,
    id=st.uuids().map(str),
    arrival_us=st.just(0.0),
    deadline_us=st.sampled_from([50.0, 150.0, 400.0, 900.0, 2_500.0, math.inf]),
    min_accuracy=st.sampled_from([None, None, 0.93, 0.999]),
    priority=st.sampled_from([0, 1, 2]),
    examples=st.sampled_from([1, 1, 3, 12]),
)
# What happens next: a query comes, a client leaves, a worker finishes, dies or joins; then time goes by.
events = st.lists(
    st.tuples(st.sampled_from(["arrive", "arrive", "arrive", "leave", "finish", "die", "join"]), queries,
              st.sampled_from([0.0, 20.0, 300.0])), max_size=60)  # fmt: skip


@given(events, st.sampled_from([SlackFit, MaxBatch, ValueIteration]))
@settings(max_examples=60, deadline=None)
def test_everybody_has_one_fate_whatever_happens(steps: list, make: type[BatchingPolicy]) -> None:
    state, now_us, known, seen = Dispatcher(make(GRID), 2), 0.0, [], Counter()
    for what, query, passes_us in steps:
        now_us += passes_us
        busy = sorted(state.running)
        if what == "arrive":
            moved = Query(query.id, now_us, now_us + query.deadline_us, min_accuracy=query.min_accuracy,
                          priority=query.priority, examples=query.examples)  # fmt: skip
            known.append(moved)
            state.arrive(moved)
        elif what == "leave" and known:
            state.withdraw(known[len(known) // 2])
        elif what == "finish" and busy:
            state.finished(busy[0], now_us)
        elif what == "die" and busy:
            lost = state.lost(busy[-1])
            assert lost is not None
            state.returned(lost)
        elif what == "join":
            state.joined(now_us)
        batch: Any = True
        while batch:
            at_work = dict(state.running)
            batch, dropped = state.next_batch(now_us)
            seen.update(drop.outcome for drop in dropped)
            if batch:
                assert batch.worker not in at_work
                assert all(
                    GRID.accuracy[GRID.index(batch.decision.point)] >= (q.min_accuracy or 0) for q in batch.queries
                )
                assert batch.examples <= max(batch.decision.batch_size, batch.queries[0].examples)
    under_way = sum(len(batch.queries) for batch in state.running.values())
    assert sum(state.outcomes.values()) + len(state.queue) + under_way == len(known)
    assert all(
        state.outcomes[outcome] == seen[outcome]
        for outcome in (RequestOutcome.EXPIRED, RequestOutcome.REJECTED, RequestOutcome.SHED)
    )
    waiting = list(state.queue)
    assert state.queue.deadlines_us.tolist() == [q.deadline_us for q in waiting for _ in range(q.examples)]
    assert state.queue.levels.tolist() == [q.level for q in waiting for _ in range(q.examples)]
    assert state.next_expiry_us == min([q.deadline_us for q in waiting], default=math.inf)


def test_a_batch_of_a_dead_worker_is_served_by_another() -> None:
    state = Dispatcher(MaxBatch(GRID), 2)
    for i in range(12):
        state.arrive(Query(str(i), 0.0, 2_000.0))
    first, second = state.next_batch(0.0)[0], state.next_batch(0.0)[0]
    assert first
    assert second
    assert state.next_batch(0.0) == (None, [])
    assert (len(first.queries), len(second.queries)) == (8, 4)
    assert state.queue.free_us.tolist() == [
        GRID.space.latency_us(b.decision.point, len(b.queries)) for b in (first, second)
    ]
    assert state.lost(first.worker) is first
    state.returned(first)
    assert len(state.queue) == 8
    state.finished(second.worker, 900.0)
    again = state.next_batch(900.0)[0]
    assert again
    assert again.worker == second.worker
    assert again.queries == first.queries
    assert state.joined(950.0) == first.worker, "the place of the dead"
    assert state.joined(950.0) == 2
    state.finished(again.worker, 2_100.0)
    assert state.outcomes == {RequestOutcome.IN_TIME: 4, RequestOutcome.LATE: 8}
    with pytest.raises(InputError, match="worker 1 has no batch"):
        state.finished(1, 0.0)


def conc(workers: int | Workers) -> Dispatcher:
    """A service whose only tier is a Conc ensemble of versions with latencies of single examples: no call is shared."""
    point = OperatingPoint.of(policy="conc", first="small", second="large", threshold=0.8)
    rule = Rule("tier", "response-time", 0.1, point, 0.0, 0.1, 1e-3, 1e-3)
    rules = RuleSet("certified", 0.999, "relative", "large", 0.02, 1_000, "0" * 64, (rule,))
    points = three_versions().points
    single = ControlSpace(points, {(point, 1): three_versions().latency_us(point) or 0.0 for point in points})
    return Dispatcher(ToleranceTiers(rules, single), workers)


def test_both_versions_of_an_ensemble_have_a_worker_each_and_each_is_free_for_itself() -> None:
    state = conc(3)
    for i in range(3):
        state.arrive(Query(str(i), 0.0, 5_000.0, 0.1))
    pair, alone = state.next_batch(0.0)[0], state.next_batch(0.0)[0]
    assert pair
    assert alone
    assert (pair.worker, pair.second_worker, pair.decision.concurrent) == (0, 1, True)
    assert (alone.worker, alone.second_worker, alone.decision.concurrent) == (2, None, False)
    assert state.next_batch(0.0) == (None, [])
    assert state.ended(1, 100.0) is pair
    state.answered(pair, 200.0)
    again, _ = state.next_batch(200.0)
    assert again
    assert (again.worker, again.second_worker) == (1, None), "the first version is still being cancelled"
    state.ended(0, 300.0)
    state.finished(2, 300.0)
    state.finished(1, 6_000.0)
    assert state.outcomes == {RequestOutcome.IN_TIME: 2, RequestOutcome.LATE: 1}


def test_of_a_pair_that_lost_a_worker_everybody_waits_again() -> None:
    state = conc(2)
    state.arrive(Query("q", 0.0, 5_000.0, 0.1))
    pair, _ = state.next_batch(0.0)
    assert pair
    assert state.lost(pair.worker) is pair
    state.returned(pair)
    assert state.next_batch(10.0) == (None, []), "the other one is still at it"
    assert pair.second_worker == 1
    state.ended(1, 20.0)
    again, _ = state.next_batch(20.0)
    assert again
    assert (again.worker, again.second_worker, again.queries) == (1, None, pair.queries)


def test_who_has_to_wait_for_a_worker_expires_and_is_named() -> None:
    state = Dispatcher(MaxBatch(GRID), 1)
    state.arrive(Query("served", 0.0, 5_000.0))
    assert state.next_batch(0.0)[0]
    state.arrive(Query("late", 0.0, 100.0))
    assert state.next_expiry_us == 100.0
    none, dropped = state.next_batch(100.0)
    assert none is None
    assert [(drop.query.id, drop.outcome) for drop in dropped] == [("late", RequestOutcome.EXPIRED)]
    state.arrive(Query("demanding", 100.0, 9_000.0, min_accuracy=0.999))
    assert state.next_batch(101.0) == (None, []), "nothing is decided while nobody is idle"
    state.finished(0, 2_000.0)
    none, dropped = state.next_batch(2_000.0)
    assert dropped[0].outcome == RequestOutcome.REJECTED
    assert "out of reach" in dropped[0].reason


def test_a_policy_that_knows_no_latencies_will_do() -> None:
    state = Dispatcher(FixedPoint(three_versions(), GRID.points[0]), 1)
    for i in range(3):
        state.arrive(Query(str(i), 0.0, priority=i))
    batch, _ = state.next_batch(0.0)
    assert batch
    assert [query.id for query in batch.queries] == ["1"]


def quickest_us(count: int, workers: int) -> np.ndarray:
    """When each of ``count`` is done, in order, in the fastest batches (8 take 450 µs)."""
    rank = np.arange(count)
    small = GRID.quickest_us[np.searchsorted(GRID.sizes, rank % 8 + 1)]
    return NOW_US + rank // 8 // workers * 450.0 + small


@given(st.lists(st.tuples(st.integers(100, 3_000), st.integers(0, 3)), min_size=1, max_size=40), st.integers(1, 3))
def test_only_less_important_requests_are_shed_and_only_if_one_must_be(asked: list, workers: int) -> None:
    queries = (Query(str(i), NOW_US, NOW_US + s, priority=p) for i, (s, p) in enumerate(asked))
    queue = queue_of(*queries, workers=FixedWorkers(np.zeros(workers)))
    policy, before = ValueIteration(GRID), list(queue)
    feasible = (quickest_us(len(queue), workers) <= queue.deadlines_us).all()
    gone = []
    while (query := policy.shed_candidate(NOW_US, queue)) is not None:
        late = int((quickest_us(len(queue), workers) > queue.deadlines_us).argmax())
        behind = [q for q in queue if q.deadline_us <= queue.deadlines_us[-1]]
        assert query.level > min(q.level for q in behind)
        assert query.level >= max(q.level for q in list(queue)[: late + 1])
        assert queue.remove(query)
        gone.append(query)
    assert not (feasible and gone)
    assert list(queue) == [query for query in before if query not in gone]
    if len({q.level for q in before}) == 1:
        assert not gone


def test_what_is_removed_from_the_middle_leaves_the_rest_in_order() -> None:
    waiting = [Query(str(i), 0.0, float(10 * (i // 3)), priority=i % 3, examples=1 + i % 2) for i in range(9)]
    queue = queue_of(*waiting)
    for query in (waiting[4], waiting[8], waiting[0]):
        assert queue.remove(query)
        assert not queue.remove(query)
    left = sorted((q for q in waiting if q.id not in "480"), key=lambda q: q.urgency)
    assert list(queue) == left
    assert queue.deadlines_us.tolist() == [q.deadline_us for q in left for _ in range(q.examples)]
    assert [queue.at(i) for i in range(len(queue.deadlines_us))] == [q for q in left for _ in range(q.examples)]
    with pytest.raises(IndexError, match="fewer examples wait"):
        queue.at(99)
    assert not EdfQueue().remove(waiting[0])


class Eights(FixedPoint):
    """Batches of eight; a call takes 100 µs, and 10 µs more for each example."""

    def decide(self, now_us: float, queue: EdfQueue) -> Decision:
        return Decision(self.points[0], 8, "as many as fit")

    def serves(self, point: OperatingPoint, query: Query) -> bool:
        return query.min_accuracy is None

    def planned_us(self, point: OperatingPoint, examples: int) -> float:
        return 100.0 + 10.0 * examples


def shaped(*entries: tuple[str, float, dict[str, Any]]) -> Dispatcher:
    """Queries of the shape that is their name's first letter, with these deadlines."""
    state = Dispatcher(Eights(three_versions()))
    for at, (name, deadline_us, options) in enumerate(entries):
        state.arrive(Query(name, float(at) / 100, deadline_us, batch_key=name[0], **options))
    return state


@pytest.mark.parametrize(
    ("entries", "batch"),
    [
        # Those of one shape share a call, whatever waits between them; the others are next.
        ([("a1", 900, {}), ("b1", 901, {}), ("a2", 902, {}), ("c1", 903, {}), ("a3", 904, {})], "a1 a2 a3"),
        # A call of two takes until 120; b1 needs 110 more. With a third in it, b1 would be late.
        ([("a1", 200, {}), ("b1", 230, {}), ("a2", 900, {}), ("a3", 900, {})], "a1 a2"),
        ([("a1", 200, {}), ("b1", 219, {}), ("a2", 900, {})], "a1"),
        # Without deadlines in order of arrival.
        ([("a1", math.inf, {}), ("b1", math.inf, {}), ("a2", math.inf, {})], "a1 a2"),
        # Another end of a batch is one still: no room, or not served at this point.
        ([("a1", 900, {}), ("b1", 901, {}), ("a2", 902, {"examples": 8}), ("a3", 903, {})], "a1"),
        ([("a1", 900, {}), ("b1", 901, {}), ("a2", 902, {"min_accuracy": 0.9}), ("a3", 903, {})], "a1"),
        # What is to be tried alone stays alone.
        ([("a1", 900, {"alone": True}), ("b1", 901, {}), ("a2", 902, {})], "a1"),
        ([("a1", 900, {}), ("a2", 901, {"alone": True}), ("a3", 902, {})], "a1 a3"),
    ],
)
def test_a_batch_is_filled_from_behind_other_shapes_unless_those_would_be_late(
    entries: list[tuple[str, float, dict[str, Any]]], batch: str
) -> None:
    state = shaped(*entries)
    found, dropped = state.next_batch(0.0)
    assert found is not None
    assert dropped == []
    assert " ".join(query.id for query in found.queries) == batch
    left = [name for name, _, _ in entries if name not in batch.split()]
    assert [query.id for query in state.queue] == left
    assert len(state.queue.deadlines_us) == sum(query.examples for query in state.queue)
    assert state.queue.deadlines_us.tolist() == [q.deadline_us for q in state.queue for _ in range(q.examples)]


def test_a_batch_passes_only_so_many_others() -> None:
    others = [(f"{chr(200 + i)}", 5_000.0 + i, {}) for i in range(MAX_PASSED)]
    near = shaped(("a1", 900.0, {}), *others, ("a2", 9_000.0, {})).next_batch(0.0)[0]
    far = shaped(("a1", 900.0, {}), *others, ("z", 8_000.0, {}), ("a2", 9_000.0, {})).next_batch(0.0)[0]
    assert near is not None
    assert far is not None
    assert (len(near.queries), len(far.queries)) == (2, 1)


FAULTY = ("decide", "serves", "decision_for", "own_point", "planned_us", "shed_candidate", "observe")


@pytest.mark.parametrize("method", FAULTY)
def test_no_query_is_lost_to_a_policy_that_fails(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies may be somebody's own."""

    def fails(*arguments: object) -> object:
        raise ZeroDivisionError("a fault of the policy")

    policy = by_demand(three_versions())
    policy.observe(policy.points[-1], 1, 10.0)
    failures: list[PolicyFailure] = []
    state, ended = Dispatcher(policy, on_failure=failures.append), set()
    for at in range(6):
        state.arrive(Query(str(at), 0.0, 1e6 if at % 3 == 2 else math.inf))
    monkeypatch.setattr(policy, method, fails)
    now_us = 1.0
    while state.queue:
        batch, drops = state.next_batch(now_us)
        ended |= {drop.query.id for drop in drops}
        assert not drops or method == "decide", "only what it was to decide about"
        assert all(drop.outcome is RequestOutcome.FAILED and drop.reason == str(failures[0]) for drop in drops)
        if batch is not None:
            ended |= {query.id for query in batch.queries}
            assert all(batch.decision_of(at).point in policy.points for at in range(len(batch.queries)))
            state.finished(batch.worker, now_us := now_us + 10.0)
            state.observe(batch.decision.point, batch.examples, 10.0)
    assert ended == set("012345")
    assert state.outcomes.total() == 6
    assert failures or method == "own_point", "which nobody asks where all queries may share a call"
    assert {str(failure) for failure in failures} <= {
        f"the policy slotool.scheduling.demand:FirstApplicable failed in {method}: "
        "ZeroDivisionError: a fault of the policy"
    }
    assert all(failure.instead for failure in failures)


def test_of_policies_that_ask_others_the_one_that_raised_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: MaxBatch, *arguments: object) -> object:
        raise KeyError("a table of its own")

    monkeypatch.setattr(MaxBatch, "decide", fails)
    state = Dispatcher(FirstApplicable([MaxBatch(GRID)]))
    state.arrive(Query("1", 0.0, 1e6))
    (drop,) = state.next_batch(1.0)[1]
    assert drop.reason == "the policy maxbatch failed in decide: KeyError: 'a table of its own'"


@pytest.mark.parametrize(
    ("method", "answer"),
    [("decide", "large"), ("decision_for", None), ("planned_us", "soon"), ("shed_candidate", Query("gone", 0.0, 9.0))],
)
def test_an_answer_that_a_policy_must_not_give_is_a_failure(
    method: str, answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, failures = MaxBatch(GRID), list[PolicyFailure]()
    state = Dispatcher(policy, on_failure=failures.append)
    for at in range(3):
        state.arrive(Query(str(at), 0.0, 1e6))
    monkeypatch.setattr(policy, method, lambda *arguments: answer)
    batch, drops = state.next_batch(1.0)
    assert (batch is None, len(drops)) == (method == "decide", 3 if method == "decide" else 0)
    assert {failure.method for failure in failures} == {method}
    assert state.outcomes == Counter({RequestOutcome.FAILED: len(drops)} if drops else {})


def test_a_query_that_cannot_be_in_time_by_the_calls_before_costs_no_call() -> None:
    state = Dispatcher(FixedPoint(ControlSpace([GRID.points[0]])), 1)
    point = GRID.points[0]
    state.arrive(Query("first", 0.0, 100.0))
    batch, _ = state.next_batch(0.0)
    assert batch is not None, "nothing is known yet"
    state.finished(batch.worker, 600.0)
    state.observe(point, 1, 600.0)
    for name, deadline_us in (("late", 1_500.0), ("in time", 1_700.0), ("patient", math.inf)):
        state.arrive(Query(name, 900.0, deadline_us))
    batch, dropped = state.next_batch(1_000.0)
    assert [drop.query.id for drop in dropped] == ["late"]
    assert dropped[0].outcome is RequestOutcome.EXPIRED
    assert "600" in dropped[0].reason
    assert batch is not None
    assert batch.queries[0].id == "in time"
    assert batch.planned_us == 600.0


def test_an_interrupted_call_does_not_end_the_sharing_of_calls() -> None:
    state, point = Dispatcher(FixedPoint(ControlSpace([GRID.points[0]])), 1), GRID.points[0]
    for took_us in (20.0, 20.0, 10_000.0):
        state.observe(point, 1, took_us)
    for at in range(40):
        state.arrive(Query(str(at), 0.0))
    batch, _ = state.next_batch(0.0)
    assert batch is not None
    assert len(batch.queries) == 40

    for _ in range(60):  # calls that are this long every time are not shared
        state.observe(point, 1, 10_000.0)
    state.finished(batch.worker, 1.0)
    for at in range(2):
        state.arrive(Query(f"later-{at}", 1.0))
    later, _ = state.next_batch(1.0)
    assert later is not None
    assert len(later.queries) == 1


def test_an_estimate_that_rules_out_all_queries_is_tried_again() -> None:
    """A stall must not make a service refuse all later requests: nothing would show that it is over."""
    state, point = Dispatcher(FixedPoint(ControlSpace([GRID.points[0]])), 1), GRID.points[0]
    state.observe(point, 1, 1e6)
    batch: Batch | None = None
    for number in range(1_000):
        state.arrive(Query(str(number), 0.0, 5e4))
        batch, _ = state.next_batch(0.0)
        if batch is not None:
            break
    assert batch is not None
    state.finished(batch.worker, 6e3)
    for _ in range(50):
        state.observe(point, 1, 6e3)
    state.arrive(Query("next", 1e4, 1e4 + 5e4))
    assert state.next_batch(1e4)[0] is not None
