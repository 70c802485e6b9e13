"""Capture of what exporters and quantisers write: attention with its batch folded away, recurrent layers, int8."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slotool.graphs import OperatorGraph
from slotool.graphs.capture import capture_onnx, capture_torch
from slotool.profiling.backends.torch_backend import TorchBackend
from tests.graphs.operator_cases import shared_backend

onnx = pytest.importorskip("onnx", reason="onnx is not installed; pip install 'slotool[onnx]'")


def exported(module: nn.Module, *shape: int) -> Any:
    file, fast = io.BytesIO(), torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(module.eval(), (torch.ones(*shape),), file, dynamo=False, opset_version=17)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return onnx.load_model_from_string(file.getvalue())


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def product_flops(graph: OperatorGraph) -> int:
    return sum(operator.flops for operator in graph.operators if operator.op in ("Dense", "MatMul"))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_exported_encoder_is_known_and_runs(batch_size: int) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    graph = capture_onnx(exported(encoder, batch_size, 5, 16))
    assert not graph.unknown
    assert graph.output_shape == (5, 16)
    assert graph.weights == count(encoder)
    assert product_flops(graph) == 2 * (2 * 5 * 16 * (48 + 16 + 24 + 24) + 2 * 2 * 5 * 5 * 16)
    backend = shared_backend(TorchBackend)
    assert backend.array(backend.prepare(graph, 2)()).shape == (2, 5, 16)


class Rolled(nn.Module):
    """Views of an image, shifted by nothing too, as three networks of the demo have them."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(self.network(torch.roll(x, shift, (2, 3))) for shift in ((0, 0), (2, 0), (0, -2)))


def test_values_without_elements_are_left_out() -> None:
    module = Rolled()
    graph = capture_onnx(exported(module, 2, 1, 6, 6))
    assert not graph.unknown
    assert graph.weights == count(module)
    assert product_flops(graph) == 3 * 2 * 64 * 3
    backend = shared_backend(TorchBackend)
    assert backend.array(backend.prepare(graph, 2)()).shape == (2, 3)


class Recurrent(nn.Module):
    def __init__(self, kind: str, last: bool, **options: Any) -> None:
        super().__init__()
        self.layer, self.last = getattr(nn, kind)(6, 4, batch_first=True, **options), last

    def forward(self, x: torch.Tensor) -> Any:
        every, states = self.layer(x)
        return every + states[-1][:, None] if self.last else every


CASES = [
    ("LSTM", "LSTM", False, {}),
    ("LSTM", "LSTM", False, {"num_layers": 2, "bidirectional": True}),
    ("GRU", "GRU", True, {}),
    ("RNN", "SimpleRNN", False, {"bias": False}),
]


@pytest.mark.parametrize(("kind", "op", "last", "options"), CASES)
def test_recurrent_layers_are_known_and_cost_as_in_torch(
    kind: str, op: str, last: bool, options: dict[str, Any]
) -> None:
    module = Recurrent(kind, last, **options)
    graph, other = capture_onnx(exported(module, 2, 5, 6)), capture_torch(module, (5, 6))
    assert not graph.unknown
    assert graph.output_shape == other.output_shape
    assert graph.weights == count(module)
    found = sum(operator.flops for operator in graph.operators if operator.op == op)
    assert found == sum(operator.flops for operator in other.operators if operator.op == op) > 0
    backend = shared_backend(TorchBackend)
    assert backend.array(backend.prepare(graph, 2)()).shape == (2, *graph.output_shape)


@pytest.mark.parametrize("how", ["QDQ", "QOperator", "dynamic"])
def test_a_quantised_file_has_the_products_of_its_original(tmp_path: Path, how: str) -> None:
    tools: Any = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime is not installed")
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(8, 4)),
    )
    first, second = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(exported(module, 1, 3, 8, 8), first)
    if how == "dynamic":
        tools.quantize_dynamic(first, second, weight_type=tools.QuantType.QUInt8)
    else:
        name = onnx.load(first).graph.input[0].name

        batches = iter([{name: np.ones((1, 3, 8, 8), np.float32)}])
        reader = type("Reader", (tools.CalibrationDataReader,), {"get_next": lambda _: next(batches, None)})
        tools.quantize_static(first, second, reader(), quant_format=getattr(tools.QuantFormat, how), per_channel=True)
    graph, quantised = capture_onnx(first), capture_onnx(second)
    assert not quantised.unknown
    assert (graph.element_type, quantised.element_type) == ("float32", "int8")
    assert quantised.weights == graph.weights
    products = [
        {op: [o.flops for o in g.operators if o.op == op] for op in ("Conv2D", "Dense")} for g in (graph, quantised)
    ]
    if how == "dynamic":  # a bias is added behind the product
        assert sum(map(sum, products[1].values())) == sum(map(sum, products[0].values()))
    else:
        assert products[0] == products[1]
        assert quantised.flops == graph.flops


