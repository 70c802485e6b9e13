"""Predicted against measured latency, from a predictor's held-out predictions."""

from __future__ import annotations

import numpy as np

from slotool.predictors.scoring import PredictionsTable
from slotool.reports.figure import Axis, Band, Curve, Figure, Rows, Unit, duration, percent

BAND = 0.10
MAX_DOTS = 3_000


def predicted_against_measured(name: str, table: PredictionsTable, source: str) -> Figure:
    """Log-log scatter of the networks that were held out, with a ±10 % band around the diagonal."""
    measured_s, predicted_s = (table.rows[c].to_numpy(dtype=np.float64) for c in ("measured_s", "predicted_s"))
    unit = Unit.best_for(measured_s)
    both = unit.of(np.concatenate([measured_s, predicted_s]))
    diagonal = np.geomspace(0.8 * both.min(), 1.25 * both.max(), 60)
    scores, by_kind = table.scores(), table.scores_by_kind()
    kinds = tuple(by_kind)
    curves = [_dots(table, kind, unit, colour) for colour, kind in enumerate(kinds)]
    exact = Curve("exact", diagonal, diagonal, "dashes", colour=5)
    within = percent(scores["within_10_percent"])
    return Figure(
        id=f"predicted-{name}",
        title=f"{name}: predicted against measured latency",
        caption=(
            f"Each dot is one of {scores['n']:,} networks the predictor never saw: {within} of the predictions lie in "
            f"the shaded ±10 % band, with a mean relative error of {percent(scores['mape'])}."
        ),
        source=source,
        x=Axis(f"measured latency, {unit.name}", log=True),
        y=Axis(f"predicted latency, {unit.name}", log=True),
        curves=(exact, *curves),
        bands=(Band("±10 %", diagonal, diagonal * (1 - BAND), diagonal * (1 + BAND)),),
        table=_scores({**by_kind, **({"all": scores} if len(kinds) > 1 else {})}),
        headlines=(
            (f"{name}: predictions within 10 %, networks never seen", within),
            (
                f"{name}: mean absolute error",
                f"{duration(scores['mae_s'])} (labels average {duration(scores['label_mean_s'])})",
            ),
        ),
        square=True,
    )


def _dots(table: PredictionsTable, kind: str, unit: Unit, colour: int) -> Curve:
    rows = table.rows[table.rows["kind"] == kind]
    # Evenly spaced rows stand for all of a table that no eye, and no phone, could take in.
    rows = rows.iloc[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MAX_DOTS)).astype(int))]
    measured_s, predicted_s = (rows[c].to_numpy(dtype=np.float64) for c in ("measured_s", "predicted_s"))
    return Curve(kind, unit.of(measured_s), unit.of(predicted_s), "dots", colour)


def _scores(by_kind: dict[str, dict[str, float | int | None]]) -> Rows:
    columns = ("networks", "n", "MAE", "label mean", "label std", "mean relative error", "within 5 %", "within 10 %")
    return Rows(
        columns,
        tuple(
            (
                kind,
                f"{s['n']:,}",
                duration(s["mae_s"]),
                duration(s["label_mean_s"]),
                duration(s["label_std_s"]),
                percent(s["mape"]),
                percent(s["within_5_percent"]),
                percent(s["within_10_percent"]),
            )
            for kind, s in by_kind.items()
        ),
    )
