"""GPUs that are not there.

``simulated_cuda``: ``cuda:0`` and more whose work the CPU does, so that code for GPUs runs and its answers can be
compared. ``fake_cuda``: a GPU whose tensors know their device and have no values. An operator on tensors of two devices
fails there, and so does whatever would have the host wait for a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from slotool import devices, transfers


@contextmanager
def simulated_cuda(count: int = 2) -> Iterator[None]:
    """``count`` GPUs whose work the CPU does."""
    with (
        mock.patch.object(devices, "cuda_count", return_value=count),
        mock.patch.object(devices, "torch_device", return_value=torch.device("cpu")),
        mock.patch.object(transfers, "page_locked", _pageable),
        mock.patch.object(transfers, "wait_for"),
        mock.patch.object(transfers, "cuda_graph", _captured),
        mock.patch.object(transfers, "graph_pool", return_value=transfers.GraphPool(None, Lock())),
    ):
        yield


@contextmanager
def fake_cuda() -> Iterator[None]:
    """One GPU without values. What comes back to the host has none either: zeros."""
    with (
        mock.patch.object(devices, "cuda_count", return_value=1),
        mock.patch.object(transfers.Link, "staged", _to_fake),
        mock.patch.object(transfers, "cuda_graph", lambda device, function, pool: function),
        mock.patch.object(transfers, "graph_pool", return_value=transfers.GraphPool(None, Lock())),
        mock.patch.object(transfers.Link, "to_host", _from_fake),
        mock.patch.object(FakeTensor, "__getitem__", _indexed),
        mock.patch.object(FakeTensor, "copy_", _copied),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        yield


def _pageable(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=dtype)


def _captured(device: Any, function: Callable[[], Any], pool: Any = None) -> Callable[[], Any]:
    """The work again, from the memory of the capture and to it, as a graph's is."""
    outputs = function()

    def replay() -> Any:
        for output, value in zip(outputs, function(), strict=True):
            output.copy_(value)
        return outputs

    return replay


def _to_fake(link: transfers.Link, array: Any) -> torch.Tensor:
    return torch.empty(array.shape, dtype=torch.from_numpy(array[:0]).dtype, device=link.device)


def _copied(to: torch.Tensor, values: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    assert (to.shape, to.device) == (values.shape, values.device)
    return to


def _from_fake(link: transfers.Link, *tensors: torch.Tensor) -> list[np.ndarray]:
    assert {tensor.device for tensor in tensors} == {link.device}
    return [np.zeros(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for tensor in tensors]


def _indexed(tensor: torch.Tensor, key: Any) -> torch.Tensor:
    """``tensor[key]`` by operators: Python's own indexing asks for the device's library, which a build of PyTorch
    without CUDA does not have."""
    indices: list[torch.Tensor | None] = []
    for part in key if isinstance(key, tuple) else (key,):
        dim = len(indices)
        if part is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(part, slice):
            tensor = torch.ops.aten.slice.Tensor(tensor, dim, part.start, part.stop, part.step or 1)
        elif isinstance(part, int):
            tensor = tensor.select(dim, part)
            continue
        indices.append(part if isinstance(part, torch.Tensor) else None)
    return torch.ops.aten.index.Tensor(tensor, indices) if any(each is not None for each in indices) else tensor
