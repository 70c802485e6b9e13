"""What tiers promise against what they did on outcomes held out (tolerance-tiers, Fig. 8)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slotool.reports.axes import linear_axis
from slotool.reports.figure import Curve, Figure, Rows
from slotool.reports.text import percent
from slotool.rules.ruleset import RuleSet
from slotool.rules.verdict import TierVerdict


def promised_against_actual(rules: RuleSet, rounds: Sequence[Sequence[TierVerdict]], source: str) -> Figure:
    """One dot per tier and fold; ``rounds``: the verdicts of each fold, or of the one table."""
    every = [verdict for verdicts in rounds for verdict in verdicts]
    promised, actual = _columns(every)
    violated = sum(verdict.above_tolerance for verdict in every)
    diagonal = np.array([0.0, promised.max()])
    curves = [Curve("violation boundary", diagonal, diagonal, "dashes", colour=4)]
    for colour, objective in enumerate(dict.fromkeys(v.rule.objective for v in every)):
        x, y = _columns([v for v in every if v.rule.objective == objective])
        curves.append(Curve(f"tiers for {objective.replace('-', ' ')}", x, y, "dots", colour))
    return Figure(
        id=f"promised-{rules.method}",
        title=f"{rules.method}: promised and actual degradation",
        caption=(
            f"{violated} of {len(every)} tiers lie above the dashed line, which is the tolerance they promise "
            f"({rules.tolerance_kind} to {rules.best_version}, confidence {percent(rules.confidence)})."
        ),
        source=source,
        x=linear_axis(f"tolerance promised, % {rules.tolerance_kind}", promised, suffix=" %"),
        y=linear_axis("degradation on outcomes held out, %", np.concatenate([actual, diagonal]), suffix=" %"),
        curves=tuple(curves),
        table=Rows(
            ("tier", "promised", "actual", "violated"),
            tuple(
                (
                    v.rule.id,
                    percent(v.rule.tolerance, 2),
                    percent(v.degradation, 2),
                    "yes" if v.above_tolerance else "no",
                )
                for v in every
            ),
        ),
        headlines=(("tiers above their tolerance", f"{violated} of {len(every)}"),),
    )


def _columns(verdicts: Sequence[TierVerdict]) -> tuple[np.ndarray, np.ndarray]:
    """Promised and actual degradation in percent; an infinite one (relative to no error at all) is not drawn."""
    pairs = np.array([(v.rule.tolerance, v.degradation) for v in verdicts if np.isfinite(v.degradation)]) * 100
    return pairs[:, 0], pairs[:, 1]
