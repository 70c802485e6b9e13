"""``gen-switching-plan``: a real server under real load, a plan, and a server that follows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from slotool.artifacts.bundle import shipped_artifact
from slotool.errors import InputError
from slotool.planning import PlanSearch
from slotool.rules.switching import EFFECTIVE_ACCURACY, RESOLUTION, LoadTest, SwitchingPlan
from slotool.scheduling import Decision, EdfQueue, Query
from slotool.serving.operations.sources import Sources
from slotool.tables import LatencyTable, OutcomeTable

Slotool = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of the shipped network as if it had been profiled and evaluated."""
    folder = tmp_path_factory.mktemp("switching")
    rows = [{"subject": "mlp", "point": "full", "batch_size": n, "samples_s": [1e-3 * (n + 2) / 3]} for n in (1, 4)]
    LatencyTable.of(rows).save(folder / "latency.parquet")
    outcomes = [(str(e), "full", float(e == 0), 0.9, 1e-4) for e in range(50)]
    columns = ["example", "version", "error", "confidence", "latency_s"]
    OutcomeTable(pd.DataFrame(outcomes, columns=columns), {"subject": "mlp"}).save(folder / "outcomes.parquet")
    return folder


def arguments(folder: Path, *more: str) -> tuple[str, ...]:
    model = str(shipped_artifact("mlp").path)
    return ("gen-switching-plan", model, "--outcomes", str(folder / "outcomes.parquet"),
            "--latency", str(folder / "latency.parquet"), "--data", "digits", *more)  # fmt: skip


def test_a_plan_is_measured_and_followed(slotool: Slotool, folder: Path) -> None:
    out = folder / "plan.json"
    asked = ("-o", str(out), "--deadline-ms", "100", "--configurations", "1x1", "--duration", "500ms", "--json")
    result = slotool(*arguments(folder, *asked))
    assert result.exit_code == (0 if result.document["decided"] else 4), result.stderr
    plan = SwitchingPlan.load(out)
    assert json.loads(result.stdout)["plan"] == json.loads(out.read_text())
    assert plan.accuracy == {"full": pytest.approx(0.98)}
    kept = [load for load in plan.loads if load.p99_s is not None and load.p99_s <= 0.1]
    assert plan.rates_per_s["full"] == max(load.rate_per_s for load in kept) > 10

    files = Sources(
        (shipped_artifact("mlp").path,), ("mlp",), None, folder / "latency.parquet", (folder / "outcomes.parquet",),
        policy="switching", plan=out,
    )  # fmt: skip
    policy = files.load(lambda _: None)["mlp"].policy
    queue = EdfQueue()
    queue.push(Query("0", 0.0, 1e5))
    decision = policy.decide(1.0, queue)
    assert isinstance(decision, Decision)
    assert decision.reason.startswith("switching")
    with pytest.raises(InputError, match="--replicas 1 --threads 1"):
        replace(files, replicas=2).load(lambda _: None)
    with pytest.raises(InputError, match="--policy switching alone"):
        replace(files, policy="slackfit").load(lambda _: None)


def test_a_dry_run_says_how_long_and_what_is_missing_is_said(slotool: Slotool, folder: Path) -> None:
    out = str(folder / "never.json")
    result = slotool(*arguments(folder, "-o", out, "--deadline-ms", "20", "--configurations", "1x1,2x1", "--dry-run"))
    assert result.exit_code == 0, result.stderr
    assert "1 points on ⟨replicas, threads⟩ ⟨1, 1⟩, ⟨2, 1⟩, about 20 load tests" in result.stdout
    for more, said in (
        ((), "--deadline-ms"),
        (("--deadline-ms", "20", "--configurations", "0x1"), "1x1,2x1"),
        (("--deadline-ms", "20", "--duration", "5ms"), "shorter than 0.5 s"),
        (("--deadline-ms", "0.1", "--configurations", "1x1"), "shorter than the fastest point"),
    ):
        result = slotool(*arguments(folder, "-o", out, *more))
        assert result.exit_code == 2
        assert said in " ".join(result.stderr.split())
    assert not (folder / "never.json").exists()


def test_points_that_are_not_tested_are_named(slotool: Slotool, tmp_path: Path) -> None:
    errors = {"small": 0.3, "medium": 0.2, "large": 0.1}
    rows = [{"subject": "family", "point": f"version={name}", "batch_size": 1, "samples_s": [1e-3]} for name in errors]
    LatencyTable.of(rows).save(tmp_path / "latency.parquet")
    outcomes = [(str(e), name, float(e < 10 * errors[name]), 0.9, 1e-4) for name in errors for e in range(10)]
    columns = ["example", "version", "error", "confidence", "latency_s"]
    OutcomeTable(pd.DataFrame(outcomes, columns=columns)).save(tmp_path / "outcomes.parquet")
    result = slotool(
        "gen-switching-plan", shipped_artifact("family").path, "--outcomes", tmp_path / "outcomes.parquet", "--latency",
        tmp_path / "latency.parquet", "--deadline-ms", 20, "-o", tmp_path / "plan.json", "--dry-run",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "1 points on" in result.stdout
    for name in ("small", "medium"):
        assert f"version={name} is neither more accurate nor faster than version=large" in " ".join(
            result.stderr.split()
        )


def test_by_effective_accuracy_each_point_is_held_against_the_less_accurate_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers that answer so many requests a second in time: large 100, medium 300, small any number."""
    capacity = {"version=small": 1e9, "version=medium": 300.0, "version=large": 100.0}
    right = {"version=small": 0.8, "version=medium": 0.9, "version=large": 0.95}
    rows = [
        {"subject": "family", "point": point, "batch_size": 1, "samples_s": [1e-3 * right[point]]} for point in capacity
    ]
    LatencyTable.of(rows).save(tmp_path / "latency.parquet")
    outcomes = [
        (str(e), point.partition("=")[2], float(e >= 100 * right[point]), 0.9, 1e-4)
        for point in right
        for e in range(100)
    ]
    columns = ["example", "version", "error", "confidence", "latency_s"]
    OutcomeTable(pd.DataFrame(outcomes, columns=columns)).save(tmp_path / "outcomes.parquet")

    @contextmanager
    def served(self: PlanSearch, configuration: tuple[int, int], *rest: Any) -> Iterator[Any]:
        def measure(point: str, rate: float) -> LoadTest:
            share = min(1.0, capacity[point] / rate)
            return LoadTest(point, *configuration, rate, 0.001 if share == 1 else None, share)

        yield measure

    monkeypatch.setattr(PlanSearch, "_served", served)
    tables = tmp_path / "outcomes.parquet", tmp_path / "latency.parquet"
    search = PlanSearch(shipped_artifact("family").path, *tables, 0.02, 1.0, ((1, 1),), "digits", 0, EFFECTIVE_ACCURACY)
    tested: list[int] = []
    (plan,) = search.run(lambda: tested.append(len(tested)))
    assert len(tested) == len(search.grid.points) == 3
    assert plan.by == EFFECTIVE_ACCURACY
    for point, crossing in (("version=medium", 300 * 0.9 / 0.8), ("version=large", 100 * 0.95 / 0.9)):
        assert crossing / RESOLUTION <= plan.rates_per_s[point] <= crossing
