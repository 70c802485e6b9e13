"""Operator graphs in PyTorch as CUDA graphs: all kernels of a network are launched at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slotool.errors import GraphError
from slotool.graphs import OperatorGraph
from slotool.profiling.backends.torch_backend import TorchBackend
from slotool.profiling.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    import torch

# Before a capture, so that libraries have chosen their kernels and taken their memory.
WARM_UP_CALLS = 3


class CudaGraphBackend(TorchBackend):
    """What ``TorchBackend`` runs, captured once and replayed: without what the host takes to launch each kernel, which
    is most of the latency of a small network. The input stays in the same place."""

    name = "torch-cuda-graph"
    no_device_advice = "CUDA graphs need a CUDA device, as --device cuda:0; --backend torch runs on the CPU"

    def devices(self) -> tuple[str, ...]:
        return tuple(device for device in super().devices() if device != "cpu")

    def prepare(self, subject: OperatorGraph, batch_size: int) -> Callable[[], torch.Tensor]:
        import torch

        call = super().prepare(subject, batch_size)
        with torch.cuda.device(self.device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP_CALLS):
                    call()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph):
                    output = call()
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                words = " ".join(str(error).split())[:200]
                raise GraphError(
                    f"{subject.name or subject.id} cannot be captured as a CUDA graph ({words}); use --backend torch"
                ) from error

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay
