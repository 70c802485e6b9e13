"""Tolerance of tiers against their degradation on held-out outcomes (tolerance-tiers, Fig. 8)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slotool.reports.axes import error_axis
from slotool.reports.figure import Curve, Figure, Rows
from slotool.reports.text import percent
from slotool.rules.monitor.verdict import TierVerdict
from slotool.rules.ruleset.rules import RuleSet


def observed_against_tolerance(rules: RuleSet, rounds: Sequence[Sequence[TierVerdict]], source: str) -> Figure:
    """One dot per tier and fold; ``rounds``: the verdicts of each fold, or of the one table."""
    every = [verdict for verdicts in rounds for verdict in verdicts]
    unit, (tolerance, observed) = rules.unit, _columns(every)
    above = sum(verdict.above_tolerance for verdict in every)
    diagonal = np.array([0.0, tolerance.max()])
    curves = [Curve("tolerance", diagonal, diagonal, "dashes", colour=4)]
    for colour, objective in enumerate(dict.fromkeys(v.rule.objective for v in every)):
        x, y = _columns([v for v in every if v.rule.objective == objective])
        curves.append(Curve(f"tiers for {objective.replace('-', ' ')}", x, y, "dots", colour))
    return Figure(
        id=f"degradation-{rules.method}",
        title=f"{rules.method}: tolerance and observed degradation",
        caption=(
            f"{above} of {len(every)} tiers lie above the dashed line, which is their tolerance "
            f"({rules.tolerance_kind} to {rules.best_words}, confidence {percent(rules.confidence)})."
        ),
        source=source,
        x=error_axis(f"tolerance ({rules.tolerance_kind})", tolerance, unit),
        y=error_axis("degradation on held-out outcomes", np.concatenate([observed, diagonal]), unit),
        curves=tuple(curves),
        table=Rows(
            ("tier", "tolerance", "observed", "above tolerance"),
            tuple(
                (
                    v.rule.id,
                    unit.amount(v.rule.tolerance),
                    unit.amount(v.degradation),
                    "yes" if v.above_tolerance else "no",
                )
                for v in every
            ),
        ),
        headlines=(("tiers above their tolerance", f"{above} of {len(every)}"),),
    )


def _columns(verdicts: Sequence[TierVerdict]) -> tuple[np.ndarray, np.ndarray]:
    """Tolerances and observed degradations; an infinite one (relative to no error at all) is not drawn."""
    pairs = np.array([(v.rule.tolerance, v.degradation) for v in verdicts if np.isfinite(v.degradation)])
    return pairs[:, 0], pairs[:, 1]
