"""Arrays on their way to a device and back.

Where the device is a GPU, arrays cross through page-locked memory that PyTorch keeps for the next call, so that copies
run while the host goes on; the host waits once, when it takes the results.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from slotool import devices

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Module = TypeVar("Module", bound="nn.Module")
Output = TypeVar("Output")

# Calls before a capture, so that libraries have chosen their kernels and taken their memory.
CALLS_BEFORE_CAPTURE = 3


class Link:
    """Between the host and ``device``, which ``name`` is the name of.

    Products on a GPU are those of float32 and the same at every call of the same batch size: TF32 and cuDNN's
    algorithms without a fixed order of sums are switched off in this process. Raises ``ArgumentError`` for a device
    that cannot be used.
    """

    def __init__(self, device: str):
        self.name = devices.required(device)
        self.device: torch.device = devices.torch_device(self.name)
        self._is_cuda = devices.is_cuda(self.name)
        if self._is_cuda:
            use_products(devices.FLOAT32)

    def to_device(self, array: np.ndarray) -> Tensor:
        """Return a tensor of the array's values; on a CPU it may share the array's memory, which must not change."""
        import torch

        if not self._is_cuda:
            return torch.from_numpy(array)
        staged = page_locked(array.shape, torch.from_numpy(np.empty(0, array.dtype)).dtype)
        staged.numpy()[...] = array
        return staged.to(self.device, non_blocking=True)

    def to_host(self, *tensors: Tensor) -> list[np.ndarray]:
        """Wait for the device and return the tensors' values."""
        if not self._is_cuda:
            return [tensor.numpy() for tensor in tensors]
        staged = [page_locked(tensor.shape, tensor.dtype) for tensor in tensors]
        for to, tensor in zip(staged, tensors, strict=True):
            to.copy_(tensor, non_blocking=True)
        wait_for(self.device)
        return [tensor.numpy() for tensor in staged]


def moved(module: Module, link: Link) -> Module:
    """Return a copy of ``module`` whose parameters and buffers are on the device, each copied straight there."""
    from torch import nn

    copies: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        copied = tensor.detach().to(link.device)
        is_parameter = isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(copied, requires_grad=False) if is_parameter else copied
    return copy.deepcopy(module, copies)


def page_locked(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return host memory that a GPU copies directly; PyTorch reuses it only after pending copies have ended."""
    import torch

    return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)


def wait_for(device: torch.device) -> None:
    """Return when a GPU has done all that was asked of it."""
    import torch

    torch.cuda.current_stream(device).synchronize()


def cuda_graph(device: str | torch.device, function: Callable[[], Output]) -> Callable[[], Output]:
    """Capture the work that ``function`` launches on a GPU, and return a call that launches all of it at once.

    Args:
        device: The GPU.
        function: Launches work on the current stream, from and to the same memory in each call.

    Returns:
        A call that repeats the work and returns the output of the capture, which each call overwrites. It holds
        ``function``, and with it the tensors that the graph reads.

    Raises:
        RuntimeError: The work cannot be captured, or memory does not suffice.
    """
    import torch

    with torch.cuda.device(device):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(CALLS_BEFORE_CAPTURE):
                function()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # A relaxed capture lets other threads use the device meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = function()

    def replay(_memory: Callable[[], Output] = function) -> Output:
        graph.replay()
        return output

    return replay


def dtype_of(precision: str) -> torch.dtype:
    """Return the type of weights and activations in a number format of ``devices.PRECISIONS``."""
    import torch

    return {devices.BF16: torch.bfloat16, devices.FP16: torch.float16}.get(precision, torch.float32)


def use_products(precision: str) -> None:
    """Have products on GPUs repeat from call to call, in this process.

    Those of float32 are exact, unless ``precision`` is tf32.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = precision == devices.TF32
    torch.backends.cudnn.allow_tf32 = precision == devices.TF32
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
