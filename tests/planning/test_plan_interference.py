"""``slotool plan --interference``: workers that share a machine take longer while others compute."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import slotool as api
from slotool.errors import ArgumentError, InputError, SlotoolWarning
from slotool.tables import LatencyTable
from slotool.workloads import ArrivalTable, Poisson
from tests.conftest import Slotool
from tests.machines import UNKNOWN, run_as

ALONE_S, LONGER = 5e-3, 1.6
# That ratios are extrapolated is said; one test looks for it.
pytestmark = pytest.mark.filterwarnings("ignore::slotool.errors.SlotoolWarning")


def _table(co_runners: int = 0, longer: float = LONGER, **other: Any) -> LatencyTable:
    """One version, alone and next to up to so many copies."""
    rows = [
        {
            "subject": "net",
            "point": "full",
            "batch_size": size,
            "samples_s": ALONE_S * (0.3 + 0.7 * size) * (1 + (longer - 1) * copies) * np.linspace(0.95, 1.05, 40),
            "co_runners": "+".join(["net"] * copies),
            **other,
        }
        for size in (1, 2)
        for copies in range(co_runners + 1)
    ]
    return LatencyTable(LatencyTable.of(rows).rows.assign(accuracy=0.9))


@pytest.fixture
def traffic() -> ArrivalTable:
    return ArrivalTable(pd.DataFrame({"arrival_s": Poisson(320.0).times(8.0, seed=2)}))


def _plan(traffic: ArrivalTable, **other: Any) -> Any:
    settings = {"deadline_ms": 40, "attainment": 0.95, "policies": "maxacc", "reserve_ms": 0, "progress": None, **other}
    return api.plan(_table(), arrivals=traffic, **settings)


def test_workers_that_share_a_machine_are_more_than_workers_that_do_not(traffic: ArrivalTable) -> None:
    alone = _plan(traffic)
    shared = _plan(traffic, interference=_table(1), machine_cores=8)
    apart = _plan(traffic, interference=_table(1), machine_cores=1)
    assert shared.holds
    assert shared.rows[0]["replicas"] > alone.rows[0]["replicas"]
    assert apart.rows[0]["attainment"] == alone.rows[0]["attainment"]
    assert apart.rows[0]["replicas"] == alone.rows[0]["replicas"]
    # Two to a machine disturb each other less than all on one.
    pairs = _plan(traffic, interference=_table(1), machine_cores=2)
    assert alone.rows[0]["replicas"] <= pairs.rows[0]["replicas"] <= shared.rows[0]["replicas"]


def test_a_small_fleet_that_holds_is_found_where_larger_ones_do_worse() -> None:
    """Steps of 1, 2, 4 … lead past it, to sizes at which no call ends in time."""
    busy = ArrivalTable(pd.DataFrame({"arrival_s": Poisson(400.0).times(3.0, seed=2)}))
    given = {"interference": _table(1, 1.3), "machine_cores": 32, "deadline_ms": 16, "attainment": 0.9}
    found = _plan(busy, **given)
    assert found.holds
    assert found.rows[0]["replicas"] < 16
    assert not _plan(busy, max_workers=found.rows[0]["replicas"] - 1, **given).holds
    none = _plan(busy, **{**given, "deadline_ms": 12})
    assert not none.holds
    assert none.rows[0]["replicas"] < 16
    assert "more workers would not" not in none.explanation


@pytest.mark.parametrize(
    ("colocated", "says"),
    [
        (lambda rows: rows["batch_size"] == 1, "next to 1 co-runner is known at batch size 1, not at 2: the nearest"),
        (lambda rows: rows["point"] == "other", "known of full next to 1 co-runner: the mean of other stands in"),
        (lambda rows: rows["point"] == "full", "2 of 2 ratios of interference are below 1 (the least 0.7, of full"),
    ],
)
def test_what_stands_in_for_ratios_that_are_not_known_is_said(
    traffic: ArrivalTable, colocated: Callable[[pd.DataFrame], pd.Series], says: str
) -> None:
    own = _table(1, 0.7 if "below" in says else LONGER).rows
    rows = pd.concat([own, own.assign(point="other")])
    kept = rows[(rows["co_runners"] == "") | colocated(rows)]
    with pytest.warns(SlotoolWarning, match=re.escape(says)):
        _plan(traffic, interference=LatencyTable(kept.reset_index(drop=True)), machine_cores=4)


def test_one_ratio_is_the_table_of_that_ratio(traffic: ArrivalTable) -> None:
    by_table, by_ratio = (_plan(traffic, interference=given, machine_cores=4) for given in (_table(1), LONGER))
    assert by_table.rows[0]["replicas"] == by_ratio.rows[0]["replicas"]
    assert by_table.rows[0]["p99_us"] == pytest.approx(by_ratio.rows[0]["p99_us"])


def test_a_co_runner_that_is_seldom_busy_makes_few_calls_longer() -> None:
    """Two workers of a machine are at work at once for a share of the time, so the mean latency lies between both."""
    rare = ArrivalTable(pd.DataFrame({"arrival_s": Poisson(110.0).times(20.0, seed=2)}))
    given = {"arrivals": rare, "deadline_ms": 9, "attainment": 0.9, "policies": "maxacc", "reserve_ms": 0}
    found = api.plan(_table(), interference=_table(1), machine_cores=2, progress=None, **given)
    (row,) = [row for row in found.rows if row["holds"]]
    assert row["replicas"] > 1
    busy_us = row["utilisation"] * row["replicas"] * 20e6 / row["calls"]
    assert 1.01 * ALONE_S * 1e6 < busy_us < 0.9 * LONGER * ALONE_S * 1e6


def test_the_service_file_plans_with_the_raised_latencies(
    slotool: Slotool, tmp_path: Path, traffic: ArrivalTable
) -> None:
    (tmp_path / "artifact").mkdir()
    for name, table in (("latency", _table()), ("colocated", _table(1, placement="split")), ("arrivals", traffic)):
        table.save(tmp_path / f"{name}.parquet")
    done = slotool(
        "plan", tmp_path / "latency.parquet", "--arrivals", tmp_path / "arrivals.parquet", "--deadline-ms", 40,
        "--attainment", 0.95, "--policies", "maxacc", "--interference", tmp_path / "colocated.parquet",
        "--machine-cores", 2, "--artifact", tmp_path / "artifact", "-o", tmp_path / "service.toml", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    (model,) = tomllib.loads((tmp_path / "service.toml").read_text())["models"]
    raised, alone = LatencyTable.load(tmp_path / model["latency"]).rows, _table().rows
    ratios = [
        np.median(own) / np.median(before) for own, before in zip(raised["samples_s"], alone["samples_s"], strict=True)
    ]
    assert ratios == pytest.approx([LONGER] * len(alone))


def test_workers_of_which_nothing_is_known_are_said_to_be_planned_as_if_alone(
    slotool: Slotool, tmp_path: Path, traffic: ArrivalTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(UNKNOWN, monkeypatch, cores_given=8)
    for name, table in (("latency", _table()), ("colocated", _table(1)), ("arrivals", traffic)):
        table.save(tmp_path / f"{name}.parquet")
    command = (
        "plan", tmp_path / "latency.parquet", "--arrivals", tmp_path / "arrivals.parquet", "--deadline-ms", 40,
        "--policies", "maxacc",
    )  # fmt: skip
    assert "planned with the latency of one alone" in slotool(*command).stderr
    known = slotool(*command, "--interference", tmp_path / "colocated.parquet").stderr
    assert "planned with the latency of one alone" not in known
    assert "next to 1 at most" in known
    shared = slotool(*command, "--interference", tmp_path / "colocated.parquet", "--machine-cores", 2)
    assert "the workers take all 2 cores of a machine" in " ".join(shared.stderr.split())


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"interference": 0.5}, ArgumentError, "a ratio of 0.5 is not 1 or more"),
        ({"machine_cores": 4}, ArgumentError, "no effect without interference"),
        ({"machine_cores": 0, "interference": 1.3}, ArgumentError, r"^machine_cores: 0\b.*\b1\b"),
        ({"interference": _table(0)}, InputError, "--co-runners 0,1 --placement split"),
        ({"interference": _table(1, placement="shared")}, InputError, "had the same cores"),
    ],
)
def test_what_says_nothing_of_workers_is_refused(
    traffic: ArrivalTable, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        _plan(traffic, **given)
