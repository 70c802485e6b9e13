"""``serve --reprofile``: calls that take longer than the table says change the plans of a real router."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from slotool.artifacts.shipped import shipped_artifact
from slotool.scheduling import Decision, Query
from slotool.scheduling.edf import EdfQueue
from slotool.scheduling.workers import Workers
from slotool.serving import Router
from slotool.serving.events import Events
from slotool.serving.operations.reprofiling import Reprofiling
from slotool.serving.operations.runtime_settings import ReloadableSettings
from slotool.serving.operations.sources import Sources
from slotool.tables import LatencyTable, OperatingPoint, OutcomeTable

NAMES = ("small", "medium", "large")
POINTS = {name: OperatingPoint.of(version=name) for name in NAMES}
PLANNED_S = dict(zip(NAMES, (1e-3, 4e-3, 8e-3), strict=True))


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    rows: list[dict[str, Any]] = [
        {"subject": "family", "point": f"version={name}", "samples_s": [s], "machine": "here"}
        for name, s in PLANNED_S.items()
    ]
    LatencyTable.of(rows).save(tmp_path / "latency.parquet")
    wrong = dict(zip(NAMES, (5, 2, 1), strict=True))
    outcomes = [(str(e), name, float(e < wrong[name]), 0.9, 1e-3) for name in NAMES for e in range(10)]
    frame = pd.DataFrame(outcomes, columns=["example", "version", "error", "confidence", "latency_s"])
    OutcomeTable(frame, {"subject": "family"}).save(tmp_path / "outcomes.parquet")
    artifact = shipped_artifact("family").path
    return Sources(
        (artifact,), (), None, tmp_path / "latency.parquet", (tmp_path / "outcomes.parquet",), policy="maxacc"
    )


def chosen(router: Router, slack_us: float) -> str:
    """The version that answers one query with so much slack."""
    served = router.model("family")
    assert served is not None
    queue = EdfQueue(Workers(1))
    queue.push(Query("1", 0.0, slack_us))
    decision = served.policy.decide(0.0, queue)
    assert isinstance(decision, Decision)
    return str(decision.point.get("version"))


def test_slow_calls_change_the_plan_and_a_reload_takes_it_back(sources: Sources) -> None:
    heard: list[tuple[str, str, dict[str, Any]]] = []
    events, clock = Events(), [0.0]
    events.listen(lambda kind, sentence, fields: heard.append((kind, sentence, fields)))
    router = Router(sources.load(lambda doubt: None), events=events, clock_us=lambda: clock[0])
    settings = ReloadableSettings(sources, router, lambda doubt: None)
    reprofiling = Reprofiling(router, settings)

    def serve_for(seconds: int, factor: float) -> None:
        for _ in range(seconds):
            for _ in range(50):
                clock[0] += 2e4
                reprofiling.observe("family", POINTS["large"], 1, 8e3 * factor, clock[0])
            asyncio.run(reprofiling.look())

    serve_for(10, 1.0)
    assert not heard
    assert chosen(router, 9e3) == "large"
    serve_for(10, 1.3)
    assert chosen(router, 9e3) == "medium"
    assert chosen(router, 11e3) == "large"
    kind, sentence, fields = heard[0]
    assert (kind, fields["timing"]) == ("replan", "stable")
    assert sentence.startswith("family: calls take 1.30 times what the latency table says; planned again")
    assert fields["factors"]["version=large"] == pytest.approx(1.3)
    metric = router.metrics.registry.get_sample_value
    assert metric("slotool_replans_total", {"model": "family"}) == 1
    labels = {"model": "family", "point": "version=small"}
    assert metric("slotool_latency_correction", labels) == pytest.approx(1.3)
    asyncio.run(settings.reload())
    assert chosen(router, 9e3) == "large"
    serve_for(5, 1.0)
    assert [kind for kind, _, _ in heard] == ["replan", "reload"]
    router.close()
