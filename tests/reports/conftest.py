"""A run folder as the walkthrough leaves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotool.artifacts import create_artifact
from slotool.workloads.arrivals.recorded import ArrivalTable
from tests.reports.made_tables import (
    family_outcomes,
    latency_table,
    predictions,
    request_log,
    rule_set,
    slo_nn_outcomes,
    switching_plan,
)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Tables and rules at the top, the predictor in a folder of its own, one log a level deeper, other things too."""
    folder = tmp_path / "run"
    slo_nn_outcomes().save(folder / "slo-nn-outcomes.parquet")
    family_outcomes().save(folder / "family-outcomes.parquet")
    rule_set().save(folder / "rules.json")
    request_log().save(folder / "load" / "requests.parquet")
    switching_plan().save(folder / "plan.json")
    latency_table().save(folder / "latency.parquet")
    ArrivalTable.of([{"arrival_s": 0.1}]).save(folder / "arrivals.parquet")
    with create_artifact(folder / "predictor", "predictor", config={"data": "digits"}, seed=5) as writer:
        writer.write_table("predictions.parquet", predictions())
    (folder / "notes.txt").write_text("not for a report")
    (folder / "settings.json").write_text('{"schema": "something else"}')
    return folder
