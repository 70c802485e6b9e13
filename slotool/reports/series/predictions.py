"""Predicted against measured latency, from a predictor's held-out predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from slotool.predictors.scoring import PredictionsTable
from slotool.predictors.training.study import StudyTable, curve_scores, whole_scores
from slotool.reports.figure import Axis, Band, Curve, Figure, Rows, Unit, duration, percent, share_axis

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


# Relative errors shown, smallest and largest; a curve begins and ends where it leaves them.
NEAREST, FURTHEST = 1e-3, 30.0
QUANTILES = np.linspace(0.0, 1.0, 251)
FLOOR_COLOUR = 5
# Palette slots of predictors in the order met; the floor's is left out.
COLOURS = (0, 1, 2, 3, 4, 6, 7)
FLOOR = "noise floor"
CURVES = {"mape": "mean relative error", "mae_over_mean": "MAE ÷ mean latency"}


def study_figures(name: str, table: StudyTable, source: str) -> Iterator[Figure]:
    """Predicted against measured by the best predictor of the first split; error distributions, one per protocol and
    split; then the learning curve, if the study has one.
    """
    scores = table.scores()
    whole = whole_scores(scores)
    yield _best_of_all(name, table, whole, source)
    colours = {predictor: COLOURS[i % len(COLOURS)] for i, predictor in enumerate(_distinct(scores, "predictor"))}
    for protocol, split in dict.fromkeys((score["protocol"], score["split"]) for score in whole):
        own = [score for score in whole if (score["protocol"], score["split"]) == (protocol, split)]
        yield _error_distribution(name, table, own, colours, source)
    if curve := curve_scores(scores):
        for figure in CURVES:
            yield _learning_curve(name, curve, figure, colours, source)


def _best_of_all(name: str, table: StudyTable, whole: Sequence[Mapping[str, Any]], source: str) -> Figure:
    """Of the first protocol's widest split, the predictor of lowest mean relative error, with its first seed."""
    first = [score for score in whole if score["protocol"] == whole[0]["protocol"]]
    widest = [score for score in first if score["split"] == first[-1]["split"]]
    best = min(widest, key=lambda score: score["mape"])
    rows = table.rows
    for column in ("protocol", "split", "labels", "predictor"):
        rows = rows[rows[column] == best[column]]
    held_out = PredictionsTable(rows[rows["seed"] == rows["seed"].min()])
    return predicted_against_measured(f"{name}, {best['predictor']}", held_out, source)


def _error_distribution(
    name: str, table: StudyTable, scores: Sequence[Mapping[str, Any]], colours: Mapping[str, int], source: str
) -> Figure:
    """Share of held-out networks whose prediction is off by no more than x, per predictor; all seeds together."""
    first = scores[0]
    where = f"{first['protocol']} split, {first['split']}"
    rows = table.rows
    own = rows[(rows["protocol"] == first["protocol"]) & (rows["split"] == first["split"])]
    own = own[own["labels"] == first["labels"]]
    off = {score["predictor"]: _relative(own[own["predictor"] == score["predictor"]]) for score in scores}
    noise = (own["noise_s"] / own["measured_s"]).dropna().to_numpy()
    curves = [_share_within(predictor, errors, "line", colours[predictor]) for predictor, errors in off.items()]
    if len(noise):
        curves.insert(0, _share_within(FLOOR, noise, "dashes", FLOOR_COLOUR))
    best = max(scores, key=lambda score: score["within_10_percent"])
    floor = first["floor"]["within_10_percent"]
    return Figure(
        id=f"errors-{name}-{first['protocol']}-{first['split']}",
        title=f"{name}: errors, {where}",
        caption=(
            f"Which share of {first['n']:,} networks never seen is predicted as near as x or nearer: "
            f"{best['predictor']} puts {percent(best['within_10_percent'])} within 10 %"
            + (f"; the labels' own noise allows {percent(floor)}." if floor is not None else ".")
        ),
        source=source,
        x=Axis("relative error", log=True, sign=" %"),
        y=share_axis("share of networks"),
        curves=tuple(curves),
        table=_table(scores),
        headlines=((f"{name}, {where}: within 10 %", f"{best['predictor']} {percent(best['within_10_percent'])}"),),
    )


