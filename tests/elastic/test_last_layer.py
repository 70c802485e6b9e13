"""Tables for the last layer of a network that torch, ONNX Runtime or Keras runs up to there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slotool.data import load_dataset
from slotool.elastic import load_model
from slotool.elastic.slo_nn.importers.torch import cut_module
from slotool.elastic.slo_nn.last_layer import build
from slotool.elastic.slo_nn.last_layer.build import LastLayerSource, cut
from slotool.elastic.slo_nn.last_layer.model import LastLayerSloNN
from slotool.errors import InputError
from tests.elastic import last_layer_subjects as subjects
from tests.elastic import numpy_slo_nn

Slotool = Callable[..., Any]


def written(kind: str, folder: Path) -> str:
    """The same network as ``build-tables`` takes it."""
    if kind == "torch":
        return "tests.elastic.last_layer_subjects:seeded"
    pytest.importorskip({"onnx": "onnxruntime", "keras": "keras"}[kind])
    return str({"onnx": subjects.write_onnx, "keras": subjects.write_keras}[kind](folder / f"near.{kind}"))


@pytest.mark.parametrize("kind", ["torch", "onnx", "keras"])
def test_all_nodes_give_what_the_network_gives(
    slotool: Slotool, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "TIMED_S", 0.1)
    data, out = subjects.write_data(tmp_path / "near.npz"), tmp_path / "near"
    source = written(kind, tmp_path)
    command = ["build-tables", source, "-o", out, "--data", data, "--ranker", "clusters", "--weight-dtype", "float32"]
    done = slotool(*command, "--json")
    # Whether these few examples promise a loss is no matter here.
    assert done.exit_code == int(done.document["verdict"] is not None), done.stderr
    assert "so only the last layer gets tables" in " ".join(done.stderr.split())
    document = done.document
    assert document["runtime"] == {"torch": "PyTorch", "onnx": "ONNX Runtime", "keras": "Keras"}[kind]
    assert document["nodes"] == 300
    assert document["points"][-1]["accuracy"] > 0.9
    assert all(document[key] > 0 for key in ("whole_us", "front_us", "full_us", "promised_us"))
    others = {row["way"]: row for row in document["alternatives"]}
    assert "all nodes, int8" in others
    # Labels are drawn evenly, so that no short list keeps the loss: how long a one was tried is said.
    assert not any("most popular" in way for way in others)
    assert document["longest_list_tried"] == max(point["nodes"] for point in document["points"][:-1])
    assert any("ONNX Runtime int8" in way for way in others) == (kind == "onnx")
    for row in others.values():
        assert row["latency_us"] > 0
        assert row["difference"] == pytest.approx(row["accuracy"] - document["points"][-1]["accuracy"])
        assert abs(row["difference"]) < 0.1
        assert 0 <= row["promised_loss"] <= 1

    x, model = load_dataset(str(data)).test.x[:50], load_model(out)
    assert isinstance(model, LastLayerSloNN)
    torch.manual_seed(0)
    with torch.inference_mode():
        wanted = subjects.Nearest()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(model.forward(x, model.full), wanted, rtol=1e-4, atol=1e-4)
    few = model.forward(x, model.points[0])
    computed = np.isfinite(few)
    np.testing.assert_array_equal(
        computed, np.isfinite(numpy_slo_nn.forward(model.head, model.features(x), model.points[0]))
    )
    assert 0 < computed.sum() < computed.size / 2
    np.testing.assert_allclose(few[computed], wanted[computed], rtol=1e-3, atol=1e-3)
    labels, _ = model.top(x, 3, point=model.full)
    np.testing.assert_array_equal(labels, np.argsort(-wanted, axis=1, kind="stable")[:, :3])


class Convolutional(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (Convolutional(), "the last layer 'mean' is mean, not a linear layer on features"),
        (
            nn.Sequential(nn.Unflatten(1, (3, 2, 2)), nn.Linear(2, 2)),
            "the last layer '1' is linear, not a linear layer on",
        ),
        (nn.Linear(5, 2), "cannot be traced on inputs"),
    ],
)
def test_a_network_without_a_last_dense_layer_is_refused(module: nn.Module, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        cut_module(module, "mine:net", (12,), tmp_path)


def test_a_network_of_other_classes_is_refused(tmp_path: Path) -> None:
    data = load_dataset("digits")
    made = cut_module(nn.Sequential(nn.Flatten(), nn.Linear(64, 7)), "mine:net", data.input_shape, tmp_path)
    with pytest.raises(
        InputError, match="has 7 classes, and digits has 10 labels, not all of them numbers from 0 to 6: '7'"
    ):
        LastLayerSource(made, data)


@pytest.mark.parametrize("shape", [(8, 8, 1), (64,), (8, 8)])
def test_images_are_given_as_the_network_takes_them(shape: tuple[int, ...], tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    layers = [keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input(shape), *layers])
    model.save(tmp_path / "net.keras")
    data = load_dataset("digits")
    source = LastLayerSource(cut(str(tmp_path / "net.keras"), data.input_shape, tmp_path), data)
    np.testing.assert_allclose(source.features(data.test.x[:5]), data.test.x[:5].reshape(5, 64), rtol=1e-6)


def test_a_failing_module_ends_in_one_sentence(slotool: Slotool, tmp_path: Path) -> None:
    """torch's own remarks about a trace that failed are none for users."""
    (tmp_path / "broken.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n        raise ValueError('mine')\n"
    )
    done = slotool("build-tables", f"{tmp_path / 'broken.py'}:Net", "-o", tmp_path / "s", "--data", "digits")
    assert done.exit_code == 2
    assert "cannot be traced on inputs" in done.stderr
    assert len(done.stderr.splitlines()) == 1
