"""Conformance of engines that compute a server's calls.

A new one needs, in the tests, a class with a fixture ``service``, on an engine of two workers or more, or of one that
begins both versions of an ensemble by itself::

    class TestMine(ServingEngineConformance):
        @pytest.fixture(scope="class")
        @classmethod
        def service(cls, tmp_path_factory):
            with Service.on(MyEngine(2), tmp_path_factory.mktemp("two")) as service:
                yield service
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from slotool.data.columns import Columns, Inputs
from slotool.elastic import confidence, load_model
from slotool.elastic.family import Family
from slotool.elastic.model import LOGITS
from slotool.elastic.network import Network
from slotool.errors import InputError
from slotool.factories import ALLOW_VARIABLE
from slotool.graphs import GraphBuilder
from slotool.graphs.torch_module import GraphModule
from slotool.rules.policies.points import in_turn
from slotool.rules.policies.routing import OSFA, Conc, Seq
from slotool.rules.ruleset.rules import Rule, RuleSet
from slotool.scheduling import ControlSpace, by_demand
from slotool.serving import InferenceResult, Router, ServedModel
from slotool.serving.engines import CallCancelled, InferenceEngine
from slotool.serving.engines.ensemble import PointRunner
from slotool.serving.rejections import Rejection
from slotool.serving.request import Outputs
from slotool.serving.request_options import RequestOptions
from slotool.tables import OperatingPoint
from slotool.testing.backends import error_message
from slotool.testing.named_models import LEFT_OUT, named_inputs, save_named_family

NAME, NAMED = "two", "named"
SMALL, LARGE = (OperatingPoint.of(version=name) for name in ("small", "large"))
INPUTS, CLASSES, WIDTH = 16, 4, 512
# Over so many examples the large version of so many operators takes some tenths of a second, and one operator a moment.
OPERATORS, MANY = 600, 1_024
# A worker that replaces another starts with the time that all others leave.
PATIENCE_S = 300.0
X = np.random.default_rng(0).normal(size=(MANY, INPUTS)).astype(np.float32)


def two_versions(folder: Path) -> ServedModel:
    """Save a family of a small and a large version in ``folder``, with rules by tolerance in hundredths."""
    torch.manual_seed(0)
    path = folder / NAME
    Family.of(NAME, [_version("small", 0), _version("large", OPERATORS)]).save(path, config={}, seed=0)
    model = load_model(str(path))
    rules = _rules(ensembles(float(np.median(confidence(model.forward(X[:64], SMALL))))))
    return ServedModel(NAME, model, by_demand(ControlSpace(model.points), rules), rules, path)


def named_versions(folder: Path) -> ServedModel:
    """Return a family of two models with named tensors of several datatypes, as an artifact in ``folder``."""
    save_named_family(folder / NAMED)
    model = load_model(str(folder / NAMED))
    return ServedModel(NAMED, model, by_demand(ControlSpace(model.points)), path=folder / NAMED)


def ensembles(median: float) -> list[OperatingPoint]:
    """Return one version, and both kinds of pairs whose first version is always, sometimes and never sure."""
    pairs = [kind("small", "large", threshold).point for threshold in (0.0, median, 1.1) for kind in (Seq, Conc)]
    return [OSFA("small").point, *pairs]


def _version(name: str, operators: int) -> Network:
    builder = GraphBuilder("mlp")
    last = builder.add("Dense", builder.add("InputLayer", shape=[INPUTS]), units=WIDTH)
    for _ in range(operators):
        last = builder.add("Activation", last, activation="tanh")
    builder.add("Dense", last, units=CLASSES)
    return Network(name, GraphModule(builder.graph()).eval().requires_grad_(False))


def _rules(points: Sequence[OperatingPoint]) -> RuleSet:
    rules = [
        Rule(str(point), "response-time", (i + 1) / 100, point, 0.0, 0.1, 1e-3, 1e-3) for i, point in enumerate(points)
    ]
    return RuleSet("certified", 0.99, "absolute", "large", 0.1, 1_000, "0" * 64, tuple(rules))


@dataclass(frozen=True)
class Service:
    """A router over ``two_versions`` and ``named_versions`` on an engine, and the one event loop for all of it."""

    router: Router
    served: ServedModel
    named: ServedModel
    runner: asyncio.Runner

    @classmethod
    @contextmanager
    def on(cls, engine: InferenceEngine, folder: Path) -> Iterator[Self]:
        with asyncio.Runner() as runner, _code_allowed():
            served, named = two_versions(folder), named_versions(folder)
            router = Router({NAME: served, NAMED: named}, engine)
            try:
                yield cls(router, served, named, runner)
            finally:
                router.close()

    @property
    def engine(self) -> InferenceEngine:
        return self.router.engine

    @property
    def tiers(self) -> tuple[Rule, ...]:
        assert self.served.rules is not None
        return self.served.rules.rules

    def run(self, work: Awaitable[Any]) -> Any:
        """Return the result of ``work``, within a time limit."""

        async def in_time() -> Any:
            return await asyncio.wait_for(work, PATIENCE_S)

        return self.runner.run(in_time())

    def begin(self, worker: int, point: OperatingPoint, x: Inputs) -> asyncio.Future[Outputs | Exception]:
        """Return a call of the engine itself, past the router."""
        ended: asyncio.Future[Outputs | Exception] = asyncio.get_running_loop().create_future()
        self.engine.begin(worker, NAME if isinstance(x, np.ndarray) else NAMED, point, x, ended.set_result)
        return ended

    def outputs(self, worker: int, point: OperatingPoint, x: Inputs) -> Outputs:
        async def call() -> Outputs | Exception:
            return await self.begin(worker, point, x)

        outcome = self.run(call())
        assert isinstance(outcome, Outputs), outcome
        return outcome

    async def answer(self, x: np.ndarray, tolerance: float | None = None) -> InferenceResult:
        options = RequestOptions(math.inf, tolerance=tolerance)
        return await self.router.answer(NAME, x, options, self.router.now_us(), lambda: False)

    async def until_idle(self) -> None:
        while self.router.busy():
            await asyncio.sleep(0.005)

    def count(self, name: str, **labels: str) -> float:
        return self.router.metrics.registry.get_sample_value(name, labels or None) or 0.0


@contextmanager
def _code_allowed() -> Iterator[None]:
    """Allow worker processes to run the code of the named models."""
    before = os.environ.get(ALLOW_VARIABLE)
    os.environ[ALLOW_VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(ALLOW_VARIABLE)
        os.environ |= {} if before is None else {ALLOW_VARIABLE: before}


class ServingEngineConformance:
    """Tests of any engine. ``loses_workers``: its workers can die, as ``lose`` has one do.

    ``cancels_calls``: an unwanted call ends early; None if that is not known.
    """

    cancels_calls: bool | None = True
    loses_workers: bool = True

    def lose(self, service: Service, worker: int) -> None:
        """Have a worker die at once."""
        raise AssertionError("an engine whose workers can die overrides lose")

    def test_answers_are_the_models_own_whatever_the_batch(self, service: Service) -> None:
        model = service.served.model
        for n, point in ((1, SMALL), (MANY, SMALL), (1, LARGE), (7, LARGE)):
            outputs = service.outputs(0, point, X[:n])
            np.testing.assert_allclose(outputs.tensors[LOGITS], model.forward(X[:n], point), atol=1e-4)
            assert outputs.confidence is not None
            np.testing.assert_allclose(outputs.confidence, confidence(outputs.tensors[LOGITS]), rtol=1e-12)

    def test_named_tensors_of_any_datatype_and_size_are_the_models_own(self, service: Service) -> None:
        later = Seq("small", "large", 0.9).point
        service.engine.prepare(NAMED, (later,))
        alone = PointRunner(service.named.model, [later])
        # The last takes tens of MiB, which are given back.
        for count, length in ((1, 1), (5, 3), (300, 7), (2, 1_000_000)):
            x = named_inputs(count, length)
            for point in (SMALL, LARGE, later):
                outputs, expected = service.outputs(0, point, x), alone.run(x, point)
                assert list(outputs.tensors) == list(expected.tensors)
                for name, array in expected.tensors.items():
                    assert outputs.tensors[name].dtype == array.dtype
                    np.testing.assert_array_equal(outputs.tensors[name], array)
                np.testing.assert_array_equal(outputs.confidence, expected.confidence)
                assert outputs.answers.tolist() == (x.arrays["ids"][:, 0] % 3).tolist()

    def test_what_a_model_of_named_tensors_raises_is_reported_and_the_worker_goes_on(self, service: Service) -> None:
        x = named_inputs(2, 2)

        async def failed() -> Outputs | Exception:
            return await service.begin(0, SMALL, Columns({**x.arrays, "ids": -x.arrays["ids"]}))

        assert "an id is below 0" in str(service.run(failed()))
        assert len(service.outputs(0, SMALL, x)) == 2

    def test_an_input_that_the_model_cannot_take_is_its_senders_fault(self, service: Service) -> None:
        x = named_inputs(2, 2)
        poison = Columns({**x.arrays, "ids": -x.arrays["ids"]})

        async def pending() -> list[InferenceResult | BaseException]:
            await service.until_idle()
            options, now_us = RequestOptions(math.inf), service.router.now_us()
            waiting = [service.router.answer(NAMED, each, options, now_us, lambda: False) for each in (x, poison, x)]
            return await asyncio.gather(*waiting, return_exceptions=True)

        before, rejected, after = service.run(pending())
        assert isinstance(rejected, Rejection), rejected
        assert (rejected.status, rejected.cause) == (400, "bad-request")
        assert "this input (ids [2, 2], word [2, 1], odd [2]), while it answers others" in str(rejected)
        assert "an id is below 0" in str(rejected)
        for answer in (before, after):
            assert isinstance(answer, InferenceResult), answer
            np.testing.assert_array_equal(answer.output("tripled"), 3 * x.arrays["ids"])

    def test_outputs_of_other_rows_than_there_are_examples_are_the_models_fault(self, service: Service) -> None:
        x = named_inputs(2, 2)
        left_out = Columns({**x.arrays, "ids": np.full_like(x.arrays["ids"], LEFT_OUT)})

        async def answers() -> list[InferenceResult | BaseException]:
            await service.until_idle()
            options, now_us = RequestOptions(math.inf), service.router.now_us()
            batches = (x, left_out, left_out[:1], x)
            waiting = [service.router.answer(NAMED, each, options, now_us, lambda: False) for each in batches]
            return await asyncio.gather(*waiting, return_exceptions=True)

        before, *failed, after = service.run(answers())
        for rejected, rows in zip(failed, ("each of the 2 examples", "the one example"), strict=True):
            assert isinstance(rejected, Rejection), rejected
            assert (rejected.status, rejected.cause) == (500, "failed")
            assert f"output said has shape [0], expected one row for {rows}" in str(rejected)
        for answer in (before, after):
            assert isinstance(answer, InferenceResult), answer
            np.testing.assert_array_equal(answer.output("tripled"), 3 * x.arrays["ids"])
        assert len(service.outputs(0, SMALL, x)) == 2

    def test_every_ensemble_answers_as_the_replay_has_it(self, service: Service) -> None:
        alone = PointRunner(service.served.model, [rule.point for rule in service.tiers])
        for rule in service.tiers:
            service.run(service.until_idle())
            answer = service.run(service.answer(X[:64], rule.tolerance))
            one_by_one = None if service.engine.workers > 1 else in_turn(rule.point)
            assert answer.decision.point == (one_by_one or rule.point)
            assert answer.decision.rule == rule.id
            expected = alone.run(X[:64], rule.point)
            np.testing.assert_allclose(answer.scored.tensors[LOGITS], expected.tensors[LOGITS], atol=1e-4)

    def test_both_versions_begin_at_once_only_where_there_are_workers_for_both(self, service: Service) -> None:
        conc = [rule for rule in service.tiers if in_turn(rule.point)][-1]

        async def answers() -> list[InferenceResult]:
            busy = [service.answer(X) for _ in range(service.engine.workers - 1)]
            return await asyncio.gather(*busy, service.answer(X[:1], conc.tolerance))

        decision = service.run(answers())[-1].decision
        assert not decision.concurrent
        assert decision.point == in_turn(conc.point)
        assert "one worker is idle" in decision.reason

    def test_the_second_version_is_cancelled_when_the_first_is_sure(self, service: Service) -> None:
        conc = next(rule for rule in service.tiers if in_turn(rule.point))
        assert conc.point.get("threshold") == 0.0
        has_two = service.engine.workers > 1

        async def answers() -> None:
            for _ in range(2):
                await service.until_idle()
                answer = await service.answer(X, conc.tolerance)
                assert answer.decision.point == (conc.point if has_two else in_turn(conc.point))
            await service.until_idle()

        before = service.count("slotool_cancelled_calls_total", model=NAME)
        service.run(answers())
        assert service.count("slotool_cancelled_calls_total", model=NAME) - before == 2 * has_two

    def test_a_call_that_is_cancelled_ends_before_its_time_and_the_next_is_answered(self, service: Service) -> None:
        async def cancelled(after_s: float) -> Outputs | Exception:
            ended = service.begin(0, LARGE, X if self.cancels_calls else X[:1])
            await asyncio.sleep(after_s)
            service.engine.cancel(0)
            return await ended

        for after_s in (0.0, 0.02):
            outcome = service.run(cancelled(after_s))
            assert isinstance(outcome, CallCancelled | Outputs)
            assert self.cancels_calls in (None, isinstance(outcome, CallCancelled))
            outputs = service.outputs(0, SMALL, X[:1])
            np.testing.assert_allclose(outputs.tensors[LOGITS], service.served.model.forward(X[:1], SMALL), atol=1e-4)

    def test_a_point_that_came_later_is_answered_and_a_foreign_one_refused(self, service: Service) -> None:
        later = Seq("large", "small", 0.5).point
        service.engine.prepare(NAME, (later,))
        outputs = service.outputs(0, later, X[:5])
        expected = PointRunner(service.served.model, [later]).run(X[:5], later)
        np.testing.assert_allclose(outputs.tensors[LOGITS], expected.tensors[LOGITS], atol=1e-4)
        foreign = OperatingPoint.of(policy="osfa", version="huge")
        assert "huge" in error_message(lambda: service.engine.prepare(NAME, (foreign,)), InputError)

    def test_what_the_model_raises_is_reported_and_the_worker_goes_on(self, service: Service) -> None:
        async def outcome(point: OperatingPoint) -> Outputs | Exception:
            try:
                return await service.begin(0, point, X[:1])
            except Exception as error:
                return error

        assert isinstance(service.run(outcome(OperatingPoint.of(policy="osfa", version="huge"))), Exception)
        assert isinstance(service.run(outcome(LARGE)), Outputs)

    def test_requests_of_a_lost_worker_are_answered(self, service: Service) -> None:
        if not self.loses_workers:
            return

        async def lost() -> list[InferenceResult]:
            await service.until_idle()
            pending = [asyncio.ensure_future(service.answer(X)) for _ in range(2 * service.engine.workers)]
            await asyncio.sleep(0.05)
            self.lose(service, 0)
            answers = await asyncio.gather(*pending)
            while service.router.alive() < service.engine.workers:
                await asyncio.sleep(0.02)
            return answers

        answers = service.run(lost())
        expected = service.served.model.forward(X, LARGE)
        for answer in answers:
            np.testing.assert_allclose(answer.scored.tensors[LOGITS], expected, atol=1e-4)
        assert service.count("slotool_worker_restarts_total") >= 1
        assert service.count("slotool_retries_total", model=NAME) >= 1
