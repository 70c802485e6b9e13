"""What a CUDA device says of itself while it is timed: its own clock, and whether it has been slowed down."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


class CudaStopwatch:
    """Seconds between two CUDA events on the current stream, by the device's clock."""

    def __init__(self, device: str):
        import torch

        self._device = torch.device(device)
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def start(self) -> None:
        import torch

        with torch.cuda.device(self._device):
            self._begin.record()

    def stop(self) -> float:
        import torch

        with torch.cuda.device(self._device):
            self._end.record()
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end) / 1000.0)


def is_throttled(device: str) -> bool:
    """Whether heat, power or the board hold the clock down right now; False where NVML (``nvidia-ml-py``) is absent."""
    found = _nvml(device)
    if found is None:
        return False
    nvml, handle = found
    slowed = (
        nvml.nvmlClocksThrottleReasonHwSlowdown
        | nvml.nvmlClocksThrottleReasonSwPowerCap
        | nvml.nvmlClocksThrottleReasonSwThermalSlowdown
        | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
        | nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
    )
    return bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & slowed)


@lru_cache(maxsize=8)
def _nvml(device: str) -> tuple[Any, Any] | None:
    """The library and its handle of the device that torch calls ``cuda:N``, matched by its UUID."""
    import torch

    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    pynvml.nvmlInit()
    uuid = f"GPU-{torch.cuda.get_device_properties(torch.device(device)).uuid}"
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)
