"""Readings of NVIDIA's driver (NVML). A reading that it does not offer is a remark, never an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")

# Bits of the reasons for a lowered clock, as nvml.h defines them.
SW_POWER_CAP = 0x04
HW_SLOWDOWN, SW_THERMAL_SLOWDOWN, HW_THERMAL_SLOWDOWN, HW_POWER_BRAKE = 0x08, 0x20, 0x40, 0x80
_THROTTLED = HW_SLOWDOWN | SW_THERMAL_SLOWDOWN | HW_THERMAL_SLOWDOWN | HW_POWER_BRAKE
_SM_CLOCK = 1  # NVML_CLOCK_SM


@dataclass(frozen=True)
class Slowdown:
    """Reasons for a lowered clock.

    ``throttled``: heat or the board's protection. ``power_capped``: the power limit, under which many devices run
    always.
    """

    throttled: bool
    power_capped: bool


class Nvml:
    """The driver, asked by the package ``nvidia-ml-py``. ``remarks`` has a sentence on each kind of failure."""

    def __init__(self) -> None:
        self.remarks: list[str] = []
        self._library: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._library = pynvml
        except ModuleNotFoundError:
            self._remark("NVML is not read: nvidia-ml-py is not installed; pip install 'slotool[cuda]'")
        except Exception as error:  # of NVML, of ctypes, of another package named pynvml
            self._remark(f"NVML is not read: {_words(error)}")

    def device(self, uuid: str) -> NvmlDevice:
        """Return the device of that UUID, in CUDA's form (``GPU-…``)."""
        return NvmlDevice(self, self.read("the device", "nvmlDeviceGetHandleByUUID", uuid))

    def devices(self) -> list[NvmlDevice]:
        """Return all devices of this machine in bus order, including those hidden from CUDA."""
        count = self.read("the number of devices", "nvmlDeviceGetCount") or 0
        handles = [self.read("the device", "nvmlDeviceGetHandleByIndex", i) for i in range(count)]
        return [NvmlDevice(self, handle) for handle in handles if handle is not None]

    def visible(self, number: int, environment: Mapping[str, str] = os.environ) -> NvmlDevice:
        """Return the device that CUDA numbers ``number`` in this process, under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``."""
        shown = environment.get("CUDA_VISIBLE_DEVICES")
        names = list(map(str, range(number + 1))) if shown is None else [name.strip() for name in shown.split(",")]
        name = names[number] if number < len(names) else ""
        if name.isdecimal():
            return NvmlDevice(self, self.read("the device", "nvmlDeviceGetHandleByIndex", int(name)))
        return self.device(name)

    @property
    def driver(self) -> str | None:
        """Version of the driver."""
        return _text(self.read("the driver's version", "nvmlSystemGetDriverVersion"))

    @property
    def cuda(self) -> str | None:
        """The newest CUDA that the driver runs, as ``12.4``."""
        number = self.read("the driver's CUDA version", "nvmlSystemGetCudaDriverVersion")
        return None if number is None else f"{number // 1000}.{number % 1000 // 10}"

    def read(self, what: str, function: str, *arguments: Any) -> Any:
        """Return the result of the library's ``function``, or None and a remark."""
        if self._library is None:
            return None
        try:
            return getattr(self._library, function)(*arguments)
        except Exception as error:  # NVML's own, or a library that lacks the function
            self._remark(f"NVML does not say {what}: {_words(error)}")
            return None

    def _remark(self, sentence: str) -> None:
        if sentence not in self.remarks:
            self.remarks.append(sentence)


class NvmlDevice:
    """Readings of one device; each is None where it cannot be had."""

    def __init__(self, nvml: Nvml, handle: Any):
        self._nvml, self._handle = nvml, handle

    @property
    def remarks(self) -> list[str]:
        """A sentence on each kind of reading that failed."""
        return self._nvml.remarks

    @property
    def name(self) -> str | None:
        return _text(self._read("the device's name", "nvmlDeviceGetName"))

    @property
    def power_limit_w(self) -> float | None:
        """Watts that the device may take."""
        return self._as(lambda milliwatts: milliwatts / 1000, "the power limit", "nvmlDeviceGetEnforcedPowerLimit")

    @property
    def memory_bytes(self) -> tuple[int, int] | None:
        """Free bytes, and all."""
        return self._as(lambda sizes: (int(sizes.free), int(sizes.total)), "the memory", "nvmlDeviceGetMemoryInfo")

    @property
    def clock_mhz(self) -> int | None:
        """Current clock of the multiprocessors, MHz."""
        return self._as(int, "the clock", "nvmlDeviceGetClockInfo", _SM_CLOCK)

    def columns(self) -> dict[str, float | None]:
        """Return the readings of this moment that are columns of latency tables, by the names of these."""
        return {"clock_mhz": self.clock_mhz}

    @property
    def max_clock_mhz(self) -> int | None:
        """Highest clock of the multiprocessors, MHz."""
        return self._as(int, "the highest clock", "nvmlDeviceGetMaxClockInfo", _SM_CLOCK)

    @property
    def energy_j(self) -> float | None:
        """Joules since the driver was loaded."""
        return self._as(lambda mj: mj / 1000, "the energy", "nvmlDeviceGetTotalEnergyConsumption")

    @property
    def persistence(self) -> bool | None:
        """True if the driver keeps the unused device ready."""
        return self._as(bool, "the persistence mode", "nvmlDeviceGetPersistenceMode")

    def slowdown(self) -> Slowdown | None:
        """Return the current reasons for a lowered clock."""
        reasons = self._read("why the clock is lowered", "nvmlDeviceGetCurrentClocksThrottleReasons")
        if reasons is None:
            return None
        return Slowdown(bool(reasons & _THROTTLED), bool(reasons & SW_POWER_CAP))

    def processes(self) -> list[int] | None:
        """Return the host's ids of the processes that compute on the device; a container's may differ."""
        running = self._read("which processes use the device", "nvmlDeviceGetComputeRunningProcesses")
        return None if running is None else [int(process.pid) for process in running]

    def busy_percent(self) -> float | None:
        """Return the share of the last second or so in which a kernel ran, whoever's."""
        reading = self._read("how busy the device is", "nvmlDeviceGetUtilizationRates")
        return None if reading is None else float(reading.gpu)

    def _as(self, kind: Callable[[Any], Value], what: str, function: str, *arguments: Any) -> Value | None:
        reading = self._read(what, function, *arguments)
        return None if reading is None else kind(reading)

    def _read(self, what: str, function: str, *arguments: Any) -> Any:
        return None if self._handle is None else self._nvml.read(what, function, self._handle, *arguments)


def _text(value: str | bytes | None) -> str | None:
    """Older versions of the package return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
