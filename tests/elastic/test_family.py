"""Training, families and their evaluation, on real digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from slotool.artifacts import open_artifact
from slotool.data import Dataset, load_dataset
from slotool.data.dataset import Split
from slotool.elastic import confidence, load_model
from slotool.elastic.evaluation import accuracy_by_target, evaluate, summary
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.elastic.training import accuracy, family_graphs, mlp, train_version
from slotool.errors import ArtifactError, InputError
from slotool.graphs.torch_module import GraphModule
from slotool.tables import FULL, OperatingPoint
from tests.elastic.elastic_conformance import ElasticModelConformance


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


@pytest.fixture(scope="module")
def family(digits: Dataset) -> Family:
    graphs = family_graphs(digits)
    return Family.of("digits", [train_version(name, graph, digits, epochs=8) for name, graph in graphs.items()])


class TestFamily(ElasticModelConformance):
    @pytest.fixture
    def model(self, family: Family) -> Family:
        return family

    def plain(self, model: Family, x: np.ndarray) -> np.ndarray:
        """The large version spelt out with torch's functions."""
        tensors = list(model.networks[-1].module.state_dict().values())
        weights, biases = tensors[::2], tensors[1::2]
        hidden = torch.from_numpy(x)
        for weight, bias in zip(weights[:2], biases[:2], strict=True):
            hidden = functional.max_pool2d(functional.relu(functional.conv2d(hidden, weight, bias, padding=1)), 2)
        hidden = functional.relu(functional.linear(hidden.flatten(1), weights[2], biases[2]))
        return functional.linear(hidden, weights[3], biases[3]).numpy()


def test_versions_learn_and_grow_in_cost(family: Family, digits: Dataset) -> None:
    flops = [version.graph.flops for version in family.networks]
    assert flops == sorted(flops)
    assert [v.name for v in family.networks] == ["small", "medium", "large"]
    scores = {version.name: version.scores for version in family.networks}
    assert scores["medium"]["test_accuracy"] > 0.93
    assert scores["small"]["test_accuracy"] < scores["large"]["test_accuracy"]
    assert scores["large"]["test_accuracy"] == accuracy(family.networks[2].module, digits.test)


def test_same_seed_same_weights(digits: Dataset) -> None:
    first, second, other = (
        train_version("mlp", mlp(digits, (8,)), digits, epochs=1, seed=seed).module.state_dict() for seed in (3, 3, 4)
    )
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not all(np.array_equal(first[name], other[name]) for name in first)


def test_saved_and_loaded_it_answers_alike(family: Family, digits: Dataset, tmp_path: Path) -> None:
    family.save(tmp_path / "digits", config={"data": "digits"}, seed=0)
    loaded = load_model(open_artifact(tmp_path / "digits", "family"))
    for point in family.points:
        x = digits.test.x[:5]
        assert np.array_equal(loaded.forward(x, point), family.forward(x, point))


def test_one_version_alone_has_the_full_point_only(digits: Dataset, tmp_path: Path) -> None:
    alone = Family.of("mlp", [Network("mlp", GraphModule(mlp(digits, (4,))))])
    alone.save(tmp_path / "mlp", config={}, seed=0)
    assert load_model(open_artifact(tmp_path / "mlp", "network")).points == (FULL,)


def test_weights_of_another_graph_are_refused(digits: Dataset, tmp_path: Path) -> None:
    from slotool.artifacts import create_artifact

    with create_artifact(tmp_path / "mixed", "network", config={}) as bundle:
        bundle.write_json("versions.json", [{"name": "a", "graph": mlp(digits, (4,)).document(), "scores": {}}])
        bundle.write_tensors("weights.safetensors", {"a/layers.dense_2.weight": np.zeros((4, 4), np.float32)})
    with pytest.raises(ArtifactError, match="do not fit its graph"):
        load_model(open_artifact(tmp_path / "mixed"))


def test_outcomes_agree_with_the_scores(family: Family, digits: Dataset) -> None:
    outcomes = evaluate(family, digits.test, repeats=1)
    assert outcomes.versions == ["small", "medium", "large"]
    for version, row in zip(family.networks, summary(outcomes), strict=True):
        assert row["accuracy"] == pytest.approx(version.scores["test_accuracy"])
        assert 0 < row["median_latency_s"] < 1
    logits = family.forward(digits.test.x, OperatingPoint.of(version="large"))
    assert outcomes.matrix("confidence")[:, 2] == pytest.approx(confidence(logits), abs=1e-4)
    assert accuracy_by_target(family, digits.test, [0.9], outcomes) == []


def test_a_data_set_of_another_shape_is_refused(family: Family) -> None:
    with pytest.raises(InputError, match=r"expected \[-1, 1, 8, 8\]"):
        evaluate(family, Split(np.zeros((1, 1, 28, 28), np.float32), np.zeros(1, np.int64)))


def test_confidence_is_the_largest_softmax_probability() -> None:
    logits = np.array([[0.0, 0.0], [1000.0, 0.0], [2.0, -np.inf]], dtype=np.float32)
    assert confidence(logits) == pytest.approx([0.5, 1.0, 1.0])
