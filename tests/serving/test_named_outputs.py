"""Models with a signature: named inputs of any datatype in, their own outputs out, also as ensembles."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

import numpy as np
import pytest

from slotool.data.columns import Columns
from slotool.elastic import ElasticModel
from slotool.errors import InputError, RunError
from slotool.models import Classification, Regression, Signature, Task, TensorSpec
from slotool.rules.policies.routing import Conc, Seq
from slotool.scheduling import ControlSpace, by_demand
from slotool.serving import InferenceResult, Rejection, Router, ServedModel
from slotool.serving.engines.ensemble import PointRunner
from slotool.serving.monitoring.feedback import LOOK_EVERY, Feedback
from slotool.serving.request import Outputs, combined
from slotool.serving.request_options import RequestOptions
from slotool.tables import OperatingPoint
from tests.serving.live_server import tier_rules

SMALL, LARGE = (OperatingPoint.of(version=name) for name in ("small", "large"))


def words(*values: bytes) -> np.ndarray:
    array = np.empty(len(values), dtype=np.object_)
    array[:] = values
    return array


class WordCounter(ElasticModel):
    """Scores of three classes from the sum of a row of numbers, and the word with the version's name behind it."""

    name = "counter"
    input_shape, classes = (), 3
    points = (SMALL, LARGE)
    checks_inputs = states_answers = False
    signature = Signature(
        (TensorSpec("numbers", "INT64", (-1, -1)), TensorSpec("word", "BYTES", (-1,))),
        (TensorSpec("scores", "FP32", (-1, 3)), TensorSpec("said", "BYTES", (-1,))),
    )
    task: Task | None = Classification("scores")

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint) -> dict[str, np.ndarray]:
        self.require(point)
        scores = np.zeros((len(inputs["numbers"]), 3), dtype=np.float32)
        # The small version is sure of even sums only.
        sums = inputs["numbers"].sum(axis=1)
        scores[np.arange(len(scores)), sums % 3] = np.where((sums % 2 == 0) | (point == LARGE), 9.0, 0.5)
        name = str(point.get("version")).encode()
        return {"scores": scores, "said": words(*(word + b" " + name for word in inputs["word"]))}

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        raise AssertionError("its outputs have names")


X = Columns({"numbers": np.arange(12).reshape(6, 2), "word": words(b"a", b"", b"\xff", b"d", b"e", b"f")})


def test_each_example_is_answered_by_the_surer_version() -> None:
    for point in (Seq("small", "large", 0.9).point, Conc("small", "large", 0.9).point):
        computed = PointRunner(WordCounter(), [point]).run(X, point)
        assert isinstance(computed, Outputs)
        # Sums are 1, 5, 9, …: all odd.
        assert [said.split()[-1] for said in computed.tensors["said"]] == [b"large"] * 6
        assert computed.answers.tolist() == [(4 * i + 1) % 3 for i in range(6)]
    even = Columns({**X.arrays, "numbers": np.array([[0, i] for i in range(6)])})
    said = PointRunner(WordCounter(), []).run(even, Seq("small", "large", 0.9).point).tensors["said"]
    assert [word.split()[-1] for word in said] == [b"small", b"large"] * 3


def test_requests_share_a_call_and_each_gets_its_own_outputs() -> None:
    model = WordCounter()
    served = ServedModel("counter", model, by_demand(ControlSpace(model.points)))

    async def asked(router: Router) -> list[InferenceResult]:
        parts = [X[0:2], X[2:3], X[3:6]]
        now_us = router.now_us()
        options = RequestOptions(math.inf)
        return await asyncio.gather(*(router.answer("counter", part, options, now_us, lambda: False) for part in parts))

    with asyncio.Runner() as runner:
        router = Router({"counter": served})
        answers = runner.run(asked(router))
        router.close()
    said = [word for answer in answers for word in answer.scored.tensors["said"]]
    assert said == [word + b" large" for word in X.arrays["word"]]
    assert [len(answer.labels) for answer in answers] == [2, 1, 3]


def test_versions_that_state_no_confidence_make_no_ensemble() -> None:
    model = WordCounter()
    model.task = Regression("scores")
    runner = PointRunner(model, [])
    assert runner.run(X, SMALL).confidence is None
    with pytest.raises(InputError, match="version small states no confidence"):
        runner.run(X, Seq("small", "large", 0.5).point)


def test_outputs_of_two_lengths_cannot_be_answers_of_one_call() -> None:
    def made(length: int, sure: float, count: int) -> Outputs:
        return Outputs({"tokens": np.zeros((count, length))}, WordCounter(), np.full(count, sure))

    unsure = np.array([True, False])
    with pytest.raises(RunError, match=r"output tokens has shape \[3\] of one version and \[4\] of the other"):
        combined(made(3, 0.1, 2), unsure, made(4, 0.9, 1))
    assert len(combined(made(3, 0.1, 1), unsure[:1], made(4, 0.9, 1)).tensors["tokens"][0]) == 4


def test_labels_of_named_inputs_are_held_against_every_version_the_rules_consult() -> None:
    model, rules = WordCounter(), tier_rules(0.9)
    served = ServedModel("counter", model, by_demand(ControlSpace(model.points), rules), rules)

    async def labelled(router: Router, feedback: Feedback) -> None:
        for i in range(2 * LOOK_EVERY):
            # Requests of two lengths: their inputs cannot be joined.
            x = Columns({"numbers": np.full((1, 1 + i % 2), i), "word": words(b"w")})
            options = RequestOptions(math.inf, tolerance=0.3)
            answer = await router.answer("counter", x, options, router.now_us(), lambda: False)
            feedback.answered([(x, answer, RequestOptions())])
            # All are right but for the last ten.
            right = (int(x.arrays["numbers"].sum()) + (i >= 2 * LOOK_EVERY - 10)) % 3
            feedback.label(served, answer.request, np.array([right]))
            await feedback.guarantees.look(served)

    feedback = Feedback()
    with asyncio.Runner() as runner:
        router = Router({"counter": served})
        runner.run(labelled(router, feedback))
        router.close()
    summary = feedback.summary()
    assert (summary["labelled"], summary["accuracy"]) == (2 * LOOK_EVERY, 0.75)


def test_labels_are_taken_of_classes_only() -> None:
    model = WordCounter()
    model.task = Regression("scores")
    served = ServedModel("counter", model, by_demand(ControlSpace(model.points)))
    with pytest.raises(Rejection, match="model counter answers regression: labels are taken of classes only"):
        Feedback().label(served, "1", np.array([1]))
