"""Latencies of one device say nothing of another: whoever reads a latency table looks at the rows of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import slotool
from slotool.devices import devices_of
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.errors import InputError, TableError
from slotool.planning.worker_types import Named, worker_types
from slotool.reports.series.latency import latency_figures
from slotool.rules.switching import SwitchingPlan
from slotool.scheduling import ControlSpace, LatencyProfile
from slotool.scheduling.batching import read_profile
from slotool.serving.operations.sources import Sources
from slotool.tables import LatencyTable, OperatingPoint, OutcomeTable
from slotool.workloads import ArrivalTable
from tests.elastic.tiny_slo_nns import network

POINTS = [OperatingPoint.of(version=name) for name in ("small", "large")]
US = {"cpu": 1000.0, "cuda:0": 10.0}


def rows(device: str, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "subject": "family",
            "point": point.key,
            "device": device,
            "samples_s": [1e-6 * US.get(device, 500.0) * (at + 1)] * 3,
            "accuracy": 0.8 + at / 10,
            **more,
        }
        for at, point in enumerate(POINTS)
    ]


BOTH = LatencyTable.of([*rows("cpu"), *rows("cuda:0")])
READERS: dict[str, Callable[..., float]] = {
    "policies": lambda table, **on: ControlSpace.of_tables("family", POINTS, table, **on).latency_us(POINTS[0]),
    "simulation": lambda table, **on: read_profile(table, **on).grid.latency_us[0, 0],
    "co-located": lambda table, **on: LatencyProfile.of_table("family", POINTS, table, **on).planned_us[0][POINTS[0]],
}


@pytest.mark.parametrize("reader", list(READERS))
def test_a_reader_takes_the_rows_of_one_device(reader: str) -> None:
    read = READERS[reader]
    with pytest.raises(TableError, match="its rows are of cpu and cuda:0; name one of these with --device"):
        read(BOTH)
    with pytest.raises(TableError, match="its rows are of cpu and cuda:0, none of cuda:1; measure there"):
        read(BOTH, devices=["cuda:1"])
    for device, expected_us in US.items():
        assert read(BOTH, devices=[device]) == pytest.approx(expected_us)
        assert read(BOTH.where(device=device)) == pytest.approx(expected_us)
    # The slowest of several devices that are asked for counts.
    assert read(BOTH, devices=["cuda:0", "cpu"]) == pytest.approx(US["cpu"])


def test_rows_that_do_not_say_their_device_stand_in_for_it() -> None:
    silent = LatencyTable.of(rows("unknown"))
    assert READERS["policies"](silent, devices=["cuda:0"]) == pytest.approx(500.0)
    mixed = LatencyTable.of([*rows("unknown"), *rows("cpu")])
    assert READERS["policies"](mixed, devices=["cpu"]) == pytest.approx(US["cpu"])
    with pytest.raises(TableError, match="cpu and unknown"):
        READERS["policies"](mixed)


def test_a_median_is_of_one_device() -> None:
    with pytest.raises(TableError, match="cpu and cuda:0"):
        BOTH.median_s("family", POINTS[0])
    assert BOTH.median_s("family", POINTS[0], device="cuda:0") == pytest.approx(10e-6)


def test_plans_and_simulations_ask_for_a_device(tmp_path: Path) -> None:
    BOTH.save(tmp_path / "latency.parquet")
    arrivals = ArrivalTable.of([{"arrival_s": at / 100} for at in range(400)])
    asked: dict[str, Any] = {"policies": "maxacc", "progress": None}

    def planned(table: Path, arrivals: ArrivalTable, deadline_ms: float, **on: Any) -> Any:
        return slotool.plan(table, arrivals=arrivals, deadline_ms=deadline_ms, attainment=0.5, **on)

    for command in (slotool.simulate, planned):
        with pytest.raises(TableError, match=r"latency.parquet: its rows are of cpu and cuda:0; name one of these"):
            command(tmp_path / "latency.parquet", arrivals, 50.0, **asked)
        found = command(tmp_path / "latency.parquet", arrivals, 50.0, device="cuda:0", **asked)
        assert found.document["device"] == "cuda:0"


def served(folder: Path, table: LatencyTable, **settings: Any) -> Any:
    family = Family.of(
        "family", [Network.of_mlp("small", network(20, 4, 3)), Network.of_mlp("large", network(20, 8, 3))]
    )
    family.save(folder / "family", config={}, seed=0)
    table.save(folder / "latency.parquet")
    warnings: list[str] = []
    files = {"latency": folder / "latency.parquet", "mapped": True}
    found = Sources((folder / "family",), **files, **settings).load(warnings.append)
    return found["family"].space, warnings


def test_a_server_plans_with_the_rows_of_its_devices(tmp_path: Path) -> None:
    space, _ = served(tmp_path / "both", BOTH, devices=("cuda:0",))
    assert space.latency_us(POINTS[0]) == pytest.approx(US["cuda:0"])
    with pytest.raises(
        TableError, match="its rows are of cuda:0, none of cpu; measure there, or name another --device"
    ):
        served(tmp_path / "gpu", BOTH.where(device="cuda:0"))
    _, warnings = served(tmp_path / "shared", BOTH, devices=("cuda:0",), replicas=2)
    assert "2 workers share cuda:0, and latencies are of one that has it to itself" in warnings
    space, warnings = served(tmp_path / "two", BOTH, devices=("cuda:0", "cuda:1"))
    assert "the latencies of family were not measured on cuda:1; those of cuda:0 count" in warnings
    assert space.latency_us(POINTS[1]) == pytest.approx(2 * US["cuda:0"])


def test_a_switching_plan_is_followed_on_its_device_alone(tmp_path: Path) -> None:
    rates, accuracy = ({point.key: value * (at + 1) for at, point in enumerate(POINTS)} for value in (50.0, 0.4))
    SwitchingPlan("family", 0.1, 1, 1, rates, accuracy, (), "here", device="cuda:0").save(tmp_path / "plan.json")
    answers = [("small", 0.0), ("small", 1.0), ("large", 0.0), ("large", 0.0)]
    OutcomeTable.of(
        {"example": at % 2, "version": name, "error": error, "confidence": 0.5, "latency_s": 0.001}
        for at, (name, error) in enumerate(answers)
    ).save(tmp_path / "outcomes.parquet")
    asked = {"policy": "switching", "plan": tmp_path / "plan.json", "outcomes": (tmp_path / "outcomes.parquet",)}
    served(tmp_path / "gpu", BOTH, devices=("cuda:0",), **asked)
    with pytest.raises(InputError, match="the plan was made for --device cuda:0: serve with it"):
        served(tmp_path / "cpu", BOTH, devices=("cpu",), **asked)


def test_slow_downs_of_two_devices_are_drawn_apart() -> None:
    colocated = [row for device in US for row in rows(device, co_runners="other", solo_s=[1e-6 * US[device]] * 3)]
    figures = list(latency_figures("table", LatencyTable.of([*rows("cpu"), *colocated]), "x"))
    assert [figure.id for figure in figures[1:]] == ["degradation-table on cpu", "degradation-table on cuda:0"]


def test_rows_that_do_not_say_their_device_are_planned_for_the_one_that_is_named() -> None:
    unsaid = LatencyTable(BOTH.where(device="cuda:0").rows.assign(device="unknown"))
    for table in (BOTH, unsaid):
        (made,), _ = worker_types([Named(table, "table")], None, None, devices=devices_of("cuda"))
        assert made.device == "cuda:0"
