"""Arrays on their way to a device and back, and modules that go there."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch

from slotool import transfers
from slotool.graphs.indices import dtype_of
from slotool.graphs.torch_module import GraphModule
from slotool.transfers import Link, moved
from tests.cuda_on_cpu import fake_cuda, simulated_cuda
from tests.graphs.operator_cases import CASES, case_names, graph_of

# PyTorch finds its shape without values another way, which takes one grid for the whole batch.
WITHOUT_FORM = {"GridSample"}


def test_every_operator_of_a_graph_computes_on_the_device_of_its_weights() -> None:
    """No layer makes a tensor on the CPU on the way, or has the host wait for a value."""
    failed = {}
    for (op, attributes, sources), name in zip(CASES, case_names(), strict=True):
        graph = graph_of(op, attributes, sources)
        module = GraphModule(graph).eval().requires_grad_(False)
        with fake_cuda():
            link = Link("cuda:0")
            inputs = [link.to_device(np.zeros((2, *each.shape), dtype_of(each))) for each in graph.inputs]
            try:
                with torch.inference_mode():
                    assert moved(module, link)(*inputs).device.type == "cuda"
            except RuntimeError as error:
                failed[name] = str(error)
    assert {name.partition("-")[0] for name in failed} == WITHOUT_FORM, failed


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool", "float16"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_what_goes_to_a_device_comes_back(dtype: str, shape: tuple[int, ...]) -> None:
    sent = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2, dtype=dtype)
    sent.flags.writeable = False
    with simulated_cuda():
        link = Link("cuda:1")
        there = link.to_device(sent)
        first, second = link.to_host(there, there)
        there.fill_(1)
    for found in (first, second):
        assert (found.dtype, found.shape) == (sent.dtype, sent.shape)
        np.testing.assert_array_equal(found, sent)


def test_the_host_waits_once_for_all_answers_and_products_are_exact() -> None:
    torch.backends.cudnn.allow_tf32 = True
    with simulated_cuda():
        link = Link("cuda:0")
        with mock.patch.object(transfers, "wait_for") as waits:
            link.to_host(*[link.to_device(np.ones(3)) for _ in range(4)])
    waits.assert_called_once_with(link.device)
    assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.deterministic


@pytest.mark.cuda
def test_a_real_gpu_gives_back_what_it_got_while_the_host_went_on() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    link = Link("cuda:0")
    sent = [np.random.default_rng(at).random((256, 1024), dtype=np.float32) for at in range(20)]
    # Many at once: none may get the memory of another whose copy has not ended.
    there = [link.to_device(array) for array in sent]
    for found, array in zip(link.to_host(*there), sent, strict=True):
        np.testing.assert_array_equal(found, array)
