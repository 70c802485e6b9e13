"""Operator graphs in PyTorch as CUDA graphs: all kernels of a network are launched at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slotool.errors import GraphError
from slotool.graphs import OperatorGraph
from slotool.profiling.backends.torch_backend import TorchBackend
from slotool.profiling.out_of_memory import is_out_of_memory
from slotool.transfers import cuda_graph

if TYPE_CHECKING:
    import torch


class CudaGraphBackend(TorchBackend):
    """What ``TorchBackend`` runs, captured once and replayed: without what the host takes to launch each kernel, which
    is most of the latency of a small network. The input stays in the same place."""

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
