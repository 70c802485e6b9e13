"""``slotool capture``: an existing model as an operator graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotool.cli.options import Force, Json

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.graphs import OperatorGraph


def register(app: typer.Typer) -> None:
    app.command()(capture)


def capture(
    keras: Annotated[str | None, typer.Option("--keras", help="Name in keras.applications, or a .keras file.")] = None,
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

    Shapes have their channels first; FLOPs are per example, a multiply-add counting two.

    Example: slotool capture --keras ResNet50 -o resnet50.jsonl

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
    graph = captured(keras, torch, onnx, input_shape)
    if out is not None:
        source = {"keras": keras, "torch": torch, "onnx": onnx and str(onnx), "input_shape": input_shape}
        write_graphs(out, [graph], source)
    _report(output, graph, keras or torch or str(onnx), out)


def captured(keras: str | None, torch: str | None, onnx: Path | None, input_shape: str | None) -> OperatorGraph:
    """The graph of what `--keras`, `--onnx` or `--torch` with `--input-shape` names."""
    from slotool.graphs.capture import capture_keras, capture_onnx, capture_torch, load_keras, load_torch

    if keras is not None:
        return capture_keras(load_keras(keras))
    if onnx is not None:
        return capture_onnx(onnx)
    shape = _shape(input_shape or "")
    return capture_torch(load_torch(torch or ""), shape)


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
    unknown = [operator.name for operator in graph.unknown]
    if unknown:
        ops = sorted({operator.op for operator in graph.unknown})
        output.warn(f"operators kept by name alone, their FLOPs counted as 0 ({len(unknown)}): {', '.join(ops)}")
    document = {
        "out": None if out is None else str(out),
        "source": name,
        "graph_id": graph.id,
        "operators": len(graph.operators),
        "weights": graph.weights,
        "flops": graph.flops,
        "unknown": unknown,
        "graph": graph.document(),
    }
    shown = table(f"{name}, graph {graph.id}", ["operator", "type", "output", "weights", "FLOPs"], rows)
    output.result("capture", document, shown, *([] if out is None else [f"wrote {out}"]))
