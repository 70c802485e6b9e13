"""``slotool predict``: the latency of a network that nobody measured, alone or beside others, with its interval."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json, parse_duration

if TYPE_CHECKING:
    import numpy as np

    from slotool.cli.output import Output
    from slotool.graphs import OperatorGraph
    from slotool.predictors.colocation import PredictorArtifact, SoloAnswer
    from slotool.predictors.trained import Predictions, TrainedPredictor

MOST_ROWS_SHOWN = 20
Row = dict[str, Any]


def register(app: typer.Typer) -> None:
    app.command()(predict)


def predict(
    predictor: Annotated[
        Path | None,
        typer.Argument(help="Predictor artifact, from train-predictor.", show_default="the one slotool comes with"),
    ] = None,
    graph: Annotated[Path | None, typer.Option("--graph", help="Graph file (Parquet or .jsonl), one or many.")] = None,
    keras: Annotated[str | None, typer.Option("--keras", help="Name in keras.applications, or a .keras file.")] = None,
    torch: Annotated[
        str | None, typer.Option("--torch", help="torch.nn.Module as module:factory; the module's code is run.")
    ] = None,
    onnx: Annotated[Path | None, typer.Option("--onnx", help="An .onnx file.", show_default=False)] = None,
    input_shape: Annotated[
        str | None, typer.Option("--input-shape", help="One example's shape for --torch, e.g. 3,32,32.")
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="What runs beside it: a name or id in --graph's file, or what --keras takes; repeatable.",
        ),
    ] = None,
    slo: Annotated[
        str | None, typer.Option("--slo", help="Also say how likely the latency is at most this, e.g. 20ms.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write a latency table, rows marked as predicted.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Predict the latency of networks, with a 90 % interval, for the machine whose measurements were learnt.

    Beside others (--with) it says by how much all together slow it down.

    Example: slotool predict --keras ResNet50 --with VGG16 --slo 100ms

    Example: slotool predict predictor --graph new.jsonl

    Example: slotool predict predictor --torch nets:tiny --input-shape 3,32,32 --slo 2ms
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.artifacts.shipped import shipped_artifact
    from slotool.cli.output import Output
    from slotool.predictors.colocation import PredictorArtifact

    if sum(source is not None for source in (graph, keras, torch, onnx)) != 1:
        raise typer.BadParameter("give exactly one of --graph, --keras, --torch and --onnx")
    if (torch is None) != (input_shape is None):
        raise typer.BadParameter("--torch and --input-shape go together", param_hint="--input-shape")
    slo_s = parse_duration(slo, "--slo")
    if out is not None:
        refuse_existing(out, force)
    output = Output(as_json=json)
    opened = PredictorArtifact.load(str(predictor or shipped_artifact("predictor").path))
    # Before a model is opened, which takes seconds.
    opened.require_together() if beside else opened.require_alone()
    graphs = _graphs(graph, keras, torch, onnx, input_shape)
    if beside:
        _predict_together(output, opened, graphs, _others(beside, graphs if graph else []), slo_s, out)
    else:
        _predict_alone(output, opened.require_alone(), graphs, slo_s, out)


def _graphs(
    graph: Path | None, keras: str | None, torch: str | None, onnx: Path | None, input_shape: str | None
) -> list[OperatorGraph]:
    if graph is None:
        from slotool.cli.capture import captured

        return [captured(keras, torch, onnx, input_shape)]
    from slotool.graphs.store import read_graphs

    return list(read_graphs(graph))


def _others(names: list[str], graphs: list[OperatorGraph]) -> list[OperatorGraph]:
    """The networks of these names: those of the graph file given, else what ``--keras`` takes."""
    from slotool.cli.capture import captured

    known = {name: graph for graph in graphs for name in (graph.id, graph.name) if name}
    return [known[name] if name in known else captured(name, None, None, None) for name in names]


def _predict_alone(
    output: Output,
    trained: TrainedPredictor[OperatorGraph],
    graphs: list[OperatorGraph],
    slo_s: float | None,
    out: Path | None,
) -> None:
    predictions = trained.predict(graphs)
    if out is not None:
        trained.latency_table(graphs, predictions).save(out)
    _warn(output, graphs, predictions, trained)
    rows = _rows(graphs, predictions, _chances(trained, predictions, slo_s))
    title = f"Latency predicted by {trained.predictor.name}, and its 90 % interval"
    _report(output, title, rows, trained, {"slo_s": slo_s, "with": []}, out)


def _predict_together(
    output: Output,
    opened: PredictorArtifact,
    graphs: list[OperatorGraph],
    others: list[OperatorGraph],
    slo_s: float | None,
    out: Path | None,
) -> None:
    trained = opened.require_together()
    alone, companies, predictions = opened.predict_together(graphs, others)
    if out is not None:
        trained.latency_table(companies, predictions).save(out)
    _warn(output, graphs, predictions, trained)
    rows = _rows(graphs, predictions, _chances(trained, predictions, slo_s), alone)
    names = [graph.name or graph.id for graph in others]
    title = f"Latency beside {' and '.join(names)}, predicted by {trained.predictor.name}, and its 90 % interval"
    _report(output, title, rows, trained, {"slo_s": slo_s, "with": names}, out)


def _chances(trained: TrainedPredictor[Any], predictions: Predictions, slo_s: float | None) -> np.ndarray | None:
    return None if slo_s is None else trained.probability_within(predictions, slo_s)


def _rows(
    graphs: list[OperatorGraph],
    predictions: Predictions,
    chances: np.ndarray | None,
    alone: list[SoloAnswer] | None = None,
) -> list[Row]:
    """What is said of each network, as JSON."""
    columns = (graphs, predictions.latency_s, predictions.low_s, predictions.high_s, predictions.outside)
    rows: list[Row] = [
        {
            "graph_id": graph.id,
            "name": graph.name,
            "kind": graph.kind,
            "operators": len(graph.operators),
            "weights": graph.weights,
            "flops": graph.flops,
            "latency_s": float(latency_s),
            "low_s": float(low_s),
            "high_s": float(high_s),
            "outside": outside,
        }
        for graph, latency_s, low_s, high_s, outside in zip(*columns, strict=True)
    ]
    for row, answer in zip(rows, alone or [], strict=False):
        ratio = row["latency_s"] / answer.latency_s
        row |= {"solo_s": answer.latency_s, "solo_measured": answer.measured, "degradation_ratio": ratio}
    if chances is not None:
        for row, chance in zip(rows, chances.tolist(), strict=True):
            row["probability_within_slo"] = chance
    return rows


def _warn(
    output: Output, graphs: list[OperatorGraph], predictions: Predictions, trained: TrainedPredictor[Any]
) -> None:
    from slotool.machine import machine_id

    outside = [(g.name or g.id, why) for g, why in zip(graphs, predictions.outside, strict=True) if why]
    for name, why in outside[:3]:
        output.warn(f"{name} lies outside what the predictor was trained on: {why}")
    if len(outside) > 3:
        output.warn(f"{len(outside) - 3} more graphs lie outside what the predictor was trained on")
    if trained.setting.machine != machine_id():
        output.warn(f"the prediction is for machine {trained.setting.machine}, this one is {machine_id()}")


def _report(
    output: Output,
    title: str,
    rows: list[Row],
    trained: TrainedPredictor[Any],
    facts: dict[str, Any],
    out: Path | None,
) -> None:
    from slotool.cli.output import duration, table

    titles = ["graph", "kind", "FLOPs", "latency", "from", "to", "inside"]
    if facts["with"]:
        titles[3:4] = ["alone", "latency", "slower"]
    if facts["slo_s"] is not None:
        titles.append(f"P(≤ {duration(facts['slo_s'])})")
    human: list[Any] = [table(title, titles, [_cells(row) for row in rows[:MOST_ROWS_SHOWN]])]
    if any(row.get("solo_measured") is False for row in rows[:MOST_ROWS_SHOWN]):
        human.append("~: predicted as well; the others were measured alone")
    human.append(f"for {trained.setting}")
    if len(rows) > MOST_ROWS_SHOWN:
        human.append(f"and {len(rows) - MOST_ROWS_SHOWN:,} more; --out or --json gives all")
    if out is not None:
        human.append(f"wrote {out}")
    document = {
        "predictor": trained.predictor.name,
        "setting": trained.setting.document(),
        "nominal_coverage": 0.9,
        **facts,
        "predictions": rows,
        "latency_table": None if out is None else str(out),
    }
    output.result("predict", document, *human)


def _cells(row: Row) -> list[str]:
    from slotool.cli.output import duration

    latency, low, high = (duration(row[key]) for key in ("latency_s", "low_s", "high_s"))
    cells = [row["name"] or row["graph_id"], row["kind"], _compact(row["flops"]), latency, low, high]
    if "solo_s" in row:
        alone = ("" if row["solo_measured"] else "~") + duration(row["solo_s"])
        cells[3:4] = [alone, latency, f"{row['degradation_ratio']:.2f}×"]
    cells.append("no" if row["outside"] else "yes")
    if "probability_within_slo" in row:
        cells.append(f"{row['probability_within_slo']:.1%}")
    return cells


def _compact(count: int) -> str:
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return str(count)
