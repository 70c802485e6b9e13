"""Tolerances of kind quantile: a share of requests may be answered worse than by the best version by over a limit."""

import numpy as np
import pandas as pd
import pytest

import slotool
from slotool.errors import InputError
from slotool.rules import METHODS, OSFA, RuleSet, from_point, generate_rules
from slotool.rules.evidence.losses import losses
from slotool.rules.monitor.drift import watch
from slotool.rules.monitor.verdict import cross_validate, verdicts
from slotool.tables import OutcomeTable
from slotool.testing.rules import family_outcomes

LIMIT = 0.2


def _recogniser(examples: int, seed: int, bad: float = 0.06) -> OutcomeTable:
    """Word error rates: the cheap version is a little better on most requests, and far worse, unsurely, on some."""
    draw = np.random.default_rng(seed)
    dear = draw.beta(1, 8, examples)
    awful = draw.random(examples) < bad
    cheap = np.where(awful, np.minimum(1.0, dear + 0.5), np.maximum(0.0, dear - 0.02))
    sure = np.where(awful, 0.6 * draw.random(examples), 0.3 + 0.7 * draw.random(examples))
    frames = [
        pd.DataFrame({"example": np.arange(examples).astype(str), "version": name, "error": error,
                      "confidence": confidence, "latency_s": cost, "cost": cost})
        for name, error, confidence, cost in (
            ("cheap", cheap, sure, 0.1), ("dear", dear, draw.random(examples), 1.0)
        )
    ]  # fmt: skip
    return OutcomeTable(pd.concat(frames, ignore_index=True))


def _beyond(outcomes: OutcomeTable, rules: RuleSet, at: int = 0) -> float:
    """The share of requests that the rule answers worse by more than the limit, from the errors themselves."""
    error, best = (from_point(point).replay(outcomes).error for point in (rules.rules[at].point, OSFA("dear").point))
    return float((error - best > LIMIT).mean())


def _rules(outcomes: OutcomeTable, tolerances: list[float], seed: int = 0, method: str = "certified") -> RuleSet:
    return generate_rules(
        outcomes, tolerances, ["cost"], 0.95, method, "quantile", thresholds=12, seed=seed, loss_limit=LIMIT,
    )  # fmt: skip


def test_good_answers_do_not_make_up_for_bad_ones() -> None:
    outcomes, fresh = _recogniser(4000, 0), _recogniser(20_000, 1)
    mean = generate_rules(outcomes, [0.02], ["cost"], 0.95, tolerance_kind="absolute", thresholds=12)
    share = _rules(outcomes, [0.01])
    assert mean.rules[0].degradation < 0.02
    assert _beyond(fresh, mean) > 0.02
    assert _beyond(fresh, share) <= 0.01
    assert share.rules[0].certified
    assert share.rules[0].cost > mean.rules[0].cost


@pytest.mark.parametrize("method", METHODS)
def test_a_degradation_is_the_share_of_requests_beyond_the_limit(method: str) -> None:
    outcomes = _recogniser(3000, 0)
    rules = _rules(outcomes, [0.02, 0.05, 0.2], method=method)
    for at, rule in enumerate(rules.rules):
        assert rule.degradation == pytest.approx(_beyond(outcomes, rules, at))
        assert rule.bound <= rule.tolerance
    fresh = _recogniser(3000, 1)
    for at, verdict in enumerate(verdicts(rules, fresh)):
        assert verdict.degradation == pytest.approx(_beyond(fresh, rules, at))


def test_no_tier_exceeds_its_share_more_often_than_promised() -> None:
    truth, broken, certified = _recogniser(50_000, 1), 0, 0
    for seed in range(40):
        rules = _rules(_recogniser(400, 100 + seed), [0.02, 0.04], seed)
        certified += any(rule.certified for rule in rules.rules)
        broken += any(_beyond(truth, rules, at) > rule.tolerance for at, rule in enumerate(rules.rules))
    assert broken / 40 <= 0.05 + 3 * (0.05 * 0.95 / 40) ** 0.5
    assert certified > 20


