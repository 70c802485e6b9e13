"""The Triton kernels of look-ups, by Triton's interpreter, and calls that are captured once, beside other paths."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slotool.elastic.activators import device_tables, on_device
from slotool.elastic.activators.captured_calls import MAX_GRAPHS, CapturedCalls
from slotool.elastic.activators.input_errors import check_rows
from slotool.elastic.activators.mlp import DenseLayer
from slotool.elastic.activators.on_device import DeviceSloNN
from slotool.elastic.activators.rankers.clusters import Clusters
from slotool.elastic.activators.staged_rows import StagedRows
from slotool.elastic.device_layers import DeviceLayer
from slotool.errors import InputError
from slotool.transfers import Link
from tests.cuda_on_cpu import simulated_cuda
from tests.elastic.tiny_slo_nns import FEATURES, dense_model, examples, sparse_model

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="the package triton is not installed")
# See conftest.py.
needs_interpreter = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="triton is not installed, or compiles for the GPU that is here",
)

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from slotool.elastic.activators import lookup_kernels as own, output_kernel

types = {"input_steps": "fp32", "min_spread": "fp32"}
types |= dict.fromkeys(("starts", "features", "labels"), "*i32") | dict.fromkeys(("keys", "rows", "which"), "*i64")
types |= dict.fromkeys(("units", "clusters", "within", "inputs", "width", "count", "p"), "i32")
for kernel, fixed in ((own._hidden_of_rows, {"UNITS": 128, "FEATURES": 32}),
                      (own._nearest_clusters, {"COARSE": 64, "FINE": 64, "PIECE": 128}),
                      (output_kernel._best_of_rows, {"NODES": 256, "PIECE": 16})):
    signature = {name: "constexpr" if name in fixed else types.get(name, "*fp32") for name in kernel.arg_names}
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=fixed)
    made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"enable_fp_fusion": False})
    print("machine code" if made.asm["cubin"] else "none")
"""


