"""Rules on fresh outcomes: violations and savings, cross-validation, and a certificate that stops holding."""

import json
from dataclasses import replace

import numpy as np
import pytest

import slotool
from slotool import evaluate_drift
from slotool.errors import ArgumentError, InputError, TableError
from slotool.rules import OSFA, Rule, RuleSet, Seq, from_point, generate_rules
from slotool.rules.evidence.betting import Evidence, evidence_against
from slotool.rules.evidence.counting import kept_p_value
from slotool.rules.monitor.drift import Watcher, watch
from slotool.rules.monitor.verdict import MISS, TierVerdict, adjusted_p_values, cross_validate, verdicts
from slotool.tables import OutcomeTable
from slotool.testing.rules import family_outcomes

CHEAP = Seq("small", "large", 0.7)


def _rules(tolerance: float, kind: str = "absolute") -> RuleSet:
    rule = Rule(f"cost-{tolerance:g}", "cost", tolerance, CHEAP.point, 0.0, tolerance, 0.0, 0.0)
    alone = Rule("cost-0", "cost", 0.0, OSFA("large").point, 0.0, 0.0, 0.0, 0.0, certified=False)
    return RuleSet("certified", 0.99, kind, "large", 0.1, 100, "0" * 64, (alone, rule), {"max_error": 1.0})


def _shifted(before: int, after: int) -> OutcomeTable:
    """As the family's outcomes at first; then the small version is wrong, and sure of it, on most requests."""
    rows = family_outcomes(before + after).rows
    late = rows["example"].str[1:].astype(int) >= before
    wrong = late & (rows["version"] == "small")
    return OutcomeTable(
        rows.assign(error=rows["error"].mask(wrong, 1.0), confidence=rows["confidence"].mask(wrong, 1.0))
    )


@pytest.mark.parametrize("kind", ["absolute", "relative"])
def test_a_verdict_is_what_the_replay_says(kind: str) -> None:
    outcomes = family_outcomes(500)
    alone, cheap = verdicts(_rules(0.01, kind), outcomes)
    own, best = CHEAP.replay(outcomes), OSFA("large").replay(outcomes)
    worse = own.error.mean() - best.error.mean()
    assert cheap.degradation == pytest.approx(worse if kind == "absolute" else worse / best.error.mean())
    assert cheap.cost_saved == pytest.approx(1 - own.cost.mean() / best.cost.mean())
    assert cheap.above_tolerance == (cheap.degradation > 0.01)
    assert (alone.degradation, alone.above_tolerance, alone.response_time_saved, alone.p_value) == (
        0.0,
        False,
        0.0,
        1.0,
    )


def test_a_tolerance_far_exceeded_is_no_accident() -> None:
    held, broken = (verdicts(_rules(0.02), outcomes)[1] for outcomes in (family_outcomes(2000), _shifted(0, 2000)))
    assert broken.above_tolerance
    assert broken.p_value < 1e-6
    assert held.p_value > broken.p_value


def test_outcomes_beyond_what_the_rules_were_made_for_are_refused() -> None:
    outcomes = family_outcomes(50)
    with pytest.raises(InputError, match="error 3 of version 'small' on example 'e0' is above 1; the rules"):
        verdicts(_rules(0.1), OutcomeTable(outcomes.rows.assign(error=3.0)))
    with pytest.raises(InputError, match="no version 'large'"):
        verdicts(_rules(0.1), OutcomeTable(outcomes.rows[outcomes.rows["version"] != "large"]))


def test_folds_hold_out_each_example_once() -> None:
    outcomes = family_outcomes(300)
    rules = generate_rules(outcomes, [0.05, 0.2], ["cost"], 0.9, "naive", "absolute")
    rounds = cross_validate(rules, outcomes, 5)
    assert [[v.rule.id for v in verdicts_] for verdicts_ in rounds] == [["cost-0.05", "cost-0.2"]] * 5
    parts = [outcomes.examples_at(np.arange(i, 300, 2)) for i in (0, 1)]
    assert sorted(parts[0].examples + parts[1].examples) == sorted(outcomes.examples)
    with pytest.raises(InputError, match="folds of 300 examples"):
        cross_validate(rules, outcomes, 200)


def test_prices_are_per_second_of_each_version() -> None:
    outcomes = family_outcomes(40)
    priced = outcomes.priced({"small": 1.0, "medium": 0.0, "large": 10.0})
    np.testing.assert_allclose(priced.matrix("cost"), outcomes.matrix("latency_s") * [1.0, 0.0, 10.0])
    for prices, sentence in (
        ({"small": 1.0}, "'medium' has no price"),
        ({"small": 1, "medium": 1, "large": 1, "x": 1}, "a price for 'x'"),
        ({"small": -1.0, "medium": 1, "large": 1}, "must be a number from 0 up"),
    ):
        with pytest.raises(TableError, match=sentence):
            outcomes.priced(prices)


