"""Families of models with several named inputs, of other numbers than floats, and of other tasks than classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from text_models import text_network, texts

from slotool.data import Columns, LabelSets
from slotool.data.dataset import Split
from slotool.elastic import load_model
from slotool.elastic.evaluation import evaluate, summary
from slotool.elastic.family import Family
from slotool.elastic.versions import ModelVersion, open_versions
from slotool.errors import InputError
from slotool.models import Classification, Model, MultiLabel, Regression, Signature, Task, Text
from slotool.models.adapters.factory import FunctionModel
from slotool.models.tasks import make_task
from slotool.profiling.backends.elastic_backend import ElasticBackend, ModelAtPoint
from slotool.tables import OperatingPoint


def named(signature: str, *functions: object) -> list[tuple[ModelVersion, Model]]:
    """A version of each function."""
    made = [FunctionModel(function, Signature.parse(signature)) for function in functions]
    return [(ModelVersion(model.name, "."), model) for model in made]


@pytest.fixture
def text_family(tmp_path: Path) -> Family:
    paths = {name: str(text_network(tmp_path / f"{name}.onnx", words)) for name, words in (("small", 6), ("large", 60))}
    versions = open_versions(paths, 1)
    examples = texts(4, 0)
    return Family("texts", versions, make_task(versions[0][1].signature), ("0", "1"), columns(examples))


def columns(drawn: dict[str, np.ndarray]) -> Columns:
    return Columns({name: drawn[name] for name in ("attention_mask", "input_ids")})


def test_a_text_classifier_is_measured_saved_and_loaded(text_family: Family, tmp_path: Path) -> None:
    drawn = texts(200, 1)
    outcomes = evaluate(text_family, Split(columns(drawn), drawn["y"]), repeats=1)
    small, large = summary(outcomes)
    assert small["accuracy"] + 0.1 < large["accuracy"]
    assert large["confidence"] == pytest.approx(large["accuracy"], abs=0.06)
    text_family.save(tmp_path / "texts", config={}, seed=0, copy=True)
    loaded = load_model(str(tmp_path / "texts"))
    assert isinstance(loaded, Family)
    assert loaded.signature is not None
    assert [str(tensor) for tensor in loaded.signature.inputs] == ["INT64[-1, -1]"] * 2
    assert loaded.examples.arrays["input_ids"].tolist() == texts(4, 0)["input_ids"].tolist()
    for point in loaded.points:
        outputs = loaded.respond(columns(drawn), point)
        np.testing.assert_array_equal(outputs["logits"], loaded.forward(columns(drawn), point))
        np.testing.assert_array_equal(outputs["logits"], text_family.respond(columns(drawn), point)["logits"])


def test_it_is_profiled_on_the_examples_that_it_keeps(text_family: Family) -> None:
    call = ElasticBackend().prepare(ModelAtPoint(text_family, text_family.full), 6)
    rows = np.arange(6) % len(text_family.examples)
    expected = text_family.respond(text_family.examples[rows], text_family.full)["logits"]
    np.testing.assert_array_equal(call(), expected)


def test_columns_that_do_not_fit_are_named(text_family: Family) -> None:
    drawn = texts(3, 0)
    with pytest.raises(InputError, match=r"input 'attention_mask' \(INT64\[-1, -1\]\) is missing; there are input_ids"):
        text_family.respond(Columns({"input_ids": drawn["input_ids"]}), text_family.full)
    with pytest.raises(InputError, match=r"texts has several inputs \(input_ids, attention_mask\): give columns"):
        text_family.respond(np.zeros((1, 8), dtype=np.float32), text_family.full)
    with pytest.raises(InputError, match="tensor input_ids: values of type float64, expected INT64"):
        text_family.respond(Columns({**columns(drawn).arrays, "input_ids": drawn["input_ids"] / 2}), text_family.full)


def test_whole_numbers_of_an_array_go_to_integers_and_others_do_not() -> None:
    def parity(x: np.ndarray) -> np.ndarray:
        return np.stack([1 - x[:, 0] % 2, x[:, 0] % 2], axis=1).astype(np.float32)

    versions = named("x=INT8[-1,1] -> scores=FP32[-1,2]", parity)
    x = np.array([[3.0], [4.0]], dtype=np.float32)
    family = Family("parity", versions, Classification("scores"), ("even", "odd"), x)
    assert family.respond(x, family.full)["scores"].tolist() == [[0, 1], [1, 0]]
    with pytest.raises(InputError, match="numbers are not whole"):
        family.respond(x / 2, family.full)
    with pytest.raises(InputError, match="a number beyond INT8"):
        family.respond(x * 100, family.full)


def test_labels_multi_labels_numbers_and_texts_are_measured_by_their_tasks() -> None:
    def colour(x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, b"red", b"blue").astype(object)

    def halves(x: np.ndarray) -> np.ndarray:
        return np.stack([x, -x], axis=1)

    def doubled(x: np.ndarray) -> np.ndarray:
        return 2 * x

    def words(x: np.ndarray) -> np.ndarray:
        return np.array([b"a b" if value > 0 else b"a" for value in x], dtype=object)

    x = Columns({"x": np.array([1.0, -1.0, 2.0], dtype=np.float32)})
    sets = LabelSets(np.array([0, 1, 2, 4]), np.array([0, 0, 0, 1], dtype=np.int32))
    text_truth = np.array(["a b", "a b", "a b"], dtype=object)
    cases: list[tuple[object, str, Task, tuple[str, ...], object, list[float]]] = [
        (colour, "BYTES[-1]", Classification("y", scores="labels"), ("blue", "red"), np.array([1, 1, 1]), [0, 1, 0]),
        (halves, "FP32[-1,2]", MultiLabel("y", threshold=0.0), ("a", "b"), sets, [0, 1, 1 / 3]),
        (doubled, "FP32[-1]", Regression("y"), (), np.array([2.0, 0.0, 4.5]), [0, 2, 0.5]),
        (words, "BYTES[-1]", Text("y"), (), text_truth, [0, 0.5, 0]),
    ]
    for function, output, task, labels, truth, errors in cases:
        family = Family("f", named(f"x=FP32[-1] -> y={output}", function), task, labels, x)
        assert family.signature is not None
        outcomes = evaluate(family, Split(x, truth), repeats=1)
        np.testing.assert_allclose(outcomes.matrix("error")[:, 0], errors)
        assert np.isfinite(outcomes.matrix("confidence")).all()


def test_a_price_is_the_cost_of_each_answer() -> None:
    def right(x: np.ndarray) -> np.ndarray:
        return x

    x = Columns({"x": np.array([1.0, 2.0], dtype=np.float32)})
    family = Family("f", named("x=FP32[-1] -> y=FP32[-1]", right), Regression("y"), (), x)
    outcomes = evaluate(family, Split(x, np.array([1.0, 2.0])), repeats=1, prices={"right": 0.002})
    assert outcomes.matrix("cost").tolist() == [[0.002], [0.002]]
    assert family.points == (OperatingPoint.of(version="right"),)
