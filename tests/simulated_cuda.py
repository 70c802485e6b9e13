"""GPUs that are not there: ``cuda:0`` and ``cuda:1`` whose tensors lie on the CPU, so that code for GPUs runs.

What this cannot show is that every tensor is on the right device and that nothing waits for the device on the way:
that is what PyTorch's fake tensors are for, which know their device and have no values (``fake_cuda``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from slotool import devices


@contextmanager
def simulated_cuda(count: int = 2) -> Iterator[None]:
    """``count`` GPUs whose work the CPU does."""
    with (
        mock.patch.object(devices, "cuda_count", return_value=count),
        mock.patch.object(devices, "torch_device", return_value=torch.device("cpu")),
    ):
        yield


@contextmanager
def fake_cuda() -> Iterator[None]:
    """A GPU whose tensors have shapes and no values: an operator on tensors of two devices fails, and so does whatever
    would have the host wait for a value."""
    with mock.patch.object(devices, "cuda_count", return_value=1), FakeTensorMode(allow_non_fake_inputs=True):
        yield
