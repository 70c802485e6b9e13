"""Response time and cost of tiers compared with single versions (tolerance-tiers, Figs. 9 and 10)."""

from __future__ import annotations

import numpy as np

from slotool.reports.axes import error_axis, linear_axis
from slotool.reports.figure import Curve, Figure, Rows
from slotool.reports.text import percent
from slotool.rules.ruleset.rules import Rule, RuleSet

FIELDS = {"response time": ("response_time_s", "best_response_time_s"), "cost": ("cost", "best_cost")}


def savings_against_tolerance(name: str, rules: RuleSet, alone: RuleSet) -> list[Figure]:
    """One figure for response time, one for cost, in percent of the best version's.

    ``alone``: rules of single versions only, of the same tolerances and objectives (the paper's TT-OSFA).
    """
    return [_figure(name, what, rules, alone) for what in FIELDS]


def _figure(name: str, what: str, rules: RuleSet, alone: RuleSet) -> Figure:
    objectives = list(dict.fromkeys(rule.objective for rule in rules.rules))
    own = what.replace(" ", "-")
    shown = {"single versions": _tiers(alone, own if own in objectives else objectives[0])}
    shown |= {f"tiers for {objective.replace('-', ' ')}": _tiers(rules, objective) for objective in objectives}
    tolerance = np.array([rule.tolerance for rule in shown["single versions"]])
    field, base = FIELDS[what]
    values = {
        label: np.array([getattr(rule, field) for rule in tiers]) / max(rules.config[base], 1e-12)
        for label, tiers in shown.items()
    }
    widest = rules.unit.amount(float(tolerance[-1]))
    ends = ", ".join(f"{percent(1 - float(share[-1]))} by {label}" for label, share in values.items())
    return Figure(
        id=f"savings-{name}-{own}",
        title=f"{name}: {what} against tolerance",
        caption=f"Saved of {rules.best_version}'s {what} at a tolerance of {widest} ({rules.tolerance_kind}): {ends}.",
        source=name,
        x=error_axis(f"tolerance ({rules.tolerance_kind} error degradation)", tolerance, rules.unit),
        y=linear_axis(
            f"{what}, % of {rules.best_version}'s", np.concatenate([*values.values(), [0.0]]) * 100, suffix=" %"
        ),
        curves=tuple(
            Curve(label, tolerance, share * 100, "steps", slot, wide=label == "single versions")
            for slot, (label, share) in enumerate(values.items())
        ),
        table=Rows(
            ("tolerance", *values),
            tuple(
                (rules.unit.amount(float(tier)), *(percent(float(share[at])) for share in values.values()))
                for at, tier in enumerate(tolerance)
            ),
        ),
    )


def _tiers(rules: RuleSet, objective: str) -> list[Rule]:
    return sorted((rule for rule in rules.rules if rule.objective == objective), key=lambda rule: rule.tolerance)
