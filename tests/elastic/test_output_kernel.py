"""The Triton kernel of an SLO-NN's output layer: its arithmetic of places, by Triton's interpreter, against NumPy."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from slotool.elastic.activators import output_layer
from slotool.elastic.activators.device_tables import DeviceTables, NodeRows
from slotool.elastic.activators.mlp import DenseLayer
from slotool.elastic.activators.output_layer import OutputLayer, by_gathering
from slotool.elastic.device_layers import DeviceLayer
from slotool.errors import InputError
from slotool.transfers import Link
from tests.cuda_on_cpu import simulated_cuda
from tests.elastic.tiny_slo_nns import sparse_model

# See conftest.py.
needs_interpreter = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="triton is not installed, or compiles for the GPU that is here",
)


def best_of_rows(*arguments: Any) -> tuple[np.ndarray, np.ndarray]:
    from slotool.elastic.activators import output_kernel

    labels, scores = output_kernel.best_of_rows(*arguments)
    return labels.numpy(), scores.numpy()


def in_numpy(x: Any, weights: Any, bias: Any, nodes: Any, p: int) -> tuple[np.ndarray, np.ndarray]:
    """``nodes``: int [n, count]."""
    x, weights, bias, nodes = (np.asarray(array) for array in (x, weights, bias, nodes))
    values = np.einsum("ni,nci->nc", x.astype(np.float64), weights[nodes]) + bias[nodes]
    order = np.argsort(-values, axis=1, kind="stable")[:, :p]
    missing = ((0, 0), (0, p - order.shape[1]))
    labels = np.pad(np.take_along_axis(nodes, order, axis=1), missing, constant_values=-1)
    return labels, np.pad(np.take_along_axis(values, order, axis=1), missing, constant_values=-np.inf)


def drawn(n: int, inputs: int, units: int, length: int, seed: int) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.permutation(units)[:length] for _ in range(7)])
    arrays = (rng.normal(size=(n, inputs)), rng.normal(size=(units, inputs)), rng.normal(size=units))
    floats = [torch.from_numpy(array.astype(np.float32)) for array in arrays]
    return (*floats, torch.from_numpy(rows), torch.from_numpy(rng.integers(7, size=n)))


@needs_interpreter
@pytest.mark.parametrize(
    ("n", "inputs", "units", "length", "count", "p"),
    [(1, 24, 300, 40, 17, 5), (5, 130, 60, 60, 60, 1), (3, 1, 9, 8, 3, 6), (4, 33, 1_100, 1_050, 1_050, 3)],
)
def test_the_kernel_finds_what_numpy_finds(n: int, inputs: int, units: int, length: int, count: int, p: int) -> None:
    x, weights, bias, rows, which = drawn(n, inputs, units, length, seed=count)
    for chosen in (NodeRows(rows, which), NodeRows(rows[which], None)):
        labels, scores = best_of_rows(x, weights, bias, chosen, count, p)
        expected = in_numpy(x, weights, bias, rows[which][:, :count], p)
        np.testing.assert_array_equal(labels, expected[0])
        np.testing.assert_allclose(scores, expected[1], rtol=1e-4, atol=1e-4)


@needs_interpreter
def test_equal_scores_keep_the_order_of_the_list_and_what_is_no_number_comes_first() -> None:
    x, weights = torch.ones(2, 3), torch.zeros(6, 3)
    bias = torch.tensor([1.0, 1.0, -0.5, -torch.inf, 1.0, -3e38])
    rows = torch.tensor([[4, 0, 1, 2, 5, 3]])
    which = torch.zeros(2, dtype=torch.int64)
    labels, scores = best_of_rows(x, weights, bias, NodeRows(rows, which), 6, 6)
    np.testing.assert_array_equal(labels, [[4, 0, 1, 2, 5, 3]] * 2)
    np.testing.assert_array_equal(scores, [[1, 1, 1, -0.5, np.float32(-3e38), -np.inf]] * 2)
    bias[2] = -torch.nan
    assert np.isnan(best_of_rows(x, weights, bias, NodeRows(rows, which), 6, 2)[1][:, 0]).all()


@needs_interpreter
@pytest.mark.parametrize("ranker", ["clusters", "centred-freehash"])
def test_a_model_answers_alike_by_the_kernel(ranker: str) -> None:
    """The lists that the look-ups of a built model name, with one table and with several."""
    from tests.elastic.tiny_slo_nns import examples

    model, x = sparse_model(ranker), examples(True, 4, 1)
    with simulated_cuda(), mock.patch.object(OutputLayer, "best", lambda own, *asked: own._by_kernel(*asked)):
        there = model.on("cuda:0")
        with mock.patch.object(torch.cuda, "device"):
            for point in model.points[:2]:
                labels, scores = there.top(x, 3, point=point)
                np.testing.assert_allclose(scores, model.top(x, 3, point=point)[1], rtol=1e-3, atol=1e-3)
                assert labels.dtype == np.int32


def test_pytorch_finds_the_same() -> None:
    x, weights, bias, rows, which = drawn(6, 20, 80, 30, seed=3)
    layer = DeviceLayer(DenseLayer("last", weights.numpy(), bias.numpy()), Link("cpu"))
    labels, scores = by_gathering(layer, x, NodeRows(rows, which), 25, 4)
    expected = in_numpy(x, weights, bias, rows[which][:, :25], 4)
    np.testing.assert_array_equal(labels.numpy(), expected[0])
    np.testing.assert_allclose(scores.numpy(), expected[1], rtol=1e-4, atol=1e-4)


def test_the_quicker_one_is_measured_once_for_each_kind_of_call() -> None:
    x, weights, bias, rows, which = drawn(6, 20, 80, 30, seed=3)
    layer, nodes = DeviceLayer(DenseLayer("last", weights.numpy(), bias.numpy()), Link("cpu")), NodeRows(rows, which)
    own = OutputLayer(layer, Link("cpu"))
    assert own.best(x, nodes, 25, 4) is None
    own._has_kernel = True
    asked: list[bool] = [True, False]
    with (
        mock.patch.object(own, "_measured", side_effect=asked) as measured,
        mock.patch.object(own, "_by_kernel") as kernel,
    ):
        assert own.best(x, nodes, 25, 4) is own.best(x[:5], nodes, 25, 4) is kernel.return_value
        assert own.best(x, nodes, 25, 5) is None
        assert own.best(x, nodes, 25, 5) is None
        assert own.best(x, nodes, output_layer.MAX_NODES + 1, 5) is None
    assert measured.call_count == 2


@pytest.mark.parametrize("damaged", ["lists", "slots", "overall"])
def test_numbers_that_are_no_nodes_do_not_become_addresses(damaged: str) -> None:
    model = sparse_model()
    ((at, activator),) = model.activators.items()
    lists = activator.lists
    array = getattr(lists, damaged).copy()
    array.flat[-1] = np.iinfo(array.dtype).max
    broken = type(activator)(activator.ranker, type(lists)(**{**vars(lists), damaged: array}))
    link, view = Link("cpu"), model.mlp.layers[at].view
    with pytest.raises(InputError, match="only 0 to"):
        DeviceTables(view, broken, DeviceLayer(view, link), link)
