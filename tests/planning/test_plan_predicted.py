"""From networks that were never measured to a fleet: ``predict --family``, then ``plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import slotool as api
from slotool.errors import ArgumentError, SlotoolWarning
from slotool.tables import LatencyTable, OutcomeTable

SHAPE = (3, 32, 32)
# Latencies that depend on no machine.
PREDICTOR = Path(__file__).parents[2] / "models" / "predictor-torch"


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(width * 28 * 28, 10)).eval()


NETWORKS = {"small": network(8), "large": network(64)}


@pytest.mark.filterwarnings("ignore::slotool.errors.SlotoolWarning")
def test_a_family_that_was_never_measured_can_be_planned(tmp_path: Path) -> None:
    predicted = api.predict(
        NETWORKS, predictor=PREDICTOR, input_shape=SHAPE, sweep={"batch": [1, 4]}, out=tmp_path / "latency.parquet",
        family="nets",
    )  # fmt: skip
    table = LatencyTable.load(tmp_path / "latency.parquet")
    assert set(table.rows["subject"]) == {"nets"}
    assert table.rows["predicted"].all()
    # A row per version and batch size, each with the latency predicted of its own network.
    points = [f"version={point.name}" for point in predicted.points]  # type: ignore[attr-defined]
    values = dict(zip(zip(points, [1, 4] * 2, strict=True), predicted.latency_s, strict=True))
    rows = zip(table.rows["point"], table.rows["batch_size"], table.rows["samples_s"], strict=True)
    assert {(point, size): float(samples[0]) for point, size, samples in rows} == pytest.approx(values)

    generator = np.random.default_rng(0)
    OutcomeTable.of(
        [
            {
                "example": str(at),
                "version": name,
                "error": float(generator.random() < wrong),
                "confidence": 0.9,
                "latency_s": 1e-3,
            }
            for name, wrong in (("small", 0.3), ("large", 0.05))
            for at in range(400)
        ]
    ).save(tmp_path / "outcomes.parquet")
    options: dict[str, Any] = {"outcomes": tmp_path / "outcomes.parquet", "rate": 200.0, "deadline_ms": 100}
    with pytest.warns(SlotoolWarning, match=r"are predicted.*: compare a measurement") as warned:
        found = api.plan(table, min_accuracy=0.9, policies="slackfit", **options)
    assert {warning.filename for warning in warned} == {__file__}
    assert found.holds
    assert found.rows[0]["accuracy_at_least"] >= 0.9


def test_versions_have_names_of_their_own(tmp_path: Path) -> None:
    out = tmp_path / "latency.parquet"
    with pytest.raises(ArgumentError, match="latency table of --out"):
        api.predict(NETWORKS, input_shape=SHAPE, family="nets")
    with pytest.raises(ArgumentError, match="two networks are named Sequential"):
        api.predict(list(NETWORKS.values()), input_shape=SHAPE, family="nets", out=out)
    graphs = Path(__file__).parents[2] / "datasets" / "keras-applications-graphs.parquet"
    with pytest.raises(ArgumentError, match="not files of graphs"):
        api.predict(graphs, family="nets", out=out)
    assert not out.exists()
