"""``slotool predict``: the latency of a network that nobody measured, with its interval."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.graphs import OperatorGraph
    from slotool.predictors.trained import Predictions, TrainedPredictor

MOST_ROWS_SHOWN = 20


def register(app: typer.Typer) -> None:
    app.command()(predict)


def predict(
    predictor: Annotated[Path, typer.Argument(help="Predictor artifact, from train-predictor.")],
    graph: Annotated[Path | None, typer.Option("--graph", help="Graph file (Parquet or .jsonl), one or many.")] = None,
    keras: Annotated[str | None, typer.Option("--keras", help="Name in keras.applications, or a .keras file.")] = None,
    torch: Annotated[
        str | None, typer.Option("--torch", help="torch.nn.Module as module:factory; the module's code is run.")
    ] = None,
    onnx: Annotated[Path | None, typer.Option("--onnx", help="An .onnx file.", show_default=False)] = None,
    input_shape: Annotated[
        str | None, typer.Option("--input-shape", help="One example's shape for --torch, e.g. 3,32,32.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write a latency table, rows marked as predicted.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Predict the latency of networks, with a 90 % interval, for the machine whose measurements were learnt.

    Example: slotool predict predictor --graph new.jsonl

    Example: slotool predict predictor --torch nets:tiny --input-shape 3,32,32
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.predictors.trained import TrainedPredictor

    if sum(source is not None for source in (graph, keras, torch, onnx)) != 1:
        raise typer.BadParameter("give exactly one of --graph, --keras, --torch and --onnx")
    if (torch is None) != (input_shape is None):
        raise typer.BadParameter("--torch and --input-shape go together", param_hint="--input-shape")
    if out is not None:
        refuse_existing(out, force)
    output = Output(as_json=json)
    trained = TrainedPredictor.load(str(predictor))
    graphs = _graphs(graph, keras, torch, onnx, input_shape)
    predictions = trained.predict(graphs)
    if out is not None:
        trained.latency_table(graphs, predictions).save(out)
    _warn(output, graphs, predictions, trained)
    _report(output, graphs, predictions, trained, out)


def _graphs(
    graph: Path | None, keras: str | None, torch: str | None, onnx: Path | None, input_shape: str | None
) -> list[OperatorGraph]:
    if graph is None:
        from slotool.cli.capture import captured

        return [captured(keras, torch, onnx, input_shape)]
    from slotool.graphs.store import read_graphs

    return list(read_graphs(graph))


def _warn(output: Output, graphs: list[OperatorGraph], predictions: Predictions, trained: TrainedPredictor) -> None:
    from slotool.machine import machine_id

    outside = [(graph.id, why) for graph, why in zip(graphs, predictions.outside, strict=True) if why]
    for name, why in outside[:3]:
        output.warn(f"{name} lies outside what the predictor was trained on: {why}")
    if len(outside) > 3:
        output.warn(f"{len(outside) - 3} more graphs lie outside what the predictor was trained on")
    if trained.setting.machine != machine_id():
        output.warn(f"the prediction is for machine {trained.setting.machine}, this one is {machine_id()}")


def _report(
    output: Output,
    graphs: list[OperatorGraph],
    predictions: Predictions,
    trained: TrainedPredictor,
    out: Path | None,
) -> None:
    from slotool.cli.output import duration, table

    columns = (graphs, predictions.latency_s, predictions.low_s, predictions.high_s, predictions.outside)
    rows: list[dict[str, Any]] = [
        {
            "graph_id": graph.id,
            "kind": graph.kind,
            "operators": len(graph.operators),
            "weights": graph.weights,
            "flops": graph.flops,
            "latency_s": latency,
            "low_s": low,
            "high_s": high,
            "outside": outside,
        }
        for graph, latency, low, high, outside in zip(*columns, strict=True)
    ]
    shown = [
        [
            row["graph_id"],
            row["kind"],
            _compact(row["flops"]),
            *(duration(row[key]) for key in ("latency_s", "low_s", "high_s")),
            "no" if row["outside"] else "yes",
        ]
        for row in rows[:MOST_ROWS_SHOWN]
    ]
    titles = ["graph", "kind", "FLOPs", "latency", "from", "to", "inside"]
    human: list[Any] = [table(f"Latency predicted by {trained.predictor.name}, and its 90 % interval", titles, shown)]
    human.append(f"for {trained.setting}")
    if len(rows) > MOST_ROWS_SHOWN:
        human.append(f"and {len(rows) - MOST_ROWS_SHOWN:,} more; --out or --json gives all")
    if out is not None:
        human.append(f"wrote {out}")
    document = {
        "predictor": trained.predictor.name,
        "setting": trained.setting.document(),
        "nominal_coverage": 0.9,
        "predictions": rows,
        "latency_table": None if out is None else str(out),
    }
    output.result("predict", document, *human)


def _compact(count: int) -> str:
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return str(count)
