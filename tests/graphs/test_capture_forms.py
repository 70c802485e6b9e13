"""Half-precision, quantised and compiled modules are captured as what they are, and never priced as float32."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from slotool.errors import GraphError
from slotool.graphs.capture import capture_onnx, capture_torch


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def compiled_within() -> nn.Module:
    module = plain()
    module[0].compile()
    return module


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(plain().eval(), {nn.Linear}, dtype=torch.qint8)


class Within(nn.Module):
    """A module that calls another by a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = plain()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(x)

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def compiled_method(name: str) -> nn.Module:
    """One whose class compiles a method. Made when it is asked for: ``torch.compile`` imports four seconds of torch."""
    return type("Compiled", (Within,), {name: torch.compile(getattr(Within, name))})()


def compiled_attribute() -> nn.Module:
    module = plain()
    module.forward = torch.compile(module.forward)
    return module


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = plain()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.layers(x)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32).half(), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x.half()).float())


FORMS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "plain": (plain, "float32"),
    "half": (lambda: plain().half(), "float16"),
    "bfloat16": (lambda: plain().bfloat16(), "bfloat16"),
    "double": (lambda: plain().double(), "float64"),
    "compiled": (lambda: torch.compile(plain()), "compiled float32"),
    "compiled in place": (compiled_within, "compiled float32"),
    "compiled forward": (lambda: compiled_method("forward"), "compiled float32"),
    "compiled helper": (lambda: compiled_method("_run"), "compiled float32"),
    "compiled attribute": (compiled_attribute, "compiled float32"),
    "autocast": (Autocast, "bfloat16"),
    "mixed": (Mixed, "float16+float32"),
    "quantised": (quantised, "int8"),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_a_module_is_its_graphs(name: str) -> None:
    make, form = FORMS[name]
    graph = capture_torch(make(), (16,))
    assert graph.form == form
    assert graph.plain == (name == "plain")
    assert (graph.weights, graph.matrix_flops) == (676, 2 * 16 * 32 + 2 * 32 * 4)


def test_forms_of_one_network_have_ids_of_their_own() -> None:
    names = ["plain", "half", "bfloat16", "double", "compiled"]
    assert len({capture_torch(FORMS[name][0](), (16,)).id for name in names}) == len(names)


def test_linear_layers_of_a_quantised_network_are_dense_ones_with_their_weights_and_flops() -> None:
    graph = capture_torch(quantised(), (16,))
    assert not graph.unknown
    first, second = (operator for operator in graph.operators if operator.op == "Dense")
    assert (first.weights, first.flops, first.attributes["activation"]) == (544, 1024, "relu")
    assert (second.weights, second.flops) == (132, 256)


@pytest.mark.filterwarnings("ignore")
def test_torchscript_is_refused_in_a_sentence() -> None:
    with pytest.raises(GraphError, match="TorchScript module cannot be traced; capture"):
        capture_torch(torch.jit.script(plain()), (16,))


def test_the_command_warns_of_a_network_that_is_not_float32(
    slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import torch\nfrom torch import nn\ndef net(): return nn.Linear(8, 4).bfloat16()\n"
    (tmp_path / "half_nets.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    finished = slotool("capture", "--torch", "half_nets:net", "--input-shape", 8, "-o", "half.jsonl", "--json")
    assert finished.exit_code == 0, finished.stderr
    assert "the network is bfloat16; predictions and profiles of graphs are of float32 ones" in finished.stderr
    assert (finished.document["element_type"], finished.document["compiled"]) == ("bfloat16", False)
    assert slotool("profile", "solo", "half.jsonl", "-o", "latency.parquet", "--dry-run").exit_code == 2


@pytest.mark.parametrize(("dtype", "form"), [("FLOAT", "float32"), ("FLOAT16", "float16"), ("DOUBLE", "float64")])
def test_the_element_type_of_an_onnx_model_is_its_graphs(dtype: str, form: str) -> None:
    onnx = pytest.importorskip("onnx")
    kind = getattr(onnx.TensorProto, dtype)
    weight = onnx.helper.make_tensor("w", kind, [8, 4], [0.0] * 32)
    value = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "net", [value("x", kind, ["n", 8])], [value("y", kind, ["n", 4])], [weight])
    assert capture_onnx(onnx.helper.make_model(graph)).form == form


def test_products_of_two_values_in_onnx_are_known_where_the_batch_is_folded_into_rows() -> None:
    onnx = pytest.importorskip("onnx")
    value, node, batch = onnx.helper.make_tensor_value_info, onnx.helper.make_node, 6
    shape = onnx.helper.make_tensor("shape", onnx.TensorProto.INT64, [3], [batch * 2, 5, 8])
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [8, 4], [0.0] * 32)
    nodes = [
        node("Reshape", ["x", "shape"], ["windows"]),
        node("Transpose", ["windows"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["windows", "turned"], ["scores"]),
        node("MatMul", ["scores", "windows"], ["mixed"]),
        node("MatMul", ["mixed", "w"], ["y"]),
    ]
    source, result = value("x", onnx.TensorProto.FLOAT, [batch, 10, 8]), value("y", onnx.TensorProto.FLOAT, None)
    graph = capture_onnx(
        onnx.helper.make_model(onnx.helper.make_graph(nodes, "net", [source], [result], [shape, weight]))
    )
    products = [operator for operator in graph.operators if operator.flops]
    assert [operator.flops for operator in products] == [2 * 2 * 5 * 8 * 5, 2 * 2 * 5 * 5 * 8, 2 * 2 * 5 * 8 * 4]
    assert [operator.known for operator in products] == [True, True, True]
