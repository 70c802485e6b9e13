"""Products of a matrix and a vector: known, with their FLOPs, in torch, ONNX and Keras."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from slotool.graphs.capture.onnx.capture import capture_onnx
from slotool.graphs.capture.torch.capture import capture_torch


class Product(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.vector, self.matrix, self._form = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8, 8)), form

    def forward(self, x):
        return self._form(x, self.vector, self.matrix)


@pytest.mark.parametrize(
    ("form", "shape", "flops"),
    [
        (lambda x, v, _: x @ v, (4, 8), 64),
        (lambda x, v, _: v @ x, (8, 4), 64),
        (lambda x, v, _: torch.mv(x, v), (8,), 16),
        (lambda x, v, _: torch.addmv(x[:, 0], x, v), (8,), 17),
        (lambda x, v, m: x @ m @ v, (8,), 128 + 16),
        (lambda x, v, m: x + m @ v, (8,), 8 + 128),
        (lambda x, v, m: torch.einsum("bi,ij,bj->b", x, m, x), (8,), 128 + 16),
        (lambda x, v, m: nn.functional.bilinear(x, x, m.expand(5, 8, 8)), (8,), 64 + 640),
        (lambda x, v, m: nn.functional.bilinear(x, x, m.expand(5, 8, 8)), (3, 8), 3 * (64 + 640)),
        (lambda x, v, m: torch.cdist(x, m), (4, 8), 2 * 4 * 8 * 8),
        (lambda x, v, m: torch.cdist(x, m), (40, 8), 2 * 40 * 8 * 8 + 40 * 8),
        (lambda x, v, m: torch.cdist(x, x, p=1.0), (4, 8), 2 * 4 * 4 * 8),
        (lambda x, v, _: x.unsqueeze(1) @ torch.ones(1, 8, 3) @ torch.ones(3), (8,), 48 + 6),
    ],
)
def test_torch(form, shape, flops):
    graph = capture_torch(Product(form), shape)
    assert not graph.unknown
    assert graph.flops == flops
    assert graph.uncounted_flops_share == 0
    assert graph.flops_mismatch <= 0


@pytest.mark.parametrize(
    ("of_examples", "left"),
    [((8,), False), ((4, 8), False), ((3, 4, 8), False), ((4, 8), True), ((3, 4, 8), True)],
)
def test_onnx(of_examples, left):
    shape = (*of_examples[:-2], *of_examples[:-3:-1]) if left else of_examples
    weight = onnx.numpy_helper.from_array(np.ones(8, np.float32), "w")
    node = onnx.helper.make_node("MatMul", ["w", "x"] if left else ["x", "w"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(name, 1, sizes) for name, sizes in (("x", ["n", *shape]), ("y", None))]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", ends[:1], ends[1:], [weight]))
    graph = capture_onnx(model)
    assert not graph.unknown
    assert (graph.flops, graph.weights) == (2 * np.prod(shape), 8)
    assert graph.operators[-1].shape == of_examples[:-1]


def test_keras():
    keras = pytest.importorskip("keras")
    from slotool.graphs.capture.keras.capture import capture_keras

    x = keras.Input((4, 8))
    graph = capture_keras(keras.Model(x, keras.ops.matmul(x, np.ones(8, np.float32))))
    assert not graph.unknown
    assert graph.flops == 64
