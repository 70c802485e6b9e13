"""Arrays on their way to a device and back.

Where the device is a GPU, arrays cross through page-locked memory that PyTorch keeps for the next call, so that copies
run while the host goes on; the host waits once, when it takes the results. Work on a GPU is launched at once, as a CUDA
graph.
"""

from __future__ import annotations

import copy
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from slotool import devices
from slotool.errors import SlotoolWarning
from slotool.printable import reason

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Module = TypeVar("Module", bound="nn.Module")
Output = TypeVar("Output")

# Calls before a capture, so that libraries have chosen their kernels and taken their memory.
CALLS_BEFORE_CAPTURE = 3
# Batch sizes that are captured. Kernels of larger batches last longer than their launches.
CAPTURED_SIZES = (1, 2, 4, 8, 16, 32, 64)
# Maximum number of graphs of a link, each of which may take a megabyte; further work is launched kernel by kernel.
MAX_GRAPHS = 512
# Variable of the environment, which worker processes inherit: 1 launches all work kernel by kernel.
EAGER_VARIABLE = "SLOTOOL_EAGER"


class Link:
    """Between the host and ``device``, which ``name`` is the name of; products are computed in ``precision``.

    Products on a GPU are the same at every call of the same batch size: cuDNN's algorithms without a fixed order of
    sums are switched off in this process, and TF32 unless that is the ``precision``. ``dtype`` is that of weights and
    activations. Raises ``ArgumentError`` for a device or a precision that cannot be used.
    """

    def __init__(self, device: str, precision: str = devices.FLOAT32):
        self.name = devices.required(device)
        self.precision = devices.required_precision(precision, self.name)
        self.device: torch.device = devices.torch_device(self.name)
        self.dtype = dtype_of(precision)
        self.is_cuda = devices.is_cuda(self.name)
        self._graphs: dict[tuple[Any, ...], _Graph | None] = {}
        self._eager = not self.is_cuda or os.environ.get(EAGER_VARIABLE) == "1"
        if self.is_cuda:
            use_products(self.precision)

    def to_device(self, array: np.ndarray) -> Tensor:
        """Return a tensor of the array's values; on a CPU it may share the array's memory, which must not change."""
        return self.rounded(self.staged(array).to(self.device, non_blocking=True))

    def staged(self, array: np.ndarray) -> Tensor:
        """Return the array's values in memory that the device copies from."""
        import torch

        if not self.is_cuda:
            return torch.from_numpy(array)
        staged = page_locked(array.shape, torch.from_numpy(np.empty(0, array.dtype)).dtype)
        staged.numpy()[...] = array
        return staged

    def rounded(self, tensor: Tensor) -> Tensor:
        """Return float32 values as ``dtype``, others as they are."""
        import torch

        return tensor.to(self.dtype) if tensor.dtype == torch.float32 else tensor

    def to_host(self, *tensors: Tensor) -> list[np.ndarray]:
        """Wait for the device and return the tensors' values, of ``dtype`` as float32."""
        tensors = tuple(tensor.float() if tensor.dtype == self.dtype else tensor for tensor in tensors)
        if not self.is_cuda:
            return [tensor.numpy() for tensor in tensors]
        staged = [page_locked(tensor.shape, tensor.dtype) for tensor in tensors]
        for to, tensor in zip(staged, tensors, strict=True):
            to.copy_(tensor, non_blocking=True)
        wait_for(self.device)
        return [tensor.numpy() for tensor in staged]

    def run(self, function: Callable[..., Any], *arrays: np.ndarray, any_batch: bool = True) -> list[np.ndarray]:
        """Return what ``function`` computes on the device of ``arrays``.

        On a GPU its work is captured when a batch size, rounded up to a power of two, is first called, and launched at
        once from then on; rows left over hold earlier examples. Work is launched kernel by kernel in batches beyond
        ``CAPTURED_SIZES``, after ``MAX_GRAPHS``, by ``EAGER_VARIABLE``, and with a ``SlotoolWarning`` if it cannot be
        captured.

        Args:
            function: Pure function of tensors that returns a tensor or several. The link keeps it with its graphs.
            arrays: Arrays [batch, ...], whose shapes differ between calls in the batch only.
            any_batch: The function takes every batch size, and row n of its results depends on row n of the arrays.
        """
        import torch

        with torch.inference_mode():
            graph = self._graph(function, arrays) if any_batch and not self._eager else None
            if graph is None:
                return self.to_host(*_several(function(*map(self.to_device, arrays))))
            with graph.pool.turn:
                for tensor, array in zip(graph.inputs, arrays, strict=True):
                    tensor[: len(array)].copy_(self.staged(array), non_blocking=True)
                return self.to_host(*(tensor[: len(arrays[0])] for tensor in graph.replay()))

    def _graph(self, function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> _Graph | None:
        size = next((size for size in CAPTURED_SIZES if size >= len(arrays[0]) > 0), None)
        if size is None:
            return None
        pool = graph_pool(self.device)
        key = (function, size, pool.handle)
        if key not in self._graphs and len(self._graphs) < MAX_GRAPHS:
            rows = np.minimum(np.arange(size), len(arrays[0]) - 1)
            self._graphs[key] = self._captured(function, [self.to_device(array[rows]) for array in arrays], pool)
        return self._graphs.get(key)

    def _captured(self, function: Callable[..., Any], inputs: Sequence[Tensor], pool: GraphPool) -> _Graph | None:
        try:
            with pool.turn:
                replay = cuda_graph(self.device, lambda: _several(function(*inputs)), pool.handle)
                lengths = {len(tensor) for tensor in replay()}
        except (RuntimeError, TypeError) as error:
            warnings.warn(f"launched kernel by kernel, not as a CUDA graph: {reason(error)}", SlotoolWarning, 2)
            return None
        # In other results it is not known which rows are those of the examples.
        return _Graph(replay, inputs, pool) if lengths == {len(inputs[0])} else None


class GraphPool(NamedTuple):
    """Memory that graphs of one stream share; the one that is replayed has the ``turn`` until its results are read."""

    handle: Any
    turn: threading.Lock


class _Graph(NamedTuple):
    replay: Callable[[], Sequence[Tensor]]
    inputs: Sequence[Tensor]
    pool: GraphPool


def graph_pool(device: torch.device) -> GraphPool:
    """Return the memory of graphs that are replayed on the current stream of a GPU."""
    import torch

    return _pool_of(device, torch.cuda.current_stream(device).cuda_stream)


@lru_cache
def _pool_of(device: torch.device, stream: int) -> GraphPool:
    import torch

    return GraphPool(torch.cuda.graph_pool_handle(), threading.Lock())


def _several(results: Any) -> Sequence[Tensor]:
    import torch

    return (results,) if isinstance(results, torch.Tensor) else tuple(results)


def moved(module: Module, link: Link) -> Module:
    """Return a copy of ``module`` whose parameters and buffers are on the device as ``link.dtype``."""
    from torch import nn

    copies: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        copied = link.rounded(tensor.detach().to(link.device))
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


def cuda_graph(device: str | torch.device, function: Callable[[], Output], pool: Any = None) -> Callable[[], Output]:
    """Capture the work that ``function`` launches on a GPU, and return a call that launches all of it at once.

    Args:
        device: The GPU.
        function: Launches work on the current stream, from and to the same memory in each call.
        pool: Memory of graphs that are replayed one at a time, as torch hands it out; None: memory of its own.

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
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
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
