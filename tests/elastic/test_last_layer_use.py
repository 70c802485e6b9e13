"""Networks with tables for their last layer: of any datatype, and in every command that takes an SLO-NN."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import slotool as api
from slotool.commands.elastic.tables_built import LastLayerBuilt
from slotool.data import load_dataset
from slotool.elastic import load_model
from slotool.elastic.slo_nn.importers.torch import cut_module
from slotool.elastic.slo_nn.last_layer import build
from slotool.elastic.slo_nn.last_layer.build import cut
from slotool.elastic.slo_nn.last_layer.model import LastLayerSloNN
from slotool.errors import InputError
from slotool.profiling.backends.elastic_backend import ElasticBackend, ModelAtPoint
from slotool.scheduling import ControlSpace, by_demand
from slotool.serving import ServedModel
from slotool.tables import OutcomeTable
from tests.elastic import last_layer_subjects as subjects
from tests.serving.live_server import live_server

Slotool = Callable[..., Any]
WORDS, LENGTH = 40, 6
IDS = np.random.default_rng(0).integers(WORDS, size=(9, LENGTH)).astype(np.float32)
X = subjects.prototypes()[:9]


class Ids(nn.Module):
    """The mean of its tokens' embeddings, and a class for it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.last = nn.Embedding(WORDS, 8), nn.Linear(8, 260)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.embedded(ids).mean(dim=1))


class Branched(nn.Module):
    """No chain of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.last = nn.Linear(subjects.WIDTH, subjects.WIDTH), nn.Linear(subjects.WIDTH, 260)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + torch.tanh(self.mixed(x)))


@pytest.mark.parametrize("kind", ["torch", "onnx"])
@pytest.mark.parametrize(
    ("module", "dtype", "x"),
    [(Branched, torch.float64, X), (Branched, torch.float16, X), (Ids, torch.int64, IDS)],
    ids=["float64", "float16", "int64"],
)
def test_inputs_of_any_datatype(kind: str, module: type[nn.Module], dtype: Any, x: np.ndarray, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = module().eval()
    network = network.to(dtype) if dtype.is_floating_point else network
    if kind == "torch":
        made = cut_module(network, "mine:net", x.shape[1:], tmp_path)
    else:
        pytest.importorskip("onnxruntime")
        free = {"dynamic_axes": {"x": {0: "n"}, "y": {0: "n"}}, "input_names": ["x"], "output_names": ["y"]}
        example = torch.zeros(1, *x.shape[1:], dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.onnx.export(network, (example,), tmp_path / "net.onnx", dynamo=False, **free)
        made = cut(str(tmp_path / "net.onnx"), x.shape[1:], tmp_path)
    features = made.features(x.shape[1:])
    assert features.model.signature.inputs[0].dtype == torch.zeros(1, dtype=dtype).numpy().dtype
    found = features(x)
    assert found.dtype == np.float32
    with torch.inference_mode():
        wanted = network(torch.from_numpy(x).to(dtype)).float().numpy()
    close = 3e-2 if dtype == torch.float16 else 1e-4
    np.testing.assert_allclose(found @ made.layer.weights.T + made.layer.bias, wanted, rtol=close, atol=close)
    np.testing.assert_allclose(features(x[:1]), found[:1], rtol=close, atol=close)


def test_inputs_of_keras_networks_of_whole_numbers(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    inputs = keras.Input((LENGTH,), dtype="int32")
    mean = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(WORDS, 8)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(260)(mean))
    model.save(tmp_path / "net.keras")
    made = cut(str(tmp_path / "net.keras"), (LENGTH,), tmp_path)
    found = made.features((LENGTH,))(IDS)
    np.testing.assert_allclose(found @ made.layer.weights.T + made.layer.bias, model.predict(IDS, verbose=0), atol=1e-5)


@pytest.mark.parametrize(("dtype", "value"), [(torch.int64, 0.5), (torch.int64, 1e30), (torch.float16, 1e6)])
def test_values_that_the_datatype_does_not_hold_are_refused(dtype: Any, value: float, tmp_path: Path) -> None:
    network, x = (Ids(), IDS) if dtype == torch.int64 else (Branched().half(), X)
    features = cut_module(network.eval(), "mine:net", x.shape[1:], tmp_path).features(x.shape[1:])
    with pytest.raises(InputError, match=r"input \w+ is \w+\[-1, \d+\], which .* does not fit"):
        features(np.full_like(x, value))


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artifact ``near`` and its data."""
    folder = tmp_path_factory.mktemp("near")
    data = subjects.write_data(folder / "near.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "TIMED_S", 0.05)
        source = "tests.elastic.last_layer_subjects:seeded"
        made = api.build_tables(
            source, folder / "near", data=str(data), ranker="clusters", last_layer=True, k=(8 / 300, 0.2), bits=4
        )
    assert isinstance(made, LastLayerBuilt)
    return folder


def test_it_is_evaluated_also_by_accuracy_targets(near: Path, slotool: Slotool, tmp_path: Path) -> None:
    out = tmp_path / "o.parquet"
    done = slotool(
        "evaluate", near / "near", "-o", out, "--repeats", "1", "--limit", "60", "--targets", "0.5,1", "--json"
    )
    assert done.exit_code == 0, done.stderr
    assert [row["target"] for row in done.document["accuracy_targets"]] == [0.5, 1.0]
    assert done.document["promise"]["examples"] == 600
    model, x = load_model(str(near / "near")), load_dataset(str(near / "near.npz")).test
    assert isinstance(model, LastLayerSloNN)
    outcomes = OutcomeTable.load(out)
    wrong = model.top(x.x[:60], point=model.points[0])[0][:, 0] != x.y[:60]
    np.testing.assert_array_equal(outcomes.matrix("error")[:, 0], wrong)


def test_its_points_are_profiled(near: Path) -> None:
    """Shares of 300 nodes have more digits than their names."""
    backend, points = ElasticBackend(), load_model(str(near / "near")).points
    assert any(point.get("k") == pytest.approx(8 / 300) for point in points)
    for point in points:
        subject = backend.open({"path": str(near / "near"), "point": point.key})
        assert backend.prepare(subject, 2)().shape == (2, subjects.CLASSES)


def test_networks_of_whole_numbers_are_profiled_on_such(near: Path, tmp_path: Path) -> None:
    model = load_model(str(near / "near"))
    assert isinstance(model, LastLayerSloNN)
    features = cut_module(Ids().eval(), "mine:net", (LENGTH,), tmp_path).features((LENGTH,))
    ids = LastLayerSloNN("ids", features, model.head, tmp_path / "front.pt2")
    assert ids.whole_inputs
    ids.forward = lambda x, point: ids.features(x)  # its tables are of another width
    subject = ModelAtPoint(ids, ids.full)
    assert ElasticBackend().prepare(subject, 3)().shape == (3, 8)


def test_it_is_served_and_loaded(near: Path, tmp_path: Path) -> None:
    model = load_model(str(near / "near"))
    with live_server([ServedModel("near", model, by_demand(ControlSpace(model.points)))]) as server:
        data = str(near / "near.npz")
        found = api.loadtest(server.url, data=data, rate=40, duration_s=0.5, deadline_ms=5_000)
    assert found.document["answered"] == found.document["requests"] > 5
    assert found.document["effective_accuracy"] > 0.9
