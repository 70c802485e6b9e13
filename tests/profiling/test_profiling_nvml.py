"""What NVIDIA's driver says is recorded; what it does not say is a remark, and ends nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from slotool import machine
from slotool.commands.doctor import doctor
from slotool.machine import FACTS_VARIABLE, differences, machine_facts, machine_id
from slotool.nvml import Nvml, Slowdown
from slotool.profiling.backends.torch_backend import TorchBackend
from tests.profiling.simulated_cuda import UUID, SimulatedCuda

READINGS: dict[str, Any] = {
    "nvmlInit": None,
    "nvmlDeviceGetHandleByUUID": "handle",
    "nvmlDeviceGetHandleByIndex": "handle",
    "nvmlDeviceGetCount": 1,
    "nvmlSystemGetDriverVersion": b"550.54.15",
    "nvmlSystemGetCudaDriverVersion": 12040,
    "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetClockInfo": 1410,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetPersistenceMode": 0,
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(free=3, total=4, used=1),
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=35, memory=2),
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
    "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=4_000_000)],
}
Driver = Callable[..., list[Any]]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """``driver(nvmlDeviceGetName=ValueError("…"))``: a driver that says what ``READINGS`` has but for this; returns the
    arguments of each call, as they come."""

    def made(**changed: Any) -> list[Any]:
        asked: list[Any] = []

        def function(value: Any) -> Callable[..., Any]:
            def answer(*arguments: Any) -> Any:
                asked.append(arguments)
                if isinstance(value, Exception):
                    raise value
                return value

            return answer

        module = ModuleType("pynvml")
        module.__spec__ = ModuleSpec("pynvml", None)
        for name, value in (READINGS | changed).items():
            setattr(module, name, function(value))
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return asked

    return made


def test_what_the_driver_says_is_read_with_units(driver: Driver) -> None:
    asked = driver()
    nvml = Nvml()
    device = nvml.device("GPU-x")
    assert asked[-1] == ("GPU-x",)
    assert (nvml.driver, nvml.cuda) == ("550.54.15", "12.4")
    assert (device.name, device.power_limit_w) == ("NVIDIA H100 80GB HBM3", 700.0)
    assert (device.clock_mhz, device.max_clock_mhz, device.persistence) == (1410, 1980, False)
    assert (device.processes(), device.memory_bytes, device.busy_percent()) == ([4_000_000], (3, 4), 35.0)
    assert nvml.remarks == []


@pytest.mark.parametrize(
    ("reasons", "slowdown"),
    [
        (0x0, Slowdown(throttled=False, power_capped=False)),
        (0x1 | 0x2 | 0x10 | 0x100, Slowdown(throttled=False, power_capped=False)),
        (0x4, Slowdown(throttled=False, power_capped=True)),
        *((bit, Slowdown(throttled=True, power_capped=False)) for bit in (0x8, 0x20, 0x40, 0x80)),
        (0x4 | 0x20, Slowdown(throttled=True, power_capped=True)),
    ],
)
def test_the_power_limit_is_no_throttling(driver: Driver, reasons: int, slowdown: Slowdown) -> None:
    driver(nvmlDeviceGetCurrentClocksThrottleReasons=reasons)
    assert Nvml().device("GPU-x").slowdown() == slowdown


@pytest.mark.parametrize("function", [name for name in READINGS if name != "nvmlInit"])
def test_each_reading_that_fails_is_none_and_one_remark(driver: Driver, function: str) -> None:
    driver(**{function: ValueError("Insufficient\nPermissions")})
    nvml = Nvml()
    device, devices = nvml.device("GPU-x"), nvml.devices()
    for _ in range(2):
        found = [nvml.driver, nvml.cuda, device.name, device.power_limit_w, *device.columns().values()]
        found += [device.max_clock_mhz, device.persistence, device.slowdown(), device.processes()]
        found += [device.memory_bytes, device.busy_percent()]
    assert len(nvml.remarks) == 1
    assert nvml.remarks[0].startswith("NVML does not say ")
    assert nvml.remarks[0].endswith(": Insufficient Permissions")
    assert None in found or devices == []


@pytest.mark.parametrize(
    ("module", "remark"),
    [
        (None, "NVML is not read: nvidia-ml-py is not installed; pip install 'slotool[cuda]'"),
        (OSError("libnvidia-ml.so.1: cannot open"), "NVML is not read: libnvidia-ml.so.1: cannot open"),
    ],
)
def test_without_nvml_a_measurement_goes_on(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, module: Exception | None, remark: str
) -> None:
    if module is None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        driver(nvmlInit=module)
    with SimulatedCuda().installed():
        backend = TorchBackend("cuda:0")
        assert not backend.throttled()
        assert backend.watch is not None
        found = backend.watch.columns()
    assert found == {"power_capped": 0.0, "clock_mhz": None, "remarks": remark}


@pytest.mark.parametrize(
    ("shown", "number", "asked"),
    [
        (None, 2, ("nvmlDeviceGetHandleByIndex", 2)),
        ("3,1", 1, ("nvmlDeviceGetHandleByIndex", 1)),
        ("GPU-a, GPU-b", 1, ("nvmlDeviceGetHandleByUUID", "GPU-b")),
    ],
)
def test_a_number_of_cuda_is_that_of_the_devices_it_is_shown(
    driver: Driver, shown: str | None, number: int, asked: tuple[str, Any]
) -> None:
    calls = driver()
    environment = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    # Its numbers are those of the driver, in every process.
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert Nvml().visible(number, environment).memory_bytes == (3, 4)
    assert (asked[1],) in calls


def test_the_device_is_found_by_the_uuid_that_cuda_states(driver: Driver) -> None:
    asked = driver(nvmlDeviceGetCurrentClocksThrottleReasons=0x20)
    with SimulatedCuda().installed():
        assert TorchBackend("cuda:0").throttled()
    assert (f"GPU-{UUID}",) in asked


@pytest.fixture
def gpu(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """As ``driver``, on a machine whose kernel shows a GPU."""
    monkeypatch.delenv(FACTS_VARIABLE)
    monkeypatch.setattr("slotool.machine.gpu_models", lambda: ["NVIDIA H100 80GB HBM3"])

    def made(**changed: Any) -> list[Any]:
        machine._machine_facts.cache_clear()
        return driver(**changed)

    return made


@pytest.fixture(autouse=True)
def _facts_of_this_machine() -> Any:
    yield
    machine._machine_facts.cache_clear()


def test_a_machine_with_another_driver_or_power_limit_is_another(gpu: Driver) -> None:
    gpu()
    first = machine_facts()
    assert first["gpu_driver"] == "550.54.15"
    assert (first["gpu_power_limits_w"], first["gpu_clocks_mhz"]) == ([700.0], [1980])
    for changed, words in (
        ({"nvmlSystemGetDriverVersion": "560.1"}, ["GPU driver 550.54.15 → 560.1"]),
        ({"nvmlDeviceGetEnforcedPowerLimit": 350_000}, ["GPU power limits (W) 700.0 → 350.0"]),
        ({"nvmlSystemGetCudaDriverVersion": 12060}, ["CUDA of the driver 12.4 → 12.6"]),
    ):
        gpu(**changed)
        assert machine_id() != machine_id(first)
        assert differences(first) == words


def test_doctor_names_the_gpu_and_what_keeps_slotool_from_it(gpu: Driver) -> None:
    gpu(nvmlDeviceGetCurrentClocksThrottleReasons=0x40)
    found = doctor()
    assert "550.54.15" in str(found)
    said = " ".join(found.advice)
    assert "torch finds none it can use" in said
    assert "nvidia-smi -pm 1" in said
    assert "held down by heat" in said
