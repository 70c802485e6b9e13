"""Trained networks of PyTorch and Keras become chains of dense layers with the same logits, or one sentence."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slotool.elastic.network import Network
from slotool.elastic.slo_nn import importers
from slotool.elastic.slo_nn.importers.chain import in_shape
from slotool.errors import InputError

Slotool = Callable[..., Any]
SHAPE = (1, 6, 5)


def inputs(shape: tuple[int, ...] = SHAPE, n: int = 20) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, *shape)).astype(np.float32)


def normalised(features: int) -> Any:
    """A batch normalisation that has seen data."""
    layer = nn.BatchNorm1d(features)
    layer.train()
    layer(torch.randn(64, features) * 3 + 1)
    with torch.no_grad():
        layer.weight.uniform_(-1, 2)
        layer.bias.uniform_(-1, 1)
    return layer.eval()


class Own(nn.Module):
    """A forward of its own: functional calls, inputs scaled by constants, a matrix product in place of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(30, 12)
        self.weight = nn.Parameter(torch.randn(12, 4))
        self.register_buffer("mean", torch.randn(30))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first((x.flatten(1) - self.mean) / 2.5))
        return hidden @ self.weight + 1.5


def sequential() -> nn.Module:
    hidden = [nn.Flatten(), normalised(30), nn.Linear(30, 16), normalised(16), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*hidden, nn.Linear(16, 8, bias=False), nn.ReLU(), normalised(8), nn.Linear(8, 3))


@pytest.mark.parametrize("make", [sequential, Own])
def test_a_torch_module_keeps_its_logits_and_its_mode(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = make().train()
    mlp = importers.from_torch(module, SHAPE)
    assert module.training
    with torch.inference_mode():
        expected = module.eval()(torch.from_numpy(inputs())).numpy()
    np.testing.assert_allclose(mlp.logits(inputs().reshape(20, -1)), expected, rtol=1e-4, atol=1e-4)
    version = Network.of_mlp("v", mlp)
    with torch.inference_mode():
        np.testing.assert_allclose(version.module(torch.from_numpy(inputs())), expected, rtol=1e-4, atol=1e-4)
    assert version.mlp.fingerprint == mlp.fingerprint


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(30, 30), nn.Linear(30, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        return self.other(torch.relu(self.one(flat)) + flat)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(30, 3)), "no ReLU layer"),
        (nn.Sequential(nn.Flatten(), nn.Linear(30, 8), nn.Linear(8, 3)), "follows '1' without a ReLU"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(30, 8), nn.Tanh(), nn.Linear(8, 3)),
            "is of activation tanh; Node Activators take",
        ),
        (
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)),
            "is Conv2D; Node Activators take dense layers",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 3), nn.ReLU()),
            "must end with plain logits",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(31, 8), nn.ReLU(), nn.Linear(8, 3)), "cannot be traced on inputs"),
        (Branching(), "where the network branches"),
    ],
)
def test_a_torch_module_that_is_no_chain_is_refused(module: nn.Module, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        importers.from_torch(module, SHAPE)


def test_a_last_softmax_is_left_out() -> None:
    torch.manual_seed(1)
    chain = nn.Sequential(nn.Flatten(), nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 3))
    mlp = importers.from_torch(nn.Sequential(chain, nn.Softmax(dim=1)), SHAPE)
    with torch.inference_mode():
        expected = chain(torch.from_numpy(inputs())).numpy()
    np.testing.assert_allclose(mlp.logits(inputs().reshape(20, -1)), expected, rtol=1e-4, atol=1e-5)


def test_inputs_of_another_shape_with_the_same_values_in_the_same_order() -> None:
    mlp = importers.from_torch(nn.Sequential(nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 3)), (30,))
    assert in_shape(mlp, SHAPE).input_shape == SHAPE
    assert in_shape(in_shape(mlp, SHAPE), (6, 5)).input_shape == (6, 5)
    assert in_shape(in_shape(mlp, SHAPE), (5, 6)).input_shape == SHAPE, "not in the same order"
    assert in_shape(mlp, (31,)).input_shape == (30,)


