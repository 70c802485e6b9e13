"""Rules from Python: from an outcome table to tiers, and their verdict on other outcomes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import slotool
from slotool.errors import ArgumentError, SlotoolWarning, TableError
from slotool.tables import OutcomeTable


def outcomes(seed: int, n: int = 400) -> OutcomeTable:
    """Two versions, the slow one twice as accurate, the fast one sure where it is right."""
    rng = np.random.default_rng(seed)
    rows = []
    for example in range(n):
        hard = rng.random() < 0.2
        for version, error, latency_s in (("fast", hard, 0.001), ("slow", hard and rng.random() < 0.5, 0.01)):
            sure = 0.5 if hard and version == "fast" else 0.9
            rows.append((str(example), version, float(error), sure + 0.05 * rng.random(), latency_s))
    names = ("example", "version", "error", "confidence", "latency_s")
    return OutcomeTable.of([dict(zip(names, row, strict=True)) for row in rows])


def test_rules_are_made_judged_and_kept(tmp_path: Path) -> None:
    made = slotool.gen_rules(outcomes(0), tmp_path / "rules.json", tolerances=[0.0, 0.5], objective="response-time")
    assert [rule.tolerance for rule in made.rules.rules] == [0.0, 0.5]
    assert made.rules.rules[1].response_time_s < 0.01
    assert made.frame()["version"].tolist() == ["fast", "slow"]
    assert repr(made).splitlines()[-1] == f"wrote {tmp_path / 'rules.json'}"
    verdict = slotool.evaluate_rules(tmp_path / "rules.json", outcomes(1))
    assert verdict.violations == 0
    assert verdict.frame()["id"].tolist() == [rule.id for rule in made.rules.rules]
    with pytest.warns(SlotoolWarning, match="nothing here is held out"):
        slotool.evaluate_rules(made.rules, outcomes(0))


def test_folds_are_counted_and_prices_are_by_version() -> None:
    heard: list[int] = []
    table = outcomes(2)
    made = slotool.gen_rules(table, tolerances=[0.5], method="naive", price={"fast": 1.0, "slow": 3.0})
    assert made.frame()["cost"].tolist() == pytest.approx([0.001, 0.03])
    verdict = slotool.evaluate_rules(made.rules, table, folds=2, progress=lambda text, done, total: heard.append(done))
    assert heard == [1, 2]
    assert verdict.document["folds"] == 2
    with pytest.raises(ArgumentError, match="significance"):
        slotool.evaluate_rules(made.rules, table, significance=1.0)


def test_a_price_list_of_calls_gives_the_costs(tmp_path: Path) -> None:
    listed = tmp_path / "prices.toml"
    listed.write_text("[prices]\nfast = {price = 1, per = 1000}\nslow = 0.02\nanother = 3\n")
    made = slotool.gen_rules(outcomes(0), tolerances=[0.5], objective="cost", prices=listed)
    assert made.outcomes.matrix("cost")[0].tolist() == [0.001, 0.02]
    assert made.rules.rules[0].cost < 0.02
    by_name = slotool.gen_rules(outcomes(0), tolerances=[0.5], objective="cost", prices={"fast": 0.001, "slow": 0.02})
    assert by_name.rules.rules == made.rules.rules
    with pytest.raises(TableError, match="version 'slow' has no price; there are prices of fast"):
        slotool.gen_rules(outcomes(0), prices={"fast": 0.001})
    with pytest.raises(ArgumentError, match="give one of the two"):
        slotool.gen_rules(outcomes(0), price=1.0, prices=listed)
    twice = tmp_path / "prices.csv"
    twice.write_text("version,price\nfast,0.1\nslow,0.2\nfast,0.3\n")
    with pytest.raises(TableError, match=r"prices.csv: version 'fast' has two prices; give one"):
        slotool.gen_rules(outcomes(0), prices=twice)