@needs_triton
def test_the_kernels_compile_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    """Down to their machine code, which is never run here. In a process of its own: where Triton interprets, it cannot
    compile."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)} | {"TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:3] == ["machine code"] * 3, done.stderr


@needs_interpreter
@pytest.mark.parametrize("units", [5, 130])
def test_the_sparse_first_layer_is_that_of_numpy(units: int) -> None:
    """Also of a row without entries, of many, and of values that are no numbers."""
    rows, rng = examples(True, 6, 3), np.random.default_rng(units)
    layer = DenseLayer("first", rng.normal(size=(units, FEATURES)).astype(np.float32), np.zeros(units, np.float32))
    rows.data[rows.indptr[2] : rows.indptr[3]] = 0.0
    staged = StagedRows.of(rows)
    own = DeviceLayer(layer, Link("cpu"), sparse=True)
    place = np.full(staged.shapes[0][0], 7, np.int32)
    staged.fill(place)
    found = staged.entered(own, torch.from_numpy(place))[:6]
    np.testing.assert_allclose(found, np.maximum(rows.toarray() @ layer.weights.T, 0), rtol=1e-4, atol=1e-4)
    rows.data[0] = np.nan
    staged.fill(place)
    assert staged.entered(own, torch.from_numpy(place))[0].isnan().all()


@needs_interpreter
@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize(("inputs", "bits", "signed"), [(3, 4, False), (70, 7, True)])
def test_the_nearest_clusters_are_those_of_the_ranker(inputs: int, bits: int, signed: bool) -> None:
    rng = np.random.default_rng(inputs)
    x = rng.normal(size=(800, inputs)).astype(np.float32)
    x = x if signed else np.maximum(x, 0)
    layer = DenseLayer("last", rng.normal(size=(20, inputs)).astype(np.float32), np.zeros(20, np.float32))
    ranker = Clusters.fit(layer, x, None, tables=1, bits=bits, rng=rng)
    with kernels():
        keys = device_tables._clustered(ranker, DeviceLayer(layer, Link("cpu")), Link("cpu"))
        found = keys(torch.from_numpy(x[:40]))
        assert found.dtype == torch.int64
        np.testing.assert_array_equal(found.numpy(), ranker.keys(layer, x[:40]))
        # No number, infinite, all alike: still a bucket, for it is an address.
        odd = torch.tensor([[np.nan] * inputs, [np.inf] * inputs, [-np.inf] * inputs, [0.0] * inputs])
        with np.errstate(all="ignore"):
            found = keys(odd)
        assert ((found >= 0) & (found < ranker.buckets)).all()


def kernels() -> ExitStack:
    """Entered, a CPU passes for a GPU with Triton, whose calls are captured by being called again."""
    stack = ExitStack()
    for module in (device_tables, on_device):
        stack.enter_context(mock.patch.object(module, "has_kernels", return_value=True))
    again = lambda link: CapturedCalls(link, lambda _, function: function)  # noqa: E731
    stack.enter_context(mock.patch.object(on_device, "CapturedCalls", again))
    return stack


@needs_interpreter
@pytest.mark.parametrize("ranker", ["clusters", "centred-freehash"])
@pytest.mark.parametrize("sparse", [False, True])
def test_captured_calls_answer_as_the_compiled_ones(ranker: str, sparse: bool) -> None:
    """In batches of any size, of which several share a graph."""
    model = sparse_model(ranker) if sparse else dense_model(ranker)
    x = examples(sparse, 13, 7)
    with simulated_cuda(), kernels():
        there = DeviceSloNN(model, "cuda:0")
        assert there._calls is not None
        for own in (x[:3], x[3:7], x[7:8], x[8:12], x[12:]):
            for point in (model.points[0], model.full):
                labels, scores = there.top(own, 3, point=point)
                np.testing.assert_allclose(scores, model.top(own, 3, point=point)[1], rtol=1e-3, atol=1e-3)
                assert (labels.dtype, labels.shape) == (np.int32, (own.shape[0], 3))
                np.testing.assert_allclose(
                    there.forward(own, point), model.forward(own, point), rtol=1e-3, atol=1e-3
                )  # fmt: skip
            target = model.target(0.1)
            found, expected = (each.top(own, 2, accuracy=target)[1] for each in (there, model))
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
        assert there.top(x[:0], 2)[0].shape == (0, 2)
        with pytest.raises(InputError, match="input 0 cannot be answered"):
            there.top(broken(x), 1)


def broken(x: Any) -> Any:
    x = x.copy()
    (x if isinstance(x, np.ndarray) else x.data)[:1] = np.nan
    return x


def test_a_call_is_captured_once_and_the_oldest_is_forgotten() -> None:
    made: list[Callable[[], Any]] = []

    def capture(_: Link, function: Callable[[], Any]) -> Callable[[], Any]:
        made.append(function)
        return function

    with simulated_cuda():
        calls = CapturedCalls(Link("cuda:0"), capture)

        def twice(kind: int, value: float) -> float:
            def fill(place: np.ndarray) -> None:
                place[:] = value

            return float(calls.answers(kind, [((2,), torch.float32)], fill, lambda x: (2 * x,))[0][0])

        assert [twice(0, 1.0), twice(0, 4.0), twice(1, 3.0)] == [2.0, 8.0, 6.0]
        assert len(made) == 2
        for kind in range(2, MAX_GRAPHS + 1):
            twice(kind, 1.0)
        assert twice(1, 5.0) == 10.0
        assert len(made) == MAX_GRAPHS + 1
        assert twice(0, 5.0) == 10.0
        assert len(made) == MAX_GRAPHS + 2


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sound_rows_are_those_in_which_nothing_is_found(data: st.DataObject) -> None:
    """The quick check of a batch against the one that names a row."""
    from scipy.sparse import csr_matrix

    counts = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    indptr = np.cumsum([0, *counts])
    indices = data.draw(st.lists(st.integers(-1, 4), min_size=sum(counts), max_size=sum(counts)))
    values = data.draw(
        st.lists(st.sampled_from([0.0, 1.0, np.nan, np.inf]), min_size=sum(counts), max_size=sum(counts))
    )
    x = csr_matrix((len(counts), 3), dtype=np.float32)
    x.indptr, x.indices, x.data = indptr, np.array(indices, np.int32), np.array(values, np.float32)
    expected = all(0 <= each < 3 for each in indices) and np.isfinite(values).all() and max(counts) <= 3
    try:
        check_rows(x)
        assert expected
    except InputError:
        assert not expected


def test_a_plugin_ranker_is_not_captured() -> None:
    """Its keys are found on the host."""
    with simulated_cuda(), kernels(), mock.patch.dict(device_tables._KEYS, clear=True):
        there = DeviceSloNN(dense_model(), "cuda:0")
    assert there._calls is None
