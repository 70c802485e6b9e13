"""Supernets of a user's own networks: what they answer before training, what is trained, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from slotool.artifacts import open_artifact
from slotool.data import Dataset, load_dataset
from slotool.elastic import load_model
from slotool.elastic.supernets.networks import OwnNetwork
from slotool.elastic.supernets.supernet import Supernet, measure
from slotool.errors import InputError
from slotool.graphs import GraphBuilder
from slotool.graphs.store import write_graphs
from tests.elastic import own_networks

Slotool = Callable[..., Any]
SHARES = {"width": (0.5, 1.0)}
NETWORKS: list[Callable[[], nn.Module]] = [
    own_networks.ResNet,
    own_networks.mobilenet,
    own_networks.mlp,
    own_networks.Transformer,
    own_networks.torch_transformer,
]


def digits() -> Dataset:
    return load_dataset("digits")


@pytest.mark.parametrize("make", NETWORKS)
def test_the_whole_subnet_answers_as_the_network_did(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, data = own_networks.stirred(make()), digits()
    own = OwnNetwork.of_module(module, data)
    space = own.wrapped(drop=2, shares=SHARES)
    assert own.imported is not None
    model = Supernet("own", space, own.imported.module(), own.statistics(space), [space.largest])
    with torch.inference_mode():
        wanted = module(torch.from_numpy(data.test.x)).numpy()
    answers = model.forward(data.test.x, model.full)
    if make is own_networks.mlp:  # it ends in a softmax, which is left out
        answers = torch.from_numpy(answers).softmax(dim=1).numpy()
    np.testing.assert_allclose(answers, wanted, rtol=1e-4, atol=1e-4)

    model.save(tmp_path / "own", config={}, seed=0)
    loaded = load_model(tmp_path / "own")
    np.testing.assert_array_equal(loaded.forward(data.test.x, loaded.full), model.forward(data.test.x, model.full))
    files = {path.suffix for path in (tmp_path / "own").iterdir()}
    assert files == {".json", ".safetensors"}, "the user's code is no part of it"


@pytest.mark.parametrize("make", [own_networks.mobilenet, own_networks.Transformer])
def test_every_subnet_is_the_one_extracted(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    own, x = OwnNetwork.of_module(own_networks.stirred(make()), digits()), digits().train.x[:64]
    space = own.wrapped(drop=2, shares=SHARES)
    rng, norm = np.random.default_rng(0), own.statistics(space)
    subnets = [space.smallest, *(space.draw(rng) for _ in range(3))]
    assert own.imported is not None
    module = own.imported.module()
    measure(space, module, norm, subnets, x)
    model = Supernet("own", space, module, norm, subnets)
    for point, subnet in model.subnets.items():
        with torch.inference_mode():
            alone = model.extract(subnet)(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(model.forward(x, point), alone, rtol=1e-4, atol=1e-4)


def test_another_number_of_classes_starts_the_last_layer_anew() -> None:
    own = OwnNetwork.of_module(own_networks.ResNet(classes=7), digits())
    assert own.graph.output_shape == (10,)
    assert own.imported is not None
    assert own.imported.fresh == "fc"
    with pytest.raises(InputError, match="start at random is trained for at least 1 epoch"):
        own.trained(own.wrapped(drop=2, shares=SHARES), digits(), None)


def test_labels_that_are_no_classes_are_refused() -> None:
    with pytest.raises(InputError, match="digits is labelled by numbers; a supernet is trained on one class"):
        OwnNetwork.of_module(own_networks.ResNet(), replace(digits(), target="numbers"))


class Rolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift, self.fc = nn.Flatten(), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.roll(self.shift(x), 1, dims=1))


class Masked(own_networks.Attention):
    def forward(self, x: Tensor) -> Tensor:
        q = k = v = self.qkv(x).reshape(len(x), -1, 1, 48).transpose(1, 2)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Steep(nn.Module):
    """A slope that no graph has: it is found by running both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(64, 16), nn.LeakyReLU(0.5), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x.flatten(1))))


def masked() -> nn.Module:
    return nn.Sequential(nn.Flatten(2), nn.Linear(64, 16), Masked(16, 4), nn.Flatten(), nn.Linear(48, 10))


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (Rolled(), "layer 'roll' cannot be imported: no operator of a graph computes roll"),
        (masked(), "layer '2' cannot be imported: its attention is masked"),
        (Steep(), "layer 'act' gives other values as an operator of a graph"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "nothing to vary"),
        (nn.Conv2d(3, 4, 3), "Conv2d cannot be traced on inputs"),
        (nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten()), "layer '1' cannot be imported: .* only a dense last layer"),
    ],
)
def test_a_network_that_cannot_be_wrapped_is_refused_by_layer(module: nn.Module, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as refused:
        OwnNetwork.of_module(module, digits()).wrapped(drop=2, shares=SHARES)
    assert "\n" not in str(refused.value)


def test_training_an_own_network_from_the_command_line(
    slotool: Slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("slotool.elastic.supernets.search.SCORED", 5)
    lines = ["import torch", "from tests.elastic.own_networks import ResNet, stirred"]
    lines += ["torch.manual_seed(0)", "net = stirred(ResNet())"]
    Path("mine.py").write_text("\n".join(lines))
    command = ["train", "supernet", "-o", "out", "--data", "digits", "--from", "mine:net", "--points", "3"]
    done = slotool(*command, "--epochs", "2", "--threads", "1", "--json")
    assert done.exit_code == 0, done.stderr
    document = done.document
    assert document["network"] == "mine:net"
    assert document["taken_weights"] > 10_000
    assert document["fresh_layer"] is None
    after, before = (document["points"][-1][key] for key in ("test_accuracy", "test_accuracy_before"))
    assert after > before + 0.2, f"two epochs of digits teach something: {before} to {after}"
    assert open_artifact("out", "supernet").manifest["config"]["network"] == "mine:net"
    kept = slotool(*command, "--epochs", "0", "--threads", "1", "--force")
    assert kept.exit_code == 0, kept.stderr
    assert "weights taken over: " in kept.stdout


def test_a_graph_file_starts_at_random(slotool: Slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotool.elastic.supernets.search.SCORED", 5)
    builder = GraphBuilder("mlp")
    last = builder.add("Flatten", builder.add("InputLayer", shape=[1, 8, 8]))
    last = builder.add("Dense", last, units=32, activation="relu")
    builder.add("Dense", last, units=4, activation="softmax")
    graph = tmp_path / "mlp.jsonl"
    write_graphs(graph, [builder.graph()])
    command = ["train", "supernet", "-o", tmp_path / "s", "--data", "digits", "--points", "2", "--threads", "1"]
    done = slotool(*command, "--graph", graph, "--epochs", "2", "--json")
    assert done.exit_code == 0, done.stderr
    assert done.document["taken_weights"] is None
    assert done.document["points"][-1]["test_accuracy_before"] is None
    assert slotool(*command, "--graph", graph, "--network", "resnet", "--force").exit_code == 2
    write_graphs(graph, [builder.graph(), replace(builder.graph(), name="again")])
    twice = slotool(*command, "--graph", graph, "--force")
    assert (twice.exit_code, "holds 2 networks" in " ".join(twice.stderr.split())) == (2, True)