class Positions(nn.Module):
    """Words and positions, of which a text takes as many as it has steps."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.last = nn.Embedding(20, 8), nn.Embedding(50, 8), nn.Linear(8, 8)
        self.register_buffer("numbers", torch.arange(50)[None])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(self.words(tokens) + self.places(self.numbers[:, : tokens.shape[1]]))


def test_weights_of_which_a_part_is_used_are_all_the_networks() -> None:
    module, file = Positions().eval(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (torch.ones(1, 6, dtype=torch.int64),), file, dynamo=False, opset_version=17)
    graph = capture_onnx(onnx.load_model_from_string(file.getvalue()))
    assert not graph.unknown
    assert graph.weights == count(module) == capture_torch(module, (6,), "int64").weights


class Odd(nn.Module):
    """Windows and rows that are folded into the batch, and an axis of several answers before it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.conv = kind, nn.Conv2d(3, 4, 3, 2, 1)
        self.rows = nn.LSTM(3, 5, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> Any:
        if self.kind == "windows":
            tiles = x.unflatten(2, (2, 4)).unflatten(4, (2, 4)).permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
            return self.conv(tiles).unflatten(0, (-1, 4))
        if self.kind == "rows":
            return self.rows(x.permute(0, 2, 3, 1).flatten(0, 1))[0].unflatten(0, (-1, 8))
        return torch.stack([x.mean((2, 3)), x.amax((2, 3))]).mean(0)


@pytest.mark.parametrize("kind", ["windows", "rows", "heads"])
def test_what_exporters_fold_into_the_batch_is_known(kind: str) -> None:
    module = Odd(kind).eval()
    graph, original = capture_onnx(exported(module, 1, 3, 8, 8)), capture_torch(module, (3, 8, 8))
    assert not graph.unknown
    assert (graph.matrix_flops, graph.output_shape) == (original.matrix_flops, original.output_shape)
    assert graph.weights == original.weights
    backend = shared_backend(TorchBackend)
    assert backend.array(backend.prepare(graph, 2)()).shape == (2, *original.output_shape)


class WithFirstStates(nn.Module):
    """Layers that begin with states made of a second input."""

    def __init__(self, kind: str, layers: int, both: bool) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(6, 4, layers, batch_first=True, bidirectional=both)
        self.rows = layers * (1 + both)
        self.first, self.pair = nn.Linear(3, self.rows * 4), kind == "LSTM"

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> Any:
        state = self.first(z).unflatten(1, (self.rows, 4)).transpose(0, 1).contiguous()
        return self.layer(x, (state, state.tanh()) if self.pair else state)[0]


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize(("layers", "both"), [(1, True), (2, False), (2, True)])
def test_states_that_several_layers_or_directions_begin_with_are_followed(kind: str, layers: int, both: bool) -> None:
    from slotool.graphs.onnx_model import onnx_model

    module = WithFirstStates(kind, layers, both)
    graph = capture_torch(module, {"x": (5, 6), "z": (3,)})
    assert not graph.unknown
    assert graph.weights == count(module)
    assert graph.matrix_flops == graph.counted_flops
    again = capture_onnx(onnx_model(graph, 1)[0])
    assert not again.unknown
    assert (again.weights, again.matrix_flops) == (graph.weights, graph.matrix_flops)
    backend = shared_backend(TorchBackend)
    assert backend.array(backend.prepare(graph, 2)()).shape == (2, 5, 4 * (1 + both))


def test_columns_become_images_again() -> None:
    arrays = {"size": np.array([4, 4]), "window": np.array([2, 2])}
    node = onnx.helper.make_node("Col2Im", ["x", *arrays], ["y"], strides=[2, 2])
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", (1, 12, 4)), ("y", (1, 3, 4, 4)))
    )
    constants = [onnx.numpy_helper.from_array(values, name) for name, values in arrays.items()]
    graph = capture_onnx(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y], constants)))
    assert [operator.op for operator in graph.operators] == ["InputLayer", "Fold"]


def test_sizes_that_are_computed_in_floats_are_known() -> None:
    """As padding for a stride is, of an image whose sizes are free."""
    helper = onnx.helper
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ("batch", 3, "height"))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    arrays = {
        "two": np.array([2]), "three": np.array([3]), "half": np.float32([0.5]), "none": np.float32(0),
        "before": np.array([0, 0, 0, 0, 0]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "two", "three"], ["side"]),
        helper.make_node("Cast", ["side"], ["real"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["real", "half"], ["halved"]),
        helper.make_node("Clip", ["halved", "none"], ["clipped"]),
        helper.make_node("Cast", ["clipped"], ["more"], to=onnx.TensorProto.INT64),
        helper.make_node("Concat", ["before", "more"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["y"]),
    ]
    constants = [onnx.numpy_helper.from_array(np.asarray(values), name) for name, values in arrays.items()]
    graph = capture_onnx(helper.make_model(helper.make_graph(nodes, "g", [x], [y], constants)), (3, 8))
    assert not graph.unknown
    assert graph.output_shape == (3, 12)
