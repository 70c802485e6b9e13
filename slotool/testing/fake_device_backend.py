"""A measuring backend on ``FakeDevice``: named as ``slotool.testing.fake_device_backend:FakeDeviceBackend``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.nvml import Slowdown
from slotool.profiling.accelerator import Accelerator, DeviceMemory
from slotool.profiling.backends.torch_backend import TorchBackend
from slotool.testing.fake_device import FOLDER_VARIABLE, Allocation, Event, FakeDevice, Result

PLACE = f"{__name__}:FakeDeviceBackend"
DEVICE = "fake:0"
KERNEL_S = 1e-3
FLOPS_PER_S = 1e11
FULL_CLOCK_MHZ = 1500


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

    @property
    def clock_mhz(self) -> int:
        return FULL_CLOCK_MHZ * self._state.clock_permille // 1000

    def slowdown(self) -> Slowdown:
        return Slowdown(bool(self._state.throttled), bool(self._state.power_capped))

    def processes(self) -> list[int]:
        return self._state.processes


class FakeAccelerator(Accelerator):
    """The fake device as measurements see it."""

    ramp_up_s = 0.5
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

    def eviction(self) -> Callable[[], None]:
        return self.fake.flush

    def settings(self) -> Mapping[str, Any]:
        return {"fake": True}


class FakeDeviceBackend(TorchBackend):
    """Graphs by torch, on the stream thread of the device in the folder that ``FOLDER_VARIABLE`` names; on the CPU as
    torch does.

    A call lasts a millisecond and what its FLOPs take. Weights and outputs take their bytes of the device's memory.
    """

    name = "fake-device"

    def devices(self) -> tuple[str, ...]:
        return ("cpu", DEVICE) if os.environ.get(FOLDER_VARIABLE) else ("cpu",)

    def open_accelerator(self) -> FakeAccelerator:
        self.fake = FakeDevice(os.environ[FOLDER_VARIABLE], self.seed)
        self._held: Allocation | None = None
        return FakeAccelerator(self.fake)

    @property
    def tensor_device(self) -> str:
        return "cpu"

    def prepare(self, subject: OperatorGraph, batch_size: int) -> Callable[[], Any]:
        if self.device == "cpu":
            return super().prepare(subject, batch_size)
        if self._held is not None:
            # Free the last one first: both together may not fit.
            self._held.free()
        self._held = self.fake.allocate(subject.memory_bytes(batch_size))
        call, seconds = super().prepare(subject, batch_size), KERNEL_S + batch_size * subject.flops / FLOPS_PER_S
        return lambda: self.fake.run(seconds, call)

    def array(self, output: Any) -> np.ndarray:
        if not isinstance(output, Result):
            return super().array(output)
        self.fake.synchronize()
        if output.value is None:
            raise InputError("this output was never computed")
        return super().array(output.value)
