"""Plans and simulations of the shipped tables, beside those recorded in ``tests/golden/plans.json``.

``python -m tests.planning.test_golden_plans`` records them anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import slotool as api
from slotool.tables import LatencyTable
from slotool.testing.rules import family_outcomes
from slotool.workloads import ArrivalTable, Poisson

GOLDEN = Path(__file__).parents[1] / "golden" / "plans.json"
DATASETS = Path(__file__).parents[2] / "datasets"
LATENCY, OUTCOMES = (DATASETS / f"digits-supernet-{what}.parquet" for what in ("latency", "outcomes"))
FLEET = ("kind", "worker", "policy", "replicas", "cost", "holds", "attainment", "accuracy", "p99_us", "utilisation")
SIMULATED = ("policy", "attainment", "accuracy", "effective_accuracy", "drops", "late", "calls", "regret")
# Tables of values are sums of many terms: their last digits, and so a close choice, differ between processors.
MAY_DIFFER = 2e-3
pytestmark = pytest.mark.filterwarnings("ignore::slotool.errors.SlotoolWarning")


def _arrivals(rate: float, lasts_s: float) -> ArrivalTable:
    return ArrivalTable(pd.DataFrame({"arrival_s": Poisson(rate).times(lasts_s, seed=3)}))


def _fleets(plan: Any) -> list[dict[str, Any]]:
    """Figures of each fleet and, of fleets of several models, of each model."""
    rows = [row for fleet in plan.rows for row in (fleet, *fleet.get("models", ()))]
    return [{key: row[key] for key in FLEET if key in row} for row in rows]


def single_plan() -> list[dict[str, Any]]:
    return _fleets(
        api.plan(
            LATENCY, outcomes=OUTCOMES, arrivals=_arrivals(20_000.0, 0.5), deadline_ms=20, attainment=0.95,
            min_accuracy=0.9, policies=["slackfit", "maxacc", "fixed"], progress=None,
        )
    )  # fmt: skip


def shared_plan() -> list[dict[str, Any]]:
    common = {"latency": LATENCY, "outcomes": OUTCOMES, "policies": "slackfit,maxacc"}
    models = [
        {"name": "urgent", "rate": 4_000.0, "deadline_ms": 10.0, **common},
        {"name": "patient", "rate": 1_000.0, "deadline_ms": 60.0, "min_accuracy": 0.95, **common},
    ]
    return _fleets(api.plan(models=models, attainment=0.95, progress=None))


def tiers_plan() -> list[dict[str, Any]]:
    outcomes = family_outcomes(1_000)
    rules = api.gen_rules(outcomes, tolerances=(0.0, 0.02, 0.2), tolerance_kind="absolute", confidence=0.95).rules
    seconds = {"small": 1e-3, "medium": 3e-3, "large": 1e-2}
    rows = [
        {"subject": "family", "point": f"version={name}", "batch_size": size,
         "samples_s": [(0.6 + 0.4 * size) * one_s * slower for slower in (0.9, 1.0, 1.0, 1.1)]}
        for name, one_s in seconds.items()
        for size in (1, 4)
    ]  # fmt: skip
    return _fleets(
        api.plan(
            LatencyTable.of(rows), outcomes=outcomes, rules=rules, tolerance={0.0: 0.2, 0.02: 0.3, 0.2: 0.5},
            arrivals=_arrivals(800.0, 5.0), deadline_ms=60, progress=None,
        )
    )  # fmt: skip


def simulation() -> list[dict[str, Any]]:
    """Of each policy, with noise and a worker that dies."""
    found = api.simulate(
        LATENCY, _arrivals(6_000.0, 0.5), 15, outcomes=OUTCOMES, workers=2, deaths_s=(0.3,), progress=None
    )
    return [{key: row[key] for key in SIMULATED} for row in found.rows]


MADE: Mapping[str, Callable[[], list[dict[str, Any]]]] = {
    "single": single_plan, "shared": shared_plan, "tiers": tiers_plan, "simulate": simulation,
}  # fmt: skip


@pytest.mark.parametrize("what", MADE)
def test_plans_are_as_recorded(what: str) -> None:
    recorded, found = json.loads(GOLDEN.read_text())[what], MADE[what]()
    assert len(found) == len(recorded)
    for row, before in zip(found, recorded, strict=True):
        assert row.keys() == before.keys()
        for key, value in before.items():
            if isinstance(value, float) and math.isfinite(value):
                assert row[key] == pytest.approx(value, rel=MAY_DIFFER, abs=MAY_DIFFER), (key, before)
            elif key in ("drops", "late", "calls"):
                assert row[key] == pytest.approx(value, rel=0.02, abs=10), (key, before)
            else:
                assert row[key] == value, (key, before)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({what: make() for what, make in MADE.items()}, indent=1) + "\n")
