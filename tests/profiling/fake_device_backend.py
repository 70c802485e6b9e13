"""A measuring backend on ``FakeDevice``: named as ``tests.profiling.fake_device_backend:FakeDeviceBackend``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.nvml import Slowdown
from slotool.profiling.accelerator import Accelerator, DeviceMemory
from slotool.profiling.backends import Backend
from slotool.profiling.subjects import Subject
from tests.profiling.fake_device import FOLDER_VARIABLE, Allocation, Event, FakeDevice, Result

if TYPE_CHECKING:
    from slotool.profiling.backends.torch_backend import TorchBackend

PLACE = f"{__name__}:FakeDeviceBackend"
DEVICE = "fake:0"
KERNEL_S = 1e-3
FLOPS_PER_S = 1e11
FULL_CLOCK_MHZ = 1500


@dataclass(frozen=True)
class Kernel:
    """A subject: what a call takes of the device's time and memory."""

    seconds: float
    memory_bytes: int


class FakeStopwatch:
    """Two events of the stream."""

    def __init__(self, device: FakeDevice):
        self._device, self._begin, self._end = device, Event(), Event()

    def start(self) -> None:
        self._device.record(self._begin)

    def stop(self) -> None:
        self._device.record(self._end)

    def seconds(self) -> float:
        self._end.synchronize()
        return self._begin.elapsed_s(self._end)


class FakeReadings:
    """What NVML says of a GPU."""

    power_limit_w = 300.0

    def __init__(self, device: FakeDevice):
        self._state, self.remarks = device.state, list[str]()

    def columns(self) -> dict[str, int]:
        return {"clock_mhz": FULL_CLOCK_MHZ * self._state.clock_permille // 1000}

    def slowdown(self) -> Slowdown:
        return Slowdown(bool(self._state.throttled), bool(self._state.power_capped))

    def busy_percent(self) -> float:
        return float(self._state.busy_percent)

    def processes(self) -> list[int]:
        return self._state.processes


class FakeAccelerator(Accelerator):
    """The fake device as measurements see it."""

    ramp_up_s = 0.5
    # Each has a thread of its own.
    streams = True
    name = "Fake Device 1"

    def __init__(self, device: FakeDevice):
        self.fake, self._readings = device, FakeReadings(device)

    @property
    def readings(self) -> FakeReadings:
        return self._readings

    def wait(self) -> None:
        self.fake.synchronize()

    def stopwatch(self) -> FakeStopwatch:
        return FakeStopwatch(self.fake)

    def memory(self) -> DeviceMemory:
        return DeviceMemory(self.fake.state.free_bytes, self.fake.state.memory_bytes)

    def settings(self) -> Mapping[str, Any]:
        return {"fake": True}


class FakeDeviceBackend(Backend):
    """Runs kernels on the device in the folder that ``FOLDER_VARIABLE`` names: subjects of ``kernel_subject``, and
    graphs, which torch computes on its stream thread. On the CPU the same, at once.

    A call of a graph lasts a millisecond and what its FLOPs take, and takes the bytes of its weights and outputs.
    """

    name = "fake-device"
    needs = "numpy"

    def release(self) -> None:
        if self.accelerator is not None and self._held is not None:
            self._held.free()

    def devices(self) -> tuple[str, ...]:
        return ("cpu", DEVICE) if os.environ.get(FOLDER_VARIABLE) else ("cpu",)

    def set_threads(self, threads: int) -> None:
        self._threads = threads

    def threads(self) -> int:
        return self._threads

    def open_accelerator(self) -> FakeAccelerator:
        self.fake = FakeDevice(os.environ[FOLDER_VARIABLE], self.seed)
        self._held: Allocation | None = None
        return FakeAccelerator(self.fake)

    @cached_property
    def _torch(self) -> TorchBackend:
        # Only for graphs: a process that runs kernels alone starts in a fraction of the time.
        from slotool.profiling.backends.torch_backend import TorchBackend

        return TorchBackend("cpu", seed=self.seed)

    def open(self, request: Mapping[str, Any]) -> OperatorGraph | Kernel:
        return Kernel(**request["kernel"]) if "kernel" in request else super().open(request)

    def prepare(self, subject: OperatorGraph | Kernel, batch_size: int) -> Callable[[], Any]:
        call: Callable[[], Any]
        if isinstance(subject, Kernel):
            kernel, call = subject, lambda: None
        else:
            seconds = KERNEL_S + batch_size * subject.flops / FLOPS_PER_S
            kernel, call = Kernel(seconds, subject.memory_bytes(batch_size)), self._torch.prepare(subject, batch_size)
        if self.device == "cpu":
            return call
        if self._held is not None:
            # Free the last one first: both together may not fit.
            self._held.free()
        self._held = self.fake.allocate(kernel.memory_bytes)
        return lambda: self.fake.run(kernel.seconds, call)

    def array(self, output: Any) -> np.ndarray:
        if not isinstance(output, Result):
            return self._torch.array(output)
        self.fake.synchronize()
        return self._torch.array(output.value)


def kernel_subject(name: str, memory_bytes: int, planned_bytes: int | None = None) -> Subject:
    """A subject of ``FakeDeviceBackend`` that lasts a millisecond; ``planned_bytes``: what the campaign is told that it
    takes, if something else than it does."""
    planned = memory_bytes if planned_bytes is None else planned_bytes
    request = {"kernel": {"seconds": KERNEL_S, "memory_bytes": memory_bytes}}
    return Subject(name=name, content=name, request=request, weight_bytes=planned)