def test_the_share_of_best_is_nothing_and_other_kinds_are_as_they_were() -> None:
    outcomes = _recogniser(200, 0)
    beyond = losses(outcomes, "quantile", LIMIT, "dear")
    assert set(beyond.matrix("error")[:, 1]) == {0.0}
    np.testing.assert_array_equal(beyond.matrix("confidence"), outcomes.matrix("confidence"))
    assert losses(outcomes, "absolute", 0.0, "dear") is outcomes
    decimal = OutcomeTable(outcomes.rows.assign(error=np.where(outcomes.rows["version"] == "dear", 0.1, 0.3)))
    assert losses(decimal, "quantile", 0.2, "dear").matrix("error").max() == 0.0  # 0.3 − 0.1 is above 0.2 in binary
    with pytest.raises(InputError, match="no version 'none'"):
        losses(outcomes, "quantile", LIMIT, "none")


def test_groups_folds_and_drift_go_by_the_same_share() -> None:
    outcomes = _recogniser(6000, 0)
    half = OutcomeTable(outcomes.rows.assign(side=np.tile(np.arange(6000) % 2, 2)))
    rules = generate_rules(
        half, [0.03], ["cost"], 0.95, tolerance_kind="quantile", thresholds=8, loss_limit=LIMIT, group="side"
    )
    assert set(rules.rules[0].groups) == {"0", "1"}
    assert max(rules.rules[0].groups.values()) <= 0.03
    (tier,) = cross_validate(rules, half, 2)[0]
    assert 0 <= tier.degradation < 0.05
    fine, worse = (
        OutcomeTable(_recogniser(6000, 2, bad).rows.assign(side=np.tile(np.arange(6000) % 2, 2))) for bad in (0.03, 0.5)
    )
    assert all(own.alarm_at is None and own.confirmed_at is not None for own in watch(rules, fine, 0.99))
    assert all(own.alarm_at is not None and own.confirmed_at is None for own in watch(rules, worse, 0.99))


def test_from_the_command_line(slotool, tmp_path) -> None:
    table, fresh, worse, out = (tmp_path / name for name in ("o.parquet", "f.parquet", "w.parquet", "r.json"))
    for path, seed, bad in ((table, 0, 0.06), (fresh, 1, 0.06), (worse, 1, 0.6)):
        _recogniser(3000, seed, bad).save(path)
    options = (
        "--tolerance-kind",
        "quantile",
        "--tolerances",
        "0.02,0.05",
        "--objective",
        "cost",
        "--confidence",
        "0.95",
    )
    made = slotool("gen-rules", table, "-o", out, *options, "--loss-limit", "0.2", "--explain")
    assert made.exit_code == 0, made.stderr
    assert "% of requests with an error above the best version's by more than 0.2, confidence 0.95" in made.stdout
    rules = RuleSet.load(out)
    assert (rules.tolerance_kind, rules.config["loss_limit"]) == ("quantile", LIMIT)
    held, violated = (slotool("evaluate-rules", out, path, "--json") for path in (fresh, worse))
    assert (held.exit_code, violated.exit_code) == (0, 1)
    assert held.document["tiers"][0]["degradation"] == pytest.approx(_beyond(_recogniser(3000, 1), rules))
    assert (
        "% of requests with an error above the best version's by more than 0.2"
        in slotool("evaluate-rules", out, fresh).stdout
    )
    routes = tmp_path / "routes.json"
    assert slotool("export-rules", out, "-o", routes, "--to", "json").exit_code == 0
    assert '"loss_limit": 0.2' in routes.read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--tolerance-kind", "absolute", "--loss-limit", "0.1"), "--loss-limit"),
        (("--tolerance-kind", "quantile", "--loss-limit", "1"), "loss limit 1 must lie from 0 to below the greatest"),
        (("--tolerance-kind", "quantile", "--tolerances", "5"), "quantile tolerance 5 lies above all requests, 1; 5 %"),
    ],
)
def test_what_cannot_be_is_said(slotool, tmp_path, options, sentence) -> None:
    family_outcomes(100).save(tmp_path / "o.parquet")
    refused = slotool("gen-rules", tmp_path / "o.parquet", "-o", tmp_path / "r.json", *options)
    assert refused.exit_code == 2
    assert sentence in refused.stderr


def test_in_python_a_limit_without_its_kind_is_refused() -> None:
    with pytest.raises(InputError, match="no effect on relative tolerances"):
        slotool.gen_rules(family_outcomes(100), loss_limit=0.1)