def keras_models() -> dict[str, Any]:
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    layers = keras.layers
    keras.utils.set_random_seed(0)
    sequential = keras.Sequential(
        [
            keras.Input((6, 5, 2)),
            layers.Rescaling(1 / 255, offset=0.1),
            layers.Flatten(),
            layers.Dense(16),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.3),
            keras.Sequential([layers.Dense(8, activation="relu"), layers.BatchNormalization()]),
            layers.Dense(3, use_bias=False),
        ]
    )
    start = keras.Input((30,))
    hidden = layers.Activation("relu")(layers.Dense(12)(start))
    functional = keras.Model(start, layers.Dense(4, activation="softmax")(hidden))
    for model in (sequential, functional):
        rng = np.random.default_rng(1)
        for variable in model.variables:
            if not variable.name.startswith("seed"):
                variable.assign(rng.uniform(0.1, 1.5, size=variable.shape))
    return {"sequential": sequential, "functional": functional}


def test_keras_models_keep_their_logits_and_others_are_refused() -> None:
    models = keras_models()
    images = inputs((6, 5, 2))
    mlp = importers.from_keras(models["sequential"])
    assert mlp.input_shape == (2, 6, 5), "channels come first"
    expected = np.asarray(models["sequential"](images, training=False))
    found = mlp.logits(images.transpose(0, 3, 1, 2).reshape(20, -1))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    logits = importers.from_keras(models["functional"]).logits(inputs((30,)))
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    expected = np.asarray(models["functional"](inputs((30,)), training=False))
    np.testing.assert_allclose(odds / odds.sum(axis=1, keepdims=True), expected, rtol=1e-3, atol=1e-5)

    import keras

    start = keras.Input((30,))
    for output, sentence in (
        (keras.layers.Dense(3)(keras.layers.Dense(8, activation="gelu")(start)), "of activation gelu"),
        (keras.layers.Dense(3)(start), "no ReLU layer"),
        (keras.layers.Add()([keras.layers.Dense(30, activation="relu")(start), start]), "where the network branches"),
    ):
        with pytest.raises(InputError, match=sentence):
            importers.from_keras(keras.Model(start, output))


def test_build_tables_takes_a_module_by_name(slotool: Slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets_for_tables.py").write_text(
        "from torch import nn\n"
        "def plain(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))\n"
        "def rows(): return plain()[1:]\n"
        "def bare(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    for network in ("plain", "rows"):  # rows takes 64 numbers where the data have images of 8 × 8
        source = f"nets_for_tables:{network}"
        planned = slotool("build-tables", source, "--data", "digits", "-o", "t", "--dry-run", "--json")
        # What is fastest on this machine, by a measurement; on some, int8 kernels beat every k.
        assert planned.exit_code == (planned.document["verdict"] is not None), planned.stderr
        assert planned.document["schema"] == "slotool/build-tables-plan"
        assert planned.document["most_table_bytes"] > 0
        assert not (tmp_path / "t").exists()
    for arguments, code, sentence in (
        # Its last layer is all it has: a verdict, with what was measured, and no error.
        (["nets_for_tables:bare", "--data", "digits"], 1, "no ReLU layer"),
        (["nets_for_tables:plain"], 2, "does not say what it was trained on"),
        (["nets_for_tables:absent", "--data", "digits"], 2, "has no absent"),
    ):
        done = slotool("build-tables", *arguments, "-o", "t")
        assert done.exit_code == code
        assert sentence in " ".join(done.stderr.replace("│", " ").split())


def test_a_class_that_does_not_occur_is_no_obstacle_for_a_chain(
    slotool: Slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels by a Zipf law lack many of a network's classes; those that occur keep their numbers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zipf_nets.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def rare():\n"
        "    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 300)).eval()\n"
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 12)).astype(np.float32)
    monkeypatch.syspath_prepend(tmp_path)
    rare = importlib.import_module("zipf_nets").rare

    with torch.inference_mode():
        y = rare()(torch.from_numpy(x)).argmax(dim=1).numpy()
    assert len(set(y)) < 300
    np.savez(tmp_path / "zipf.npz", x=x, y=y)
    command = ["build-tables", "zipf_nets:rare", "--data", "zipf.npz", "-o", "t", "--ranker", "clusters", "--json"]
    done = slotool(*command)
    assert done.exit_code == int(done.document["verdict"] is not None), done.stderr
    assert done.document["points"][-1]["accuracy"] == 1.0
    evaluated = slotool("evaluate", "t", "-o", "o.parquet", "--data", "zipf.npz", "--repeats", "1", "--json")
    assert evaluated.document["points"][-1]["accuracy"] == 1.0
