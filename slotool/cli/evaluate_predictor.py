"""``slotool evaluate-predictor``: how far a predictor is off on networks that were measured elsewhere or later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotool.cli.options import Force, Json
from slotool.cli.predictor_options import Graphs, warn_unmatched

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.graphs import OperatorGraph
    from slotool.predictors.evaluation import Evaluation
    from slotool.predictors.labels import Setting
    from slotool.predictors.trained import TrainedPredictor

MAX_NAMED = 5


def register(app: typer.Typer) -> None:
    app.command("evaluate-predictor")(evaluate_predictor)


def evaluate_predictor(
    predictor: Annotated[Path, typer.Argument(help="Predictor artifact, from train-predictor or adapt-predictor.")],
    latency: Annotated[
        list[Path], typer.Option("--latency", help="Latency table (Parquet or CSV) of measured networks; repeatable.")
    ],
    graphs: Graphs,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write a table of measured and predicted latencies.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Score a predictor on measured networks.

    Prints errors, rank correlation, and how many labels its intervals cover. Of a table that mixes settings it takes
    the rows of the predictor's own.

    Example: slotool evaluate-predictor predictor --latency latency.parquet --graphs networks.parquet
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.graphs.store import read_graphs
    from slotool.predictors.evaluation import differences, evaluate_on, rows_to_pick
    from slotool.predictors.labels import join_labels
    from slotool.predictors.trained import TrainedPredictor
    from slotool.tables import LatencyTable

    if out is not None:
        refuse_existing(out, force)
    output = Output(as_json=json)
    trained = TrainedPredictor.load(str(predictor))
    table = LatencyTable.load_all(latency)
    read = (graph for path in graphs for graph in read_graphs(path))
    labelled = join_labels(table, read, rows_to_pick(table, trained.setting))
    warn_unmatched(output, labelled)
    if other := differences(trained.setting, labelled.setting):
        output.warn(f"these labels are of another setting than the predictor's: {', '.join(other)}")
    evaluation = evaluate_on(trained, labelled)
    if out is not None:
        evaluation.predictions.save(out)
    _report(output, trained, labelled.setting, evaluation, out)


def _report(
    output: Output, trained: TrainedPredictor[OperatorGraph], setting: Setting, evaluation: Evaluation, out: Path | None
) -> None:
    from slotool.cli.output import duration, table
    from slotool.cli.predictor_scores import (
        FLOOR,
        FLOOR_MEANS,
        IN_SECONDS,
        RELATIVE,
        floor_relative,
        in_seconds,
        relative,
    )

    scores, furthest = evaluation.scores(), evaluation.furthest_off(MAX_NAMED)
    name, n = trained.predictor.name, len(evaluation.names)
    seconds = [[group, f"{score['n']:,}", *in_seconds(score)] for group, score in scores.items()]
    shares = [[group, *relative(score)] for group, score in scores.items()]
    shares.append([FLOOR, *floor_relative(scores["all"])])
    worst = [
        [each["network"], duration(each["measured_s"]), duration(each["predicted_s"]), f"{each['relative_error']:+.1%}"]
        for each in furthest
    ]
    document = {
        "predictor": name,
        "trained_for": trained.setting.document(),
        "setting": setting.document(),
        "networks": n,
        "outside": sum(reason is not None for reason in evaluation.outside),
        "scores": scores,
        "furthest_off": furthest,
        "predictions": None if out is None else str(out),
    }
    output.result(
        "evaluate-predictor",
        document,
        table(f"Predictor {name} on {n:,} measured networks", ["networks", "n", *IN_SECONDS], seconds),
        table("Relative to the latency", ["networks", *RELATIVE], shares),
        table("Furthest off", ["network", "measured", "predicted", "error"], worst),
        FLOOR_MEANS,
        f"labels: {setting}",
        *([f"wrote {out}"] if out else []),
    )
