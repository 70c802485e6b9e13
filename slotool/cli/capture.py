"""``slotool capture``: an existing model as an operator graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.graphs import OperatorGraph


def register(app: typer.Typer) -> None:
    app.command()(capture)


def capture(
    keras: Annotated[
        str | None,
        typer.Option("--keras", help="Name in keras.applications, several with commas, or all; or a .keras file."),
    ] = None,
    torch: Annotated[
        str | None, typer.Option("--torch", help="torch.nn.Module as module:factory; the module's code is run.")
    ] = None,
    onnx: Annotated[Path | None, typer.Option("--onnx", help="An .onnx file.", show_default=False)] = None,
    input_shape: Annotated[
        str | None, typer.Option("--input-shape", help="One example's shape for --torch, e.g. 3,32,32.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Graph file to write: .jsonl or .parquet.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Read a Keras, PyTorch or ONNX model as an operator graph and print its operators.

    Shapes have their channels first; FLOPs are per example, a multiply-add counting two. Of several networks those that
    cannot be captured are left out and named; it is a failure when they are half of them or more.

    Example: slotool capture --keras ResNet50 -o resnet50.jsonl

    Example: slotool capture --keras all -o applications.parquet

    Example: slotool capture --torch torch.nn:ReLU --input-shape 1,8,8
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.graphs.store import require_graph_suffix, write_graphs

    if sum(source is not None for source in (keras, torch, onnx)) != 1:
        raise typer.BadParameter("give exactly one of --keras, --torch and --onnx")
    if (torch is None) != (input_shape is None):
        raise typer.BadParameter("--torch and --input-shape go together", param_hint="--input-shape")
    if out is not None:
        require_graph_suffix(out)
        refuse_existing(out, force)
    output = Output(as_json=json)
    failed: dict[str, str] | None = None
    if keras is not None and (keras == "all" or "," in keras):
        graphs, failed = captured_applications(output, keras)
    else:
        graphs = [captured(keras, torch, onnx, input_shape)]
    if out is not None:
        source = {"keras": keras, "torch": torch, "onnx": onnx and str(onnx), "input_shape": input_shape}
        write_graphs(out, graphs, source)
    if failed is None:
        _report(output, graphs[0], keras or torch or str(onnx), out)
    else:
        _report_several(output, graphs, failed, out)


def captured(keras: str | None, torch: str | None, onnx: Path | None, input_shape: str | None) -> OperatorGraph:
    """The graph of what `--keras`, `--onnx` or `--torch` with `--input-shape` names, called so."""
    from dataclasses import replace

    from slotool.graphs.capture import capture_keras, capture_onnx, capture_torch, load_keras, load_torch

    if torch is not None:
        shape = _shape(input_shape or "")
        return replace(capture_torch(load_torch(torch), shape), name=torch)
    graph = capture_onnx(onnx) if onnx is not None else capture_keras(load_keras(keras or ""))
    return replace(graph, name=Path(onnx or keras or "").stem)


def captured_applications(output: Output, names: str) -> tuple[list[OperatorGraph], dict[str, str]]:
    """The graphs of several members of keras.applications, and why those that are missing failed."""
    from slotool.errors import RunError
    from slotool.graphs.capture import ApplicationGraphs
    from slotool.graphs.capture.loading import chosen_applications

    chosen = chosen_applications(names)
    with output.progress("capturing networks of keras.applications", total=len(chosen)) as progress:
        graphs = ApplicationGraphs(chosen, progress.advance)
        done = list(graphs)
    for name, reason in graphs.failed.items():
        output.warn(f"{name} is left out: {reason}")
    if 2 * len(graphs.failed) >= len(chosen):
        raise RunError(f"{len(graphs.failed)} of {len(chosen)} networks could not be captured, so nothing is written")
    return done, graphs.failed


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(size) for size in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise typer.BadParameter(f"{text!r} is not a list of sizes such as 3,32,32", param_hint="--input-shape")
    return shape


def _report(output: Output, graph: OperatorGraph, name: str, out: Path | None) -> None:
    from slotool.cli.output import table

    rows = [
        [operator.name, operator.op, "×".join(map(str, operator.shape)), f"{operator.weights:,}", f"{operator.flops:,}"]
        for operator in graph.operators
    ]
    rows.append(["total", f"{len(rows)} operators", "", f"{graph.weights:,}", f"{graph.flops:,}"])
    _warn_of_unknown(output, [graph])
    document = {"out": None if out is None else str(out), "source": name, **_facts(graph), "graph": graph.document()}
    shown = table(f"{name}, graph {graph.id}", ["operator", "type", "output", "weights", "FLOPs"], rows)
    output.result("capture", document, shown, *([] if out is None else [f"wrote {out}"]))


def _report_several(output: Output, graphs: list[OperatorGraph], failed: dict[str, str], out: Path | None) -> None:
    from slotool.cli.output import table

    rows = [[g.name, g.id, f"{len(g.operators):,}", f"{g.weights:,}", f"{g.flops / 1e9:,.3f}"] for g in graphs]
    _warn_of_unknown(output, graphs)
    document = {
        "out": None if out is None else str(out),
        "graphs": [{"name": graph.name, **_facts(graph)} for graph in graphs],
        "failed": failed,
    }
    title = f"{len(graphs)} networks of keras.applications" + (f", {len(failed)} left out" if failed else "")
    shown = table(title, ["network", "graph", "operators", "weights", "GFLOPs"], rows)
    output.result("capture", document, shown, *([] if out is None else [f"wrote {out}"]))


def _facts(graph: OperatorGraph) -> dict[str, Any]:
    return {
        "graph_id": graph.id,
        "operators": len(graph.operators),
        "weights": graph.weights,
        "flops": graph.flops,
        "unknown": [operator.name for operator in graph.unknown],
    }


def _warn_of_unknown(output: Output, graphs: list[OperatorGraph]) -> None:
    unknown = [operator.op for graph in graphs for operator in graph.unknown]
    if unknown:
        ops = ", ".join(sorted(set(unknown)))
        output.warn(f"operators kept by name alone, their FLOPs counted as 0 ({len(unknown)}): {ops}")
