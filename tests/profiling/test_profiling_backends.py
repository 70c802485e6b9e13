"""Every backend behaves as one, and torch and Keras compute the same."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.errors import InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.torch_module import GraphModule
from slotool.profiling.backends import BACKENDS, backend_class
from slotool.profiling.backends.elastic_backend import ElasticBackend, ModelAtPoint
from slotool.profiling.backends.keras_backend import KerasBackend
from slotool.profiling.backends.torch_backend import TorchBackend
from slotool.testing.backends import BackendConformance, branched_cnn, narrow_mlp

needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")


def small_family() -> Family:
    versions = []
    for units in (4, 16):
        builder = GraphBuilder("mlp")
        last = builder.add("InputLayer", shape=[6])
        last = builder.add("Dense", last, units=units, activation="relu")
        builder.add("Dense", last, units=3)
        versions.append(Network(f"u{units}", GraphModule(builder.graph())))
    return Family.of("small", versions)


class TestTorch(BackendConformance):
    make = TorchBackend


@needs_tensorflow
class TestKeras(BackendConformance):
    make = KerasBackend


class TestElastic(BackendConformance):
    make = ElasticBackend
    runs_graphs = False

    def cases(self) -> list[tuple[Any, tuple[int, ...]]]:
        model = small_family()
        return [(ModelAtPoint(model, point), (model.classes,)) for point in model.points]


def test_a_backend_is_found_by_name_and_an_unknown_one_lists_the_others() -> None:
    assert backend_class("torch") is TorchBackend
    assert backend_class("slotool.profiling.backends.torch_backend:TorchBackend") is TorchBackend
    with pytest.raises(InputError, match=r"torch, keras, elastic"):
        backend_class("abacus")
    with pytest.raises(InputError, match="cannot be imported"):
        backend_class("nowhere:Backend")
    with pytest.raises(InputError, match="no subclass"):
        backend_class("pathlib:Path")


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_without_its_library_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotool.profiling.backends.base.find_spec", lambda _: None)
    with pytest.raises(InputError, match=rf"the {name} backend needs the Python package \w+, which is not installed"):
        backend_class(name)


def test_weights_are_aligned_and_never_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[GraphModule] = []

    class Kept(GraphModule):
        def __init__(self, *arguments: Any, **options: Any):
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr("slotool.graphs.torch_module.GraphModule", Kept)
    backend = TorchBackend()
    for graph in (narrow_mlp(), wide_mlp(), branched_cnn()):
        backend.prepare(graph, 1)
        parts = sorted((p.data_ptr(), 4 * p.numel()) for p in made[-1].parameters())
        assert all(start % 64 == 0 for start, _ in parts)
        assert all(at + size <= after for (at, size), (after, _) in pairwise(parts))
        assert all(float(p.abs().max()) > 0 for p in made[-1].parameters())


def wide_mlp() -> OperatorGraph:
    """Layers of different widths, with more weights than one block of values."""
    builder = GraphBuilder("mlp")
    last = builder.add("InputLayer", shape=[2048])
    for units in (2048, 1024, 8):
        last = builder.add("Dense", last, units=units)
    return builder.graph()


@needs_tensorflow
def test_torch_and_keras_compute_the_same_from_the_same_weights() -> None:
    from slotool.graphs.keras_model import functional_model

    builder = GraphBuilder("cnn")
    start = builder.add("InputLayer", shape=[4, 9, 7])
    last = builder.add("Conv2D", start, filters=6, kernel=(3, 2), stride=2, padding="same", activation="relu")
    side = builder.add("Conv2D", last, filters=6, kernel=3, padding="same", groups=2)
    last = builder.add("BatchNormalization", builder.add("Add", [last, side]))
    last = builder.add("MaxPooling2D", last, kernel=2)
    last = builder.add("GlobalAveragePooling2D", builder.add("Concatenate", [last, last]))
    last = builder.add("Dense", last, units=5, activation="tanh")
    builder.add("Softmax", builder.add("Dense", last, units=3, bias=False))
    graph = builder.graph()

    backend = KerasBackend()
    model = functional_model(graph, backend._initial)
    module = GraphModule(graph).eval()
    for layer in model.layers:
        name = layer.name.removesuffix("_").replace(".", "_")
        if not layer.get_weights() or "batch" in name:
            continue
        kernel, *bias = layer.get_weights()
        order = (3, 2, 0, 1) if kernel.ndim == 4 else (1, 0)
        target = module.layers[name]
        target = target[-1] if isinstance(target, torch.nn.Sequential) else target
        target.weight.data = torch.from_numpy(np.ascontiguousarray(kernel.transpose(order)))
        if bias:
            target.bias.data = torch.from_numpy(bias[0])
    x = backend.inputs(graph.input_shape, 2)
    with torch.inference_mode():
        wanted = module(torch.from_numpy(x)).numpy()
    found = np.asarray(model(np.moveaxis(x, 1, -1)))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@needs_tensorflow
def test_keras_builds_every_known_operator_to_its_stated_shape() -> None:
    builder = GraphBuilder("cnn")
    last = builder.add("InputLayer", shape=[4, 17, 13])
    last = builder.add("Normalization", builder.add("Rescaling", last))
    last = builder.add("ZeroPadding2D", last, padding=[0, 1, 2, 1])
    last = builder.add("Cropping2D", last, cropping=[1, 0, 0, 1])
    last = builder.add("Conv2D", last, filters=6, kernel=3, padding=2, stride=2)
    last = builder.add("DepthwiseConv2D", last, kernel=3, multiplier=2, dilation=2)
    last = builder.add("SeparableConv2D", last, filters=8, kernel=[3, 2], activation="relu")
    last = builder.add("AveragePooling2D", last, kernel=3, stride=1, padding="same")
    last = builder.add("MaxPooling2D", last, kernel=3, stride=1, padding=1)
    squeezed = builder.add("GlobalMaxPooling2D", last, keepdims=True)
    squeezed = builder.add("Conv2D", squeezed, filters=8, kernel=1, activation="sigmoid")
    last = builder.add("Multiply", [last, squeezed])
    last = builder.add("Activation", builder.add("LayerNormalization", last), activation="gelu")
    last = builder.add("Reshape", builder.add("Flatten", last), shape=[last_size(builder, last) // 8, 8])
    last = builder.add("Dense", last, units=5)
    graph = builder.graph()
    backend = KerasBackend()
    output = backend.array(backend.prepare(graph, 2)())
    assert output.shape == (2, *graph.output_shape)
    assert np.isfinite(output).all()


def last_size(builder: GraphBuilder, name: str) -> int:
    return int(np.prod(next(o.shape for o in builder.graph().operators if o.name == name)))


@pytest.mark.cuda
def test_torch_on_cuda_agrees_with_the_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    outputs = []
    for device in ("cpu", "cuda:0"):
        backend = TorchBackend(device)
        outputs.append(backend.array(backend.prepare(narrow_mlp(), 2)()))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-5)
