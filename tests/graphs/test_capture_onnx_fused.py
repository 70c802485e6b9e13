"""Capture of files that ONNX Runtime optimised or quantised: the products of the file that they were made from."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slotool.errors import GraphError
from slotool.graphs import OperatorGraph
from slotool.graphs.capture import capture_onnx
from slotool.graphs.capture.onnx.fused import _REWRITES as FUSED

onnx = pytest.importorskip("onnx", reason="onnx is not installed; pip install 'slotool[onnx]'")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; pip install 'slotool[onnx]'")
helper, TensorProto = onnx.helper, onnx.TensorProto


class Encoder(nn.Module):
    """Words through a block of attention, written so that ONNX Runtime fuses it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.joined, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(16)])
        for parameter in self.norms.parameters():
            # Those that are equal ONNX Runtime makes one.
            nn.init.uniform_(parameter)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        query, key, value = (part.unflatten(2, (2, 8)).transpose(1, 2) for part in self.joined(x).chunk(3, -1))
        shares = torch.softmax(query @ key.transpose(2, 3) / 8**0.5, -1)
        x = self.norms[0](x + self.out((shares @ value).transpose(1, 2).flatten(2)))
        return self.norms[1](x + self.narrow(nn.functional.gelu(self.wide(x))))


class Images(nn.Module):
    """Convolutions with sums and activations between them; ``channels`` of which ONNX Runtime makes whole blocks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.again = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, channels, 3, padding=1)
        self.last = nn.Linear(channels, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.first(x)), 2)
        x = torch.relu(x + self.again(x))
        return self.last(x.mean((2, 3)))


def exported(module: nn.Module, example: torch.Tensor, folder: Path) -> Path:
    file = folder / "network.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), (example,), str(file), dynamo=False, opset_version=17)
    return file


def optimised(file: Path, level: str) -> Path:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(file.with_suffix(f".{level}.onnx"))
    options.log_severity_level = 4
    ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return Path(options.optimized_model_filepath)


def has_fused(file: Path) -> bool:
    return any(node.domain.startswith("com.microsoft") for node in onnx.load(file).graph.node)


@pytest.mark.parametrize("kind", ["words", "images"])
def test_an_optimised_file_has_the_products_of_its_original(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    module, example = (
        (Encoder(), torch.ones(1, 7, dtype=torch.int64)) if kind == "words" else (Images(16), torch.ones(1, 3, 8, 8))
    )
    file = exported(module, example, tmp_path)
    made = optimised(file, "EXTENDED")
    assert has_fused(made)
    original, graph = capture_onnx(file), capture_onnx(made)
    assert not graph.unknown
    assert (graph.matrix_flops, graph.output_shape) == (original.matrix_flops, original.output_shape)
    assert graph.weights == pytest.approx(original.weights, rel=0.01)


def test_a_file_optimised_for_one_processor_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file = exported(Images(16), torch.ones(1, 3, 8, 8), tmp_path)
    made = optimised(file, "ALL")
    if not any(node.domain == "com.microsoft.nchwc" for node in onnx.load(made).graph.node):
        pytest.skip("this processor has no blocks of channels")
    with pytest.raises(GraphError, match="ORT_ENABLE_EXTENDED"):
        capture_onnx(made)


@pytest.mark.parametrize("level", [None, "ALL"])
def test_words_of_8_bits_are_looked_up(tmp_path: Path, level: str | None) -> None:
    from onnxruntime.quantization import quantize_dynamic

    torch.manual_seed(0)
    file = exported(Encoder(), torch.ones(1, 7, dtype=torch.int64), tmp_path)
    quantised = tmp_path / "int8.onnx"
    quantize_dynamic(file, quantised)
    original, graph = capture_onnx(file), capture_onnx(quantised if level is None else optimised(quantised, level))
    assert not graph.unknown
    assert graph.element_type == "int8"
    assert graph.matrix_flops == original.matrix_flops


Shapes = dict[str, tuple[int, ...]]


def alone(op: str, inputs: Shapes, weights: Shapes, **more: Any) -> OperatorGraph:
    """The graph of a file with one operator of ONNX Runtime's own; "" is an input that is left out."""
    names = more.pop("order", [*inputs, *weights])
    outputs = more.pop("outputs", ["made"])
    node = helper.make_node(op, names, outputs, domain="com.microsoft", **more)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    made = helper.make_tensor_value_info(outputs[0], TensorProto.FLOAT, None)
    arrays = [onnx.numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in weights.items()]
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    return capture_onnx(helper.make_model(helper.make_graph([node], "g", values, [made], arrays), opset_imports=opsets))


# Steps, width, heads; of attention both products.
STEPS, WIDTH = 6, 8
ATTENTION = 2 * 2 * STEPS * STEPS * WIDTH
TEXT = (1, STEPS, WIDTH)


