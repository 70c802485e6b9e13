"""Rules evaluated on held-out outcomes: the degradation of each tier there, and its savings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slotool.errors import InputError
from slotool.rules.evidence.betting import STAKES, evidence_against, examples_to_show
from slotool.rules.evidence.counting import examples_to_count, kept_p_value
from slotool.rules.evidence.groups import parts
from slotool.rules.evidence.losses import zero_or_largest
from slotool.rules.generate.generator import generate_rules
from slotool.rules.policies.points import from_point
from slotool.rules.policies.routing import OSFA
from slotool.rules.ruleset.rules import NAMED, Rule, RuleSet
from slotool.tables import OutcomeTable

MISS = 1e-7  # smallest p-value of counted losses


@dataclass(frozen=True)
class TierVerdict:
    """Verdict on one rule on held-out outcomes.

    ``degradation``: observed there, in the rule set's tolerance kind and relative to its best version.
    ``above_tolerance``: it exceeds the tolerance (the paper's count, Fig. 8). A tier at its tolerance exceeds it in
    about half of all samples, so the count alone is no verdict. ``p_value``: probability of evidence this strong if the
    tolerance holds; see ``adjusted_p_values``. ``…_saved``: shares of the best version's figures. ``groups``: observed
    degradation in each group, where the tolerance must hold for each; the p-value is then the least of theirs and of
    all examples', times their number, and likewise over the versions that may be the best. It is 1, and nothing is
    above, where a tier promises nothing. ``square``: mean of the squared excess over the tolerance, of losses in [0,
    1]; 0 where the best version serves. ``counted``: losses are 0 or 1, and the p-value is that of ``counting``.
    """

    rule: Rule
    degradation: float
    above_tolerance: bool
    p_value: float
    response_time_s: float
    cost: float
    response_time_saved: float
    cost_saved: float
    groups: Mapping[str, float] = field(default_factory=dict)
    square: float = 0.0
    counted: bool = False


def verdicts(rules: RuleSet, outcomes: OutcomeTable) -> list[TierVerdict]:
    """Evaluate every rule on ``outcomes``.

    Raises ``InputError`` for a missing version that the rules consult, ``TableError`` for a missing column of their
    groups.
    """
    rules.require_errors(outcomes)
    sets = {name: rows for name, rows in parts(rules.config, outcomes).items() if len(rows)}
    tables = {name: rules.losses(outcomes, name) for name in rules.references(outcomes)}
    counted = zero_or_largest(tables[rules.best_version].matrix("error"), rules.largest_loss)
    policies = {rule.point: from_point(rule.point) for rule in rules.rules}
    losses = {
        point: [(policy.replay(table).error, OSFA(name).replay(table).error) for name, table in tables.items()]
        for point, policy in policies.items()
    }
    alone, results = OSFA(rules.best_version), []
    base = alone.replay(outcomes)
    for rule in rules.rules:
        policy, pairs = policies[rule.point].replay(outcomes), losses[rule.point]
        observed = {name: rules.degradation(*(loss[rows] for loss in pairs[0])) for name, rows in sets.items()}
        against = [
            _p_value(rules, rule.tolerance, loss[rows], best[rows], counted)
            for loss, best in (pairs if rule.promised else [])
            for rows in sets.values()
        ]
        results.append(
            TierVerdict(
                rule,
                observed[""],
                rule.promised and max(observed.values()) > rule.tolerance + 1e-12,
                min(1.0, len(against) * min(against)) if against else 1.0,
                float(policy.response_time_s.mean()),
                float(policy.cost.mean()),
                _saved(policy.response_time_s, base.response_time_s),
                _saved(policy.cost, base.cost),
                {name: worst for name, worst in observed.items() if name},
                0.0 if rule.point == alone.point else float((rules.excess(rule.tolerance, *pairs[0])[0] ** 2).mean()),
                counted,
            )
        )
    return results


def detectable_excess(rules: RuleSet, rounds: Sequence[Sequence[TierVerdict]], examples: int, level: float) -> float:
    """Estimate the true excess over its tolerance, in points of loss, that a fold of ``examples`` shows.

    The test is at ``level``, adjusted for tiers and folds; of the least detectable tier; 0 where nothing is tested.
    """
    squares = np.array([max(verdict.square for verdict in same) for same in zip(*rounds, strict=True)])
    tested = squares > 0
    if not tested.any():
        return 0.0
    moments = (squares[tested] * examples + 1.0) / (examples + 1.0)
    counted = all(verdict.counted for same in rounds for verdict in same)
    alpha = level / (len(rounds) * int(tested.sum()) * (1 if counted else len(STAKES)))
    excess = np.geomspace(1e-6, 1.0, 2_000)[:, None]
    # A much worse tier also differs more often.
    shown = (examples_to_count if counted else examples_to_show)(excess, moments + excess, alpha) <= examples
    widths = np.where(shown.any(axis=0), excess[shown.argmax(axis=0), 0], 1.0)
    return float(widths.max()) * rules.largest_loss


def cross_validate(
    rules: RuleSet, outcomes: OutcomeTable, folds: int, progress: Callable[[], None] = lambda: None
) -> list[list[TierVerdict]]:
    """Return per fold the verdicts on it of rules from the other folds, with the settings of ``rules`` (§V-A).

    Examples are dealt to the folds at random by the rule set's seed. ``progress`` is called per fold. Raises
    ``InputError`` for fewer than 2 folds or too few examples.
    """
    if not 2 <= folds <= len(outcomes.examples) // 2:
        raise InputError(f"{folds} folds of {len(outcomes.examples)} examples; 2 or more are needed, of 2 or more each")
    config = _settings(rules)
    dealt = np.random.default_rng(config["seed"]).permutation(len(outcomes.examples)) % folds
    results = []
    for fold in range(folds):
        learnt = generate_rules(
            outcomes.examples_at(np.flatnonzero(dealt != fold)),
            sorted({rule.tolerance for rule in rules.rules}),
            tuple(dict.fromkeys(rule.objective for rule in rules.rules)),
            rules.confidence,
            rules.method,
            rules.tolerance_kind,  # type: ignore[arg-type]  # checked when the rules were made
            policies=config["policies"],
            thresholds=config["thresholds"],
            max_error=config["max_error"],
            seed=config["seed"],
            group=config.get("group"),
            loss_limit=config.get("loss_limit", 0.0),
            best=rules.best_version if rules.reference == NAMED else None,
        )
        results.append(verdicts(learnt, outcomes.examples_at(np.flatnonzero(dealt == fold))))
        progress()
    return results


def _settings(rules: RuleSet) -> Mapping[str, Any]:
    """Return the rules' settings. Raises ``InputError`` where their file lacks one, or holds something else."""
    kinds: dict[str, Any] = {"policies": list, "thresholds": int, "max_error": int | float, "seed": int}
    for name, kind in kinds.items():
        if not isinstance(rules.config.get(name), kind):
            raise InputError(
                f"config of the rules: {name} is {rules.config.get(name, 'missing')!r}, which --folds needs to make "
                "rules of the same settings; make the rules again with gen-rules"
            )
    return rules.config


def adjusted_p_values(rounds: Sequence[Sequence[TierVerdict]]) -> np.ndarray:
    """Return a p-value per tier, adjusted for testing every fold of every tier: float64 [tiers].

    ``rounds``: per fold the verdicts, the tiers in one order. Bonferroni's correction over a tier's folds, Holm's over
    the tiers (Scandinavian Journal of Statistics 6, 1979): the probability that any tier which holds gets a value ≤ α
    is at most α, however the tiers depend on each other.
    """
    per_tier = np.array([min(1.0, len(same) * min(v.p_value for v in same)) for same in zip(*rounds, strict=True)])
    order = np.argsort(per_tier)
    stepped = per_tier[order] * np.arange(len(per_tier), 0, -1)
    adjusted = np.empty_like(per_tier)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return adjusted


def _p_value(rules: RuleSet, tolerance: float, error: np.ndarray, best: np.ndarray, counted: bool) -> float:
    """Return the p-value against "the tolerance is kept": the test of ``certified`` from the other side."""
    if counted:
        scaled = tolerance / rules.largest_loss if rules.comparison == "absolute" else tolerance
        never_better = rules.tolerance_kind == "quantile"
        return kept_p_value(error, best, scaled, rules.comparison, MISS, never_better=never_better)
    return min(1.0, 1.0 / float(evidence_against(*rules.excess(tolerance, error, best), restarts=False).max()))


def _saved(spent: np.ndarray, best: np.ndarray) -> float:
    return float(1.0 - spent.mean() / best.mean()) if best.mean() > 0 else 0.0
