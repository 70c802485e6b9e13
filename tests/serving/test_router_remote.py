"""Versions behind another server: what the router does while they answer, fail and hang."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from slotool.data.columns import Columns, Inputs
from slotool.elastic.model import LOGITS
from slotool.errors import RunError, TimedOut
from slotool.models.adapters.remote import RemoteRejection, RemoteUnavailable
from slotool.serving import InferenceResult, Rejection, Router
from slotool.serving.events import Events
from slotool.serving.front.frontend import explanation
from slotool.serving.monitoring.feedback import LOOK_EVERY, Feedback
from slotool.serving.request_options import RequestOptions
from slotool.serving.routing import remote
from slotool.serving.routing.remote import MAX_FAILURES, EndpointHealth
from slotool.tables import OperatingPoint
from tests.serving.live_server import POINTS, ThreeLinear, served, tier_rules

SMALL, MEDIUM, LARGE = POINTS
# Tolerances of ``tier_rules``; without one the full model answers, which is the remote one.
SEQ, CONC, SMALL_ALONE = RequestOptions(tolerance=0.1), RequestOptions(tolerance=0.2), RequestOptions(tolerance=0.3)
BEST = RequestOptions()
X = np.random.default_rng(0).random((8, 1, 2, 3)).astype(np.float32)


class LargeIsRemote(ThreeLinear):
    """``large`` is answered by another server, which raises ``fails`` and takes ``takes_s``; ``given_s``: the time that
    each call was given."""

    def __init__(self, *remote: OperatingPoint):
        super().__init__()
        self.remote_points = dict.fromkeys(remote or [LARGE], 60.0)
        self.fails: Exception | None = None
        self.takes_s = 0.0
        self.given_s: list[float] = []

    def respond_within(self, x: Inputs, point: OperatingPoint, timeout_s: float) -> dict[str, np.ndarray]:
        self.given_s.append(timeout_s)
        time.sleep(min(self.takes_s, timeout_s))
        if self.takes_s > timeout_s:
            raise TimedOut("it did not answer")
        if self.fails is not None:
            raise self.fails
        return self.respond(x, point)


class Service:
    """A router over ``model`` and what happened there."""

    def __init__(self, model: ThreeLinear):
        self.events: list[tuple[str, str]] = []
        events = Events()
        events.listen(lambda kind, sentence, fields: self.events.append((kind, sentence)))
        self.router = Router({model.name: served(model, rules=tier_rules())}, events=events)
        model.calls.clear()

    def ask(self, *asked: RequestOptions) -> list[InferenceResult | Rejection]:
        async def ask() -> list[Any]:
            now_us = self.router.now_us()
            waiting = (self.router.answer("three", X, options, now_us, lambda: False) for options in asked)
            return await asyncio.gather(*waiting, return_exceptions=True)

        return asyncio.run(ask())

    def answer(self, options: RequestOptions) -> InferenceResult:
        (answer,) = self.ask(options)
        assert isinstance(answer, InferenceResult), answer
        return answer

    def fallbacks(self, cause: str) -> float:
        labels = {"model": "three", "version": "large", "cause": cause}
        return self.router.metrics.registry.get_sample_value("slotool_fallbacks_total", labels) or 0.0


def test_it_answers_as_a_local_version_does() -> None:
    here, elsewhere = Service(ThreeLinear()), Service(LargeIsRemote())
    for options in (SEQ, CONC, SMALL_ALONE, BEST):
        expected, answer = here.answer(options), elsewhere.answer(options)
        np.testing.assert_allclose(answer.scored.tensors[LOGITS], expected.scored.tensors[LOGITS], rtol=1e-6)
        assert answer.fallback == ""
        assert "fallback" not in explanation(answer)
    assert not elsewhere.events


@pytest.mark.parametrize(
    ("error", "cause", "said"),
    [
        (RemoteUnavailable("no connection"), "unavailable", "large cannot be reached"),
        (TimedOut("too late"), "timeout", "large did not answer in time"),
        (RunError("broken at http://secret"), "failed", "large failed"),
    ],
)
def test_a_local_version_answers_for_one_that_fails(error: Exception, cause: str, said: str) -> None:
    for options, version in ((SEQ, SMALL), (CONC, SMALL), (BEST, MEDIUM)):
        model = LargeIsRemote()
        model.fails = error
        service = Service(model)
        answer = service.answer(options)
        np.testing.assert_allclose(answer.scored.tensors[LOGITS], ThreeLinear().forward(X, version), rtol=1e-6)
        assert explanation(answer)["fallback"] == f"{said}; {version.get('version')} answered alone"
        assert service.fallbacks(cause) == 1


def test_one_that_hangs_costs_no_deadline_and_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LargeIsRemote()
    model.takes_s = 50.0
    service = Service(model)
    hung, other = service.ask(RequestOptions(timeout_us=2e6), SMALL_ALONE)
    assert isinstance(hung, InferenceResult)
    assert isinstance(other, InferenceResult)
    assert hung.fallback == "large did not answer in time; medium answered alone"
    assert model.given_s[0] < 2.0
    assert other.compute_us < 0.9 * hung.compute_us
    # Nobody waits for less time than there is: where all of it is kept back, the call is not made.
    monkeypatch.setattr(remote, "NOTICE_US", 1e9)
    assert "too little time was left" in service.answer(RequestOptions(timeout_us=6e7)).fallback
    assert len(model.given_s) == 1


def test_it_is_left_alone_after_failures_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_s = [0.0]
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 60.0)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s[0])
    monkeypatch.setattr(remote, "time", clock)
    model = LargeIsRemote()
    model.fails = RemoteUnavailable("no connection at http://secret")
    service = Service(model)
    service.answer(BEST)
    assert service.answer(BEST).fallback == "large is not called, as it failed lately; medium answered alone"
    assert len(model.given_s) == 1
    assert service.events == [("remote-lost", "three: large is not called for now: no connection at http://secret")]
    ahead_s[0] = 60.0
    model.fails = None
    assert service.answer(BEST).fallback == ""
    assert service.events[1:] == [("remote-back", "three: large answers again")]


@pytest.mark.parametrize("remote", [(LARGE,), POINTS])
def test_a_wrong_request_is_told_so_and_takes_the_version_from_nobody(remote: tuple[OperatingPoint, ...]) -> None:
    model = LargeIsRemote(*remote)
    model.fails = RemoteRejection("http://secret", "input x: 9 is beyond it")
    service = Service(model)
    for _ in range(MAX_FAILURES + 1):
        # Two that share a call are asked for once more, each alone.
        for rejected in service.ask(BEST, BEST):
            assert isinstance(rejected, Rejection)
            assert (rejected.status, str(rejected)) == (400, "large rejected the request: input x: 9 is beyond it")
    model.fails = None
    assert service.answer(BEST).fallback == ""
    assert not service.events


def test_a_service_of_remote_versions_alone_says_that_none_is_left() -> None:
    model = LargeIsRemote(*POINTS)
    model.fails = RemoteUnavailable("no connection")
    (rejection,) = Service(model).ask(BEST)
    assert isinstance(rejection, Rejection)
    assert (rejection.status, rejection.cause) == (503, "no-version")


def test_labels_are_taken_while_a_version_cannot_judge_them() -> None:
    model = LargeIsRemote()
    service = Service(model)
    known, three = Feedback(), service.router.models["three"]
    for _ in range(LOOK_EVERY):
        answer = service.answer(SMALL_ALONE)
        known.answered([(Columns({"input": X}), answer, RequestOptions())])
        known.label(three, answer.request, np.zeros(len(X), dtype=np.int64))
    model.forward = Mock(side_effect=RemoteUnavailable("no connection"))
    asyncio.run(known.guarantees.look(three))
    assert (known.summary()["labelled"], known.summary()["alarms"]) == (LOOK_EVERY * len(X), [])


def test_health_of_an_endpoint() -> None:
    health = EndpointHealth()
    assert not any(health.failed(0.0, unavailable=False) for _ in range(MAX_FAILURES - 1))
    assert health.admits(0.0)
    assert health.failed(0.0, unavailable=False)
    assert not health.admits(0.9)
    assert health.admits(1.1)
    assert not health.admits(1.1)  # one call tries it
    assert not health.failed(1.1, unavailable=True)
    assert not health.admits(3.0)  # twice as long
    assert health.admits(3.2)
    health.ended_early()
    assert health.admits(3.2)
    assert health.succeeded(0.1)
    assert health.admits(3.2)
