"""How scores of predictors read: in the paper's form, and relative to what they predict, with the noise floor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IN_SECONDS = ("MAE s", "label mean s", "label deviation s", "floor s")
RELATIVE = ("MAE/mean", "MAPE", "±5 %", "±10 %", "Spearman", "90 % covers")
FLOOR = "noise floor"
FLOOR_MEANS = f"{FLOOR}: what a predictor that knew every true latency would about score, for labels are measurements"


def in_seconds(score: Mapping[str, Any]) -> list[str]:
    """Cells of ``IN_SECONDS``."""
    floor_s = score["floor"]["mae_s"]
    return [*(f"{score[key]:.3g}" for key in ("mae_s", "label_mean_s", "label_std_s")), _or_dash(floor_s, ".3g")]


def relative(score: Mapping[str, Any]) -> list[str]:
    """Cells of ``RELATIVE``; with several seeds, the mean relative errors with their deviation over seeds."""
    deviation = score.get("deviation", {}) if score.get("seeds", 1) > 1 else {}
    errors = [
        f"{score[key]:.1%}" + (f" ± {100 * deviation[key]:.1f}" if key in deviation else "")
        for key in ("mae_over_mean", "mape")
    ]
    within = [f"{score[key]:.0%}" for key in ("within_5_percent", "within_10_percent")]
    return [*errors, *within, _or_dash(score["spearman"], ".3f"), covers(score)]


def floor_relative(score: Mapping[str, Any]) -> list[str]:
    """Cells of ``RELATIVE`` for the noise floor."""
    floor = score["floor"]
    errors = [_or_dash(floor[key], ".1%") for key in ("mae_over_mean", "mape")]
    within = [_or_dash(floor[key], ".0%") for key in ("within_5_percent", "within_10_percent")]
    return [*errors, *within, "–", "–"]


def covers(score: Mapping[str, Any]) -> str:
    """The share of labels inside the interval, and of how many where not all have one."""
    covered = _or_dash(score["interval_coverage"], ".0%")
    given = score.get("interval_given", 1.0)
    return covered if given == 1.0 else f"{covered} of {given:.0%}"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
