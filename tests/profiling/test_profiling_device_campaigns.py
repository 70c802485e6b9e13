"""Campaigns on a device, in fresh measuring processes: its memory is planned and shared, and runs out without harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.colocation.busy_copies import BusyCopies
from slotool.commands.profiling.profile import profile_colocated
from slotool.errors import AlreadyExistsError, ArgumentError, InputError, WorkerError
from slotool.profiling.campaign import USABLE_SHARE, Campaign, plan_only, probed
from slotool.profiling.plan import Settings, combinations_of, item_seconds, solo_items
from slotool.profiling.process import MeasuringWorker
from slotool.tables import LatencyTable
from slotool.timing.timer import StoppingRule
from tests.profiling.fake_device import FOLDER_VARIABLE, DeviceState
from tests.profiling.fake_device_backend import DEVICE, PLACE, kernel_subject
from tests.profiling.solo_campaign import profile_solo

HOSTILE = "hostile_backend:HostileBackend"
SETTINGS = Settings(backend=PLACE, device=DEVICE, rule=StoppingRule(runs=4, precision=0.5, max_seconds=5.0))
MEGABYTE = 10**6
MEMORY_BYTES = 10 * MEGABYTE


@pytest.fixture(autouse=True, scope="module")
def workers_in_forks() -> None:
    """Not here: memory of the device is free as soon as the process that had it has ended."""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeviceState:
    """Of the device that the workers are on."""
    folder = tmp_path / "device"
    folder.mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    # Work of others on this machine is to be no reason to measure again.
    monkeypatch.setattr("slotool.profiling.measurers.colocated.MAX_OTHERS", float("inf"))
    # Processes on this device have no context of half a gibibyte.
    for module in ("plan", "measurers.colocated"):
        monkeypatch.setattr(f"slotool.profiling.{module}.CONTEXT_BYTES", 0)
    return DeviceState.create(folder, MEMORY_BYTES)


SMALL, HUGE = kernel_subject("small", MEGABYTE), kernel_subject("huge", 80 * MEGABYTE)
# Either fits, both together do not, and nobody knows before.
FIRST, SECOND = (kernel_subject(name, 6 * MEGABYTE, 0) for name in "12")
# As a probe finds the device: most tests need none.
KNOWN = replace(
    SETTINGS, device_name="Fake Device 1", device_limit_bytes=int(USABLE_SHARE * MEMORY_BYTES), colocation="processes"
)


def rows_of(table: LatencyTable, *keys: str) -> dict[Any, dict[str, Any]]:
    return {tuple(row[key] for key in keys): row for row in table.rows.to_dict("records")}


def test_a_solo_campaign_keeps_to_the_memory_of_the_device_and_resumes(state: DeviceState, tmp_path: Path) -> None:
    state.busy_percent = 35
    big, out = kernel_subject("big", 16 * MEGABYTE, 0), tmp_path / "latency.parquet"
    found = rows_of(profile_solo([SMALL, big, HUGE], SETTINGS, out), "subject")
    statuses = {name: row["status"] for (name,), row in found.items()}
    assert statuses == {"small": "ok", "big": "out-of-memory", "huge": "skipped"}
    assert found["huge",]["reason"] == "needs about 0.10 GiB of fake:0, the limit is 0.01 GiB"
    assert "16,000,000 bytes wanted" in found["big",]["reason"]
    assert found["big",]["limit_bytes"] == KNOWN.limit_bytes
    row = found["small",]
    assert (row["device"], row["device_name"], row["device_settings"]) == (DEVICE, "Fake Device 1", "fake True")
    assert row["remarks"] == "others kept the device busy by 35 % before the campaign"
    assert list(found["big",]["device_samples_s"]) == []
    assert len(row["device_samples_s"]) == len(row["samples_s"]) >= 4
    assert np.median(row["device_samples_s"]) == pytest.approx(1e-3, rel=0.05)

    # Nothing is left while the memory is what it was; with more, what it kept from being measured is.
    items = solo_items([SMALL, big, HUGE], KNOWN)
    assert plan_only(items, KNOWN, out).todo == []
    state.memory_bytes = 200 * MEGABYTE
    found = rows_of(profile_solo([SMALL, big, HUGE], replace(KNOWN, device_limit_bytes=180 * MEGABYTE), out), "subject")
    assert {row["status"] for row in found.values()} == {"ok"}
    assert len(found["small",]["samples_s"]) == len(row["samples_s"])
    # Another device of this name is not mixed into the same file.
    with pytest.raises(AlreadyExistsError, match="device_name Fake Device 1 then, Another now"):
        plan_only(items, replace(KNOWN, device_name="Another"), out)


def test_pairs_share_the_device_make_room_and_run_out_of_memory_without_harm(tmp_path: Path) -> None:
    settings = replace(KNOWN, placement="shared", solo_runs=3)
    both, *others = combinations_of([FIRST, SECOND, SMALL], [2], settings)
    with Campaign([both, *others], settings, tmp_path / "pairs.parquet", in_order=True) as campaign:
        found = rows_of(campaign.run(), "subject", "co_runners")
    assert {key: row["status"] for key, row in found.items()} == {
        **dict.fromkeys([("1", "2"), ("2", "1")], "out-of-memory"),
        **dict.fromkeys([("small", "1"), ("1", "small"), ("small", "2"), ("2", "small")], "ok"),
    }
    row = found["small", "1"]
    assert (row["colocation"], row["placement"], row["device_name"]) == ("processes", "shared", "Fake Device 1")
    # Without waiting for the device a sample would be the asking alone, some microseconds.
    assert min(row["samples_s"]) > 0.9e-3


def test_pairs_that_cannot_fit_are_planned_out() -> None:
    heavy = [kernel_subject(name, 4 * MEGABYTE) for name in "ab"]
    (pair,) = combinations_of(heavy, [2], replace(KNOWN, placement="shared"))
    assert not KNOWN.fits(pair)
    assert item_seconds(pair, replace(KNOWN, placement="shared")) >= 0.5 + 4 * 0.05
    assert SETTINGS.fits(pair), "the host has memory enough"
    assert probed(KNOWN, [pair]) is KNOWN


def test_busy_copies_are_on_the_device_and_leave_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []

    class Recorded:
        def __init__(self, **options: Any):
            started.append(options)

        def ask(self, request: Any, timeout_s: float) -> dict[str, Any]:
            return {"status": "failed", "reason": "only recorded"}

        kill: Callable[..., None] = lambda self: None

    monkeypatch.setattr("benchmarks.colocation.busy_copies.MeasuringWorker", Recorded)
    monkeypatch.setattr("benchmarks.colocation.busy_copies.cores_by_preference", lambda: [3, 2])
    for device in ("cpu", "cuda:1"):
        with pytest.raises(WorkerError, match="only recorded"), BusyCopies({}, 1, 3, device):
            pass
    assert [(options["device"], options["affinity"]) for options in started] == [("cpu", [3]), ("cuda:1", [2])]


def test_streams_of_one_process_share_the_device(tmp_path: Path) -> None:
    """Each co-runner has its own weights and stream; what runs out of memory, or frees its seat, leaves the others."""
    settings = replace(KNOWN, placement="shared", solo_runs=3, sharing="streams", colocation="streams")
    both, *others = combinations_of([FIRST, SECOND, SMALL], [2], settings)
    with Campaign([both, *others], settings, tmp_path / "pairs.parquet", in_order=True) as campaign:
        found = rows_of(campaign.run(), "subject", "co_runners")
    assert {key: row["status"] for key, row in found.items()} == {
        **dict.fromkeys([("1", "2"), ("2", "1")], "out-of-memory"),
        **dict.fromkeys([("small", "1"), ("1", "small"), ("small", "2"), ("2", "small")], "ok"),
    }
    row = found["small", "1"]
    assert (row["colocation"], row["device_name"]) == ("streams", "Fake Device 1")
    assert min(row["samples_s"]) > 0.9e-3
    assert row["degradation_ratio"] > 1.2
    with Campaign([both], settings, tmp_path / "others.parquet") as campaign:
        assert campaign.plan.todo == [both]
    with pytest.raises(AlreadyExistsError, match="colocation streams then, processes now"):
        plan_only([both], replace(settings, colocation="processes"), tmp_path / "pairs.parquet")


def test_streams_need_a_device_and_a_backend_that_has_them() -> None:
    with pytest.raises(ArgumentError, match="sharing: streams are those of a device; name one"):
        profile_colocated(sharing="streams")
    with pytest.raises(InputError, match="the hostile backend has no streams on cpu; use --sharing processes"):
        MeasuringWorker(
            backend=HOSTILE,
            device="cpu",
            threads=1,
            affinity=[0],
            rule=SETTINGS.rule,
            streams=True,
        )
