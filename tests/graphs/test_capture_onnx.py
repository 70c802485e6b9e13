"""Capture from ONNX: the graph that the model was written from, and the one that the same network gives in torch."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from slotool.errors import GraphError, MissingPackageError
from slotool.graphs import GraphBuilder, Operator, OperatorGraph
from slotool.graphs.architectures import ARCHITECTURES
from slotool.graphs.capture import capture_onnx, capture_torch
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.generators import RandomGraphs
from slotool.graphs.store import read_graphs
from slotool.profiling.backends.torch_backend import TorchBackend
from tests.graphs.graph_strategies import graphs
from tests.graphs.operator_cases import shared_backend

onnx = pytest.importorskip("onnx", reason="onnx is not installed; pip install 'slotool[onnx]'")
helper = onnx.helper


def written(graph: OperatorGraph, batch_size: int = 1) -> Any:
    from slotool.graphs.onnx_model import onnx_model

    return onnx_model(graph, batch_size)[0]


@settings(max_examples=25, deadline=None)
@given(family=st.sampled_from(["mlp", "cnn"]), seed=st.integers(0, 10_000), batch_size=st.integers(1, 3))
def test_random_networks_survive_onnx_and_back(family: str, seed: int, batch_size: int) -> None:
    (graph,) = RandomGraphs(family, 1, seed=seed, max_memory_bytes=30_000_000)
    captured = capture_onnx(written(graph, batch_size))
    assert captured.id == graph.id
    assert captured.kind == "onnx"


@settings(max_examples=80, deadline=None)
@given(graphs())
def test_a_graph_of_any_operators_survives_as_every_capture_would_write_it(graph: OperatorGraph) -> None:
    captured = capture_onnx(written(graph, 2))
    assert captured.output_shape == graph.output_shape
    if not any(map(is_lost, graph.operators)):
        assert captured.id == as_captured(graph).id
        assert captured.weights == graph.weights


def is_lost(operator: Operator) -> bool:
    """ONNX has no operator that normalises without counting, none that normalises steps along their last axis, and a
    product with one weight may be one with any number."""
    steps_normalised = operator.op == "BatchNormalization" and len(operator.shape) == 2
    return operator.op == "Normalization" or steps_normalised or (operator.op == "LayerScale" and operator.weights == 1)


def as_captured(graph: OperatorGraph) -> OperatorGraph:
    """The graph with activations folded, what does nothing dropped, and separable convolutions taken apart."""
    drafts, names = Drafts("onnx"), {}
    for operator in graph.operators:
        inputs = [names[name] for name in operator.inputs]
        names[operator.name] = add_as_captured(drafts, operator, inputs)
    return drafts.graph([names[graph.operators[-1].name]], "onnx")


def add_as_captured(drafts: Drafts, operator: Operator, inputs: list[str]) -> str:
    op, shape = operator.op, operator.shape
    attributes = {key: value for key, value in operator.attributes.items() if key != "activation"}
    activation = operator.attributes.get("activation")
    shapes = [drafts.shape(name) for name in inputs]
    if op == "Activation" or (op in ("Flatten", "Reshape", "Cropping2D") and shapes[0] == shape):
        last = inputs[0]
    elif op == "SeparableConv2D":
        filters = attributes.pop("filters")
        bias = attributes.pop("bias", True)
        middle = replace(operator, op="DepthwiseConv2D", attributes={**attributes, "bias": False})
        wide = (shapes[0][0] * attributes.get("multiplier", 1), *shape[1:])
        last = add_as_captured(drafts, replace(middle, shape=wide), inputs)
        last = drafts.add(operator.name, "Conv2D", [last], {"filters": filters, "kernel": 1, "bias": bias}, shape)
    elif op == "DepthwiseConv2D" and shapes[0][0] == 1:
        del (kept := {"multiplier": 1, **attributes})["multiplier"]
        last = drafts.add(operator.name, "Conv2D", inputs, {**kept, "filters": shape[0]}, shape)
    elif op == "Conv2D" and 1 < attributes.get("groups", 1) == shapes[0][0]:
        kept = {key: value for key, value in attributes.items() if key not in ("groups", "filters")}
        multiplier = attributes["filters"] // shapes[0][0]
        last = drafts.add(operator.name, "DepthwiseConv2D", inputs, {**kept, "multiplier": multiplier}, shape)
    else:
        last = drafts.add(operator.name, op, inputs, attributes, shape)
    return drafts.add_activation(operator.name, activation, [last], shape) if activation else last


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_onnxruntime_and_torch_compute_the_same_from_the_same_weights(graph: OperatorGraph) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; pip install 'slotool[onnx]'")
    from slotool.profiling.backends.onnx_backend import OnnxBackend

    # A rescaling's number is no part of a graph.
    if any(o.op == "Rescaling" for o in graph.operators):
        return
    backends = map(shared_backend, (OnnxBackend, TorchBackend))
    found, wanted = (backend.array(backend.prepare(graph, 2)()) for backend in backends)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(scale)


class Flat(nn.Module):
    """Sizes that an exporter with a free batch computes at run time, a concatenation and a scaling."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([x, x * 2], dim=1)
        return x.view(x.size(0), -1)


