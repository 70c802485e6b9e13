"""How good predictions are: in the paper's form, and relative to what they predict."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr

from slotool.tables import Column, Schema, Table
from slotool.tables.schema import NOT_NEGATIVE, POSITIVE

PREDICTIONS_SCHEMA = Schema(
    "predictions",
    1,
    (
        Column("graph_id", "text", "id of the operator graph"),
        Column("kind", "text", "its kind: mlp, cnn …"),
        Column("measured_s", "number", "the label: median seconds per call", rule=POSITIVE),
        Column("predicted_s", "number", "predicted seconds per call", rule=POSITIVE),
        Column("low_s", "number", "lower end of the prediction's interval", rule=NOT_NEGATIVE),
        Column("high_s", "number", "upper end of the prediction's interval", rule=NOT_NEGATIVE),
    ),
)


class PredictionsTable(Table):
    """Rows of ``PREDICTIONS_SCHEMA``: held-out networks, measured beside predicted."""

    schema = PREDICTIONS_SCHEMA

    def scores(self) -> dict[str, float | int | None]:
        """``score`` of all rows."""
        columns = ("measured_s", "predicted_s", "low_s", "high_s")
        return score(*(self.rows[column].to_numpy(dtype=np.float64) for column in columns))

    def scores_by_kind(self) -> dict[str, dict[str, float | int | None]]:
        """``score`` of the rows of each kind."""
        return {
            kind: PredictionsTable(self.rows[self.rows["kind"] == kind]).scores()
            for kind in sorted(self.rows["kind"].unique())
        }


def score(
    measured_s: np.ndarray, predicted_s: np.ndarray, low_s: np.ndarray, high_s: np.ndarray
) -> dict[str, float | int | None]:
    """Scores of n > 0 predictions; all arrays float64 seconds [n].

    ``mae_s`` beside ``label_mean_s`` and ``label_std_s`` is the paper's form (inference-latency-prediction, figures 3
    to 8). Relative: ``mae_over_mean``; ``mape``, the mean of |error| ÷ label; ``within_5_percent`` and
    ``within_10_percent``, shares of predictions that near; ``spearman``, the rank correlation, None where undefined;
    ``interval_coverage``, the share of labels inside [low, high].
    """
    error_s = np.abs(predicted_s - measured_s)
    relative = error_s / measured_s
    return {
        "n": len(measured_s),
        "mae_s": float(error_s.mean()),
        "label_mean_s": float(measured_s.mean()),
        "label_std_s": float(measured_s.std()),
        "mae_over_mean": float(error_s.mean() / measured_s.mean()),
        "mape": float(relative.mean()),
        "within_5_percent": float(np.mean(relative <= 0.05)),
        "within_10_percent": float(np.mean(relative <= 0.10)),
        "spearman": _rank_correlation(measured_s, predicted_s),
        "interval_coverage": float(np.mean((low_s <= measured_s) & (measured_s <= high_s))),
    }


def _rank_correlation(measured_s: np.ndarray, predicted_s: np.ndarray) -> float | None:
    if np.ptp(measured_s) == 0 or np.ptp(predicted_s) == 0:
        return None
    return float(spearmanr(measured_s, predicted_s).statistic)
