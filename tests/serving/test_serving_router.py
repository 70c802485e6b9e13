"""The router on the inline engine: order, batches, rejections before any work, ensembles as the replay has them."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from slotool.data.columns import Columns
from slotool.elastic import confidence
from slotool.elastic.model import LOGITS
from slotool.errors import InputError, RunError
from slotool.rules.policies.cascades import Cascade, Step
from slotool.rules.policies.points import from_point
from slotool.scheduling import (
    ControlSpace,
    Decision,
    EdfQueue,
    LatencyConstrained,
    Policy,
    ToleranceTiers,
    by_demand,
)
from slotool.scheduling.batching.baselines import FixedBatching, MaxAccuracy, MinCost, ModelSwitching
from slotool.scheduling.batching.grid import ControlGrid
from slotool.serving import InferenceResult, Rejection, Router, ServedModel
from slotool.serving.engines.ensemble import CascadeRun, PointRunner
from slotool.serving.events import Events
from slotool.serving.request import Request
from slotool.serving.request_options import RequestOptions
from slotool.serving.routing.model_queue import EVERY
from slotool.tables import OperatingPoint, OutcomeTable
from tests.serving.live_server import POINTS, ThreeLinear, served, space, tier_rules

SMALL, MEDIUM, LARGE = POINTS
HERE: Callable[[], bool] = lambda: False  # noqa: E731


def batch(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 1, 2, 3)).astype(np.float32)


def router_of(model: ThreeLinear, policy: Policy | None = None, **options: Any) -> Router:
    router = Router({model.name: served(model, policy, tier_rules())}, **options)
    model.calls.clear()  # those that warmed it
    return router


def together(router: Router, *asked: tuple[np.ndarray, RequestOptions]) -> list[InferenceResult | Rejection]:
    """All answers (or rejections) to requests that arrive in one turn of the loop."""

    async def ask() -> list[InferenceResult | Rejection]:
        now_us = router.now_us()
        waiting = (router.answer("three", x, options, now_us, HERE) for x, options in asked)
        return await asyncio.gather(*waiting, return_exceptions=True)

    return asyncio.run(ask())


def rejected(result: InferenceResult | Rejection) -> Rejection:
    assert isinstance(result, Rejection), result
    return result


def answered(result: InferenceResult | Rejection) -> InferenceResult:
    assert isinstance(result, InferenceResult), result
    return result


def test_requests_run_in_order_of_deadline_then_priority(three: ThreeLinear) -> None:
    three.sleep_s[LARGE] = 2e-3  # Shorter calls are shared by those who have no deadline.
    timeouts = {1: math.inf, 2: 3e9, 3: 1e9, 4: 2e9}
    asked = [(batch(n), RequestOptions(timeout)) for n, timeout in timeouts.items()]
    together(router_of(three), *asked, (batch(5), RequestOptions(priority=1)))
    assert [n for _, n in three.calls] == [3, 4, 2, 5, 1]


def test_requests_share_short_calls_with_and_without_a_deadline_and_wait_for_no_long_one(three: ThreeLinear) -> None:
    router = router_of(three)
    plain, in_time = RequestOptions(), RequestOptions(1e9)
    together(router, (batch(1), plain), (batch(1), plain))
    assert sum(n for _, n in three.calls) == 2, "nothing is known of the first call"
    for _ in range(50):  # on a busy machine some take longer
        three.calls.clear()
        answers = together(router, *[(batch(n), plain) for n in (1, 2, 3)], (batch(4), in_time))
        if [n for _, n in three.calls] == [10]:
            break
    assert [n for _, n in three.calls] == [10]
    assert [len(answered(answer).labels) for answer in answers] == [1, 2, 3, 4]
    three.sleep_s[LARGE] = 2e-3
    for _ in range(200):  # until long calls outnumber the short ones before
        three.calls.clear()
        together(router, *[(batch(1), plain)] * 3)
        if [n for _, n in three.calls] == [1, 1, 1]:
            break
    assert [n for _, n in three.calls] == [1, 1, 1]


def test_an_urgent_newcomer_overtakes_those_who_wait(three: ThreeLinear) -> None:
    router = router_of(three)
    three.sleep_s[LARGE] = 2e-3  # Shorter calls follow each other for up to a millisecond.
    urgent: list[asyncio.Task[InferenceResult]] = []
    plain = three.forward

    def forward(x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        if not urgent:
            work = router.answer("three", batch(9), RequestOptions(1e9), router.now_us(), HERE)
            urgent.append(asyncio.get_running_loop().create_task(work))
        return plain(x, point)

    three.forward = forward
    together(router, *[(batch(n), RequestOptions()) for n in (1, 2, 3)])
    assert [n for _, n in three.calls] == [1, 9, 2, 3]


def test_an_expired_request_costs_no_work(three: ThreeLinear) -> None:
    clock = itertools.chain([0.0, 100.0, 200.0], itertools.repeat(250.0))
    router = router_of(three, clock_us=lambda: next(clock))
    late, in_time = together(router, (batch(1), RequestOptions(100.0)), (batch(2), RequestOptions(500.0)))
    assert rejected(late).status == 504
    assert "100 µs" in str(late)
    assert answered(in_time).slack_us == 300.0
    assert (answered(in_time).queue_us, answered(in_time).compute_us) == (100.0, 100.0)
    assert [n for _, n in three.calls] == [2]


def test_what_cannot_be_met_is_rejected_before_any_work(three: ThreeLinear) -> None:
    result = together(router_of(three, LatencyConstrained(space(1e6, 2e6, 3e6))), (batch(1), RequestOptions(9e5)))[0]
    assert (rejected(result).status, rejected(result).cause) == (503, "cannot-meet")
    assert "1000000 µs are needed" in str(result)
    assert three.calls == []


ALONE = {
    "answered": (RequestOptions(), HERE),
    "in time": (RequestOptions(5e6), HERE),
    "by tier": (RequestOptions(tolerance=0.3), HERE),
    "expired": (RequestOptions(0.0), HERE),
    "cannot be met": (RequestOptions(9e2), HERE),
    "out of reach": (RequestOptions(min_accuracy=1.0), HERE),
    "gone": (RequestOptions(), lambda: True),
    "broken": (RequestOptions(5e6, priority=1), HERE),
}


@pytest.mark.parametrize("kind", ALONE)
def test_a_lone_request_has_the_outcome_that_the_queue_gives_it(kind: str) -> None:
    """At once, by the same point and for the same reason; it leaves nothing behind."""
    options, has_left = ALONE[kind]
    seen: list[tuple[Any, ...]] = []
    for alone in (True, False):
        model, told = ThreeLinear(), []
        policy = by_demand(space(1e3, 2e3, 3e3), tier_rules())
        router = router_of(model, policy, clock_us=lambda: 1e6)
        if kind == "broken":
            model.weights = dict.fromkeys(POINTS, np.zeros((5, 4), dtype=np.float32))

        async def ask(router: Router = router, told: list[Any] = told, alone: bool = alone) -> int:
            served = router.models["three"]
            request = Request(served, Columns({"input": batch(1)}), options, router.now_us(), has_left, told.append)
            router.submit(request, alone=alone)
            at_once = len(told)
            async with asyncio.timeout(10):
                while not told:
                    await asyncio.sleep(1e-3)
            return at_once

        # What fails is tried once more.
        assert asyncio.run(ask()) == (alone and kind != "broken")
        (outcome,) = told
        model_queue = router._queues["three"]
        said = (outcome.status, outcome.cause, str(outcome)) if isinstance(outcome, Rejection) else (
            outcome.decision, outcome.labels.tolist(), outcome.queue_us, outcome.slack_us
        )  # fmt: skip
        counted = dict(model_queue.dispatcher.outcomes)
        seen.append((said, counted, list(model.calls), len(model_queue.pending), router.busy(), router.waiting()))
        router.close()
    assert seen[0] == seen[1]
    assert seen[0][3:] == (0, 0, 0)


def test_calls_that_overrun_their_plan_bring_deadlines_forward(three: ThreeLinear) -> None:
    """The plan says 2 ms where the clock says 4: those who have 3.9 ms are soon rejected before any work, while
    what an answer says of its slack is of its own deadline."""
    plain, clock_us = three.forward, [0.0]

    def forward(x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        clock_us[0] += 4e3
        return plain(x, point)

    router = router_of(three, LatencyConstrained(space(2e3, 2e3, 2e3)), clock_us=lambda: clock_us[0])
    three.forward = forward

    async def ask() -> tuple[list[InferenceResult | Rejection], InferenceResult]:
        results = []
        for _ in range(2 * EVERY):
            work = router.answer("three", batch(1), RequestOptions(3.9e3), router.now_us(), HERE)
            results += await asyncio.gather(work, return_exceptions=True)
        return results, await router.answer("three", batch(1), RequestOptions(1e6), router.now_us(), HERE)

    results, patient = asyncio.run(ask())
    assert all(answered(result).slack_us < 0 for result in results[: EVERY - 1])
    assert rejected(results[-1]).cause == "cannot-meet"
    assert patient.slack_us == pytest.approx(1e6 - patient.queue_us - patient.compute_us, abs=1.0)


def test_a_deadline_that_recent_answers_could_not_meet_is_not_said_to_have_passed(
    three: ThreeLinear, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = router_of(three)
    monkeypatch.setattr(router.headroom, "of", lambda timeout_us, now_us, call_us: 0.5e6)
    left = r"infeasible: 4[\d.]+ ms are left of the 550 ms"
    for ago_us, said in ((0.1e6, left), (0.6e6, "passed, 550 ms after the request arrived")):
        with pytest.raises(Rejection, match=said):
            asyncio.run(router.answer("three", batch(1), RequestOptions(0.55e6), router.now_us() - ago_us, HERE))
    assert three.calls == []


def test_a_policy_with_nothing_to_say_is_a_rejection(three: ThreeLinear) -> None:
    result = together(router_of(three, LatencyConstrained(space(1.0))), (batch(1), RequestOptions()))[0]
    assert "no policy" in str(rejected(result))


def test_a_client_that_is_gone_costs_no_work(three: ThreeLinear) -> None:
    router = router_of(three)
    with pytest.raises(Rejection, match="closed the connection"):
        asyncio.run(router.answer("three", batch(1), RequestOptions(), router.now_us(), lambda: True))
    assert three.calls == []


def test_more_than_the_queue_holds_are_rejected_on_arrival(three: ThreeLinear) -> None:
    results = together(router_of(three, max_queue=3), *[(batch(1), RequestOptions())] * 5)
    assert [isinstance(result, InferenceResult) for result in results] == [True] * 3 + [False] * 2
    assert {rejected(result).cause for result in results[3:]} == {"queue-full"}


def test_a_model_or_policy_that_breaks_takes_one_request_with_it(three: ThreeLinear) -> None:
    class Broken(Policy):
        points = POINTS

        def decide(self, now_us: float, queue: EdfQueue) -> Decision:
            query = queue.peek()
            assert query is not None
            if query.examples == 1:
                raise ValueError("a broken policy")
            return Decision(SMALL if query.examples == 2 else LARGE, query.examples, "why not")

    router = router_of(three, Broken())
    three.weights[SMALL] = np.zeros((5, 4), dtype=np.float32)
    results = together(router, *[(batch(n), RequestOptions()) for n in (1, 2, 3)])
    assert [rejected(result).status for result in results[:2]] == [500, 500]
    assert "a broken policy" in str(results[0])
    assert len(answered(results[2]).labels) == 3


class Moody(ThreeLinear):
    """Raises as often as ``faults`` says, on any input; then on inputs of 1 and more."""

    faults = 0.0

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        scores = super().forward(x, point)
        self.faults -= 1
        if self.faults >= 0 or (x >= 1).any():
            raise ValueError("out of range")
        return scores


def test_a_fault_that_passes_is_not_the_inputs() -> None:
    model = Moody()
    router = router_of(model)
    model.faults = 1
    result = together(router, (batch(1), RequestOptions()))[0]
    assert answered(result).labels.shape == (1,)


def test_a_model_that_fails_on_everything_is_at_fault_itself() -> None:
    model = Moody()
    router = router_of(model)
    model.faults = math.inf
    results = together(router, *[(batch(1), RequestOptions())] * 3)
    assert {(rejected(result).status, rejected(result).cause) for result in results} == {(500, "failed")}
    # Each twice, and one good input for all of them.
    assert len(model.calls) == 3 + 3 + 1


def test_poison_costs_one_good_input_a_second_and_spoils_no_other() -> None:
    model = Moody()
    router = router_of(model, FixedBatching(grid(), LARGE))
    poison = np.ones((1, 1, 2, 3), dtype=np.float32)
    inputs = [batch(1), poison, batch(1, 2), poison]
    for sizes in ([4, 1, 1, 1, 1, 1], [4, 1, 1, 1, 1]):
        results = together(router, *[(x, RequestOptions()) for x in inputs])
        assert [n for _, n in model.calls] == sizes
        for result, x in zip(results, inputs, strict=True):
            if x is poison:
                assert rejected(result).status == 400
                assert str(result).startswith(
                    "the model fails on this input (input [1, 1, 2, 3]), while it answers others"
                )
            else:
                np.testing.assert_array_equal(answered(result).output("logits"), model.forward(x, LARGE))
        model.calls.clear()


def test_scores_that_overflow_are_the_inputs_fault() -> None:
    model = ThreeLinear(scale=1e30)
    result = together(router_of(model), (np.full((1, 1, 2, 3), 3e38, np.float32), RequestOptions()))[0]
    assert (rejected(result).status, "too large" in str(result)) == (400, True)


def outcomes(model: ThreeLinear, x: np.ndarray, y: np.ndarray) -> OutcomeTable:
    frames = []
    for point in POINTS:
        logits = model.forward(x, point)
        error = (logits.argmax(axis=1) != y).astype(float)
        frames.append(pd.DataFrame({"example": [str(i) for i in range(len(x))], "version": point.get("version"),
                                    "error": error, "confidence": confidence(logits), "latency_s": 1e-3}))  # fmt: skip
    return OutcomeTable(pd.concat(frames, ignore_index=True))


@pytest.mark.parametrize("tolerance", [0.1, 0.2, 0.3, 0.05])
def test_ensembles_err_exactly_where_the_replay_says(three: ThreeLinear, tolerance: float) -> None:
    x, y = batch(300), np.random.default_rng(1).integers(0, 4, 300)
    result = answered(together(router_of(three), (x, RequestOptions(tolerance=tolerance)))[0])
    replayed = from_point(result.decision.point).replay(outcomes(three, x, y)).error
    assert 0 < replayed.sum() < 300
    np.testing.assert_array_equal(result.labels != y, replayed.astype(bool))


def test_requests_of_tiers_share_calls_and_are_answered_as_one_by_one(three: ThreeLinear) -> None:
    """The same labels by the same rules; each version has those in one call that went on to it by themselves. A version
    without latencies of batches has one request a call."""
    x = batch(40)
    tiers = 10 * [(0.1, "cost"), (0.3, "response-time"), (0.15, "cost"), (0.3, "cost")]
    asked = [
        (x[i : i + 1], RequestOptions(60e6 + i, tolerance, objective)) for i, (tolerance, objective) in enumerate(tiers)
    ]
    by_itself: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for sizes, found in (((1,), by_itself), ((1, 16, 64), shared)):
        latency_us = {(point, size): 100.0 for point in POINTS for size in sizes}
        known = ControlSpace(POINTS, latency_us, dict.fromkeys(POINTS, 0.9))
        results = list(map(answered, together(router_of(three, by_demand(known, tier_rules())), *asked)))
        found["answers"] = [(r.labels.tolist(), r.decision.point, r.decision.rule, r.decision.reason) for r in results]
        found["versions"] = {point: sum(n for at, n in three.calls if at == point) for point in POINTS}
        found["calls"] = list(three.calls)
        found["batch"] = {r.batch for r in results}
    assert shared["answers"] == by_itself["answers"]
    assert shared["versions"] == by_itself["versions"]
    assert by_itself["batch"] == {1}
    # Two ensembles wait in turn: a call of each, and a second one for those that the first version is not sure of.
    went_on = shared["versions"][LARGE]
    assert 0 < went_on < 20
    assert sorted(n for _, n in shared["calls"]) == sorted([20, 20, went_on])


CASCADES = [
    Cascade((Step("small", 0.8), Step("medium", 0.7), Step("large"))),
    Cascade((Step("large", 0.8), Step("small", 0.6), Step("medium"))),
    Cascade((Step("medium", 0.6), Step("small"))),
]


@pytest.mark.parametrize("cascade", CASCADES, ids=lambda cascade: cascade.words)
def test_cascades_err_exactly_where_the_replay_says(three: ThreeLinear, cascade: Cascade) -> None:
    x, y = batch(300), np.random.default_rng(1).integers(0, 4, 300)
    table = outcomes(three, x, y)
    replayed = cascade.replay(table)
    three.calls.clear()
    found = PointRunner(three, [cascade.point]).run(x, cascade.point)
    np.testing.assert_array_equal(found.answers != y, replayed.error.astype(bool))
    assert len(three.calls) == len(cascade.steps)
    assert sum(examples for _, examples in three.calls) == round(replayed.response_time_s.sum() / 1e-3)
    for row in range(0, 300, 23):
        alone = PointRunner(three, [cascade.point]).run(x[row : row + 1], cascade.point)
        assert alone.answers.tolist() == [found.answers[row]]


def test_a_tier_may_be_a_cascade(three: ThreeLinear) -> None:
    rules = replace(tier_rules(), rules=tuple(replace(rule, point=CASCADES[0].point) for rule in tier_rules().rules))
    router = Router({"three": ServedModel("three", three, served(three, None, rules).policy, rules)})
    result = answered(together(router, (batch(9), RequestOptions(tolerance=0.1)))[0])
    assert result.decision.point == CASCADES[0].point
    np.testing.assert_array_equal(result.labels, PointRunner(three, []).run(batch(9), CASCADES[0].point).answers)


def test_a_version_that_gives_no_answer_is_passed_over(three: ThreeLinear) -> None:
    x, cascade = batch(50), CASCADES[0]
    scores = [PointRunner(three, []).run(x, point) for point in POINTS]
    run = CascadeRun(cascade, len(x))
    run.missing()
    run.record(scores[1])
    run.record(scores[2].take(run.next_rows))
    sure = scores[1].confidence >= 0.7
    np.testing.assert_array_equal(run.answers().answers, np.where(sure, scores[1].answers, scores[2].answers))
    late = CascadeRun(cascade, len(x))
    for answers in (scores[0], None, None):
        late.missing() if answers is None else late.record(answers)
    assert not late.unanswered
    np.testing.assert_array_equal(late.answers().answers, scores[0].answers)
    none = CascadeRun(cascade, len(x))
    for _ in cascade.steps:
        none.missing()
    assert none.unanswered


def test_seq_consults_the_second_version_only_where_the_first_is_unsure(three: ThreeLinear) -> None:
    x = batch(300)
    unsure = int((confidence(three.forward(x, SMALL)) < 0.7).sum())
    three.calls.clear()
    result = answered(together(router_of(three), (x, RequestOptions(tolerance=0.1)))[0])
    assert result.decision.rule == "response-time-0.1"
    assert three.calls == [(SMALL, 300), (LARGE, unsure)]


def test_warming_runs_every_point_and_finds_what_cannot_run(three: ThreeLinear) -> None:
    Router({"three": served(three)})
    assert {point for point, _ in three.calls} == set(POINTS)
    three.weights[LARGE] = np.zeros((5, 4), dtype=np.float32)
    with pytest.raises(RunError, match="three cannot run"):
        router_of(three)


def test_rules_of_other_versions_are_rejected(three: ThreeLinear) -> None:
    foreign = OperatingPoint.of(policy="osfa", version="huge")

    class Foreign(LatencyConstrained):
        points = (foreign,)

        def __init__(self) -> None:
            """Only its points matter."""

    with pytest.raises(InputError, match="no version 'huge'"):
        router_of(three, Foreign())


@pytest.fixture
def three() -> ThreeLinear:
    return ThreeLinear()


def grid() -> ControlGrid:
    """The three points at batches of 1, 4 and 16, from 1 ms on."""
    sizes = {1: 1.0, 4: 2.0, 16: 5.0}
    known = {(p, n): 1e3 * (i + 1) * ms for i, p in enumerate(POINTS) for n, ms in sizes.items()}
    return ControlGrid(ControlSpace(POINTS, known, dict(zip(POINTS, (0.8, 0.9, 0.95), strict=True))))


def test_those_who_wait_share_a_call_and_get_their_own_answers(three: ThreeLinear) -> None:
    asked = [(batch(1, seed), RequestOptions(1e9)) for seed in range(16)]
    results = together(router_of(three, MaxAccuracy(grid())), *asked)
    assert three.calls == [(LARGE, 16)]
    for (x, _), result in zip(asked, results, strict=True):
        assert answered(result).batch == 16
        np.testing.assert_allclose(
            answered(result).scored.tensors[LOGITS], x.reshape(1, -1) @ three.weights[LARGE], rtol=1e-5
        )


def test_nobody_rides_below_the_accuracy_asked_for(three: ThreeLinear) -> None:
    asked = [
        (batch(1), RequestOptions(1e9)),
        (batch(1), RequestOptions(1.1e9, min_accuracy=0.93)),
        (batch(1), RequestOptions(1.2e9)),
    ]
    results = together(router_of(three, MinCost(grid())), *asked)
    assert [answered(result).decision.point for result in results] == [SMALL, LARGE, LARGE]
    assert [n for _, n in three.calls] == [1, 2]


def test_a_batch_that_fails_is_taken_apart(three: ThreeLinear) -> None:
    plain = three.forward

    def forward(x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        if (x == 7.0).any():
            raise ValueError("sevens are not served")
        return plain(x, point)

    router = router_of(three, MaxAccuracy(grid()))
    three.forward = forward
    sevens = np.full((1, 1, 2, 3), 7.0, dtype=np.float32)
    results = together(router, *[(x, RequestOptions(1e9)) for x in (batch(1), sevens, batch(1))])
    assert "sevens" in str(rejected(results[1]))
    assert [answered(results[i]).batch for i in (0, 2)] == [1, 1]


def test_another_policy_takes_over_without_losing_those_who_wait(three: ThreeLinear) -> None:
    router = router_of(three, MaxAccuracy(grid()))

    async def ask() -> list[InferenceResult]:
        waiting = [
            asyncio.ensure_future(router.answer("three", batch(1), RequestOptions(1e9), router.now_us(), HERE))
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        router.replace(served(three, FixedBatching(grid(), SMALL)))
        foreign = ToleranceTiers(replace(tier_rules(), best_version="huge"), space())
        with pytest.raises(InputError, match="huge"):
            router.replace(served(three, foreign))
        return await asyncio.gather(*waiting)

    assert {answer.decision.point for answer in asyncio.run(ask())} == {SMALL}


def test_switches_are_events(three: ThreeLinear) -> None:
    told: list[dict[str, Any]] = []
    events = Events()
    events.listen(lambda kind, sentence, fields: told.append({"kind": kind, **fields}))
    now_us = 0.0
    rates = dict(zip(POINTS, (100.0, 60.0, 20.0), strict=True))
    router = router_of(three, ModelSwitching(grid(), rates), events=events, clock_us=lambda: now_us)
    seen = []
    for at in range(300):
        now_us += 1e4 if at < 290 else 1e7
        result = together(router, (batch(1), RequestOptions()))[0]
        seen.append(answered(result).decision.point)
    changes = [(a.key, b.key) for a, b in itertools.pairwise(seen) if a != b]
    assert len(changes) >= 2
    assert [(event["before"], event["point"]) for event in told] == changes
    assert {event["kind"] for event in told} == {"switch"}
