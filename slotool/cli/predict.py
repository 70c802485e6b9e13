"""``slotool predict``: the latency of a network that was not measured, solo or co-located, with its interval."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotool.cli.capture import CaptureTimeout, InputDtype, InputShape, Onnx, Torch
from slotool.cli.options import Force, Json, parse_duration

if TYPE_CHECKING:
    from slotool.cli.predict_report import Answer
    from slotool.graphs import OperatorGraph
    from slotool.predictors.colocation import PredictorArtifact
    from slotool.predictors.trained import TrainedPredictor


def register(app: typer.Typer) -> None:
    app.command()(predict)


def predict(
    predictor: Annotated[
        Path | None,
        typer.Argument(
            help="Predictor artifact, from train-predictor.", show_default="the shipped one of the networks' framework"
        ),
    ] = None,
    graph: Annotated[
        list[Path] | None, typer.Option("--graph", help="Graph file (Parquet or .jsonl), one or many; repeatable.")
    ] = None,
    keras: Annotated[
        list[str] | None, typer.Option("--keras", help="Name in keras.applications, or a .keras file; repeatable.")
    ] = None,
    torch: Torch = None,
    onnx: Onnx = None,
    input_shape: InputShape = None,
    input_dtype: InputDtype = None,
    timeout: CaptureTimeout = 600.0,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", help="Without PREDICTOR: predict how torch or keras (TensorFlow) would run the networks."
        ),
    ] = None,
    co_runners: Annotated[
        list[str] | None,
        typer.Option(
            "--co-runners",
            help="Network that runs at the same time: a name or id in --graph's file, or what --keras takes; "
            "repeatable.",
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
    """Predict the latency of networks, solo or co-located.

    It is that on the machine and backend whose measurements were learnt. Each has a 90 % interval, the wider the less
    it is like the networks learnt from, or a sentence why it has none. With --co-runners it predicts the latency while
    all of them run, and by how much that is longer.

    Example: slotool predict --keras ResNet50 --co-runners VGG16 --slo 100ms

    Example: slotool predict predictor --graph new.jsonl

    Example: slotool predict predictor --torch nets:tiny --torch nets:wide --input-shape 3,32,32 --slo 2ms
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.cli.predict_report import report_predictions
    from slotool.cli.predict_source import Sources, chosen_predictor

    sources = Sources.of(graph, keras, torch, onnx, input_shape, input_dtype)
    slo_s = parse_duration(slo, "--slo")
    if out is not None:
        refuse_existing(out, force)
    output = Output(as_json=json)
    chosen = chosen_predictor(predictor, backend, sources, bool(co_runners))
    # Before a model is opened, which takes seconds.
    chosen.opened.require_colocated() if co_runners else chosen.opened.require_solo()
    graphs = sources.graphs(timeout)
    others = _others(co_runners or [], graphs if graph else [])
    answer = _colocated(chosen.opened, graphs, others) if co_runners else _solo(chosen.opened.require_solo(), graphs)
    answer = answer.on_this_machine()
    if out is not None:
        answer.trained.latency_table(answer.items, answer.predictions).save(out)
    report_predictions(output, answer, chosen, slo_s, [graph.name or graph.id for graph in others], out)


def _others(names: list[str], graphs: list[OperatorGraph]) -> list[OperatorGraph]:
    """The networks of these names: those of the graph file given, else what ``--keras`` takes."""
    from slotool.cli.capture import captured

    known = {name: graph for graph in graphs for name in (graph.id, graph.name) if name}
    return [known[name] if name in known else captured(name, None, None, None) for name in names]


def _solo(trained: TrainedPredictor[OperatorGraph], graphs: list[OperatorGraph]) -> Answer:
    from slotool.cli.predict_report import Answer

    return Answer(trained, graphs, graphs, trained.predict(graphs))


def _colocated(opened: PredictorArtifact, graphs: list[OperatorGraph], others: list[OperatorGraph]) -> Answer:
    from slotool.cli.predict_report import Answer

    alone, colocations, predictions = opened.predict_colocated(graphs, others)
    return Answer(opened.require_colocated(), graphs, colocations, predictions, alone)
