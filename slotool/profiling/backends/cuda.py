"""A CUDA device through torch: waited for, timed by its own events, emptied, and set to compute in float32."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from slotool.nvml import Nvml, NvmlDevice
from slotool.profiling.accelerator import MPS, PROCESSES, Accelerator, DeviceMemory, mps_is_running
from slotool.timing.timer import Stopwatch
from slotool.transfers import use_exact_products

if TYPE_CHECKING:
    import torch

# Where torch does not say how large the L2 is: more than that of any device until now.
USUAL_L2_BYTES = 256 << 20
# Writing so many times the cache's size leaves nothing older in it, whatever its policy of replacement.
EVICTED_TIMES = 2


class CudaStopwatch:
    """Seconds between two CUDA events on the current stream, by the device's clock.

    Both are recorded at once with the work they enclose: an event recorded after the host has waited would count how
    long the host took to wake up.
    """

    def __init__(self, device: str):
        import torch

        self._device = torch.device(device)
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def start(self) -> None:
        with self._current():
            self._begin.record()

    def stop(self) -> None:
        with self._current():
            self._end.record()

    def seconds(self) -> float:
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end) / 1000.0)

    def _current(self) -> AbstractContextManager[Any]:
        import torch

        return torch.cuda.device(self._device)


class NvidiaAccelerator(Accelerator):
    """``cuda:N`` of a library that says little of it: what is known is what NVML says."""

    def __init__(self, device: str):
        self.device = device
        self.number = int(device.partition(":")[2] or 0)

    @property
    def name(self) -> str:
        return self.readings.name or self.device

    @cached_property
    def readings(self) -> NvmlDevice:
        return Nvml().visible(self.number)

    def memory(self) -> DeviceMemory | None:
        found = self.readings.memory_bytes
        return None if found is None else DeviceMemory(*found)

    def colocation(self) -> str:
        return MPS if mps_is_running() else PROCESSES


class CudaAccelerator(NvidiaAccelerator):
    """The device that torch calls ``cuda:N``. Opening it switches TF32 off, which keeps ten bits of a float32's
    fraction, and kernels of cuDNN that a search finds or that add up in no fixed order: both differ from run to run.
    """

    streams = True

    def __init__(self, device: str):
        import torch

        super().__init__(device)
        self._device = torch.device(device)
        self._stream: torch.cuda.Stream | None = None
        # As the workers of `serve` do.
        use_exact_products()

    @property
    def name(self) -> str:
        import torch

        return str(torch.cuda.get_device_name(self._device))

    @cached_property
    def readings(self) -> NvmlDevice:
        import torch

        uuid = str(getattr(torch.cuda.get_device_properties(self._device), "uuid", ""))
        return Nvml().device(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")

    def wait(self) -> None:
        import torch

        if self._stream is None:
            torch.cuda.synchronize(self._device)
        else:
            self._stream.synchronize()

    @contextmanager
    def stream(self) -> Iterator[None]:
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        # What was put on the device by the default stream, such as weights, is there.
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._stream):
            yield

    def stopwatch(self) -> Stopwatch:
        return CudaStopwatch(str(self._device))

    def memory(self) -> DeviceMemory:
        import torch

        free, total = torch.cuda.mem_get_info(self._device)
        return DeviceMemory(int(free), int(total))

    def eviction(self) -> Callable[[], None]:
        import torch

        size = EVICTED_TIMES * self._l2_bytes()
        values = torch.zeros(size // 4, device=self._tensor_device)

        def evict() -> None:
            values.add_(1.0)
            self.wait()

        return evict

    def release(self) -> None:
        import torch

        # An error that was raised may still hold tensors in a circle.
        gc.collect()
        torch.cuda.empty_cache()

    def settings(self) -> dict[str, Any]:
        import torch

        return {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "matmul precision": torch.get_float32_matmul_precision(),
            "cudnn tf32": torch.backends.cudnn.allow_tf32,
            "cudnn benchmark": torch.backends.cudnn.benchmark,
            "cudnn deterministic": torch.backends.cudnn.deterministic,
        }

    @property
    def _tensor_device(self) -> Any:
        return self._device

    def _l2_bytes(self) -> int:
        import torch

        return int(getattr(torch.cuda.get_device_properties(self._device), "L2_cache_size", 0)) or USUAL_L2_BYTES
