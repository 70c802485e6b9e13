"""``family``, ``evaluate`` and ``gen-rules`` on a noisy machine: means of undisturbed calls, and orders not decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import slotool
from slotool.elastic.evaluation import summary
from slotool.tables import OutcomeTable
from slotool.timing.interference import NOT_DECIDED
from tests.timing.simulated_machine import SimulatedMachine

N = 60
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def made(machine: SimulatedMachine, seconds: dict[str, float], **more: Any) -> Any:
    def version(spent_s: float, wrong: float) -> Any:
        def answer(features: np.ndarray) -> np.ndarray:
            machine.spend(spent_s)
            value = features[:, 0] - wrong
            return np.stack([-value, value], axis=1)

        return answer, "features=FP32[-1,4] -> logits=FP32[-1,2]"

    versions = {name: version(spent_s, 0.3 * at) for at, (name, spent_s) in enumerate(reversed(seconds.items()))}
    return slotool.family(versions, (X, Y), repeats=3, **more)


def test_means_are_of_undisturbed_calls_and_both_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = SimulatedMachine(busy=1.5)
    machine.install(monkeypatch)
    outcomes = tmp_path / "outcomes.parquet"
    found = made(machine, {"small": 2e-4, "large": 6e-4}, outcomes=outcomes)
    rows = found.frame().set_index("version")
    assert rows["mean_latency_s"].to_dict() == pytest.approx({"small": 2e-4, "large": 6e-4}, rel=0.02)
    assert set(rows["timing"]) == {"stable"}
    assert list(rows.index) == ["small", "large"]
    # Raw samples stay in the table, disturbed ones among them, and rules count what is undisturbed.
    table = OutcomeTable.load(outcomes)
    assert len(table.rows["samples_s"].iloc[0]) == 3
    assert table.features == []
    assert table.matrix("cost").mean(axis=0) == pytest.approx(table.matrix("latency_s").mean(axis=0))
    rules = slotool.gen_rules(outcomes, tolerances=[0.5], policies=["osfa"])
    assert rules.frame().set_index("version")["response_time_s"]["large"] == pytest.approx(6e-4, rel=0.02)


def test_median_and_mean_are_of_the_same_calls_from_csv_too(tmp_path: Path) -> None:
    """Of ten examples seven were disturbed in every repeat, which made them three times as long."""
    rows = [
        {"example": str(i), "version": "rf", "error": 0.0, "confidence": 0.9, "latency_s": t, "samples_s": [t, t],
         "disturbed": [float(i < 7)] * 2}
        for i, t in enumerate([7e-3] * 7 + [2e-3, 3e-3, 4e-3])
    ]  # fmt: skip
    (row,) = summary(OutcomeTable.of(rows))
    OutcomeTable.of(rows).save(tmp_path / "rf.csv")
    assert summary(OutcomeTable.load(tmp_path / "rf.csv")) == [row]
    assert (row["median_latency_s"], row["mean_latency_s"]) == pytest.approx((3e-3, 3e-3))


def test_disturbed_calls_are_named_and_decide_no_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = SimulatedMachine(busy=4.0)
    machine.install(monkeypatch)
    outcomes = tmp_path / "outcomes.parquet"
    found = made(machine, {"small": 2.00e-2, "large": 2.05e-2}, outcomes=outcomes)
    assert set(found.frame()["timing"]) == {"disturbed"}
    assert [row["undecided"] for row in found.document["versions"]] == [["large"], ["small"]]
    assert any(NOT_DECIDED in sentence for sentence in found.warnings)
    assert not any(row["dominated"] for row in found.document["versions"])


def test_rules_warn_of_means_that_disturbed_calls_would_move(tmp_path: Path) -> None:
    names = {"example": [str(i) for i in range(N)] * 2, "version": ["a"] * N + ["b"] * N}
    rows = pd.DataFrame({**names, "error": 0.0, "confidence": np.linspace(0.5, 0.9, 2 * N), "latency_s": 265e-6})
    late = [i < 10 for i in range(N)] + [False] * N
    samples = [np.array([265e-6, 265e-6, 16e-3 if is_late else 265e-6]) for is_late in late]
    known = rows.assign(samples_s=samples, disturbed=[s > 1e-3 for s in samples])
    raw = rows.assign(latency_s=np.where(late, 16e-3, 265e-6))
    for table, expected_s in ((known, 265e-6), (raw, raw["latency_s"][:N].mean())):
        found = slotool.gen_rules(OutcomeTable(table), tolerances=[0.5], policies=["osfa"])
        assert found.frame().set_index("version")["response_time_s"]["a"] == pytest.approx(expected_s)
        assert [sentence.partition(":")[0] for sentence in found.warnings] == ["a"]
    quiet = slotool.gen_rules(OutcomeTable(rows), tolerances=[0.5], policies=["osfa"])
    assert quiet.warnings == []
