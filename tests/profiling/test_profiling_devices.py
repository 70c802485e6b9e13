"""Timing on a device that runs by itself: what is awaited, what its clock says, what a row says of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_profiling_timer import FakeClock, call_taking

from slotool.nvml import Slowdown
from slotool.profiling.accelerator import DeviceWatch, mps_is_running
from slotool.profiling.backends import Backend
from slotool.profiling.backends.elastic_backend import ElasticBackend
from slotool.profiling.backends.torch_backend import TorchBackend
from slotool.profiling.barrier import SharedMemoryBarrier, coordinate
from slotool.profiling.bench import NOT_SETTLED, Bench
from slotool.profiling.subjects import graph_subject
from slotool.testing.backends import BackendConformance, narrow_mlp
from slotool.timing.timer import MeasurementHooks, StoppingRule, measure
from tests.profiling.fake_device import FOLDER_VARIABLE, DeviceFailure, DeviceState, Event, FakeDevice
from tests.profiling.fake_device_backend import DEVICE, FakeDeviceBackend
from tests.profiling.simulated_cuda import SimulatedCuda

RULE = StoppingRule(runs=8, precision=0.5, max_seconds=0.0)


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of others on this machine is to be no reason here."""
    monkeypatch.setattr("slotool.profiling.bench.Interference.__call__", lambda self: 0.0)
    monkeypatch.setattr("slotool.profiling.bench.Interference.idle_s", lambda self: 0.0)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeviceState:
    """Of a fake device that backends made in this test, and workers started by it, are on."""
    folder = tmp_path / "device"
    folder.mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return DeviceState.create(folder)


@pytest.fixture
def fake(state: DeviceState, tmp_path: Path) -> FakeDevice:
    return FakeDevice(tmp_path / "device")


@pytest.fixture
def cuda() -> Iterator[SimulatedCuda]:
    with SimulatedCuda().installed() as simulated:
        yield simulated


class TestFakeDevice(BackendConformance):
    make = staticmethod(lambda device=DEVICE, **options: FakeDeviceBackend(device, **options))

    @pytest.fixture(autouse=True)
    def _state(self, state: DeviceState) -> None:
        """The device is there."""


class TestTorchOnSimulatedCuda(BackendConformance):
    make = staticmethod(lambda device="cuda:0", **options: TorchBackend(device, **options))

    @pytest.fixture(autouse=True)
    def _cuda(self, cuda: SimulatedCuda) -> None:
        """The device is there."""


def ask(backend: Backend, rule: StoppingRule = RULE, **request: Any) -> dict[str, Any]:
    """What a measuring process answers."""
    subject = {"subject": dict(graph_subject(narrow_mlp()).request), "batch_size": 1}
    return Bench(backend, [0], rule).answer(subject | request)


def test_the_fake_device_returns_at_once_and_its_clock_counts_the_work_alone(fake: FakeDevice) -> None:
    begin, end = Event(), Event()
    fake.record(begin)
    results = [fake.run(0.01, lambda i=i: i) for i in range(5)]
    fake.record(end)
    assert fake.pending == 5 or results[0].value == 0
    assert not end.reached.is_set()
    fake.synchronize()
    assert [result.value for result in results] == list(range(5))
    assert begin.elapsed_s(end) == pytest.approx(0.05, rel=0.05)


def test_a_failed_kernel_is_told_when_the_host_waits_and_once(fake: FakeDevice) -> None:
    fake.state.fail_in = 2
    for _ in range(3):
        fake.run(1e-4)
    with pytest.raises(DeviceFailure):
        fake.synchronize()
    fake.synchronize()


def test_the_end_is_recorded_before_the_host_waits() -> None:
    """Else the device's time would hold how long the host takes to wake up."""
    with SimulatedCuda(wake_s=0.5).installed() as cuda:
        backend = TorchBackend("cuda:0")
        hooks = MeasurementHooks(wait=backend.wait, stopwatch=backend.stopwatch())
        found = measure(lambda: cuda.launch(0.01), RULE, cuda.clock, hooks)
    assert found.device_samples_s is not None
    np.testing.assert_allclose(found.device_samples_s, 0.01, rtol=0.01)
    assert found.samples_s.min() > 0.5
    sample = cuda.log[-5:]
    assert sample == ["record", "launch", "record", "synchronize", "elapsed"]


def test_on_the_fake_device_the_events_leave_out_what_the_host_takes(state: DeviceState) -> None:
    state.wake_us = 20_000
    found = ask(FakeDeviceBackend(DEVICE))
    assert found["status"] == "ok", found
    assert np.median(np.subtract(found["samples_s"], found["device_samples_s"])) > 0.019


@pytest.mark.parametrize("way", ["run", "keep_busy"])
def test_co_located_samples_wait_for_the_device_and_leave_nothing_behind(fake: FakeDevice, way: str) -> None:
    """A call returns at once: without waiting, a sample would be the asking alone, and the rest would fall into what is
    measured next."""
    barrier, found = SharedMemoryBarrier.create(1), []

    def member() -> None:
        mine = SharedMemoryBarrier(barrier.path, 1)
        call = (lambda: fake.run(0.004),)
        arguments = (0, *call, 2) if way == "run" else (0, *call)
        found.append(getattr(mine, way)(*arguments, wait=fake.synchronize))
        mine.close()

    thread = threading.Thread(target=member)
    thread.start()
    assert coordinate(barrier, 3, (0.0, 30.0), lambda: True)
    thread.join()
    barrier.close()
    assert fake.pending == 0
    if way == "run":
        spans = found[0].samples
        assert (spans[:, 1] - spans[:, 0]).min() >= 2 * 0.0039


