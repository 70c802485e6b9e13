"""What ``gen-rules`` says besides its rules: why not cheaper, and what a second costs."""

import json

import numpy as np
import pytest

import slotool as library
from benchmarks.reproduction.papers.tolerance_tiers import category_confidences, category_errors
from slotool.commands.display import Table
from slotool.reports.series.tiers import (
    tolerance_tiers,
)
from slotool.rules import RuleSet
from slotool.rules.analysis import CATEGORIES, categories
from slotool.tables import OutcomeTable
from slotool.testing.rules import family_outcomes

TIERS = [0.0, 0.05, 0.1, 0.3]


@pytest.fixture
def outcomes(tmp_path):
    path = tmp_path / "o.parquet"
    family_outcomes(400).save(path)
    return path


def test_every_tier_says_what_speaks_against_a_cheaper_one(slotool, outcomes, tmp_path) -> None:
    options = ("--tolerances", "0,0.05,0.1,0.3", "--tolerance-kind", "absolute", "--confidence", "0.9", "--explain")
    done = slotool("gen-rules", outcomes, "-o", tmp_path / "r.json", *options)
    assert done.exit_code == 0, done.stderr
    assert "Why not cheaper" in done.stdout
    assert all(rule.why for rule in RuleSet.load(tmp_path / "r.json").rules)
    first = json.loads((tmp_path / "r.json").read_text())["rules"][-1]
    assert {"policy", "versions", "threshold", "bound", "why"} <= set(first)


def test_prices_by_the_command(slotool, outcomes, tmp_path) -> None:
    made = ("gen-rules", outcomes, "--tolerances", "0.3", "--method", "naive", "--json")
    priced = slotool(*made, "-o", tmp_path / "a.json", "--price", "small=2,medium=2,large=2")
    plain, same = (slotool(*made, "-o", tmp_path / f"{i}.json", *more) for i, more in ((1, ()), (2, ("--price", "2"))))
    costs = [json.loads(done.stdout)["rules"]["config"]["best_cost"] for done in (plain, priced, same)]
    assert costs[1] == costs[2] == pytest.approx(2 * costs[0])
    apart = ("--price", "small=2", "--price", "medium=2", "--price", "large=2")
    assert slotool(*made, "-o", tmp_path / "b.json", *apart).document["rules"] == priced.document["rules"]
    for given, sentence in (
        (["small=2"], "version 'medium' has no price"),
        (["dear"], "neither a number"),
        (["small=2,small=3"], "'small' is given twice"),
        (["small=2", "small=3"], "'small' is given twice"),
        (["2", "small=3"], "2 is a price of every version, and another one is given"),
        (["1", "2"], "1 is a price of every version, and another one is given"),
        (["huge=3"], "a price for 'huge', but the table has only small, medium, large"),
    ):
        wrong = slotool(*made, "-o", tmp_path / "w.json", *(word for text in given for word in ("--price", text)))
        assert (wrong.exit_code, sentence in wrong.stderr) == (2, True), wrong.stderr


def test_units_and_what_cannot_be_saved_are_told() -> None:
    made = library.gen_rules(family_outcomes(400), tolerances=[0.1, 3], price=0.0, method="naive")
    said = [part for part in made.shown() if isinstance(part, str)]
    assert "large costs nothing, so that no tier can save cost" in said
    assert "tolerance 3 is 300% of large's error; 3 % is 0.03" in said
    rows = family_outcomes(40).rows
    rows.loc[rows["version"] == "large", "latency_s"] = 0.0
    timeless = library.gen_rules(OutcomeTable(rows), tolerances=[0.1], method="naive").shown()
    assert any("takes no time in this table" in part for part in timeless if isinstance(part, str))
    tables = [part for part in made.shown() if isinstance(part, Table)]
    assert tables[1].title.startswith("Tiers for the least response time: naive, loss in % of large's error")
    assert tables[1].rows[0][0] == "10 %"
    for given, heading in ((None, "cost, machine s"), ({"small": 1, "medium": 2, "large": 3}, "cost")):
        priced = library.gen_rules(family_outcomes(40), tolerances=[0.1], prices=given, method="naive")
        assert next(part for part in priced.shown() if isinstance(part, Table)).columns[3] == heading


def test_answers_without_seconds_have_tiers_of_cost_alone(slotool, tmp_path) -> None:
    rows = family_outcomes(40).rows
    OutcomeTable(rows.assign(latency_s=0.0)).save(tmp_path / "o.parquet")
    call = ("gen-rules", tmp_path / "o.parquet", "-o", tmp_path / "r.json", "--tolerances", "0.1", "--method", "naive")
    done = slotool(*call)
    assert (done.exit_code, "tiers of cost alone" in done.stderr) == (0, True), done.stderr
    assert [rule.objective for rule in RuleSet.load(tmp_path / "r.json").rules] == ["cost"]
    refused = slotool(*call, "--force", "--objective", "response-time")
    assert refused.exit_code == 2
    assert "no answer has seconds" in " ".join(refused.stderr.replace("│", " ").split())