def _learning_curve(
    name: str, points: Sequence[Mapping[str, Any]], figure: str, colours: Mapping[str, int], source: str
) -> Figure:
    """``figure`` of each predictor, from the numbers of networks it learnt from."""
    labels = np.array(sorted({point["labels"] for point in points}), dtype=np.float64)
    curves = []
    for predictor in _distinct(points, "predictor"):
        own = [point for point in points if point["predictor"] == predictor]
        x, y = np.array([point["labels"] for point in own]), np.array([100 * point[figure] for point in own])
        curves.append(Curve(predictor, x, y, "dots and line", colours[predictor]))
    floor = points[-1]["floor"][figure]
    if floor is not None:
        curves.insert(0, Curve(FLOOR, labels, np.full(len(labels), 100 * floor), "dashes", FLOOR_COLOUR))
    last = [point for point in points if point["labels"] == labels[-1]]
    best = min(last, key=lambda point: point[figure])
    reference = f" ({FLOOR} {percent(floor)})" if floor is not None else ""
    return Figure(
        id=f"curve-{name}-{figure}",
        title=f"{name}: {CURVES[figure]} by number of training networks",
        caption=(
            f"The same {best['n']:,} networks held out at every point: with {labels[-1]:,.0f} to learn from, "
            f"{best['predictor']} has the lowest {CURVES[figure]}, {percent(best[figure])}{reference}."
        ),
        source=source,
        x=Axis("training networks", log=True, ticks=tuple((float(n), f"{n:,.0f}") for n in labels)),
        y=Axis(CURVES[figure], log=True, sign=" %"),
        curves=tuple(curves),
        table=_curve_table(points, figure),
        headlines=((f"{name}: lowest {CURVES[figure]}", f"{best['predictor']} {percent(best[figure])}{reference}"),),
    )


def _share_within(name: str, errors: np.ndarray, style: Any, colour: int) -> Curve:
    x = np.quantile(errors, QUANTILES)
    shown = (x >= NEAREST) & (x <= FURTHEST)
    # One that is nowhere in sight still has a place in the legend.
    x, y = (x[shown], QUANTILES[shown]) if shown.any() else (np.clip(x[:1], NEAREST, FURTHEST), QUANTILES[:1])
    return Curve(name, 100 * x, y, style, colour)


def _relative(rows: Any) -> np.ndarray:
    errors: np.ndarray = (rows["predicted_s"] / rows["measured_s"] - 1).abs().to_numpy(dtype=np.float64)
    return errors


def _table(scores: Sequence[Mapping[str, Any]]) -> Rows:
    columns = ("predictor", "learnt from", "MAE ÷ mean", "mean relative error", "within 5 %", "within 10 %", "in 90 %")
    figures = ("mae_over_mean", "mape", "within_5_percent", "within_10_percent")
    rows = [
        (
            score["predictor"],
            f"{score['labels']:,}",
            *(percent(score[figure]) for figure in figures),
            percent(score["interval_coverage"]),
        )
        for score in scores
    ]
    floor = scores[0]["floor"]
    return Rows(columns, (*rows, (FLOOR, "–", *(percent(floor[figure]) for figure in figures), "–")))


def _curve_table(points: Sequence[Mapping[str, Any]], figure: str) -> Rows:
    predictors = _distinct(points, "predictor")
    by_labels: dict[int, dict[str, str]] = {}
    for point in points:
        by_labels.setdefault(point["labels"], {})[point["predictor"]] = percent(point[figure])
    rows = ((f"{n:,}", *(row.get(p, "–") for p in predictors)) for n, row in sorted(by_labels.items()))
    return Rows(("training networks", *predictors), tuple(rows))


def _distinct(scores: Sequence[Mapping[str, Any]], column: str) -> list[str]:
    return list(dict.fromkeys(score[column] for score in scores))