def test_a_member_that_fails_ends_the_round_for_all() -> None:
    barrier = SharedMemoryBarrier.create(2)
    barrier.fail()
    assert coordinate(barrier, 3, (0.0, 3600.0), lambda: True)
    barrier.close()


@pytest.mark.parametrize("make", [TorchBackend, ElasticBackend])
def test_every_torch_backend_waits_and_is_watched_alike(make: Any, cuda: SimulatedCuda) -> None:
    backend = make("cuda:0")
    backend.wait()
    stopwatch = backend.stopwatch()
    assert stopwatch is not None
    stopwatch.start()
    stopwatch.stop()
    assert stopwatch.seconds() == 0.0
    assert cuda.log == ["synchronize", "record", "record", "elapsed"]
    assert backend.watch is not None


def test_on_a_stream_of_its_own_a_member_waits_for_that_alone(cuda: SimulatedCuda) -> None:
    accelerator = TorchBackend("cuda:0").accelerator
    assert accelerator is not None
    for _ in range(2):
        with accelerator.stream():
            accelerator.wait()
    # What the default stream put on the device is there before.
    assert cuda.log == ["stream", "synchronize", "synchronize stream", "synchronize", "synchronize stream"]


def test_warm_up_goes_on_until_the_clock_has_risen_and_no_longer_than_allowed() -> None:
    rising = [0.02, 0.02, 0.02, 0.018, 0.016, 0.014, 0.012, 0.011, *[0.01] * 4]
    for seconds, settled in ((10.0, True), (0.05, False)):
        clock = FakeClock()
        hooks = MeasurementHooks(ramp_up_s=seconds)
        found = measure(call_taking(clock, [], [*rising, *[0.01] * 1000]), RULE, clock, hooks)
        assert found.settled is settled
        assert bool(found.samples_s.max() < 0.0101) is settled


def test_durations_that_never_settle_are_a_remark(state: DeviceState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotool.timing.timer.SETTLED", -1.0)
    monkeypatch.setattr("tests.profiling.fake_device_backend.FakeAccelerator.ramp_up_s", 0.05)
    assert NOT_SETTLED in ask(FakeDeviceBackend(DEVICE))["remarks"]


def test_heat_spoils_a_sample_and_the_power_limit_is_recorded(state: DeviceState) -> None:
    state.power_capped, state.clock_permille = 1, 500
    capped = ask(FakeDeviceBackend(DEVICE))
    assert (capped["interrupted"], capped["power_capped"], capped["clock_mhz"]) == (False, 1.0, 750)
    state.power_capped, state.throttled = 0, 1
    hot = ask(FakeDeviceBackend(DEVICE))
    assert (hot["interrupted"], hot["power_capped"]) == (True, 0.0)


def test_float32_is_float32_and_rows_say_what_is_set(cuda: SimulatedCuda) -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    found = ask(TorchBackend("cuda:0"))
    assert found["device_name"] == "Simulated H100"
    for said in (
        "matmul precision highest",
        "cudnn tf32 False",
        "cudnn deterministic True",
        f"torch {torch.__version__}",
    ):
        assert said in found["device_settings"]
    assert not torch.backends.cudnn.allow_tf32


class Readings:
    """A device on which others may work."""

    remarks = ("NVML does not say the clock: Not Supported",)
    power_limit_w = None

    def __init__(self, pids: list[int] | None, slowdown: Slowdown | None = None):
        self.pids, self.reasons = pids, slowdown

    def columns(self) -> dict[str, int | None]:
        return {"clock_mhz": None}

    def processes(self) -> list[int] | None:
        return self.pids

    def busy_percent(self) -> float | None:
        return None

    def slowdown(self) -> Slowdown | None:
        return self.reasons


@pytest.mark.parametrize(
    ("pids", "own", "said"),
    [
        ([7, 8], [7, 8], ""),
        ([7, 8, 99], [7, 8], "other processes use the device: 99"),
        ([4711], [], "not known: the driver numbers processes otherwise"),
        (None, [], ""),
    ],
)
def test_other_users_of_the_device_are_a_remark(pids: list[int] | None, own: list[int], said: str) -> None:
    watch = DeviceWatch(Readings(pids), lambda _: own)
    assert not watch.throttled()
    remarks = watch.columns()["remarks"]
    assert remarks.startswith("NVML does not say the clock")
    assert said in remarks
    assert bool(said) == ("; " in remarks)


def test_mps_is_known_by_its_pipe(tmp_path: Path) -> None:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert not mps_is_running(environment)
    (tmp_path / "control").touch()
    assert not mps_is_running(environment)
    (tmp_path / "control").unlink()
    os.mkfifo(tmp_path / "control")
    assert mps_is_running(environment)
