"""Operator graphs in PyTorch, eager, on CPU or CUDA."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from slotool import devices
from slotool.errors import GraphError
from slotool.graphs import OperatorGraph
from slotool.graphs.operators import Operator
from slotool.profiling.accelerator import Accelerator, CudaAccelerator
from slotool.profiling.backends.base import Backend
from slotool.profiling.out_of_memory import is_out_of_memory
from slotool.transfers import cuda_graph, dtype_of

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
        return CudaAccelerator(self.device, self.precision)


class TorchBackend(OnTorch):
    """Runs ``GraphModule`` in inference mode; weights are views of one arena that outlives the networks."""

    name = "torch"
    precisions = devices.PRECISIONS

    @cached_property
    def _arena(self) -> WeightArena:
        return WeightArena(self.weight_block, self.tensor_device, dtype_of(self.precision))

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

        module, inputs = self._placed(subject, batch_size)
        run = self.runner(module, inputs)

        def call() -> torch.Tensor:
            with torch.inference_mode():
                answer: torch.Tensor = run(*inputs)
                return answer

        return call

    def walk(self, subject: OperatorGraph, batch_size: int) -> Callable[[int], np.ndarray]:
        """Return times between the beginnings of operators, where the host waits for each; else as backends do whose
        library runs a network as one."""
        import torch

        if self.device != "cpu" or type(self).runner is not TorchBackend.runner:
            return super().walk(subject, batch_size)
        module, inputs = self._placed(subject, batch_size, partly=True)
        takes_time = [operator.op != "InputLayer" for operator in subject.operators]

        def plain() -> float:
            started = time.perf_counter()
            with torch.inference_mode():
                module(*inputs)
            return time.perf_counter() - started

        def once() -> np.ndarray:
            began: list[float] = []
            with torch.inference_mode():
                started = time.perf_counter()
                module(*inputs, between=lambda: began.append(time.perf_counter()))
                ended = time.perf_counter()
            seconds = np.zeros(1 + len(takes_time))
            seconds[0] = began[0] - started
            seconds[1:][takes_time] = np.diff([*began, ended])
            return seconds

        def walked(count: int) -> np.ndarray:
            once()
            marked, whole = zip(*((once(), plain()) for _ in range(count)), strict=True)
            # Reading the clock between operators takes its time too.
            return np.array(marked) * min(1.0, float(np.min(whole) / np.min(np.sum(marked, axis=1))))

        return walked

    def _placed(
        self, graph: OperatorGraph, batch_size: int, *, partly: bool = False
    ) -> tuple[torch.nn.Module, list[torch.Tensor]]:
        import torch

        from slotool.graphs.torch_module import GraphModule

        absent = {operator.op: _absent for operator in graph.operators if not operator.known} if partly else {}
        module = GraphModule(graph, device="meta", layers=absent).eval().requires_grad_(False)
        self._arena.lend_to(module)
        feeds = [torch.from_numpy(values).to(self.tensor_device) for values in self.feeds(graph, batch_size)]
        return module, [values.to(self._arena.dtype) if values.is_floating_point() else values for values in feeds]

    def runner(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Return what computes the outputs of ``module`` for such ``inputs``: here the module itself."""
        return module

    def release(self) -> None:
        vars(self).pop("_arena", None)
        super().release()

    def array(self, output: torch.Tensor) -> np.ndarray:
        return (output.float() if output.dtype == self._arena.dtype else output).cpu().numpy()


class WeightArena:
    """One buffer of ``dtype`` that every network's weights lie in, each tensor on memory of its own.

    Filled once when it grows, so that a network costs neither allocation nor initialisation.
    """

    def __init__(self, block: np.ndarray, device: str, dtype: torch.dtype):
        self.dtype = dtype
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
            values = torch.ones_like(kept, device=self._device) if kept.is_meta else kept.to(self._device)
            state[name] = values.to(self.dtype) if values.is_floating_point() else values
        module.load_state_dict(state, assign=True)

    def _at_least(self, values: int) -> torch.Tensor:
        import torch

        if self._buffer is None or self._buffer.numel() < values:
            self._buffer = None  # free the old one first: both together may not fit
            block = torch.from_numpy(self._block).to(self._device, self.dtype)
            grown = torch.empty(max(values + values // 4, block.numel()), device=self._device, dtype=self.dtype)
            for part in grown.split(block.numel()):
                part.copy_(block[: part.numel()])
            self._buffer = grown
        return self._buffer


def _absent(operator: Operator, device: str) -> Callable[..., torch.Tensor]:
    return lambda *inputs: inputs[0].new_ones((len(inputs[0]), *operator.shape))


def _aligned(values: int) -> int:
    return -(-values // ALIGNMENT) * ALIGNMENT


class CompileBackend(TorchBackend):
    """Networks as ``torch.compile`` makes them, for one batch size; the first call compiles, which takes its time."""

    name = "torch-compile"

    def runner(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Callable[..., torch.Tensor]:
        import torch

        # All networks share the code of ``GraphModule.forward``, which after eight of them would run uncompiled.
        torch.compiler.reset()
        # Modules that are imported at their first use are then there.
        with torch.inference_mode():
            module(*inputs)
        compiled: Callable[..., torch.Tensor] = torch.compile(module, fullgraph=True, dynamic=False)
        return compiled


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