# Drift


def test_the_evidence_is_an_average_of_plain_wealths() -> None:
    excess = np.random.default_rng(0).uniform(-1, 1, 12)
    stakes = [0.5 / 2**power / 1.5 for power in range(7)]
    plain = [
        sum(np.prod(1 + stake * excess[begin : t + 1]) / ((begin + 1) * (begin + 2)) for begin in range(t + 1))
        for t in range(12)
        for stake in stakes
    ]
    waiting = 1.0 / (np.arange(12) + 2)
    np.testing.assert_allclose(evidence_against(excess, 1.5), np.reshape(plain, (12, 7)).mean(axis=1) + waiting)


@pytest.mark.parametrize("restarts", [True, False])
def test_evidence_in_parts_is_that_of_the_whole(restarts: bool) -> None:
    excess = np.random.default_rng(1).uniform(-1, 1, 500)
    evidence = Evidence(1.5, restarts=restarts)
    parts = [evidence.after(part) for part in np.split(excess, [3, 3, 200])]
    np.testing.assert_array_equal(np.concatenate(parts), evidence_against(excess, 1.5, restarts=restarts))


def test_a_watcher_that_is_told_in_parts_says_the_same() -> None:
    rules, feedback = _rules(0.08), _shifted(1000, 500)
    (whole,) = watch(rules, feedback, 0.99)
    watcher = Watcher(rules, 0.99)
    for part in np.array_split(np.arange(1500), 7):
        watcher.see(feedback.examples_at(part))
    (parts,) = watcher.watched()
    assert (parts.alarm_at, parts.evidence) == (whole.alarm_at, whole.evidence)
    assert parts.mean_excess == pytest.approx(whole.mean_excess)


def test_false_alarms_are_no_more_frequent_than_promised() -> None:
    draw, alarms = np.random.default_rng(5), 0
    for _ in range(300):
        u = draw.random(400)
        excess = (u < 0.1).astype(float) - (u > 0.9)  # exactly at the tolerance
        alarms += evidence_against(excess, 1.0).max() >= 10
    assert alarms / 300 <= 0.1 + 3 * (0.1 * 0.9 / 300) ** 0.5


def test_labels_confirm_a_guarantee_that_holds_and_no_other_more_often_than_promised() -> None:
    rules = _rules(0.3)
    (held,) = watch(rules, family_outcomes(3000), 0.99)
    assert held.confirmed_at is not None
    assert held.confirmed_at == watch(rules, family_outcomes(3000), 0.99)[0].confirmed_at
    draw, wrong = np.random.default_rng(6), 0
    for _ in range(300):
        u = draw.random(400)
        excess = (u < 0.1).astype(float) - (u > 0.9)  # exactly at the tolerance: nothing to confirm
        wrong += evidence_against(-excess, 1.0, restarts=False).max() >= 10
    assert wrong / 300 <= 0.1 + 3 * (0.1 * 0.9 / 300) ** 0.5
    (drifted,) = watch(rules, _shifted(50, 2000), 0.99)
    assert drifted.confirmed_at is None


def test_a_certificate_that_stops_holding_is_found_after_it_did() -> None:
    rules = _rules(0.08)
    assert [w.alarm_at for w in watch(rules, family_outcomes(1500), 0.99)] == [None]
    (seen,) = watch(rules, _shifted(1000, 500), 0.99)
    assert seen.alarm_at is not None
    assert 1000 < seen.alarm_at < 1100


def test_the_commands_say_so_by_their_exit_code(slotool, tmp_path) -> None:
    rules, good, bad = tmp_path / "rules.json", tmp_path / "good.parquet", tmp_path / "bad.parquet"
    _rules(0.3).save(rules)
    family_outcomes(300).save(good)
    _shifted(50, 250).save(bad)
    kept = slotool("evaluate-rules", rules, good, "--json")
    assert (kept.exit_code, json.loads(kept.stdout)["violations"]) == (0, 0)
    broken = slotool("evaluate-rules", rules, bad)
    assert (broken.exit_code, "1 of 2 tiers violated" in broken.stdout) == (1, True)
    assert slotool("evaluate-drift", rules, good).exit_code == 0
    drifted = slotool("evaluate-drift", rules, bad, "--json")
    assert (drifted.exit_code, json.loads(drifted.stdout)["alarms"]) == (1, 1)
    # Tables of two servers, whose requests have the same numbers.
    both = slotool("evaluate-drift", rules, good, bad, "--json")
    assert (both.exit_code, json.loads(both.stdout)["requests"]) == (1, 600)


