"""Scores of predictions: in the paper's form, and relative to the label."""

from __future__ import annotations

from typing import Any

import numpy as np

from slotool.tables import Column, Schema, Table
from slotool.tables.schema import NOT_NEGATIVE, POSITIVE

# Figures by name: numbers, None where undefined; ``floor`` holds such figures itself.
Score = dict[str, Any]

PREDICTIONS_SCHEMA = Schema(
    "predictions",
    1,
    (
        Column("graph_id", "text", "id of the operator graph"),
        Column("kind", "text", "its kind: mlp, cnn …"),
        Column("measured_s", "number", "the label: median seconds per call", rule=POSITIVE),
        Column("predicted_s", "number", "predicted seconds per call", rule=POSITIVE),
        Column("low_s", "number", "lower end of its interval, if any", optional=True, rule=NOT_NEGATIVE),
        Column("high_s", "number", "upper end of its interval, if any", optional=True, rule=NOT_NEGATIVE),
        Column("noise_s", "number", "how far the label itself may be off", optional=True, rule=NOT_NEGATIVE),
        Column("solo_s", "number", "co-located: the latency alone, known beforehand", optional=True, rule=POSITIVE),
    ),
)


class PredictionsTable(Table):
    """Rows of ``PREDICTIONS_SCHEMA``: held-out networks, measured and predicted."""

    schema = PREDICTIONS_SCHEMA

    def scores(self) -> Score:
        """Return the ``score`` of all rows, for co-locations with ``degradation_mean_s``, to compare ``mae_s`` with."""
        columns = ("measured_s", "predicted_s", "low_s", "high_s", "noise_s")
        scores = score(*(self.rows[column].to_numpy(dtype=np.float64) for column in columns))
        solo_s = self.rows["solo_s"].to_numpy(dtype=np.float64)
        if np.isfinite(solo_s).all():
            # The paper's co-located labels are the added latency; errors are the same for both.
            scores["degradation_mean_s"] = float(np.mean(self.rows["measured_s"].to_numpy() - solo_s))
        return scores

    def scores_by_kind(self) -> dict[str, Score]:
        return {
            kind: PredictionsTable(self.rows[self.rows["kind"] == kind]).scores()
            for kind in sorted(self.rows["kind"].unique())
        }


def score(
    measured_s: np.ndarray,
    predicted_s: np.ndarray,
    low_s: np.ndarray,
    high_s: np.ndarray,
    noise_s: np.ndarray | None = None,
) -> Score:
    """Return scores of n > 0 predictions; all arrays float64 seconds [n], ``noise_s`` NaN where unknown.

    ``mae_s`` with ``label_mean_s`` and ``label_std_s`` is the paper's form (inference-latency-prediction, figures 3
    to 8). Relative: ``mae_over_mean``; ``mape``, the mean of |error| ÷ label; ``within_5_percent`` and
    ``within_10_percent``, shares of predictions that near; ``spearman``, the rank correlation, None where undefined.
    ``interval_given``: the share of predictions with an interval; of these ``interval_coverage``, the share of labels
    inside, and ``interval_width``, the median of high ÷ low. ``floor``: scores of a perfect predictor.
    """
    from scipy.stats import spearmanr

    has_interval = np.isfinite(low_s) & np.isfinite(high_s)
    inside = ((low_s <= measured_s) & (measured_s <= high_s))[has_interval]
    is_ranked = np.ptp(measured_s) > 0 and np.ptp(predicted_s) > 0
    return {
        "n": len(measured_s),
        "label_mean_s": float(measured_s.mean()),
        "label_std_s": float(measured_s.std()),
        **_errors(np.abs(predicted_s - measured_s), measured_s),
        "spearman": float(spearmanr(measured_s, predicted_s).statistic) if is_ranked else None,
        "interval_coverage": float(np.mean(inside)) if len(inside) else None,
        "interval_given": float(np.mean(has_interval)),
        "interval_width": float(np.median((high_s / low_s)[has_interval])) if len(inside) else None,
        "floor": floor(measured_s, np.full(len(measured_s), np.nan) if noise_s is None else noise_s),
    }


def _errors(error_s: np.ndarray, label_s: np.ndarray) -> dict[str, float | None]:
    relative = error_s / label_s
    return {
        "mae_s": float(error_s.mean()),
        "mae_over_mean": float(error_s.mean() / label_s.mean()),
        "mape": float(relative.mean()),
        "within_5_percent": float(np.mean(relative <= 0.05)),
        "within_10_percent": float(np.mean(relative <= 0.10)),
    }


def floor(measured_s: np.ndarray, noise_s: np.ndarray) -> dict[str, float | None]:
    """Return the scores of a perfect predictor, in the keys of ``score``, from labels and their noise [n].

    Labels of unknown noise count as the others do on average; None where they are more than half.
    """
    has_noise = np.isfinite(noise_s)
    if 2 * has_noise.sum() < len(has_noise):
        return dict.fromkeys(("mae_s", "mae_over_mean", "mape", "within_5_percent", "within_10_percent"))
    return _errors(noise_s[has_noise], measured_s[has_noise])
