"""Models on simulated GPUs by CUDA graphs: one per function and power of two, right answers, limits, formats."""

from __future__ import annotations

import gc
import weakref
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from slotool import transfers
from slotool.elastic.supernets.supernet import Supernet
from slotool.errors import InputError, SlotoolWarning
from slotool.transfers import Link
from tests.cuda_on_cpu import simulated_cuda
from tests.elastic.test_models_on_gpus import family, images
from tests.elastic.test_supernets import supernet
from tests.elastic.tiny_slo_nns import examples
from tests.models.test_models_on_devices import inputs, module_model, program_model
from tests.profiling.simulated_cuda import SimulatedCuda


@contextmanager
def counted() -> Any:
    """Sizes of the batches that are captured."""
    sizes: list[int] = []
    with simulated_cuda(), ExitStack() as stack:
        captured = transfers.cuda_graph

        def capture(device: Any, function: Any, pool: Any = None) -> Any:
            replay = captured(device, function, pool)
            sizes.append(len(replay()[0]))
            return replay

        stack.enter_context(mock.patch.object(transfers, "cuda_graph", capture))
        yield sizes


def test_a_graph_serves_all_batches_up_to_its_power_of_two() -> None:
    layer = torch.nn.Linear(5, 3).requires_grad_(False)
    with counted() as sizes:
        link = Link("cuda:0")
        for count in (3, 4, 1, 2, 3, 7, 100, 64, 33, 1):
            x = np.random.default_rng(count).random((count, 5), dtype=np.float32)
            (found,) = link.run(layer, x)
            np.testing.assert_allclose(found, layer(torch.from_numpy(x)).numpy(), rtol=1e-5)
    assert sizes == [4, 1, 2, 8, 64]


def test_nothing_is_captured_where_the_operator_wants_each_kernel_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = torch.nn.Linear(5, 3).requires_grad_(False), np.ones((2, 5), np.float32)
    monkeypatch.setenv("SLOTOOL_EAGER", "1")
    with counted() as sizes:
        (found,) = Link("cuda:0").run(layer, x)
    np.testing.assert_allclose(found, layer(torch.from_numpy(x)).numpy(), rtol=1e-5)
    assert sizes == []


def test_no_rows_are_computed_without_a_graph() -> None:
    with counted() as sizes:
        (found,) = Link("cuda:0").run(torch.nn.Linear(5, 3).requires_grad_(False), np.ones((0, 5), np.float32))
    assert (found.shape, sizes) == ((0, 3), [])


@pytest.mark.parametrize("kind", ["family", "supernet", "program"])
def test_every_point_of_families_supernets_and_programs_is_a_graph(kind: str, tmp_path: Path) -> None:
    model: Any = {"family": family, "supernet": lambda: supernet("convolutional")}.get(kind, lambda: None)()
    model = model or program_model(tmp_path)
    given = (
        inputs if kind == "program" else lambda n: {"input": images(n) if kind == "supernet" else examples(False, n, n)}
    )
    with counted() as sizes:
        there = model.on("cuda:0")
        for _ in range(2):
            for point in model.points:
                for n in (1, 3, 4):
                    expected = model.run(given(n), point)
                    for name, array in there.run(given(n), point).items():
                        np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-4)
    assert sorted(sizes) == sorted([1, 4] * len(model.points))


def test_a_module_of_somebody_is_called_each_time() -> None:
    model = module_model()
    with counted() as sizes:
        there = model.on("cuda:0")
        np.testing.assert_allclose(there.run(inputs(3))["scores"], model.run(inputs(3))["scores"], rtol=1e-4)
    assert sizes == []


def test_what_cannot_be_captured_is_launched_kernel_by_kernel() -> None:
    def refused(device: Any, function: Any, pool: Any = None) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    x = np.ones((2, 5), np.float32)
    with simulated_cuda(), mock.patch.object(transfers, "cuda_graph", refused):
        link = Link("cuda:0")
        with pytest.warns(
            SlotoolWarning, match="launched kernel by kernel, not as a CUDA graph: operation not permitted"
        ):
            assert link.run(torch.neg, x)[0].sum() == -10
        assert link.run(torch.neg, x)[0].sum() == -10


