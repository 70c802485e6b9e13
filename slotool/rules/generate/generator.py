"""Rules of a service from an outcome table: per tolerance and objective the best ensemble that keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slotool.errors import InputError, TableError
from slotool.plugins import Registry
from slotool.rules.evidence.groups import Groups
from slotool.rules.evidence.losses import (
    TOLERANCE_KINDS,
    LossUnit,
    ToleranceKind,
    comparison_of,
    losses,
    tolerance_unit,
)
from slotool.rules.generate.base import Assessment, Problem, RuleGenerator
from slotool.rules.generate.bootstrap import Bootstrap, NaiveOSFA
from slotool.rules.generate.certified import Certified
from slotool.rules.policies.cascades import Cascade
from slotool.rules.policies.routing import OSFA, PAIRS, POLICIES, Replayed, RoutingPolicy
from slotool.rules.ruleset.rules import ANY, NAMED, OBJECTIVES, OBSERVED, Rule, RuleSet
from slotool.tables import OutcomeTable

METHODS: dict[str, type[RuleGenerator]] = {g.name: g for g in (Certified, Bootstrap, NaiveOSFA)}
registry: Registry[type[RuleGenerator]] = Registry("rule_generators", METHODS, RuleGenerator)
MIN_EXAMPLES = 20
UNPROVEN = "it promises nothing: that no other version is better by more than the tolerance is not proven"
MAX_TIERS = 1_000


def generate_rules(
    outcomes: OutcomeTable,
    tolerances: Sequence[float],
    objectives: Sequence[str] = OBJECTIVES,
    confidence: float = 0.999,
    method: str = "certified",
    tolerance_kind: ToleranceKind = "relative",
    *,
    policies: Sequence[str] = POLICIES,
    thresholds: int = 50,
    max_error: float | None = None,
    seed: int = 0,
    group: str | None = None,
    loss_limit: float = 0.0,
    best: str | None = None,
) -> RuleSet:
    """Return one rule per objective and tolerance: the fastest or cheapest ensemble proven to keep it.

    Args:
        outcomes: Errors, latencies, costs and confidences of every version.
        tolerances: Fractions of the best version's error (``relative``, the paper's), points of error (``absolute``),
            or shares of requests (``quantile``) whose error may exceed the best version's by more than ``loss_limit``.
        objectives: Objectives to have tiers for.
        confidence: Probability with which all bounds hold.
        method: Name of the generator.
        tolerance_kind: Kind of ``tolerances``.
        policies: Some of osfa, seq, conc, cascade. Where all confidences are constant, only ``osfa`` remains.
        thresholds: Most thresholds per ordered pair of versions.
        max_error: Upper limit of errors; None: 1 or, if errors of the table are larger, the largest of them.
        seed: Seed of random parts of the table.
        group: Column of the table; each tolerance then holds for each of its values, against the same best version.
        loss_limit: Allowed excess of an error, for ``quantile``.
        best: Version that tolerances are relative to; None: the truly best one, whichever that is, or, where the method
            has no such bounds, the one with the fewest errors in the table.

    Raises ``TableError`` for an unusable table, ``InputError`` for an unusable setting. Source: tolerance-tiers, §IV-D.
    """
    tiers, generator = sorted(set(tolerances)), generator_class(method)()
    assumed = max_error is None
    max_error = max(1.0, float(outcomes.matrix("error").max())) if max_error is None else max_error
    _check_settings(tiers, objectives, confidence, tolerance_kind, policies, thresholds, max_error, loss_limit)
    policies = usable_policies(outcomes, policies, max_error)
    if group is not None and not generator.knows_groups:
        raise InputError(f"method {method} knows no groups; --method certified does")
    if best is not None and best not in outcomes.versions:
        raise InputError(f"no version {best!r} to be the best; the table has {', '.join(outcomes.versions)}")
    if group is not None:
        outcomes = outcomes.with_text(group)
    groups = None if group is None else Groups.of_table(outcomes, group)
    problem = Problem(
        outcomes, tiers, comparison_of(tolerance_kind), confidence, tuple(policies), thresholds, max_error, seed,
        tuple(objectives), groups, loss_limit=loss_limit, reference=best,
    )  # fmt: skip
    best_version, best_error = outcomes.versions[problem.best], float(problem.version_errors[problem.best])
    if tolerance_kind == "quantile":
        beyond = losses(outcomes, tolerance_kind, loss_limit, best_version)
        problem = replace(problem, outcomes=beyond, recorded=outcomes, max_error=1.0)
    assessment = generator.assess(problem)
    means = assessment.candidates.means()
    rules = [
        _rule(generator, problem, assessment, means, objective, tolerance)
        for objective in objectives
        for tolerance in tiers
    ]
    serves = assessment.candidates.best
    config = {
        "policies": list(policies),
        "thresholds": thresholds,
        "max_error": max_error,
        **({"max_error_observed": True} if assumed and max_error > 1 else {}),
        "seed": seed,
        "candidates": len(assessment.candidates),
        "version_errors": dict(zip(outcomes.versions, map(float, problem.version_errors), strict=True)),
        "best_response_time_s": float(means.response_time_s[serves]),
        "best_cost": float(means.cost[serves]),
        "best_bound": _finite(assessment.bound[serves]),
        **assessment.config,
        **({"loss_limit": loss_limit} if tolerance_kind == "quantile" else {}),
        **({} if groups is None else groups.document()),
    }
    return RuleSet(
        method=method,
        confidence=confidence,
        tolerance_kind=tolerance_kind,
        best_version=best_version,
        best_error=best_error,
        sample_size=len(outcomes.examples),
        table_sha256=outcomes.sha256,
        rules=tuple(rules),
        config=config,
        models=outcomes.models,
        reference=NAMED if best is not None else ANY if generator.any_best else OBSERVED,
    )


def generator_class(method: str) -> type[RuleGenerator]:
    """Return the generator called ``method``. Raises ``InputError`` for an unknown name."""
    return METHODS[method] if method in METHODS else registry.load(method)


def constant_versions(outcomes: OutcomeTable) -> list[str]:
    """Return versions with one confidence for all examples: no threshold on it separates requests."""
    spread = np.ptp(outcomes.matrix("confidence"), axis=0)
    return [version for version, width in zip(outcomes.versions, spread, strict=True) if width == 0]


def _rule(
    generator: RuleGenerator,
    problem: Problem,
    assessment: Assessment,
    means: Replayed,
    objective: str,
    tolerance: float,
) -> Rule:
    best = assessment.candidates.best
    ranking = assessment.response_time_s if objective == "response-time" else assessment.cost
    is_within = assessment.bound <= tolerance
    chosen = int(np.argmin(np.where(is_within, ranking, np.inf)))
    if not (is_within[chosen] and ranking[chosen] < ranking[best]):
        chosen = best
    degradation = problem.degradation(means.error, float(means.error[best]))
    chosen_policy = assessment.candidates.policy(chosen)
    by_definition = chosen == best and (problem.reference is not None or not generator.any_best)
    note = assessment.note
    if chosen == best:
        note = _alone_note(ranking, degradation, best, tolerance) if is_within[best] else UNPROVEN
    return Rule(
        id=f"{objective}-{tolerance:g}",
        objective=objective,
        tolerance=tolerance,
        point=chosen_policy.point,
        degradation=float(degradation[chosen]),
        bound=_finite(assessment.bound[chosen]),
        response_time_s=float(means.response_time_s[chosen]),
        cost=float(means.cost[chosen]),
        certified=generator.proves and bool(is_within[chosen]) and not by_definition,
        note=note,
        why=_why(assessment, ranking, degradation, chosen, tolerance_unit(problem.kind, problem.max_error)),
        saves_at_least=float(assessment.saves_at_least[objective][chosen]) if assessment.saves_at_least else 0.0,
        groups={} if problem.groups is None else by_group(problem, problem.groups, chosen_policy),
    )


def _finite(bound: float) -> float | None:
    return float(bound) if np.isfinite(bound) else None


def by_group(problem: Problem, groups: Groups, policy: RoutingPolicy) -> dict[str, float]:
    """Return the observed degradation in each group with examples, relative to the best version there."""
    error, best = policy.replay(problem.outcomes).error, problem.outcomes.matrix("error")[:, problem.best]
    parts = zip(groups.names, groups.rows(np.arange(len(error))), strict=True)
    return {
        name: float(problem.degradation(error[rows].mean(), float(best[rows].mean())))
        for name, rows in parts
        if len(rows)
    }


def _why(assessment: Assessment, ranking: np.ndarray, degradation: np.ndarray, chosen: int, unit: LossUnit) -> str:
    """Explain why the next cheaper candidate was not chosen."""
    cheaper = ranking < ranking[chosen]
    tested = cheaper if assessment.tested is None else cheaper & assessment.tested
    if not cheaper.any():
        return "nothing is cheaper"
    if not tested.any():
        return f"the {cheaper.sum():,} cheaper candidates had too large an error on the learning part to be tested"
    other = int(np.argmax(np.where(tested, ranking, -np.inf)))
    bound, observed = float(assessment.bound[other]), f"observed {unit.amount(float(degradation[other]))}"
    shown = f"proven for {unit.amount(bound)} only" if np.isfinite(bound) else "not proven for any of the tolerances"
    saving = 1.0 - ranking[other] / ranking[chosen]
    return f"next cheaper, by {saving:.1%}: {assessment.candidates.policy(other).words}; {shown}, {observed}"


def _alone_note(ranking: np.ndarray, degradation: np.ndarray, best: int, tolerance: float) -> str:
    cheaper = ranking < ranking[best]
    if not cheaper.any():
        return "the best version serves: no ensemble is cheaper"
    if not (cheaper & (degradation <= tolerance)).any():
        return "the best version serves: no cheaper ensemble keeps this tolerance even as observed"
    return "the best version serves: no cheaper ensemble was proven to keep this tolerance"


def _check_settings(
    tiers: Sequence[float],
    objectives: Sequence[str],
    confidence: float,
    tolerance_kind: str,
    policies: Sequence[str],
    thresholds: int,
    max_error: float,
    loss_limit: float,
) -> None:
    named: list[tuple[str, Sequence[str], Sequence[str]]] = [
        ("tolerance kind", [tolerance_kind], TOLERANCE_KINDS),
        ("policy", policies, POLICIES),
        ("objective", objectives, OBJECTIVES),
    ]
    for what, names, choices in named:
        unknown = [name for name in names if name not in choices]
        if unknown or not names:
            problem = f"no {what} {unknown[0]!r}" if unknown else f"no {what} given"
            raise InputError(f"{problem}; there are {', '.join(choices)}")
    if len(tiers) > MAX_TIERS:
        raise InputError(f"{len(tiers):,} tolerances; at most {MAX_TIERS:,} tiers are made")
    if not tiers or not all(0 <= tier < np.inf for tier in tiers):
        raise InputError(f"tolerances must be numbers from 0 up, not {', '.join(f'{t:g}' for t in tiers) or 'none'}")
    greatest = {"absolute": max_error, "quantile": 1.0}.get(tolerance_kind, np.inf)
    if max(tiers) > greatest:
        what = "the greatest error there can be" if tolerance_kind == "absolute" else "all requests"
        hint = "; 5 % is 0.05" if greatest == 1 else ""
        raise InputError(f"{tolerance_kind} tolerance {max(tiers):g} lies above {what}, {greatest:g}{hint}")
    if not 0.5 < confidence < 1:
        raise InputError(f"confidence {confidence:g} must lie between 0.5 and 1, both excluded")
    if thresholds < 1:
        raise InputError(f"{thresholds} thresholds; at least 1 is needed")
    if not 0 < max_error < np.inf:
        raise InputError(f"max error {max_error:g} must be greater than 0")
    if not 0 <= loss_limit < max_error:
        raise InputError(f"loss limit {loss_limit:g} must lie from 0 to below the greatest error, {max_error:g}")
    if loss_limit and tolerance_kind != "quantile":
        raise InputError(f"a loss limit has no effect on {tolerance_kind} tolerances; it is of tolerance kind quantile")


def usable_policies(outcomes: OutcomeTable, policies: Sequence[str], max_error: float) -> Sequence[str]:
    """Return the ``policies`` that a table allows: all, or only osfa. Raises ``TableError`` if it allows no rules."""
    if len(outcomes.versions) < 2:
        raise TableError(
            f"{outcomes.source}: there is only version {outcomes.versions[0]!r}; rules choose between several"
        )
    examples = len(outcomes.examples)
    if examples < MIN_EXAMPLES:
        amount = "1 example" if examples == 1 else f"{examples} examples"
        raise TableError(f"{outcomes.source}: it has {amount}; rules need at least {MIN_EXAMPLES}")
    above = outcomes.rows[outcomes.rows["error"] > max_error]
    if len(above):
        row, more = above.iloc[0], len(above) - 1
        others = f" (and {more:,} more)" if more else ""
        raise TableError(
            f"{outcomes.source}: error {row['error']:g} of version {row['version']!r} on example {row['example']!r} is "
            f"above {max_error:g}{others}; the largest is {above['error'].max():g}; "
            "--max-error states what no error can exceed"
        )
    if not set(policies) & {*PAIRS, Cascade.kind} or len(constant_versions(outcomes)) < len(outcomes.versions):
        return policies
    if OSFA.kind in policies:
        return (OSFA.kind,)
    raise TableError(
        f"{outcomes.source}: every version has one constant confidence, so no threshold separates its requests; "
        "--policies osfa needs no confidence"
    )
