"""Operator graphs in PyTorch, eager, on CPU or CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from slotool import devices
from slotool.errors import GraphError
from slotool.graphs import OperatorGraph
from slotool.profiling.accelerator import Accelerator, CudaAccelerator
from slotool.profiling.backends.base import Backend
from slotool.profiling.out_of_memory import is_out_of_memory
from slotool.transfers import cuda_graph

if TYPE_CHECKING:
    import torch


# 64 bytes, a cache line, in float32 values.
ALIGNMENT = 16


class OnTorch(Backend):
    """A backend whose devices and threads are torch's."""

    needs = "torch"
    no_device_advice = "a GPU, such as cuda:0, needs a build of PyTorch with CUDA; slotool doctor lists what is there"

    def devices(self) -> tuple[str, ...]:
        return devices.present()

    def threads(self) -> int:
        import torch

        return torch.get_num_threads()

    def open_accelerator(self) -> Accelerator | None:
        return CudaAccelerator(self.device)


class TorchBackend(OnTorch):
    """Runs ``GraphModule`` in inference mode; weights are views of one arena that outlives the networks."""

    name = "torch"

    def __init__(self, device: str = "cpu", threads: int | None = None, seed: int = 0):
        super().__init__(device, threads, seed)
        self._arena = WeightArena(self.weight_block, self.tensor_device)

    @property
    def tensor_device(self) -> str:
        """Device on which torch puts weights and inputs."""
        return self.device

    def set_threads(self, threads: int) -> None:
        import torch

        # Before the pool's threads exist: they inherit this setting from the thread that starts them.
        torch.set_flush_denormal(True)
        torch.set_num_threads(threads)

    def prepare(self, subject: OperatorGraph, batch_size: int) -> Callable[[], torch.Tensor]:
        import torch

        from slotool.graphs.torch_module import GraphModule

        module = GraphModule(subject, device="meta").eval().requires_grad_(False)
        self._arena.lend_to(module)
        inputs = [torch.from_numpy(values).to(self.tensor_device) for values in self.feeds(subject, batch_size)]

        def call() -> torch.Tensor:
            with torch.inference_mode():
                answer: torch.Tensor = module(*inputs)
                return answer

        return call

    def release(self) -> None:
        self._arena = WeightArena(self.weight_block, self.tensor_device)
        super().release()

    def array(self, output: torch.Tensor) -> np.ndarray:
        return output.cpu().numpy()


class WeightArena:
    """One float32 buffer that every network's weights lie in, each tensor on memory of its own.

    Filled once when it grows, so that a network costs neither allocation nor initialisation.
    """

    def __init__(self, block: np.ndarray, device: str):
        self._block = block
        self._device = device
        self._buffer: torch.Tensor | None = None

    def lend_to(self, module: torch.nn.Module) -> None:
        """Give each parameter of a module on the meta device its own 64-byte aligned part, and each buffer there ones;
        other buffers keep their values."""
        import torch

        parameters = dict(module.named_parameters())
        buffer = self._at_least(sum(_aligned(tensor.numel()) for tensor in parameters.values()))
        state: dict[str, torch.Tensor] = {}
        start = 0
        for name, tensor in parameters.items():
            state[name] = buffer[start : start + tensor.numel()].view(tensor.shape)
            start += _aligned(tensor.numel())
        # Ones, not arena values: a running variance must be positive.
        for name, kept in module.named_buffers():
            state[name] = torch.ones_like(kept, device=self._device) if kept.is_meta else kept.to(self._device)
        module.load_state_dict(state, assign=True)

    def _at_least(self, values: int) -> torch.Tensor:
        import torch

        if self._buffer is None or self._buffer.numel() < values:
            self._buffer = None  # free the old one first: both together may not fit
            block = torch.from_numpy(self._block).to(self._device)
            grown = torch.empty(max(values + values // 4, block.numel()), device=self._device)
            for part in grown.split(block.numel()):
                part.copy_(block[: part.numel()])
            self._buffer = grown
        return self._buffer


def _aligned(values: int) -> int:
    return -(-values // ALIGNMENT) * ALIGNMENT


class CudaGraphBackend(TorchBackend):
    """Calls of ``TorchBackend``, captured once and replayed: without the time to launch each kernel, which is
    most of the latency of a small network. The input stays in the same place."""

    name = "torch-cuda-graph"
    no_device_advice = "CUDA graphs need a CUDA device, as --device cuda:0; --backend torch runs on the CPU"

    def devices(self) -> tuple[str, ...]:
        return tuple(device for device in super().devices() if device != "cpu")

    def prepare(self, subject: OperatorGraph, batch_size: int) -> Callable[[], torch.Tensor]:
        call = super().prepare(subject, batch_size)
        try:
            return cuda_graph(self.device, call)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            words = " ".join(str(error).split())[:200]
            raise GraphError(
                f"{subject.name or subject.id} cannot be captured as a CUDA graph ({words}); use --backend torch"
            ) from error
