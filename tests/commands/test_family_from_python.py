"""``slotool.family`` of models in memory, and of what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

import slotool
from slotool.errors import ArgumentError, InputError, RunError
from slotool.timing import turns
from tests.timing.simulated_machine import SimulatedMachine

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


@pytest.fixture
def data(tmp_path: Path) -> str:
    np.savez(tmp_path / "data.npz", features=X, y=Y)
    return str(tmp_path / "data.npz")


def test_estimators_and_functions_are_measured_as_they_are(data: str, tmp_path: Path) -> None:
    def first(features: np.ndarray) -> np.ndarray:
        return np.stack([-features[:, 0], features[:, 0]], axis=1)

    estimators: dict[str, Any] = {
        "tree": DecisionTreeClassifier(max_depth=1).fit(-X, Y),
        "line": LogisticRegression().fit(X, Y),
    }
    made = slotool.family(estimators, data, repeats=1)
    accuracy = made.frame().set_index("version")["accuracy"]
    assert accuracy["line"] > 0.95
    assert accuracy["tree"] < 0.5
    signed = (first, "features=FP32[-1,4] -> logits=FP32[-1,2]")
    alone = slotool.family({"first": signed}, data, repeats=1)
    assert alone.frame()["accuracy"].tolist() == [1.0]
    assert str(alone).startswith("family: 1 version on ")
    few = slotool.family({"first": signed}, data, repeats=1, limit=20)
    assert list(few.outcomes.examples) == list(alone.outcomes.examples)[:20]
    with pytest.raises(InputError, match="version line is an object in memory, of which an artifact keeps nothing"):
        slotool.family({"line": estimators["line"]}, data, out=tmp_path / "family")
    assert not (tmp_path / "family").exists()


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [({"versions": {}}, "versions"), ({"versions": ["a.onnx"]}, "versions"), ({"versions": {1: "a.onnx"}}, "versions"),
     ({"repeats": 0}, "repeats")],
)  # fmt: skip
def test_a_wrong_argument_is_named(data: str, arguments: dict[str, Any], argument: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        slotool.family(**{"versions": {"a": "a.onnx"}, "data": data, **arguments})
    assert raised.value.argument == argument


def signed(answer: Any) -> Any:
    """A function that gives ``answer(features)`` as scores of two classes."""
    return answer, "features=FP32[-1,4] -> logits=FP32[-1,2]"


def raising(features: np.ndarray) -> np.ndarray:
    if (features == X[7]).all():
        raise ValueError("x too large")
    return np.zeros((len(features), 2))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (raising, "version bad, row 8 of the data: bad failed: ValueError: x too large"),
        (
            lambda features: np.zeros((2, 2)),  # of one example or two
            r"bad, row \d+ of the data: output logits has shape \[2, 2\], expected one row for the one example",
        ),
        (lambda features: np.full((len(features), 2), np.nan), r"bad, row \d+ of the data: its confidence is nan"),
    ],
)
def test_a_model_that_fails_is_named_with_the_example(data: str, answer: Any, sentence: str) -> None:
    models = {"good": signed(lambda features: np.zeros((len(features), 2))), "bad": signed(answer)}
    with pytest.raises(RunError, match=sentence):
        slotool.family(models, data, repeats=1)


@pytest.mark.parametrize("named", [True, False])
def test_data_in_memory(named: bool, tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=list("abcd"))
    names = np.where(Y == 1, "spam", "ham")
    model = LogisticRegression().fit(frame if named else X, names)
    x = frame[list("dcba")] if named else X
    made = slotool.family({"line": model}, (x, names), repeats=1)
    assert made.frame()["accuracy"][0] == model.score(frame if named else X, names)
    assert list(made.family.labels) == ["ham", "spam"]
    with pytest.raises(ArgumentError, match="as many labels as rows of features"):
        slotool.family({"line": model}, (x, names[:-1]), repeats=1)
    with pytest.raises(InputError, match="no name of a data set, nor what describes one, but a DataFrame"):
        slotool.family({"line": model}, frame, repeats=1)


def test_a_class_without_examples(data: str) -> None:
    def first(features: np.ndarray) -> np.ndarray:
        return np.stack([-features[:, 0], np.full(len(features), -9.0, np.float32), features[:, 0]], axis=1)

    model = (first, "features=FP32[-1,4] -> logits=FP32[-1,3]")
    found = slotool.family({"first": model}, (X, 2 * Y), repeats=1)
    assert found.document["classes"] == ["0", "1", "2"]
    assert found.frame()["accuracy"][0] == 1.0
    for labels, strange in ((np.where(Y, "a", "b"), "a"), (3 * Y, "3")):
        with pytest.raises(InputError, match=rf"3 classes, and data in memory has 2 labels.*'{strange}'"):
            slotool.family({"first": model}, (X, labels), repeats=1)


class Machine(SimulatedMachine):
    """A call after one of another version takes longer, by ``cold_us``."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.calls = "", dict[str, int]()

    def version(self, name: str, warm_us: float, cold_us: float) -> Any:
        def answer(features: np.ndarray) -> np.ndarray:
            self.spend(1e-6 * (warm_us + cold_us * (self.last != name)))
            self.last, self.calls[name] = name, self.calls.get(name, 0) + 1
            return np.stack([-features[:, 0], features[:, 0]], axis=1)

        return signed(answer)


@pytest.mark.parametrize("names", [("a", "b", "c"), ("b", "c", "a"), ("c", "b", "a")])
def test_versions_of_microseconds_are_ranked_by_what_they_take(
    data: str, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    machine = Machine()
    versions = {"a": machine.version("a", 10, 12), "b": machine.version("b", 7, 22), "c": machine.version("c", 80, 0)}
    machine.install(monkeypatch)
    made = slotool.family({name: versions[name] for name in names}, data, repeats=1).frame().set_index("version")
    assert (1e6 * made["mean_latency_s"]).to_dict() == pytest.approx({"a": 10, "b": 7, "c": 80})


def test_versions_of_long_calls_alternate_and_are_asked_once_for_each_example(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of long calls none goes into what brings a version back into the caches: they may be slow, or be paid for."""
    machine = Machine()
    versions = {"a": machine.version("a", 2_000, 10), "b": machine.version("b", 3_000, 20)}
    machine.install(monkeypatch)
    made = slotool.family(versions, data, repeats=1).frame().set_index("version")
    assert (1e6 * made["mean_latency_s"]).to_dict() == pytest.approx({"a": 2_010, "b": 3_020})
    # One call more, of two examples, says whether a version answers a row for each.
    assert machine.calls == dict.fromkeys("ab", 1 + turns.WARM_UP_CALLS + len(X))
