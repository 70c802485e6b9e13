"""Backends of operator graphs in PyTorch: eager, compiled, or as CUDA graphs."""

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
from slotool.profiling.backends.base import WEIGHT_BLOCK, Backend
from slotool.profiling.out_of_memory import is_out_of_memory
from slotool.transfers import cuda_graph, dtype_of

if TYPE_CHECKING:
    import torch

# Inferences that take longer lose nothing to the clock that is read between their operators, and stay warm.
SLOW_S = 0.05


class OnTorch(Backend):
    """Base class of backends whose devices and threads are torch's."""

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
    """``GraphModule`` in inference mode."""

    name = "torch"
    precisions = devices.PRECISIONS

    @property
    def tensor_device(self) -> str:
        """Device on which torch puts weights and inputs."""
        return self.device

    def set_threads(self, threads: int) -> None:
        import torch

        # Before the pool's threads start, which inherit this setting.
        torch.set_flush_denormal(True)
        torch.set_num_threads(threads)

    def prepare(self, subject: OperatorGraph, batch_size: int) -> Callable[[], torch.Tensor]:
        import torch

        module, inputs = self._module(subject, batch_size)
        run = self.runner(module, inputs)

        def call() -> torch.Tensor:
            with torch.inference_mode():
                answer: torch.Tensor = run(*inputs)
                return answer

        return call

    def walk(self, subject: OperatorGraph, batch_size: int) -> Callable[[int], np.ndarray]:
        """Return times between the beginnings of operators on a CPU; else they share the latency by rough prices."""
        import torch

        if self.device != "cpu" or type(self).runner is not TorchBackend.runner:
            return super().walk(subject, batch_size)
        module, inputs = self._module(subject, batch_size, partly=True)
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

        is_slow = False

        def walked(count: int) -> np.ndarray:
            nonlocal is_slow
            is_slow = is_slow or min(plain(), plain()) > SLOW_S
            if is_slow:
                return np.array([once() for _ in range(count)])
            marked, whole = zip(*((once(), plain()) for _ in range(count)), strict=True)
            # Reading the clock between operators takes time too.
            return np.array(marked) * min(1.0, float(np.median(whole) / np.median(np.sum(marked, axis=1))))

        return walked

    def _module(
        self, graph: OperatorGraph, batch_size: int, *, partly: bool = False
    ) -> tuple[torch.nn.Module, list[torch.Tensor]]:
        import torch

        from slotool.graphs.torch_module import GraphModule

        absent = {operator.op: _absent for operator in graph.operators if not operator.known} if partly else {}
        module = GraphModule(graph, device="meta", layers=absent).eval().requires_grad_(False)
        state = {name: self._filled(tensor) for name, tensor in module.named_parameters()}
        # Ones: a running variance must be positive.
        state |= {
            name: self._placed(torch.ones_like(tensor, device="cpu") if tensor.is_meta else tensor)
            for name, tensor in module.named_buffers()
        }
        module.load_state_dict(state, assign=True)
        return module, [self._placed(torch.from_numpy(values)) for values in self.feeds(graph, batch_size)]

    @cached_property
    def _block(self) -> torch.Tensor:
        import torch

        return self._placed(torch.from_numpy(self.weight_block))

    def _filled(self, parameter: torch.Tensor) -> torch.Tensor:
        import torch

        values = torch.empty(parameter.shape, device=self.tensor_device, dtype=dtype_of(self.precision))
        for part in values.view(-1).split(WEIGHT_BLOCK):
            part.copy_(self._block[: part.numel()])
        return values

    def _placed(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.tensor_device, dtype_of(self.precision) if values.is_floating_point() else None)

    def runner(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Return the function that computes ``module`` for such ``inputs``: here the module itself."""
        return module

    def array(self, output: torch.Tensor) -> np.ndarray:
        return (output.float() if output.dtype == dtype_of(self.precision) else output).cpu().numpy()


def _absent(operator: Operator, device: str) -> Callable[..., torch.Tensor]:
    return lambda *inputs: inputs[0].new_ones((len(inputs[0]), *operator.shape))


class CompileBackend(TorchBackend):
    """Backend of networks compiled by ``torch.compile`` for one batch size, at the first call."""

    name = "torch-compile"

    def runner(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Callable[..., torch.Tensor]:
        import torch

        # All networks share the code of ``GraphModule.forward``, of which torch compiles eight at most.
        torch.compiler.reset()
        # Modules are imported at first use.
        with torch.inference_mode():
            module(*inputs)
        compiled: Callable[..., torch.Tensor] = torch.compile(module, fullgraph=True, dynamic=False)
        return compiled


class CudaGraphBackend(TorchBackend):
    """Backend that captures calls of ``TorchBackend`` as a CUDA graph and replays it on the same input.

    It saves the time to launch each kernel, most of the latency of a small network.
    """

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
