"""The threshold path of two versions: nothing of it is chosen by the rows that test, and it keeps its promise."""

import numpy as np

from slotool.rules import OSFA, Problem, generate_rules
from slotool.rules.generate.proposals import Goal, threshold_path
from slotool.rules.policies.points import from_point
from slotool.tables import OutcomeTable
from slotool.testing.rules import family_outcomes

COST = Goal("cost", 0.02, 3)


def routed(seed: object, examples: int) -> OutcomeTable:
    """A cheap version that errs more often the less a router trusts it, and a dear one that errs on others."""
    draw = np.random.default_rng(seed)
    trust = draw.random(examples)
    cheap = draw.random(examples) < 0.05 + 0.2 * (1.0 - trust)
    dear = draw.random(examples) < 0.05
    rows = family_outcomes(examples, error=(0.1, 0.1)).rows
    sure = np.concatenate([np.round(trust, 4), np.full(examples, 2.0)])
    cost, error = np.repeat([0.01, 1.0], examples), np.concatenate([cheap, dear]).astype(float)
    return OutcomeTable(rows.assign(error=error, confidence=sure, cost=cost))


def test_the_path_goes_from_the_dear_version_to_the_cheap_one_and_asks_the_dear_one_ever_less() -> None:
    outcomes, rows = routed(0, 2_000), np.arange(100)
    path = threshold_path(Problem(outcomes, [0.02]), COST, rows)
    assert (path[0], path[-1]) == (OSFA(outcomes.versions[1]), OSFA(outcomes.versions[0]))
    costs = [policy.replay(outcomes).cost.mean() for policy in path[1:]]
    assert costs == sorted(costs, reverse=True)


def test_rows_that_test_do_not_change_the_path() -> None:
    outcomes, rows = routed(0, 2_000), np.arange(100)
    others = outcomes.rows.assign(error=outcomes.rows["error"].where(outcomes.rows["example"].isin(rows), 1.0))
    paths = [threshold_path(Problem(table, [0.02]), COST, rows) for table in (outcomes, OutcomeTable(others))]
    assert paths[0] == paths[1]


def test_the_path_saves_where_parts_of_the_table_are_too_small() -> None:
    saved = np.zeros(2)
    for seed in range(6):
        outcomes = routed(seed, 3_000)
        for at, policies in enumerate((("osfa", "seq"), ("osfa", "seq", "cascade"))):  # no path without cascades
            made = generate_rules(outcomes, [0.01], ["cost"], 0.95, tolerance_kind="absolute", policies=policies)
            saved[at] += (1.0 - made.rules[0].cost / made.config["best_cost"]) / 6
    assert saved[1] > saved[0] + 0.02


def test_a_large_table_is_searched_in_one_round_and_keeps_its_promise() -> None:
    large, truth = routed(2, 30_000), routed(0, 100_000)
    policies = ("osfa", "seq", "cascade")
    made = generate_rules(large, [0.01], ["cost"], 0.95, tolerance_kind="absolute", policies=policies)
    assert made.config["rounds"] == 2  # the path is another
    (rule,) = made.rules
    replayed, best = from_point(rule.point).replay(truth), OSFA(truth.versions[1]).replay(truth)
    assert replayed.error.mean() <= best.error.mean() + 0.01
    assert replayed.cost.mean() < 0.9 * best.cost.mean()


def test_no_tier_of_two_versions_is_exceeded_more_often_than_promised() -> None:
    truth, draws, exceeded = routed(0, 100_000), 25, 0
    best = OSFA(truth.versions[1]).replay(truth).error.mean()
    for seed in range(draws):
        made = generate_rules(routed([1, seed], 600), [0.03], ["cost"], 0.8, tolerance_kind="absolute", seed=seed)
        excess = [from_point(rule.point).replay(truth).error.mean() - best - rule.tolerance
                  for rule in made.rules if rule.promised]  # fmt: skip
        exceeded += max(excess, default=-1.0) > 0
    assert exceeded <= 0.3 * draws
