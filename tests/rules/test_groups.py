"""Tolerances per group: what holds for all examples together may not for a language of its own."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import slotool
from slotool.errors import InputError, SlotoolWarning, TableError
from slotool.rules import OSFA, RuleSet, from_point, generate_rules
from slotool.rules.evidence.groups import Groups
from slotool.rules.monitor.drift import Watcher, watch
from slotool.rules.monitor.verdict import cross_validate, verdicts
from slotool.tables import OutcomeTable


def _languages(examples: int, seed: int, small: int = 0) -> OutcomeTable:
    """The cheap version is as good as the dear one in English, and wrong on 15 % of German, a fifth of all, whatever
    its confidence; ``small`` examples are Welsh."""
    draw = np.random.default_rng(seed)
    german = draw.random(examples) < 0.2
    language = np.where(np.arange(examples) < small, "cy", np.where(german, "de", "en"))
    hard = draw.random(examples) < 0.02
    error = {"cheap": hard | (german & (draw.random(examples) < 0.15)), "dear": hard}
    frames = [
        pd.DataFrame({"example": np.arange(examples).astype(str), "version": name, "error": error[name].astype(float),
                      "confidence": draw.random(examples), "latency_s": 0.1, "cost": cost, "language": language})
        for name, cost in (("cheap", 0.1), ("dear", 1.0))
    ]  # fmt: skip
    return OutcomeTable(pd.concat(frames, ignore_index=True))


def _rules(outcomes: OutcomeTable, group: str | None, kind: str = "absolute") -> RuleSet:
    tolerance = 0.05 if kind == "absolute" else 2.5
    return generate_rules(
        outcomes, [tolerance], ["cost"], 0.95, tolerance_kind=kind, policies=["osfa", "seq"], thresholds=8, group=group
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["absolute", "relative"])
def test_a_tolerance_holds_for_each_group_and_not_only_for_all_together(kind: str) -> None:
    outcomes, fresh = _languages(8000, 0), _languages(20_000, 1)
    together, each = (_rules(outcomes, group, kind).rules[0] for group in (None, "language"))
    assert together.point == OSFA("cheap").point  # 15 % of a fifth are 3 points
    assert each.point != together.point
    german = Groups.of_table(fresh, "language").of == 0
    error, best = (from_point(point).replay(fresh).error[german] for point in (each.point, OSFA("dear").point))
    allowed = 0.05 if kind == "absolute" else 2.5 * best.mean()
    assert error.mean() - best.mean() <= allowed
    assert set(each.groups) == {"de", "en"}
    assert each.groups["de"] > each.groups["en"] - 1e-12


def test_small_groups_share_a_guarantee_or_have_none() -> None:
    found = Groups.of_table(_languages(400, 0, small=10), "language")
    assert found.names == ("de", "en")
    assert found.small == ("cy",)
    assert (found.of[:10] == -1).all()
    outcomes = _languages(400, 0)
    rows = outcomes.rows.assign(
        customer=[int(name) // 30 if int(name) < 300 else 99 for name in outcomes.rows["example"]]
    )
    pooled = Groups.of_table(OutcomeTable(rows), "customer")
    assert pooled.names == ("99", "others")
    assert np.bincount(pooled.of).tolist() == [100, 300]


def test_a_column_that_identifies_examples_is_told() -> None:
    outcomes = _languages(400, 0)
    rare = OutcomeTable(outcomes.rows.assign(customer=outcomes.rows["example"].astype(int) // 20))
    for table, column, sentence in (
        (outcomes, "example", "column 'example' identifies examples and groups none: 400 values of 400 examples"),
        (rare, "customer", "column 'customer' has no value that is frequent enough: 20 values of 400 examples"),
    ):
        with pytest.warns(SlotoolWarning, match=sentence):
            slotool.gen_rules(
                table, tolerances=[0.1], objective="cost", policies="osfa", group=column, method="certified"
            )


def test_what_makes_no_groups_is_said() -> None:
    outcomes = _languages(400, 0)
    with pytest.raises(TableError, match="no column 'region'; there are example, version"):
        Groups.of_table(outcomes, "region")
    with pytest.raises(InputError, match="column 'example' has 0 groups of 50"):
        Groups.of_table(outcomes.examples_at(np.arange(40)), "example")
    with pytest.raises(TableError, match="column 'confidence' differs between the versions of example '0'"):
        Groups.of_table(outcomes, "confidence")
    for name, sentence in (
        ("", r"column 'tongue' is empty for 8. examples: each needs a group"),
        ("all", "column 'tongue' has the value 'all', which results use themselves: rename it"),
        ("others", "column 'tongue' has the value 'others', which"),
    ):
        named = outcomes.rows.assign(tongue=outcomes.rows["language"].where(outcomes.rows["language"] != "de", name))
        with pytest.raises(InputError, match=sentence):
            Groups.of_table(OutcomeTable(named), "tongue")
    with pytest.raises(InputError, match="method naive knows no groups"):
        generate_rules(outcomes, [0.1], method="naive", group="language")


def test_rules_of_groups_survive_their_file_and_are_judged_by_group(tmp_path: Path) -> None:
    outcomes, fresh = _languages(4000, 0), _languages(4000, 1)
    made = slotool.gen_rules(
        outcomes, tmp_path / "r.json", tolerances=[0.05], tolerance_kind="absolute", confidence=0.95, objective="cost",
        thresholds=8, group="language",
    )  # fmt: skip
    assert "each tolerance holds for each language (examples): de (" in str(made)
    loaded = RuleSet.load(tmp_path / "r.json")
    assert loaded.rules == made.rules.rules
    judged = slotool.evaluate_rules(loaded, fresh)
    assert judged.violations == 0
    assert "most by group" in str(judged)
    (tier,) = judged.frame().to_dict("records")
    assert set(tier["groups"]) == {"de", "en"}
    assert len(cross_validate(loaded, outcomes, 2)[0][0].groups) == 2
    with pytest.raises(TableError, match="no column 'language'"):
        slotool.evaluate_rules(loaded, OutcomeTable(fresh.rows.drop(columns="language")))


def test_a_tier_that_fails_one_group_is_violated() -> None:
    outcomes, fresh = _languages(4000, 0), _languages(8000, 1)
    together = _rules(outcomes, None)
    grouped = RuleSet(
        **{**vars(together), "config": {**together.config, "group": "language", "groups": {"de": 1, "en": 1}}}
    )
    assert verdicts(together, fresh)[0].p_value > 0.05
    assert verdicts(grouped, fresh)[0].p_value < 0.01
    assert verdicts(grouped, fresh)[0].above_tolerance


def test_drift_is_watched_for_each_group() -> None:
    """German requests lose 15 points by the cheap version, all together 3: only their own watch can find it."""
    together = _rules(_languages(4000, 0), None)
    config = {**together.config, "group": "language", "groups": {"de": 1, "en": 1}}
    grouped = RuleSet(**{**vars(together), "config": config})
    fresh = _languages(6000, 1)
    found = {w.group: (w.alarm_at is not None, w.confirmed_at is not None) for w in watch(grouped, fresh, 0.99)}
    assert found == {"": (False, True), "de": (True, False), "en": (False, True)}
    shown = slotool.evaluate_drift(grouped, fresh)
    assert (shown.alarms, shown.confirmed) == (1, 2)
    assert "1 of 3 guarantees are violated" in str(shown)
    with pytest.raises(TableError, match="no column 'language'"):
        slotool.evaluate_drift(grouped, OutcomeTable(fresh.rows.drop(columns="language")))
    watcher = Watcher(grouped, 0.99)  # a server's, whose feedback has no such column
    watcher.see(OutcomeTable(fresh.rows.drop(columns="language")), [""] * len(fresh.examples))
    assert [w.group for w in watcher.watched() if w.mean_excess] == [""]