def small_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.Hardswish()),
        *(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.SiLU(), nn.Mish(), Gate(8), nn.MaxPool2d(3, 2, 1), nn.ReLU6()),
        *(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(8, 16, (3, 5)), nn.LeakyReLU(), nn.AvgPool2d(2), nn.GELU(), Flat()),
        *(nn.Dropout(), nn.Linear(192, 12), nn.Tanh(), nn.Linear(12, 10), nn.Softmax(dim=1)),
    )


def exported(module: nn.Module, *shape: int, **options: Any) -> Any:
    """By the exporter that needs no other package; nothing is folded, so that both have the same layers."""
    file = io.BytesIO()
    plain = {"dynamo": False, "do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(module.eval(), (torch.zeros(shape),), file, **plain, **options)
        except ModuleNotFoundError as error:
            pytest.skip(f"torch exports ONNX only with {error.name}, which is not installed")
    return onnx.load_model_from_string(file.getvalue())


@pytest.mark.parametrize(
    ("batch_size", "options"),
    [
        (1, {}),
        (3, {"opset_version": 11}),
        (1, {"opset_version": 20}),
        (1, {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}),
    ],
)
def test_one_cnn_in_torch_and_exported_is_one_graph(batch_size: int, options: dict[str, Any]) -> None:
    module = small_cnn()
    captured = capture_onnx(exported(module, batch_size, 3, 32, 32, **options))
    assert captured.id == capture_torch(module, (3, 32, 32)).id
    assert not captured.unknown


class Block(nn.Module):
    """What a ConvNeXt is made of: it turns its image to channels last and back."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(nn.functional.gelu(self.up(self.norm(x.permute(0, 2, 3, 1)))))
        return x + y.permute(0, 3, 1, 2)


def test_images_with_channels_last_are_followed() -> None:
    captured = capture_onnx(exported(Block(), 2, 8, 6, 5, opset_version=17))
    assert [(o.op, o.shape) for o in captured.operators] == [
        ("InputLayer", (8, 6, 5)),
        ("LayerNormalization", (8, 6, 5)),
        ("Conv2D", (32, 6, 5)),
        ("Conv2D", (8, 6, 5)),
        ("Add", (8, 6, 5)),
    ]
    assert captured.operators[2].attributes == {"filters": 32, "kernel": 1, "activation": "gelu"}
    assert captured.weights == sum(p.numel() for p in Block().parameters())


def model_of(nodes: list[Any], shape: list[Any], weights: dict[str, np.ndarray] | None = None, opset: int = 17) -> Any:
    """A model of these nodes; their first input is ``x``, the last one's first output the model's."""
    kept = [onnx.numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    ends = [helper.make_tensor_value_info("x", 1, shape)], [helper.make_tensor_value_info(nodes[-1].output[0], 1, None)]
    return helper.make_model(
        helper.make_graph(nodes, "net", *ends, kept), opset_imports=[helper.make_opsetid("", opset)]
    )


def conv(**attributes: Any) -> Any:
    weights = {"w": np.ones((4, 3, 3, 3), np.float32)}
    return model_of([helper.make_node("Conv", ["x", "w"], ["y"], **attributes)], ["n", 3, 8, 8], weights)


@pytest.mark.parametrize(
    ("attributes", "padding"),
    [
        ({}, None),
        ({"auto_pad": "VALID"}, None),
        ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, "same"),
        ({"pads": [0, 0, 1, 1], "strides": [2, 2]}, "same"),
        ({"pads": [2, 0, 2, 0]}, (2, 0)),
        ({"auto_pad": "SAME_LOWER"}, "same"),
        ({"auto_pad": "SAME_LOWER", "strides": [2, 2]}, (1, 0, 1, 0)),
        ({"pads": [0, 1, 2, 3]}, (0, 2, 1, 3)),
    ],
)
def test_every_way_of_padding_is_understood(attributes: dict[str, Any], padding: Any) -> None:
    model = conv(**attributes)
    captured = capture_onnx(model)
    *before, last = captured.operators[1:]
    if isinstance(padding, tuple) and len(padding) == 4:
        assert [dict(o.attributes) for o in before] == [{"padding": padding}]
        assert "padding" not in last.attributes
    else:
        assert before == []
        assert last.attributes.get("padding") == padding
    inferred = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape.dim
    assert last.shape == tuple(size.dim_value for size in inferred[1:])


def test_unknown_operators_are_kept_with_their_shapes_and_weights(slotool, tmp_path: Path) -> None:
    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(torch.ones(5, 5))
            self.grid = nn.Parameter(torch.zeros(1, 4, 4, 2))
            self.head = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.grid_sample(x + self.position, self.grid, align_corners=False)
            first, second = self.head(x).chunk(2, dim=-1)
            return torch.cat([second, first], dim=-1).cumsum(1) ** 2.0

    module = Strange()
    model = exported(module, 1, 2, 5, 5, input_names=["x"])
    graph = capture_onnx(model)
    unknown = {operator.op: operator for operator in graph.unknown}
    assert set(unknown) == {"onnx.GridSample"}
    assert (unknown["onnx.GridSample"].flops, unknown["onnx.GridSample"].weights) == (0, 32)
    assert [o.weights for o in graph.operators if o.op == "Constant"] == [25]
    assert {"Add", "Cropping2D", "CumulativeSum"} <= {operator.op for operator in graph.operators}
    assert graph.weights == sum(p.numel() for p in module.parameters())
    assert graph.output_shape == (2, 4, 4)
    assert OperatorGraph.from_document(graph.document()).id == graph.id
    onnx.save(model, tmp_path / "strange.onnx")
    finished = slotool("capture", "--onnx", tmp_path / "strange.onnx", "--json")
    assert finished.exit_code == 0
    assert "no backend can run the graph" in finished.stderr
    assert "onnx.GridSample" in finished.stderr


def test_weights_beside_the_file_are_not_needed_and_a_loaded_model_is_left_as_it_was(tmp_path: Path) -> None:
    (graph,) = RandomGraphs("mlp", 1, seed=3, max_memory_bytes=1_000_000)
    model = written(graph)
    values = {tensor.name: np.zeros(tuple(tensor.dims), np.float32) for tensor in model.graph.initializer}
    del model.graph.initializer[:]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in values.items())
    before = model.SerializeToString()
    assert capture_onnx(model).id == graph.id
    assert model.SerializeToString() == before
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="net.weights", size_threshold=0)
    (tmp_path / "net.weights").unlink()
    assert capture_onnx(path).id == graph.id


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_networks_that_people_use_come_back_with_their_costs(name: str, batch_size: int) -> None:
    """Attention is written out in ONNX, so there are other operators; which there are is the same in any batch."""
    kind = ARCHITECTURES[name]
    graph = kind.graph((0,) * len(kind.sizes))
    captured = capture_onnx(written(graph, batch_size))
    assert not captured.unknown
    assert captured.output_shape == graph.output_shape
    assert captured.matrix_flops == graph.matrix_flops
    assert captured.weights == pytest.approx(graph.weights, rel=0.01)
    assert captured.id == capture_onnx(written(graph, 2)).id


def test_several_inputs_of_several_types_are_captured_and_run() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            x = self.table(ids)
            scores = (x @ x.transpose(1, 2)).masked_fill(mask[:, None, :] == 0, -1e9)
            first, second = (scores.softmax(-1) @ x).split([5, 3], dim=-1)
            return self.head(torch.cat([second, first], -1).mean(1))

    buffer = io.BytesIO()
    whole = torch.ones(1, 6, dtype=torch.int64)
    names = {"input_names": ["ids", "mask"], "dynamic_axes": {"ids": {0: "n"}, "mask": {0: "n"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Masked().eval(), (whole, whole), buffer, dynamo=False, **names)
    graph = capture_onnx(onnx.load_model_from_string(buffer.getvalue()))
    assert [(o.shape, o.attributes["dtype"]) for o in graph.inputs] == [((6,), "int64")] * 2
    assert not graph.unknown
    assert graph.matrix_flops == 2 * (2 * 6 * 6 * 8) + 2 * 8 * 3
    assert graph.weights == 20 * 8 + 8 * 3 + 3
    backend = shared_backend(TorchBackend)
    assert backend.array(backend.prepare(graph, 2)()).shape == (2, 3)


def relu(*names: str, domain: str = "") -> Any:
    return helper.make_node("Relu" if not domain else "Wavelet", [names[0]], [names[1]], name="act", domain=domain)


def foreign_operator() -> Any:
    model = model_of([relu("x", "y", domain="com.acme")], [1, 4])
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    return model


REFUSED = {
    "free axis": (
        lambda: model_of([relu("x", "y")], ["n", 3, "h", None]),
        "its input 'x' has a free axis in its shape [n, 3, h, ?]",
    ),
    "no such value": (
        lambda: model_of([relu("q", "y")], [1, 4]),
        "node 'act' takes 'q', which no node before it makes",
    ),
    "foreign operator": (
        foreign_operator,
        "node 'act' (com.acme.Wavelet) has an output whose shape cannot be inferred",
    ),
    "no stride": (
        lambda: model_of(
            [helper.make_node("MaxPool", ["x"], ["y"], name="p", kernel_shape=[2], strides=[0])], [1, 2, 4]
        ),
        "node 'p' has strides of [0], where each must be at least 1",
    ),
    "how many": (
        lambda: model_of([helper.make_node("NonZero", ["x"], ["y"], name="n")], [1, 4]),
        "node 'n' (NonZero) has an output whose shape cannot be inferred",
    ),
    "nothing": (lambda: model_of([helper.make_node("Identity", ["x"], ["y"])], [1, 4]), "computes nothing from its"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_have_no_graph_are_explained(slotool, tmp_path: Path, name: str) -> None:
    make, sentence = REFUSED[name]
    path = tmp_path / "net.onnx"
    onnx.save(make(), path)
    with pytest.raises(GraphError) as caught:
        capture_onnx(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert slotool("capture", "--onnx", path, "-o", tmp_path / "net.jsonl").exit_code == 2
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_hold_no_model_are_explained(tmp_path: Path) -> None:
    onnx.save(conv(), tmp_path / "net.onnx")
    whole = (tmp_path / "net.onnx").read_bytes()
    for name, content in {"torn": whole[: len(whole) // 2], "text": b"hello\n", "empty": b""}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(GraphError, match="not an ONNX model"):
            capture_onnx(tmp_path / name)
    for path, sentence in ((tmp_path, "a folder"), (tmp_path / "none.onnx", "no such file")):
        with pytest.raises(GraphError, match=sentence):
            capture_onnx(path)


def test_capture_and_predict_take_a_file(slotool, tmp_path: Path) -> None:
    (graph,) = RandomGraphs("mlp", 1, seed=5, max_memory_bytes=4_000_000)
    path, out = tmp_path / "net.onnx", tmp_path / "net.jsonl"
    onnx.save(written(graph), path)
    finished = slotool("capture", "--onnx", path, "-o", out, "--json")
    assert finished.exit_code == 0, finished.stderr
    assert finished.document["graph_id"] == graph.id
    assert [read.id for read in read_graphs(out)] == [graph.id]
    assert slotool("capture", "--onnx", path, "--keras", "VGG16").exit_code == 2
    predictor = Path(__file__).parents[2] / "models" / "predictor"
    if not predictor.exists():
        pytest.skip("no predictor is shipped beside these tests")
    predicted, same = (
        slotool("predict", predictor, *source, "--json").document["predictions"]
        for source in (["--onnx", path], ["--graph", out])
    )
    assert predicted == same
    assert slotool("predict", predictor, "--onnx", path, "--graph", out).exit_code == 2


def test_without_onnx_a_sentence_says_what_to_install(slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(conv(), tmp_path / "net.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingPackageError, match=r"onnx, which is not installed; pip install 'slotool\[onnx\]'"):
        capture_onnx(tmp_path / "net.onnx")
    # The command captures in a process of its own, which does not find it either.
    (tmp_path / "onnx.py").write_text("raise ModuleNotFoundError('No module named onnx', name='onnx')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finished = slotool("capture", "--onnx", tmp_path / "net.onnx")
    assert finished.exit_code == 2
    assert "pip install 'slotool[onnx]'" in " ".join(finished.stderr.split())


def test_onnx_is_loaded_only_when_it_is_asked_for() -> None:
    code = "import sys, slotool.graphs.capture, slotool.profiling.backends.onnx_backend as b; b.OnnxBackend('cpu', 1);"
    code += "assert not {'onnx', 'onnxruntime', 'google.protobuf'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sizes_of_free_axes_are_said(tmp_path: Path, slotool) -> None:
    free, fixed = model_of([relu("x", "y")], ["n", 3, "h", None]), model_of([relu("x", "y")], ["n", 3, 8, 6])
    for sizes in ((3, 8, 6), {"x": (3, 8, 6)}):
        assert capture_onnx(free, sizes).id == capture_onnx(fixed).id
    assert capture_onnx(fixed, (3, 8, 6)).id == capture_onnx(fixed).id
    for wrong, said in (((4, 8, 6), r"is \[3, h, \?\], not \[4, 8, 6\]"), ({"z": (3,)}, "no input 'z', but x")):
        with pytest.raises(GraphError, match=said):
            capture_onnx(free, wrong)
    onnx.save(free, tmp_path / "free.onnx")
    asked = slotool("predict", "--onnx", tmp_path / "free.onnx", "--input-shape", "3,8,6", "--json")
    assert asked.exit_code == 0, asked.stderr
    assert "by --input-shape" in slotool("predict", "--onnx", tmp_path / "free.onnx").stderr


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("bij,bjk->bik", ((3, 4), (4, 5)), 2 * 3 * 4 * 5),
        ("bihd,bjhd->bhij", ((6, 2, 4), (7, 2, 4)), 2 * 2 * 6 * 7 * 4),
        ("b i j, b k j -> b k i", ((3, 4), (5, 4)), 2 * 3 * 4 * 5),
    ],
)
def test_an_einsum_is_a_product_of_matrices(equation: str, shapes: tuple[tuple[int, ...], ...], flops: int) -> None:
    left, outer = equation.replace(" ", "").split("->")
    sizes: dict[str, int] = {}
    for term, shape in zip(left.split(","), shapes, strict=True):
        sizes |= dict(zip(term[1:], shape, strict=True))
    made = tuple(sizes[letter] for letter in outer[1:])
    x, y, z = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", *sides])
        for name, sides in zip("xyz", (*shapes, made), strict=True)
    )
    node = helper.make_node("Einsum", ["x", "y"], ["z"], equation=equation)
    graph = capture_onnx(helper.make_model(helper.make_graph([node], "g", [x, y], [z])))
    assert not graph.unknown
    assert graph.matrix_flops == flops
    assert graph.output_shape == made


def test_an_einsum_by_weights_has_these() -> None:
    weights = onnx.numpy_helper.from_array(np.ones((4, 6, 8), np.float32), "w")
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", *sizes])
        for name, sizes in (("x", (5, 8)), ("y", (4, 5, 6)))
    )
    node = helper.make_node("Einsum", ["x", "w"], ["y"], equation="bsd,hkd->bhsk")
    graph = capture_onnx(helper.make_model(helper.make_graph([node], "g", [x], [y], [weights])))
    assert not graph.unknown
    assert (graph.weights, graph.matrix_flops, graph.output_shape) == (4 * 6 * 8, 2 * 5 * 8 * 24, (4, 5, 6))


def node_of(op: str, shape: tuple[int, ...], made: tuple[int, ...], *constants: np.ndarray, **attributes: Any) -> Any:
    """A model of one node of the newest versions of all operators, of an input "x" and these constants."""
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)
        for name, sizes in (("x", shape), ("y", made))
    )
    weights = [onnx.numpy_helper.from_array(values, f"w{at}") for at, values in enumerate(constants)]
    node = helper.make_node(op, ["x", *(tensor.name for tensor in weights)], ["y"], **attributes)
    return helper.make_model(helper.make_graph([node], "g", [x], [y], weights))


@pytest.mark.parametrize("positions", [(7, 1, 2, 4), (7, 2, 4)])
def test_an_einsum_whose_first_axis_is_no_batch_is_a_product_too(positions: tuple[int, ...]) -> None:
    """As attention to relative positions has it, steps first; the positions are those of every example."""
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)
        for name, sizes in (("x", (1, 6, 8)), ("y", (1, 2, 6, 7)))
    )
    own = "jbnd" if len(positions) == 4 else "jnd"
    arrays = {"heads": np.ones((8, 2, 4), np.float32), "places": np.ones(positions, np.float32)}
    weights = [onnx.numpy_helper.from_array(values, name) for name, values in arrays.items()]
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("Einsum", ["steps", "heads"], ["query"], equation="ibh,hnd->ibnd"),
        helper.make_node("Einsum", ["query", "places"], ["y"], equation=f"ibnd,{own}->bnij"),
    ]
    graph = capture_onnx(helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights)))
    assert not graph.unknown
    assert graph.matrix_flops == 2 * 6 * 8 * 8 + 2 * 2 * 6 * 7 * 4
    assert (graph.weights, graph.output_shape) == (8 * 8 + 7 * 8, (2, 6, 7))
    backend = shared_backend(TorchBackend)
    assert backend.array(backend.prepare(graph, 3)()).shape == (3, 2, 6, 7)


def test_dropout_is_left_out_wherever_the_batch_is() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("Dropout", ["steps", "ratio", "training"], ["dropped"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)
        for name, sizes in (("x", (1, 6, 8)), ("y", (6, 1, 8)))
    )
    settings = [
        onnx.numpy_helper.from_array(np.array(value), name)
        for name, value in (("ratio", np.float32(0.1)), ("training", np.array(True)))
    ]
    relu = helper.make_node("Relu", ["dropped"], ["y"])
    graph = capture_onnx(helper.make_model(helper.make_graph([*nodes, relu], "g", [x], [y], settings)))
    assert [operator.op for operator in graph.operators] == ["InputLayer", "ReLU"]


def test_a_lookup_within_each_example_is_known() -> None:
    """As exporters write ``as_strided``: all values of a batch of one on one axis, of which some are taken."""
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)
        for name, sizes in (("x", (1, 12)), ("y", (1, 4, 3)))
    )
    arrays = {"flat": np.array([12]), "places": np.arange(12).reshape(1, 4, 3)}
    constants = [onnx.numpy_helper.from_array(values, name) for name, values in arrays.items()]
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["values"]),
        helper.make_node("Gather", ["values", "places"], ["y"]),
    ]
    graph = capture_onnx(helper.make_model(helper.make_graph(nodes, "g", [x], [y], constants)))
    assert not graph.unknown
    assert graph.output_shape == (4, 3)


def test_a_factor_that_was_stretched_from_a_number_is_no_scale() -> None:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 100)) for name in "xy")
    arrays = {"number": np.array([0.5], np.float32), "sizes": np.array([1, 100])}
    constants = [onnx.numpy_helper.from_array(values, name) for name, values in arrays.items()]
    nodes = [
        helper.make_node("Expand", ["number", "sizes"], ["factor"]),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    graph = capture_onnx(helper.make_model(helper.make_graph(nodes, "g", [x], [y], constants)))
    assert not graph.unknown
    assert graph.weights <= 1


@pytest.mark.parametrize(("parts", "of_complex"), [(2, 1), (1, 2)])
def test_a_fourier_transform_costs_what_torchs_does(parts: int, of_complex: int) -> None:
    arrays = (np.array(64, np.int64), np.array(1, np.int64))
    graph = capture_onnx(node_of("DFT", (1, 64, parts), (1, 64, 2), *arrays))
    assert graph.flops == 5 * 64 * 6 // of_complex
    assert graph.matrix_flops == 0


def test_a_decoder_begins_with_the_state_of_its_encoder() -> None:
    builder = GraphBuilder()
    source, target = builder.add("InputLayer", shape=(7, 12)), builder.add("InputLayer", shape=(5, 9))
    state = builder.add("Slice", builder.add("LSTM", source, units=8), axis=0, start=6, size=1, keepdims=False)
    builder.add("LSTM", [target, state, state], units=8)
    graph = builder.graph()
    captured = capture_onnx(written(graph))
    assert not captured.unknown
    assert (captured.matrix_flops, captured.weights) == (graph.matrix_flops, graph.weights)


def test_a_classical_model_is_named_as_such() -> None:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    node = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.0] * 4, scale=[1.0] * 4)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)
    with pytest.raises(GraphError, match=r"\(ai\.onnx\.ml\.Scaler\) .*classical model's, .*as slotool family does"):
        capture_onnx(model)
