"""Tasks against what the papers' metrics say, and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score

from slotool.errors import InputError
from slotool.models import Classification, MultiLabel, Regression, Signature, Task, TensorSpec, Text
from slotool.models.tasks import make_task, task_of_document, word_error_rate

LOGITS = np.array([[2.0, 0.0, 0.0], [0.0, 0.0, 3.0]], dtype=np.float32)


def test_classes_are_compared_and_confidence_is_the_largest_probability() -> None:
    task = Classification("logits")
    outputs = {"logits": LOGITS}
    assert task.answers(outputs).tolist() == [0, 2]
    assert task.errors(outputs, np.array([0, 1])).tolist() == [0.0, 1.0]
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    confidences = task.confidences(outputs)
    assert confidences is not None
    np.testing.assert_allclose(confidences, probabilities.max(axis=1), rtol=1e-6)
    with pytest.raises(InputError, match=r"classes of shape \[1\]"):
        task.errors(outputs, np.array([0]))


def test_multi_label_errors_are_one_minus_sklearns_f1() -> None:
    random = np.random.default_rng(1)
    scores, truth = random.random((30, 6)), random.random((30, 6)) > 0.5
    truth[0] = scores[0] = 0  # nothing to find, nothing found
    errors = MultiLabel("scores").errors({"scores": scores}, truth)
    expected = [1 - f1_score(t, s > 0.5, zero_division=1.0) for s, t in zip(scores, truth, strict=True)]
    np.testing.assert_allclose(errors, expected)


def test_regression_errors_and_a_confidence_of_an_output() -> None:
    outputs = {"y": np.array([[1.0], [2.0]]), "sure": np.array([[0.9], [0.1]])}
    task = Regression("y", loss="squared", confidence_output="sure")
    assert task.errors(outputs, np.array([3.0, 2.0])).tolist() == [4.0, 0.0]
    confidences = task.confidences(outputs)
    assert confidences is not None
    assert confidences.tolist() == [0.9, 0.1]
    assert Regression("y").confidences(outputs) is None


@pytest.mark.parametrize(
    ("reference", "hypothesis", "rate"),
    [("a b c", "a b c", 0.0), ("a b c", "a x c", 1 / 3), ("a b", "a", 0.5), ("a", "a b c", 2.0), ("", "", 0.0)],
)
def test_word_error_rate(reference: str, hypothesis: str, rate: float) -> None:
    assert word_error_rate(reference.split(), hypothesis.split()) == pytest.approx(rate)
    outputs = {"text": np.array([hypothesis.encode()], dtype=object)}
    assert Text("text").errors(outputs, np.array([reference])).tolist() == [pytest.approx(rate)]


@pytest.mark.parametrize(
    "task",
    [
        Classification("y", scores="probabilities"),
        MultiLabel("y", threshold=0.25),
        Regression("y", loss="squared", confidence_output="c"),
        Text("y"),
    ],
)
def test_a_task_is_read_back(task: Task) -> None:
    again = task_of_document(task.document())
    assert (type(again), again.document()) == (type(task), task.document())


def test_an_unknown_task_or_option_is_named() -> None:
    with pytest.raises(InputError, match="no task is called 'ranking'; there are classification, multi-label"):
        task_of_document({"task": "ranking", "output": "y"})
    with pytest.raises(InputError, match="task text: unknown or missing option among output, beam"):
        task_of_document({"task": "text", "output": "y", "beam": 3})


def test_the_output_with_scores_is_found_or_asked_for() -> None:
    x = (TensorSpec("x", "FP32", (-1, 4)),)
    found = make_task(Signature(x, (TensorSpec("probabilities", "FP64", (-1, 3)), TensorSpec("label", "INT64", (-1,)))))
    assert isinstance(found, Classification)
    assert (found.output, found.scores) == ("probabilities", "probabilities")
    two = Signature(x, (TensorSpec("a", "FP32", (-1, 3)), TensorSpec("b", "FP32", (-1, 3))))
    with pytest.raises(InputError, match="there are a FP32"):
        make_task(two)
    with pytest.raises(InputError, match="no output is called 'c'; there are a, b"):
        Classification("c").require(two)