def test_drift_is_found_from_python_too() -> None:
    steady = slotool.evaluate_drift(_rules(0.3), family_outcomes(300))
    assert (steady.alarms, steady.frame()["alarm_at"].tolist()) == (0, [None])
    assert "no guarantee is violated; these requests alone confirm" in repr(steady)
    drifted = slotool.evaluate_drift(_rules(0.3), _shifted(50, 250), confidence=0.9)
    assert drifted.alarms == 1
    assert 50 < drifted.document["ensembles"][0]["alarm_at"] < 300
    with pytest.raises(ArgumentError, match="confidence: 1 does not lie between 0 and 1"):
        slotool.evaluate_drift(_rules(0.3), family_outcomes(300), confidence=1.0)


def test_a_name_beyond_the_width_of_the_table_is_not_cut() -> None:
    rules = _rules(0.3)
    name = "cost-" + "1234567890" * 20
    named = replace(rules, rules=(rules.rules[0], replace(rules.rules[1], id=name)))
    shown = repr(slotool.evaluate_drift(named, family_outcomes(300)))
    cells = [line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│")]
    assert "".join(cells) == name


def test_an_alarm_names_the_tier_its_evidence_and_the_command_that_certifies_again(slotool, tmp_path) -> None:
    drifted = evaluate_drift(replace(_rules(0.3), reference="named"), _shifted(50, 250))
    (row,) = drifted.document["ensembles"]
    (alarm, again) = drifted.shown()[-2:]
    assert row["tier"] == "cost-0.3"
    assert f"tier cost-0.3 loses more than 30 points: shown by {row['alarm_at']} requests" in alarm
    assert f"evidence {row['evidence']:.3g} of 100 wanted" in alarm
    # The command is run as it is shown.
    family_outcomes(1500).save(tmp_path / "outcomes.parquet")
    command = again.removeprefix("certify again with fresh outcomes: slotool ").split()
    command[command.index("outcomes.parquet")] = str(tmp_path / "outcomes.parquet")
    command[command.index("rules.json")] = str(tmp_path / "rules.json")
    done = slotool(*command)
    assert done.exit_code == 0, done.stderr
    renewed = RuleSet.load(tmp_path / "rules.json")
    kept = ("tolerance_kind", "confidence", "best_version", "reference")
    assert {name: getattr(renewed, name) for name in kept} == {name: getattr(drifted.rules, name) for name in kept}


def test_labels_of_some_requests_count_by_how_likely_they_were() -> None:
    """The guarantee holds, yet the requests that lose by the ensemble are labelled twenty times as often."""
    rules, outcomes = _rules(0.2), family_outcomes(6000, seed=3)
    error, best = (from_point(own).replay(outcomes).error for own in (rules.rules[-1].point, OSFA("large").point))
    chance = np.where(error > best, 1.0, 0.05)
    rows = np.flatnonzero(np.random.default_rng(0).random(len(chance)) < chance)
    known = dict(zip(outcomes.examples, chance, strict=True))
    told = OutcomeTable(outcomes.rows.assign(chance=outcomes.rows["example"].map(known))).examples_at(rows)
    assert slotool.evaluate_drift(rules, told).alarms == 1
    weighed = slotool.evaluate_drift(rules, told, labelled="chance")
    assert weighed.alarms == 0
    (plain,) = watch(rules, outcomes, 0.99)
    assert weighed.document["ensembles"][0]["mean_excess"] == pytest.approx(plain.mean_excess, abs=0.03)
    with pytest.raises(InputError, match="'chance': probabilities of a label"):
        watch(rules, OutcomeTable(told.rows.assign(chance=0.0)), 0.99, "chance")


def test_what_is_violated_later_is_no_longer_called_confirmed() -> None:
    rules = _rules(0.3)
    confirmed_at = slotool.evaluate_drift(rules, family_outcomes(2600)).document["ensembles"][0]["confirmed_at"]
    assert confirmed_at < 2000
    drifted = slotool.evaluate_drift(rules, _shifted(2000, 600))
    assert (drifted.alarms, drifted.confirmed) == (1, 0)
    assert drifted.document["ensembles"][0]["alarm_at"] > 2000
    assert "1 of 1 guarantees are violated" in str(drifted)


def test_errors_beyond_those_the_rules_were_made_for_are_refused(slotool, tmp_path) -> None:
    rules, feedback = tmp_path / "rules.json", tmp_path / "feedback.parquet"
    _rules(0.3).save(rules)
    rows = family_outcomes(300).rows
    rows.loc[7, "error"] = 1.25
    OutcomeTable(rows).save(feedback)
    for command in ("evaluate-drift", "evaluate-rules"):
        done = slotool(command, rules, feedback)
        assert done.exit_code == 2
        assert "feedback.parquet: error 1.25 of version 'small' on example 'e7' is above 1" in done.stderr


def test_a_mean_above_the_tolerance_is_no_verdict_by_itself(slotool, tmp_path) -> None:
    """On some sample a tier at its tolerance is observed above it; the command must not fail a build for that."""
    rules, fresh = tmp_path / "rules.json", tmp_path / "fresh.parquet"
    family_outcomes(300).save(fresh)
    observed = verdicts(_rules(0.5), family_outcomes(300))[1].degradation
    _rules(observed - 0.002).save(rules)
    done = slotool("evaluate-rules", rules, fresh, "--json")
    document = json.loads(done.stdout)
    assert (done.exit_code, document["above_tolerance"], document["violations"]) == (0, 1, 0)
    assert slotool("evaluate-rules", rules, fresh, "--significance", "1.5").exit_code == 2


def test_few_examples_say_what_they_cannot_show() -> None:
    few, many = (slotool.evaluate_rules(_rules(0.05), family_outcomes(count)) for count in (30, 5000))
    assert "few examples: 30 show a violation only where a tier lies about" in str(few)
    assert few.detectable_excess > 0.1
    assert many.detectable_excess < 0.05
    assert "few examples" not in str(many)
    # About that far above its tolerance, a violation is found about as often as not.
    draw, excess, found = np.random.default_rng(0), few.detectable_excess, 0
    for _ in range(100):
        worse = (draw.random(30) < 0.05 + excess).astype(float)
        found += kept_p_value(worse, np.zeros(30), 0.05, "absolute", MISS) <= 0.05
    assert found >= 30


def test_p_values_are_adjusted_for_every_look() -> None:
    rule = _rules(0.1).rules[1]

    def fold(*p_values: float) -> list[TierVerdict]:
        return [TierVerdict(rule, 0.2, True, p, 1.0, 1.0, 0.0, 0.0) for p in p_values]

    np.testing.assert_allclose(adjusted_p_values([fold(0.01, 0.5, 0.02)]), [0.03, 0.5, 0.04])
    # Two folds double a tier's least value before Holm's steps.
    np.testing.assert_allclose(adjusted_p_values([fold(0.01, 0.5), fold(0.9, 0.3)]), [0.04, 0.6])


def test_tiers_at_their_tolerance_are_rarely_called_violated() -> None:
    """The worst case that a kept promise allows: eleven tiers exactly at their tolerance, on fresh samples."""
    draw, alarms = np.random.default_rng(11), 0
    for _ in range(200):
        u = draw.random(500)
        p_values = [kept_p_value(u < s, u > 1 - s, 0.0, "absolute", MISS) for s in np.linspace(0.05, 0.15, 11)]
        tiers = [TierVerdict(_rules(0.1).rules[1], 0.2, True, p, 1.0, 1.0, 0.0, 0.0) for p in p_values]
        alarms += bool((adjusted_p_values([tiers]) <= 0.05).any())
    assert alarms / 200 <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5


def test_folds_by_the_command(slotool, tmp_path) -> None:
    outcomes = tmp_path / "o.parquet"
    family_outcomes(200).save(outcomes)
    made = ("gen-rules", outcomes, "-o", tmp_path / "r.json", "--tolerances", "0.5", "--tolerance-kind", "absolute")
    assert slotool(*made).exit_code == 0
    done = slotool("evaluate-rules", tmp_path / "r.json", outcomes, "--folds", "2", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["folds"] == 2


def test_the_verdict_says_what_to_do_with_the_rules(slotool, tmp_path) -> None:
    """In a build: keep what serves, promote what saves more, certify again where a promise is broken."""
    files = {name: tmp_path / f"{name}.json" for name in ("strict", "wide", "broken")}
    for name, tolerance in (("strict", 0.3), ("wide", 0.3), ("broken", 1e-4)):
        rules = _rules(tolerance)
        if name == "strict":
            rules = replace(rules, rules=rules.rules[:1])  # the best version alone
        rules.save(files[name])
    today = tmp_path / "today.parquet"
    family_outcomes(2600).save(today)

    def verdict(rules: str, *options: object) -> tuple[int, str]:
        done = slotool("evaluate-rules", files[rules], today, *options, "--json")
        return done.exit_code, json.loads(done.stdout)["verdict"]

    assert verdict("wide") == (0, "keep")
    assert verdict("wide", "--current", files["strict"]) == (0, "promote")
    assert verdict("strict", "--current", files["wide"]) == (0, "keep")
    assert verdict("wide", "--current", files["broken"]) == (0, "promote")
    assert verdict("broken", "--current", files["wide"]) == (1, "keep")
    assert verdict("broken") == (1, "certify again")
    both = slotool("evaluate-rules", files["wide"], today, "--current", files["strict"], "--folds", "2")
    assert both.exit_code == 2
