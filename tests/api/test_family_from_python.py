"""``slotool.family`` of models in memory, and of what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

import slotool
from slotool.errors import ArgumentError, InputError

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
    assert slotool.family({"first": signed}, data, repeats=1).frame()["accuracy"].tolist() == [1.0]
    with pytest.raises(InputError, match="version line is an object in memory, of which an artifact keeps nothing"):
        slotool.family({"line": estimators["line"]}, data, out=tmp_path / "family")
    assert not (tmp_path / "family").exists()


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [({"versions": {}}, "versions"), ({"versions": ["a.onnx"]}, "versions"), ({"versions": {1: "a.onnx"}}, "versions"),
     ({"repeats": 0}, "repeats"), ({"repeats": "3"}, "repeats")],
)  # fmt: skip
def test_a_wrong_argument_is_named(data: str, arguments: dict[str, Any], argument: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        slotool.family(**{"versions": {"a": "a.onnx"}, "data": data, **arguments})
    assert raised.value.argument == argument
