"""Promises above the truly best version, which need not be the one that looks best in the table."""

import numpy as np
import pytest

from benchmarks.best_version import CASES, Case, measured, requests
from slotool.errors import InputError
from slotool.rules import OSFA, generate_rules
from slotool.rules.monitor.verdict import verdicts
from slotool.tables import OutcomeTable
from slotool.testing.rules import family_outcomes

PERFECT = Case(20, (0.0, 0.0), 0.1)


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[5]], ids=lambda case: case.name)
def test_no_promise_is_broken_more_often_than_stated(case: Case) -> None:
    assert measured(case, False, 12)["broken"] <= 2 / 12  # 0.05 is stated, and more has a probability of 2 %


def test_twenty_examples_without_an_error_promise_nothing() -> None:
    rules = generate_rules(requests(PERFECT, 0, 20), [0.0, 0.05, 0.1], confidence=0.95, tolerance_kind="absolute")
    assert not any(rule.promised or rule.certified or rule.bound is not None for rule in rules.rules)
    assert rules.best_bound is None


def test_with_the_best_version_named_that_version_keeps_every_tolerance_by_definition() -> None:
    table = requests(PERFECT, 0, 20)
    rules = generate_rules(table, [0.0, 0.1], confidence=0.95, tolerance_kind="absolute", best="medium")
    assert (rules.best_version, rules.best_words) == ("medium", "medium")
    assert all(rule.promised and rule.point == OSFA("medium").point and rule.bound == 0 for rule in rules.rules)
    with pytest.raises(InputError, match="no version 'huge'"):
        generate_rules(table, [0.1], best="huge")


def test_the_named_version_need_not_look_best() -> None:
    table = family_outcomes(2000)
    rules = generate_rules(table, [0.0, 0.05], ["cost"], 0.95, tolerance_kind="absolute", best="medium")
    assert rules.best_version == "medium"
    assert rules.best_error == pytest.approx(table.matrix("error")[:, 1].mean())
    assert rules.rules[1].certified
    assert rules.rules[1].cost < rules.rules[0].cost


def test_a_version_clearly_better_than_all_others_is_proven_to_be() -> None:
    rules = generate_rules(family_outcomes(2000, error=(0.5, 0.4, 0.05)), [0.01], ["cost"], 0.95,
                           tolerance_kind="absolute", policies=["osfa"])  # fmt: skip
    assert [(rule.point, rule.certified) for rule in rules.rules] == [(OSFA("large").point, True)]
    assert rules.best_bound == 0.01


@pytest.mark.parametrize("kind", ["absolute", "relative", "quantile"])
def test_a_promise_above_the_best_is_one_above_each_version(kind: str) -> None:
    table = family_outcomes(3000, error=(0.11, 0.1, 0.1))
    rules = generate_rules(table, [0.0, 0.2], ["cost"], 0.95, tolerance_kind=kind)
    assert {rules.reference, *(generate_rules(table, [0.2], method=m).reference for m in ("naive", "bootstrap"))} == {
        "any", "observed",
    }  # fmt: skip
    assert set(rules.references(table)) == set(table.versions)
    for verdict in verdicts(rules, table):
        assert verdict.degradation == pytest.approx(verdict.rule.degradation)  # above the version that looks best


def test_held_out_outcomes_violate_no_tier_that_promises_nothing() -> None:
    rules = generate_rules(requests(PERFECT, 0, 40), [0.0], ["cost"], 0.95, tolerance_kind="absolute")
    rows = family_outcomes(2000, error=(0.3, 0.01)).rows  # the other version is far better
    assert [verdict.p_value for verdict in verdicts(rules, OutcomeTable(rows))] == [1.0]


def test_groups_are_promised_above_each_version_too() -> None:
    table = family_outcomes(1500, error=(0.12, 0.1, 0.1))
    groups = np.tile(np.where(np.arange(1500) % 2, "a", "b"), 3)
    rules = generate_rules(
        OutcomeTable(table.rows.assign(group=groups)), [0.0, 0.3], ["cost"], 0.95, tolerance_kind="absolute",
        group="group",
    )  # fmt: skip
    assert [rule.promised for rule in rules.rules] == [False, True]


def test_about_as_many_examples_are_named_as_show_a_saving_in_half_of_the_tables() -> None:
    """In half of the tables of 712 examples there is one, as draws of tables of several sizes showed."""
    rules = [
        generate_rules(family_outcomes(400, seed), [0.0, 0.02, 0.05], ["cost"], 0.95, tolerance_kind="absolute",
                       policies=["osfa", "seq"], thresholds=8, seed=seed)
        for seed in range(9)
    ]  # fmt: skip
    named = [made.config["examples_for_first_saving"] or np.inf
             for made in rules if made.rules[-1].cost == made.config["best_cost"]]  # fmt: skip
    assert 712 / 1.6 < np.median(named) < 712 * 1.6
