"""Tolerance tiers: response time and cost by degradation accepted; versions and categories of requests behind them."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from slotool.reports.figure import Axis, Curve, Figure, Rows, duration, error_axis, percent
from slotool.rules.evidence.losses import LossUnit
from slotool.rules.policies.points import from_point
from slotool.rules.policies.routing import OSFA
from slotool.rules.ruleset.rules import Rule, RuleSet


def tolerance_tiers(name: str, rules: RuleSet, source: str) -> list[Figure]:
    """Plot response time and cost of each tier, a figure per objective, in percent of the strictest tier's.

    Raises ``InputError`` for a rule whose point is no routing policy.
    """
    objectives = dict.fromkeys(rule.objective for rule in rules.rules)
    return [_tiers_of(name, rules, objective, source) for objective in objectives]


def _tiers_of(name: str, rules: RuleSet, objective: str, source: str) -> Figure:
    tiers = sorted((rule for rule in rules.rules if rule.objective == objective), key=lambda rule: rule.tolerance)
    tolerance = np.array([tier.tolerance for tier in tiers])
    time, cost = (_relative(tiers, field) for field in ("response_time_s", "cost"))
    widest = tiers[-1]
    saved = {"response time": 1 - time[-1], "cost": 1 - cost[-1]}
    quantity = "cost" if objective == "cost" else "response time"
    proof = f", certified at {percent(rules.confidence)} confidence" if widest.certified else ", without a certificate"
    shown = {"response time": (time, 0), "cost": (cost, 1)}
    return Figure(
        id=f"tiers-{name}-{objective}",
        title=f"{name}: tolerance tiers that save {quantity}",
        caption=(
            f"A request that tolerates {rules.unit.amount(widest.tolerance)} saves {percent(saved[quantity])} of the "
            f"{quantity}{proof} ({rules.sample_size:,} examples, method {rules.method}). Tolerance: {rules.loss_words}."
        ),
        source=source,
        x=error_axis(f"tolerance ({rules.tolerance_kind} error degradation)", rules.unit),
        y=Axis("% of the strictest tier's", sign=" %"),
        curves=tuple(
            Curve(what, tolerance, values * 100, "dots and steps", colour, wide=what != quantity)
            for what, (values, colour) in sorted(shown.items(), key=lambda item: item[0] == quantity)
        ),
        table=_table(tiers, rules),
        headlines=(
            (
                f"{name}: {quantity} saved at a tolerance of {rules.unit.amount(widest.tolerance)}",
                percent(saved[quantity]),
            ),
        ),
    )


def _relative(tiers: list[Rule], field: str) -> np.ndarray:
    values = np.array([getattr(tier, field) for tier in tiers], dtype=np.float64)
    return values / values[0] if values[0] > 0 else np.ones(len(values))


def _table(tiers: list[Rule], rules: RuleSet) -> Rows:
    """Return one row per ensemble and run of adjacent tiers that it serves."""
    columns = ("tolerance", "ensemble", "observed degradation", "bound", "response time", "cost", "certified")
    runs = [list(run) for _, run in groupby(tiers, key=lambda tier: (tier.point, tier.bound, tier.certified))]
    alone, unit = OSFA(rules.best_version).point, rules.unit
    return Rows(
        columns,
        tuple(
            (
                _span(run[0].tolerance, run[-1].tolerance, unit),
                from_point(run[0].point).words,
                unit.amount(run[0].degradation),
                "–" if run[0].bound is None else unit.amount(run[0].bound),
                duration(run[0].response_time_s),
                f"{run[0].cost:.3g}",
                "yes" if run[0].certified else "not needed" if run[0].point == alone and run[0].promised else "no",
            )
            for run in runs
        ),
    )


def _span(first: float, last: float, unit: LossUnit) -> str:
    return unit.amount(first) if first == last else unit.named(f"{unit.number(first)} – {unit.number(last)}")
