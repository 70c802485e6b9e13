"""``torch.cuda`` as far as measurements use it, on a machine without a device: what is called, and when.

Tensors lie on the CPU. Time is simulated: ``launch`` asks for work and returns at once, and ``synchronize`` returns
when it is done, a moment later than that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

LAUNCH_S = 1e-5
UUID = "12345678-0000-0000-0000-000000000000"


class SimulatedCuda:
    """``log`` holds the calls in order: ``launch``, ``record``, ``synchronize``, ``elapsed``, ``empty cache``,
    ``stream``, ``synchronize stream``, ``capture``, ``replay``. ``clock`` is the host's, in seconds. ``wake_s``: what
    the host takes to notice that the device is done. ``free_bytes`` is what the device says is free.
    """

    def __init__(self, devices: int = 1, wake_s: float = 1e-3):
        self.devices, self.wake_s = devices, wake_s
        self.log: list[str] = []
        self.host_s = self.device_s = 0.0
        self.free_bytes, self.total_bytes = 70 << 30, 80 << 30

    def clock(self) -> float:
        self.host_s += 1e-8
        return self.host_s

    def launch(self, seconds: float) -> None:
        """Ask for work that lasts so long."""
        self.log.append("launch")
        self.host_s += LAUNCH_S
        self.device_s = max(self.device_s, self.host_s) + seconds

    def synchronize(self, device: Any = None) -> None:
        self.log.append("synchronize")
        self.host_s = max(self.host_s, self.device_s) + self.wake_s

    @contextmanager
    def installed(self) -> Iterator[SimulatedCuda]:
        """In place of ``torch.cuda`` while the context is entered; afterwards torch is as it was."""
        import torch

        from slotool.profiling.backends.torch_backend import TorchBackend

        kept = (
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
        )
        with ExitStack() as patches:
            for name, value in self._members().items():
                patches.enter_context(mock.patch.object(torch.cuda, name, value))
            patches.enter_context(mock.patch.object(TorchBackend, "tensor_device", "cpu"))
            try:
                yield self
            finally:
                torch.set_float32_matmul_precision(kept[0])
                cudnn = torch.backends.cudnn
                cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = kept[1:]

    def _members(self) -> dict[str, Any]:
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool = False, **options: Any):
                assert enable_timing, "an event without timing measures nothing"

            def record(self, stream: Any = None) -> None:
                cuda.log.append("record")
                self.at_s = max(cuda.device_s, cuda.host_s)

            def synchronize(self) -> None:
                cuda.host_s = max(cuda.host_s, self.at_s)

            def elapsed_time(self, later: Any) -> float:
                cuda.log.append("elapsed")
                return 1000.0 * float(later.at_s - self.at_s)

        class Stream:
            def __init__(self, device: Any = None):
                cuda.log.append("stream")

            def wait_stream(self, other: Any) -> None:
                pass

            def synchronize(self) -> None:
                cuda.log.append("synchronize stream")
                cuda.host_s = max(cuda.host_s, cuda.device_s) + cuda.wake_s

        class CUDAGraph:
            def replay(self) -> None:
                cuda.log.append("replay")

        @contextmanager
        def graph(captured: CUDAGraph, **options: Any) -> Iterator[None]:
            cuda.log.append("capture")
            yield

        return {
            "Event": Event,
            "CUDAGraph": CUDAGraph,
            "graph": graph,
            "Stream": Stream,
            "stream": lambda stream: nullcontext(),
            "device": lambda device: nullcontext(),
            "current_stream": lambda device=None: SimpleNamespace(wait_stream=lambda other: None),
            "device_count": lambda: self.devices,
            "is_available": lambda: self.devices > 0,
            "synchronize": self.synchronize,
            "mem_get_info": lambda device=None: (self.free_bytes, self.total_bytes),
            "empty_cache": lambda: self.log.append("empty cache"),
            "get_device_name": lambda device=None: "Simulated H100",
            "get_device_properties": lambda device=None: SimpleNamespace(uuid=UUID, total_memory=self.total_bytes),
        }