def test_tiers_are_judged_at_other_prices(slotool, outcomes, tmp_path) -> None:
    options = ("--tolerances", "0.3", "--tolerance-kind", "absolute", "--confidence", "0.9", "--objective", "cost")
    assert slotool("gen-rules", outcomes, "-o", tmp_path / "r.json", *options).exit_code == 0
    family_outcomes(400, seed=1).save(tmp_path / "fresh.parquet")
    (tmp_path / "dear.csv").write_text("version,price\nsmall,7\nmedium,7\nlarge,7\n")
    judged = ("evaluate-rules", tmp_path / "r.json", tmp_path / "fresh.parquet", "--json")
    (usual,), (dear,) = (
        json.loads(slotool(*judged, *more).stdout)["tiers"] for more in ((), ("--prices", tmp_path / "dear.csv"))
    )
    # What is asked in turn costs its calls: with all alike, nothing is saved by asking a small one first.
    assert dear["cost_saved"] <= 0 < usual["cost_saved"]
    assert dear["cost"] >= 7
    assert dear["degradation"] == usual["degradation"]
    (tmp_path / "few.csv").write_text("version,price\nsmall,7\n")
    wrong = slotool(*judged, "--prices", tmp_path / "few.csv")
    assert (wrong.exit_code, "has no price; there are prices of small" in wrong.stderr) == (2, True)


def test_rules_made_at_other_prices_are_told() -> None:
    prices = {"small": 1.0, "medium": 50.0, "large": 60.0}
    fresh, asked = family_outcomes(400, seed=1), {"tolerances": [0, 0.3], "tolerance_kind": "absolute"}
    made = library.gen_rules(family_outcomes(400), **asked, confidence=0.9, objective="cost", prices=prices).rules
    (told,) = library.evaluate_rules(made, fresh).warnings
    assert "times what the rules state: if these were made at other prices, give --prices" in told
    assert library.evaluate_rules(made, fresh, prices=prices).warnings == []


def test_categories_part_the_requests() -> None:
    outcomes = family_outcomes(500)
    of, errors = categories(outcomes), category_errors(outcomes)
    counts = {name: int((of == at).sum()) for at, name in enumerate(CATEGORIES)}
    total = sum(counts[name] * errors[name] for name in CATEGORIES if name in errors)
    np.testing.assert_allclose(total / 500, errors["all"])
    sure = category_confidences(outcomes, 0)
    assert {name: len(values) for name, values in sure.items()} == {k: v for k, v in counts.items() if v}
    assert np.median(sure["unchanged"]) > np.median(sure["improves"])


def test_a_budget_buys_the_strictest_tier_within_it(slotool, outcomes, tmp_path) -> None:
    options = ("--tolerances", "0,0.05,0.1,0.3", "--tolerance-kind", "absolute", "--confidence", "0.9", "--json")
    every = json.loads(slotool("gen-rules", outcomes, "-o", tmp_path / "all.json", *options).stdout)["rules"]["rules"]
    costs = {rule["tolerance"]: rule["cost"] for rule in every if rule["objective"] == "cost"}
    assert len(set(costs.values())) > 1
    budgets = sorted({*costs.values(), 2 * max(costs.values()), min(costs.values()) / 2})
    given = ",".join(map(repr, budgets))
    done = slotool("gen-rules", outcomes, "-o", tmp_path / "r.json", *options, "--budgets", given)
    for own in json.loads(done.stdout)["budgets"]:
        affordable = [tolerance for tolerance, cost in costs.items() if cost <= own["budget"]]
        assert own["tolerance"] == min(affordable, default=None)
        assert own["cost"] == (costs[own["tolerance"]] if affordable else None)
    for wrong in (("--budgets", "0"), ("--budgets", "1", "--objective", "response-time")):
        done = slotool("gen-rules", outcomes, "-o", tmp_path / "w.json", *wrong)
        assert done.exit_code == 2, done.stderr
        assert "--budgets" in done.stderr
        assert not (tmp_path / "w.json").exists()


def test_errors_larger_than_1_are_shown_in_their_own_unit(tmp_path) -> None:
    small = family_outcomes(2_000)
    for scale, shown, unit, words in (
        (1.0, "30", " points", "points of error (0.01) above"),
        (50.0, "15", "", "the table's unit of error"),
    ):
        told = small.with_errors(small.matrix("error") * scale)
        options = {"tolerances": [0.3 * scale], "tolerance_kind": "absolute", "max_error": scale, "confidence": 0.9}
        made = library.gen_rules(told, explain=True, objective="cost", **options)
        (rule,) = made.rules.rules
        assert rule.certified
        (tiers, why, *_) = [part for part in made.shown() if isinstance(part, Table)][1:]
        assert words in tiers.title
        assert (tiers.rows[0][0], tiers.rows[0][2]) == (shown + unit, shown)
        assert tiers.rows[0][3] == f"{rule.degradation * (100 if scale == 1 else 1):.3g}"
        assert why.rows[0][0] == f"cost {shown}"
        again = told.with_errors(told.matrix("error") * 1.0)
        again.examples[0] = "another"  # so that it is not the table the rules were made from
        judged = library.evaluate_rules(made.rules, again).shown()[0]
        assert words in judged.title
        assert judged.rows[0][1:3] == (shown, tiers.rows[0][3])
        (drift, *_) = library.evaluate_drift(made.rules, told).shown()
        assert drift.rows[0][1] == shown
        excess = (rule.degradation - rule.tolerance) * (100 if scale == 1 else 1)
        assert float(drift.rows[0][3]) == pytest.approx(excess, rel=0.01)
        (by_cost,) = tolerance_tiers("r", made.rules, "s")
        assert by_cost.table.rows[0][0] == ("30 points" if scale == 1 else "15")
        assert by_cost.x.written(rule.tolerance) == ("30 %" if scale == 1 else "15")
