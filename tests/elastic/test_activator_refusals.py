"""What Node Activators refuse: bad inputs, networks that are no ReLU chain, too little data, foreign tables."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from slotool.artifacts import create_artifact, open_artifact
from slotool.data.dataset import Split
from slotool.elastic import load_model
from slotool.elastic.slo_nn import importers
from slotool.elastic.slo_nn.build import TableSettings, TableSubject
from slotool.elastic.slo_nn.mlp import MLP
from slotool.elastic.slo_nn.stored import DESCRIPTION_FILE, TABLES_FILE, WEIGHTS_FILE
from slotool.errors import ArtifactError, InputError
from slotool.graphs import GraphBuilder
from slotool.graphs.torch_module import GraphModule
from slotool.tables import FULL
from tests.elastic import numpy_slo_nn
from tests.elastic.activator_subjects import digits, digits_model, mlp_of, random_model, trained


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named_by_row(bad: float) -> None:
    for model in (random_model(), digits_model()):
        x = np.ones((3, *model.input_shape), dtype=np.float32)
        x[2, 0, 0, 1] = bad
        for point in model.points:
            for forward in (model.forward, partial(numpy_slo_nn.forward, model)):
                with pytest.raises(InputError, match="input 2 cannot be answered: it holds NaN or infinite"):
                    forward(x, point)
        with pytest.raises(InputError, match="NaN or infinite"):
            model.confidences(x[2:])
        assert np.isfinite(model.forward(x[:2], model.full)).all(), "a bad query leaves nothing behind"


def test_a_wrong_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"random takes inputs \[batch, 3, 2, 2\], not \[1, 12\]"):
        random_model().forward(np.zeros((1, 12), dtype=np.float32), FULL)
    with pytest.raises(InputError, match="one input at a time, not for 2"):
        random_model().confidences(np.zeros((2, 3, 2, 2), dtype=np.float32))


def chain(*layers: tuple[str, dict[str, object]]) -> GraphModule:
    builder = GraphBuilder()
    last = builder.add("InputLayer", name="input", shape=[1, 4, 4])
    for op, attributes in layers:
        last = builder.add(op, last, **attributes)
    return GraphModule(builder.graph())


def parameters(module: GraphModule) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize(
    ("layers", "sentence"),
    [
        ([("Flatten", {}), ("Dense", {"units": 3})], "no ReLU layer"),
        (
            [("Flatten", {}), ("Dense", {"units": 4, "activation": "tanh", "name": "first"}), ("Dense", {"units": 3})],
            "layer 'first' is of activation tanh",
        ),
        (
            [
                ("Flatten", {}),
                ("Dense", {"units": 4, "activation": "relu"}),
                ("Dense", {"units": 3}),
                ("Softmax", {"name": "probabilities"}),
            ],
            "layer 'probabilities' is Softmax",
        ),
        (
            [("Conv2D", {"filters": 2, "kernel": 3, "name": "conv"}), ("Flatten", {}), ("Dense", {"units": 3})],
            "layer 'conv' is Conv2D",
        ),
        (
            [("Dense", {"units": 4, "activation": "relu", "name": "unflattened"}), ("Dense", {"units": 3})],
            "layer 'unflattened' takes inputs of several axes",
        ),
    ],
)
def test_a_network_that_is_no_relu_chain_is_refused_by_operator(
    layers: list[tuple[str, dict[str, object]]], sentence: str
) -> None:
    module = chain(*layers)
    with pytest.raises(InputError, match=sentence):
        importers.from_graph(module.graph, parameters(module))


def test_a_branch_is_refused() -> None:
    builder = GraphBuilder()
    start = builder.add("Flatten", builder.add("InputLayer", shape=[1, 4, 4]))
    first = builder.add("Dense", start, units=3, activation="relu")
    builder.add("Dense", start, units=3, name="shortcut")
    assert first
    module = GraphModule(builder.graph())
    with pytest.raises(InputError, match="layer 'shortcut' is where the network branches"):
        importers.from_graph(module.graph, parameters(module))


def test_relu_may_be_an_operator_of_its_own_and_bias_may_lack() -> None:
    module = chain(("Flatten", {}), ("Dense", {"units": 4, "bias": False}), ("ReLU", {}), ("Dense", {"units": 3}))
    x = np.random.default_rng(0).normal(size=(6, 1, 4, 4)).astype(np.float32)
    network = importers.from_graph(module.graph, parameters(module))
    with torch.inference_mode():
        plain = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(network.logits(x.reshape(6, -1)), plain, rtol=1e-4, atol=1e-5)


def test_weights_that_are_not_finite_are_refused_by_operator() -> None:
    layers = mlp_of(trained()).layers
    broken = replace(layers[1], weights=np.where(np.arange(112) == 3, np.nan, layers[1].weights).astype(np.float32))
    with pytest.raises(InputError, match=f"operator '{layers[1].name}': a weight is NaN"):
        MLP((1, 8, 8), (layers[0], broken, layers[2]))


def test_too_little_data_other_data_and_bad_data_are_refused() -> None:
    data, network = digits(), mlp_of(trained())
    few = replace(data, train=Split(data.train.x[:20], data.train.y[:20]))
    with pytest.raises(InputError, match="20 train examples are too few"):
        TableSubject(network, few)
    poisoned = data.validation.x.copy()
    poisoned[0, 0, 0, 0] = np.nan
    with pytest.raises(InputError, match="the validation examples hold NaN"):
        TableSubject(network, replace(data, validation=Split(poisoned, data.validation.y)))
    with pytest.raises(InputError, match=r"the network takes inputs \(3, 2, 2\)"):
        TableSubject(random_model().mlp, data)


@pytest.mark.parametrize("shares", [(), (0.0,), (1.0,), (1.5,), (0.5, 0.1), (0.5, 0.5), (float("nan"),)])
def test_a_k_grid_must_be_ascending_fractions(shares: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="k must be ascending fractions between 0 and 1"):
        TableSettings(shares)


def test_tables_built_for_other_weights_are_refused(tmp_path: Path) -> None:
    model = random_model()
    model.save(tmp_path / "good", config={}, seed=0)
    good = open_artifact(tmp_path / "good")
    weights = good.tensors(WEIGHTS_FILE)
    weights["dense_1.weight"] = weights["dense_1.weight"] + np.float32(1e-3)
    for name, tensors, description in (
        ("altered", weights, good.json(DESCRIPTION_FILE)),
        ("torn", {}, good.json(DESCRIPTION_FILE)),
        ("foreign", good.tensors(WEIGHTS_FILE), {**good.json(DESCRIPTION_FILE), "ranker": "astrology"}),
    ):
        with create_artifact(tmp_path / name, "slo-nn", config={}) as bundle:
            bundle.write_json(DESCRIPTION_FILE, description)
            bundle.write_tensors(WEIGHTS_FILE, tensors)
            bundle.write_tensors(TABLES_FILE, good.tensors(TABLES_FILE))
        with pytest.raises(ArtifactError, match="other weights" if name == "altered" else "do not belong together"):
            load_model(open_artifact(tmp_path / name))