@pytest.mark.parametrize("function", [lambda x: x.sum(0), lambda x: torch.cat([x, x]), lambda x: (x, x[:1])])
def test_results_of_other_rows_than_the_examples_are_not_cut(function: Any) -> None:
    x = np.random.default_rng(0).random((3, 5), dtype=np.float32)
    with simulated_cuda():
        found = Link("cuda:0").run(function, x)
    expected = function(torch.from_numpy(x))
    for array, tensor in zip(found, expected if isinstance(expected, tuple) else [expected], strict=True):
        np.testing.assert_array_equal(array, tensor.numpy())


def test_graphs_are_bounded_and_end_with_their_model() -> None:
    layers = [torch.nn.Linear(5, 3).requires_grad_(False) for _ in range(5)]
    with counted() as sizes, mock.patch.object(transfers, "MAX_GRAPHS", 3):
        link = Link("cuda:0")
        for layer in layers:
            x = np.ones((1, 5), np.float32)
            np.testing.assert_allclose(link.run(layer, x)[0], layer(torch.from_numpy(x)).numpy(), rtol=1e-5)
        assert sizes == [1, 1, 1]
        read = weakref.ref(layers[0])
        del layers, layer, link
        gc.collect()
        assert read() is None


def test_graphs_of_a_stream_share_their_memory_and_take_turns() -> None:
    asked: list[Any] = []
    cuda = SimulatedCuda()
    with cuda.installed() as installed, mock.patch.object(torch.cuda, "graph", _recording(asked, torch.cuda.graph)):
        for pool in (None, "shared"):
            transfers.cuda_graph("cuda:0", lambda: (torch.zeros(1),), pool)()
    assert [options["pool"] for options in asked] == [None, "shared"]
    assert installed.log.count("replay") == 2
    with (
        mock.patch.object(torch.cuda, "graph_pool_handle", side_effect=[(0, 1), (0, 2)], create=True),
        mock.patch.object(torch.cuda, "current_stream", side_effect=[mock.Mock(cuda_stream=at) for at in (1, 1, 2)]),
    ):
        pools = [transfers.graph_pool(torch.device("cuda:0")) for _ in range(3)]
    assert pools[0] is pools[1]
    assert pools[0].handle != pools[2].handle


def _recording(asked: list[Any], graph: Any) -> Any:
    def recorded(captured: Any, **options: Any) -> Any:
        asked.append(options)
        return graph(captured, **options)

    return recorded


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", ["family", "supernet", "program", "module"])
def test_answers_in_short_formats_are_near_and_float32(kind: str, precision: str, device: str, tmp_path: Path) -> None:
    made: dict[str, Any] = {"family": family, "supernet": lambda: supernet("convolutional"), "module": module_model}
    model = made[kind]() if kind in made else program_model(tmp_path)
    given = {"family": {"input": examples(False, 3, 3)}, "supernet": {"input": images(3)}}.get(kind, inputs(3))
    with simulated_cuda():
        there = model.on(device, precision)
        assert (there.device, there.precision, there.on(device, precision)) == (device, precision, there)
        for point in model.points:
            expected, found = model.run(given, point), there.run(given, point)
            for name, array in found.items():
                assert array.dtype == expected[name].dtype
                if array.dtype == np.float32:
                    assert np.abs(array - expected[name]).max() < 0.05 * np.abs(expected[name]).max()
        different = [(found[name] != expected[name]).any() for name in found]
    assert any(different)
    if isinstance(there, Supernet):
        assert 2 * there.weight_bytes == model.weight_bytes


def test_a_format_that_a_model_does_not_compute_in_is_refused() -> None:
    sparse = family(True)
    with simulated_cuda():
        with pytest.raises(InputError, match="takes sparse inputs, which are computed in float32, not in bf16"):
            sparse.on("cuda:0", "bf16")
        with pytest.raises(InputError, match="tf32 is a format of GPUs, and the device is cpu"):
            family().on("cpu", "tf32")
        assert family().on("cuda:0", "tf32").precision == "tf32"
        assert torch.backends.cuda.matmul.allow_tf32
        family().on("cuda:0")
        assert not torch.backends.cuda.matmul.allow_tf32
