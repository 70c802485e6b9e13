"""Joules of processors and GPUs, by counters as Linux and NVIDIA's driver show them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotool.energy import EnergyMeter


@pytest.fixture(autouse=True)
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTOOL_POWERCAP", str(tmp_path))


def counter(powercap: Path, name: str, microjoules: int) -> None:
    folder = powercap / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text("10000000\n")


def gpus(*joules: float | None) -> Any:
    return SimpleNamespace(devices=lambda: [SimpleNamespace(energy_j=own) for own in joules])


def test_packages_are_summed_without_their_parts_and_past_the_end_of_a_counter(tmp_path: Path) -> None:
    for name, start in (("intel-rapl:0", 9_000_000), ("intel-rapl:0:0", 0), ("intel-rapl:1", 0)):
        counter(tmp_path, name, start)
    meter = EnergyMeter(gpus())
    assert (meter.joules(), meter.reason) == (0.0, "")
    for name, now in (("intel-rapl:0", 500_000), ("intel-rapl:0:0", 9_000_000), ("intel-rapl:1", 2_000_000)):
        counter(tmp_path, name, now)
    assert meter.joules() == pytest.approx(1.5 + 2.0)


def test_gpus_are_counted_where_the_driver_says() -> None:
    readings = [100.0]
    device = type("Gpu", (), {"energy_j": property(lambda gpu: readings[0])})()
    meter = EnergyMeter(SimpleNamespace(devices=lambda: [device, *gpus(None).devices()]))
    readings[0] = 130.0
    assert meter.joules() == 30.0


def test_without_counters_there_is_a_reason(tmp_path: Path) -> None:
    meter = EnergyMeter(gpus())
    assert meter.joules() is None
    assert "no energy counters" in meter.reason
    counter(tmp_path, "intel-rapl:0", 0)
    (tmp_path / "intel-rapl:0/max_energy_range_uj").unlink()
    unreadable = EnergyMeter(gpus(5.0))
    assert unreadable.joules() is None
    assert "max_energy_range_uj" in unreadable.reason
