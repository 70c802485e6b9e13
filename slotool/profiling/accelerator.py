"""Devices other than the CPU for measurements: waiting, clocks, memory and readings."""

from __future__ import annotations

import gc
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from slotool.nvml import Nvml, NvmlDevice, Slowdown
from slotool.timing.timer import Stopwatch
from slotool.transfers import use_products

if TYPE_CHECKING:
    import torch


# How processes share a device: in turns of time, or at once by NVIDIA's Multi-Process Service.
PROCESSES, MPS = "processes", "mps"
_MPS_FOLDER = "/tmp/nvidia-mps"
_MPS_SERVER = "nvidia-cuda-mps"
MAX_REMARKS = 8


@dataclass(frozen=True)
class DeviceMemory:
    """Free and total memory of a device, bytes."""

    free_bytes: int
    total_bytes: int


class DeviceReadings(Protocol):
    """Readings of a device, None for missing ones; ``NvmlDevice`` implements it."""

    @property
    def remarks(self) -> list[str]: ...

    @property
    def power_limit_w(self) -> float | None: ...

    def columns(self) -> Mapping[str, Any]: ...

    def slowdown(self) -> Slowdown | None: ...

    def processes(self) -> list[int] | None: ...

    def busy_percent(self) -> float | None: ...


class Accelerator(ABC):
    """Device of a backend, opened with the backend; a process has one."""

    # Maximum time of calls before the first sample, until durations settle: clocks rise under load.
    ramp_up_s: ClassVar[float] = 2.0
    # True if several backends of a process can use streams of their own (``stream``).
    streams: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Model of the device."""

    @property
    @abstractmethod
    def readings(self) -> DeviceReadings:
        """Readings of clock, power and users."""

    @abstractmethod
    def wait(self) -> None:
        """Return when the device has finished its work."""

    @abstractmethod
    def memory(self) -> DeviceMemory | None:
        """Return the memory of the device, or None if unknown."""

    def stopwatch(self) -> Stopwatch | None:
        """Return the device's clock, or None."""
        return None

    def stream(self) -> AbstractContextManager[Any]:
        """Return a context in which this thread uses a stream of its own, and ``wait`` waits for that only."""
        return nullcontext()

    def release(self) -> None:
        """Free cached memory."""
        return

    def settings(self) -> Mapping[str, Any]:
        """Return settings of the device that change latencies, by name."""
        return {}

    def colocation(self) -> str:
        """Return the way in which processes share the device: ``PROCESSES`` or ``MPS``."""
        return PROCESSES


class DeviceWatch:
    """Watch of a device: throttling after each sample, and other processes before and after all samples."""

    def __init__(self, readings: DeviceReadings, ours: Callable[[Collection[int]], Collection[int]] | None = None):
        self._readings, self._ours = readings, ours or of_this_campaign
        self.begin()

    def begin(self) -> None:
        """Forget earlier samples."""
        self._samples = self._capped = 0
        self._others: set[int] = set()
        self._unseen = False
        self._look_around()

    def throttled(self) -> bool:
        """True if heat or the board's protection lowers the clock now; the power limit, no disturbance, is counted."""
        slowdown = self._readings.slowdown()
        if slowdown is None:
            return False
        self._samples += 1
        self._capped += slowdown.power_capped
        return slowdown.throttled

    def columns(self) -> dict[str, Any]:
        """Return columns of a row since ``begin``: ``power_capped``, ``remarks`` and readings such as ``clock_mhz``.

        ``power_capped`` is the share of samples under the power limit.
        """
        self._look_around()
        remarks = [*self._readings.remarks[:MAX_REMARKS]]
        if self._others:
            pids = ", ".join(map(str, sorted(self._others)))
            remarks.append(f"other processes use the device: {pids}")
        elif self._unseen:
            remarks.append("whether others use the device is not known: the driver numbers processes otherwise")
        share = self._capped / self._samples if self._samples else 0.0
        return {"power_capped": share, **self._readings.columns(), "remarks": "; ".join(remarks)}

    def _look_around(self) -> None:
        pids = self._readings.processes()
        if pids is None:
            return
        ours = set(self._ours(pids))
        # In a container the driver may number this process differently.
        self._unseen |= not ours
        if ours:
            self._others |= set(pids) - ours


def of_this_campaign(pids: Collection[int]) -> list[int]:
    """Return the processes that belong to this campaign, or are the server of NVIDIA's Multi-Process Service."""
    parent = os.getppid()
    return [pid for pid in pids if pid in (os.getpid(), parent) or _is_ours(pid, parent)]


def _is_ours(pid: int, parent: int) -> bool:
    try:
        # The second field, the command, may hold spaces and brackets.
        command, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        return int(rest.split()[1]) == parent or command.partition("(")[2].startswith(_MPS_SERVER)
    except (OSError, ValueError, IndexError):
        return False


def mps_is_running(environment: Mapping[str, str] = os.environ) -> bool:
    """True if NVIDIA's Multi-Process Service has a control pipe: CUDA processes then compute at the same time."""
    folder = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_FOLDER)
    try:
        kind = (folder / "control").stat().st_mode
        return stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
    except OSError:
        return False


class CudaStopwatch:
    """Seconds between two CUDA events on the current stream, by the device's clock.

    Both are recorded together with the work between them: an event recorded after the host has waited would count the
    time for the host to wake up.
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
    """Device ``cuda:N`` of a library without readings of its own: they come from NVML."""

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
        sizes = self.readings.memory_bytes
        return None if sizes is None else DeviceMemory(*sizes)

    def colocation(self) -> str:
        return MPS if mps_is_running() else PROCESSES


class CudaAccelerator(NvidiaAccelerator):
    """Device ``cuda:N`` of torch.

    Opening it switches off TF32, unless that is the ``precision``, and kernels of cuDNN that are chosen by a search or
    add up in no fixed order, since both differ from run to run.
    """

    streams = True

    def __init__(self, device: str, precision: str):
        import torch

        super().__init__(device)
        self._device = torch.device(device)
        self._stream: torch.cuda.Stream | None = None
        # As the workers of `serve` do.
        use_products(precision)

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
        # Tensors that the default stream has put on the device, such as weights, are complete.
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._stream):
            yield

    def stopwatch(self) -> Stopwatch:
        return CudaStopwatch(str(self._device))

    def memory(self) -> DeviceMemory:
        import torch

        free, total = torch.cuda.mem_get_info(self._device)
        return DeviceMemory(int(free), int(total))

    def release(self) -> None:
        import torch

        # A raised error may still hold tensors in a reference cycle.
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
