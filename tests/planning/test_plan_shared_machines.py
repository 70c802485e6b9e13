"""A plan of several models whose workers share a machine."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from slotool.errors import ArgumentError, InputError
from slotool.tables import LatencyTable
from tests.planning.test_plan_shared import fleets, model, planned, table

# Of ratios that are extrapolated.
pytestmark = pytest.mark.filterwarnings("ignore::slotool.errors.SlotoolWarning")
MODELS = model("quick", 2.0, 700.0, 30.0), model("slow", 8.0, 180.0, 150.0)


def beside(longer: float, one_ms: float) -> LatencyTable:
    """Alone, and next to a copy, where calls take so many times as long."""
    return with_copies(table(one_ms), longer)


def with_copies(latency: LatencyTable, longer: float) -> LatencyTable:
    copied = latency.rows.assign(
        co_runners=latency.rows["subject"], samples_s=[longer * each for each in latency.rows["samples_s"]],
        placement="split",
    )  # fmt: skip
    return LatencyTable(pd.concat([latency.rows.assign(placement=""), copied], ignore_index=True))


@pytest.mark.parametrize(
    ("longer", "cores", "slower"),
    [
        ((1.0, 1.0), 16, ()),
        ((1.3, 1.3), 1, ()),
        ((1.3, 1.0), 16, ("quick",)),
        ((1.0, 1.3), 16, ("slow",)),
    ],
)
def test_calls_take_longer_beside_busy_workers_for_each_model_by_its_own_rows(
    longer: tuple[float, float], cores: int, slower: tuple[str, ...]
) -> None:
    """Under a policy that always chooses the same point, so that only how long calls take changes."""
    steady = [{**own, "policies": "fixed@version=small"} for own in MODELS]
    models = [
        {**own, "interference": beside(each, one_ms)}
        for own, each, one_ms in zip(steady, longer, (2.0, 8.0), strict=True)
    ]
    busy = []
    for given, others in ((steady, {}), (models, {"machine_cores": cores})):
        shared = fleets(planned(*given, **others))["shared"]
        assert shared["replicas"] > 1
        busy.append({each["model"]: shared["replicas"] * each["utilisation"] for each in shared["models"]})
    before, after = busy
    assert {name for name in before if after[name] > 1.02 * before[name]} == set(slower)


def test_workers_that_slow_each_other_down_are_more() -> None:
    given = {"interference": 1.3, "machine_cores": 16}
    alone, beside_others = (fleets(planned(*MODELS, **each))["shared"] for each in ({}, given))
    assert not beside_others["holds"] or beside_others["replicas"] > alone["replicas"]


def test_one_table_of_all_subjects_counts_for_every_model() -> None:
    rows = [table(one_ms, subject).rows for one_ms, subject in ((2.0, "a"), (8.0, "b"))]
    latency = LatencyTable(pd.concat(rows, ignore_index=True))
    interference = with_copies(latency, 1.4)
    models = [{**own, "latency": latency, "subject": subject} for own, subject in zip(MODELS, "ab", strict=True)]
    of_table = planned(*models, interference=interference, machine_cores=16).rows[0]
    of_ratio = planned(*models, interference=1.4, machine_cores=16).rows[0]
    assert of_table["replicas"] == of_ratio["replicas"]


def test_the_service_file_names_tables_with_the_latencies_beside_others(tmp_path: Path) -> None:
    models = []
    for own, one_ms in zip(MODELS, (2.0, 8.0), strict=True):
        latency, artifact = tmp_path / f"{own['name']}.parquet", tmp_path / own["name"]
        table(one_ms).save(latency)
        artifact.mkdir()
        models.append({**own, "latency": latency, "artifact": artifact})
    models[0]["interference"] = beside(1.1, 2.0)
    found = planned(*models, machine_cores=2, out=tmp_path / "service.toml")
    assert found.rows[0]["kind"] == "shared"
    assert found.rows[0]["replicas"] > 1
    named = {each["name"]: each["latency"] for each in tomllib.loads(found.out.read_text())["models"]}
    assert named == {"quick": "service-quick-latency.parquet", "slow": "slow.parquet"}
    raised = LatencyTable.load(tmp_path / "service-quick-latency.parquet")
    before, after = (each.rows["samples_s"].iloc[0].mean() for each in (table(2.0), raised))
    assert after == pytest.approx(1.1 * before, 1e-3)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"machine_cores": 4}, "it has no effect without interference"),
        ({"interference": 0.9}, r"quick: interference: a ratio of 0.9 is not 1 or more"),
        ({"interference": True}, r"quick: interference: a table or ratio is expected"),
        ({"interference": table(2.0)}, "quick: .*no row of net with 1 thread is co-located"),
    ],
)
def test_what_says_nothing_of_workers_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises((ArgumentError, InputError), match=problem):
        planned(*MODELS, **settings)
