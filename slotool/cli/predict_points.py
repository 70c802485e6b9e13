"""``slotool predict-points``: T(k, β) that was not measured, predicted from what was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json, Out, Seed, parse_numbers

if TYPE_CHECKING:
    import pandas as pd

    from slotool.predictors.time_slices import Filled


def register(app: typer.Typer) -> None:
    app.command("predict-points")(predict_points)


def predict_points(
    artifact: Annotated[Path, typer.Argument(help="An SLO-NN, supernet, family or network.")],
    latency: Annotated[
        list[Path],
        typer.Option("--latency", help="Its solo latencies, and of a few points co-located with copies; repeatable."),
    ],
    out: Out,
    co_runners: Annotated[
        str, typer.Option("--co-runners", help="Numbers of busy copies to predict for: 1 or 0,1,2 or 0:3.")
    ],
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Fill in T(point, β), the latency co-located with busy copies.

    It is the latency of each operating point with β copies of the model. Measured rows stay as they are. Missing ones
    are predicted from the point's solo latency and from the points that were measured co-located. They are marked as
    predicted, with the interval that holds 90 % of single calls. serve, evaluate-colocated and simulate read the table
    like a measured one.

    Example: slotool predict-points slo-nn --latency colocated-latency.parquet --co-runners 0:3 -o latency.parquet
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.elastic import load_model
    from slotool.predictors.time_slices import fill
    from slotool.tables import LatencyTable

    copies = parse_numbers(co_runners, "--co-runners")
    if any(number < 0 or number != int(number) for number in copies):
        raise typer.BadParameter(
            f"{co_runners!r}: a number of co-runners is a whole number from 0 up", param_hint="--co-runners"
        )
    refuse_existing(out, force)
    output, model = Output(as_json=json), load_model(str(artifact))
    copy_counts = sorted({int(number) for number in copies})
    filled = fill(model.name, model.points, LatencyTable.load_all(latency), copy_counts, seed=seed)
    filled.table.save(out)
    _report(output, model.name, filled, out)


def _report(output: Any, name: str, filled: Filled, out: Path) -> None:
    from slotool.cli.output import duration, table

    learnt: list[dict[str, Any]] = [
        {
            "copies": effect.copies,
            "rows": effect.rows,
            "stretch": effect.stretch,
            "pauses": effect.pauses,
            "worked_s": effect.worked_s,
            "mean_pause_s": float(effect.pause_s.mean()) if len(effect.pause_s) else None,
        }
        for effect in filled.learnt.values()
    ]
    errors = _errors(filled.errors)
    shown: list[Any] = []
    if errors:
        cells = [[str(e["copies"]), str(e["rows"]), e["statistic"], f"{e['mape']:.1%}"] for e in errors]
        title = f"{name}: co-located points, each predicted from the others"
        shown.append(table(title, ["co-runners", "rows", "of single calls", "mean error"], cells))
    for found in learnt:
        pause_s = found["mean_pause_s"]
        often = (
            f"the core is away for {duration(pause_s)} after every {duration(found['worked_s'] / found['pauses'])}"
            if pause_s and found["pauses"]
            else "no pause was observed"
        )
        said = f"with {found['copies']} co-runners (from {found['rows']} points): {often} of own work"
        shown.append(f"{said}, which takes {found['stretch']:.3f} times as long")
    measured = len(filled.table) - filled.predicted
    shown.append(f"wrote {out}: {measured} rows as measured, {filled.predicted} predicted")
    document = {
        "subject": name,
        "measured_rows": measured,
        "predicted_rows": filled.predicted,
        "learnt": learnt,
        "left_out": errors,
        "table": str(out),
    }
    output.result("predict-points", document, *shown)


def _errors(left_out: pd.DataFrame) -> list[dict[str, Any]]:
    """Mean relative error by number of copies and statistic."""
    if left_out.empty:
        return []
    wrong = (left_out["predicted_s"] / left_out["measured_s"] - 1).abs()
    found = left_out.assign(wrong=wrong).groupby(["copies", "statistic"], sort=False)["wrong"].agg(["size", "mean"])
    return [
        {"copies": int(row["copies"]), "rows": int(row["size"]), "statistic": row["statistic"], "mape": row["mean"]}
        for row in found.reset_index().to_dict("records")
    ]