@pytest.mark.parametrize(
    ("op", "inputs", "weights", "options", "flops", "shape"),
    [
        ("Attention", {"x": TEXT}, {"w": (8, 24), "b": (24,)}, {"num_heads": 2},
         2 * STEPS * 8 * 24 + ATTENTION, TEXT),
        ("MultiHeadAttention", {"q": TEXT, "k": TEXT, "v": TEXT}, {"b": (24,)}, {"num_heads": 2}, ATTENTION, TEXT),
        ("GroupQueryAttention", {"q": TEXT, "k": (1, STEPS, 4), "v": (1, STEPS, 4)}, {},
         {"num_heads": 4, "kv_num_heads": 2}, ATTENTION, TEXT),
        ("GroupQueryAttention", {"q": (1, 1, 8), "k": (1, 1, 4), "v": (1, 1, 4), "pk": (1, 2, 9, 2),
         "pv": (1, 2, 9, 2)}, {}, {"num_heads": 4, "kv_num_heads": 2, "outputs": ["made", "key", "value"]},
         2 * 2 * 10 * 8, (1, 1, 8)),
        ("MatMulNBits", {"x": TEXT}, {"w": (16, 1, 4), "s": (16,)}, {"K": 8, "N": 16, "bits": 4, "block_size": 16},
         2 * STEPS * 8 * 16, (1, STEPS, 16)),
        ("FusedMatMul", {"x": (1, 2, 4, 6), "y": (1, 2, 5, 4)}, {}, {"transA": 1, "transB": 1, "alpha": 0.5},
         2 * 2 * 6 * 4 * 5, (1, 2, 6, 5)),
        ("FusedMatMul", {"x": TEXT}, {"w": (16, 8)}, {"transB": 1}, 2 * STEPS * 8 * 16, (1, STEPS, 16)),
        ("FusedGemm", {"x": (1, 8)}, {"w": (8, 5), "b": (5,)}, {"activation": "Relu"}, 2 * 8 * 5, (1, 5)),
        ("SkipSimplifiedLayerNormalization", {"x": TEXT, "y": TEXT}, {"w": (8,)}, {}, 0, TEXT),
        ("BiasGelu", {"x": TEXT}, {"b": (8,)}, {}, 0, TEXT),
        ("QuickGelu", {"x": TEXT}, {}, {}, 0, TEXT),
    ],
)  # fmt: skip
def test_operators_of_its_own_are_the_standard_ones_that_they_stand_for(
    op: str,
    inputs: Shapes,
    weights: Shapes,
    options: dict[str, Any],
    flops: int,
    shape: tuple[int, ...],
) -> None:
    graph = alone(op, inputs, weights, **options)
    assert not graph.unknown
    assert graph.matrix_flops == flops
    assert graph.output_shape == shape[1:]


def test_an_embedding_with_its_norm_has_all_its_tables() -> None:
    graph = alone(
        "EmbedLayerNormalization", {"tokens": (1, STEPS)},
        {"words": (30, 8), "places": (20, 8), "scale": (8,), "centre": (8,)},
        order=["tokens", "", "words", "places", "", "scale", "centre"],
    )  # fmt: skip
    assert not graph.unknown
    assert (graph.weights, graph.output_shape) == (30 * 8 + 20 * 8 + 16, (STEPS, 8))


@pytest.mark.parametrize("op", FUSED)
def test_a_fused_operator_with_anything_is_captured_or_refused_in_a_sentence(op: str) -> None:
    random = Random(op)
    kinds = TensorProto
    given = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in (
        ("words", kinds.INT64, [2, 3]), ("rows", kinds.FLOAT, [2, 3, 12]), ("images", kinds.FLOAT, [2, 4, 6, 6]),
    )]  # fmt: skip
    held = [onnx.numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in (
        ("square", (12, 12)), ("bias", (12,)), ("kernel", (4, 4, 3, 3)),
    )]  # fmt: skip
    numbers = ("num_heads", "kv_num_heads", "K", "N", "transA", "transB")
    for _ in range(20):
        names = random.choices(["rows", "square", "bias", "kernel", "words", ""], k=random.randrange(8))
        names[:1] = random.choices(["rows", "images", "words", "square"], k=min(1, len(names)))
        attributes = {name: random.choice([0, 1, 2, -1, 7]) for name in numbers if random.random() < 0.4}
        lists = {"qkv_hidden_sizes": [-1, 0, 5], "scales": [1.0, 1.0, 2.0, 2.0], "activation": "Bogus"}
        attributes |= {name: value for name, value in lists.items() if random.random() < 0.3}
        node = helper.make_node(op, names, ["made", "more", "rest"], domain="com.microsoft", **attributes)
        graph = helper.make_graph([node], "any", given, [helper.make_empty_tensor_value_info("made")], held)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        with suppress(GraphError):
            assert capture_onnx(helper.make_model(graph, opset_imports=opsets)).operators
