"""``slotool capture``: an existing model as an operator graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.commands import refuse_without_effect
from slotool.cli.options import Force, Json

# The share of counted FLOPs that a graph may lack without a word.
UNCOUNTED_WARNED = 0.01

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slotool.cli.output import Output
    from slotool.graphs import OperatorGraph
    from slotool.graphs.capture.sources import Source


def register(app: typer.Typer) -> None:
    app.command()(capture)


Torch = Annotated[
    list[str] | None,
    typer.Option(
        "--torch",
        help="torch.nn.Module as module:factory or path/module.py:factory; its code is run, in a process of its own. "
        "Repeatable.",
    ),
]
Onnx = Annotated[list[Path] | None, typer.Option("--onnx", help="An .onnx file; repeatable.", show_default=False)]
InputShape = Annotated[
    list[str] | None,
    typer.Option("--input-shape", help="One example's shape for --torch, e.g. 3,32,32; one for all, or one for each."),
]
InputDtype = Annotated[
    str | None,
    typer.Option(
        "--input-dtype",
        help="Element type of --torch's input, such as int64.",
        show_default="that of the weights; int64 before an embedding",
    ),
]
CaptureTimeout = Annotated[
    float, typer.Option("--timeout", min=0.1, help="Seconds after which the capture of a model has hung.")
]
MaxMemory = Annotated[
    float | None,
    typer.Option(
        "--max-memory-gb", min=0.01, help="What the capture of a model may take.", show_default="90 % of free"
    ),
]


def capture(
    keras: Annotated[
        str | None,
        typer.Option("--keras", help="Name in keras.applications, several with commas, or all; or a .keras file."),
    ] = None,
    torch: Torch = None,
    onnx: Onnx = None,
    input_shape: InputShape = None,
    input_dtype: InputDtype = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Graph file to write: .jsonl or .parquet.")] = None,
    timeout: CaptureTimeout = 600.0,
    max_memory_gb: MaxMemory = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Read Keras, PyTorch or ONNX models as operator graphs.

    Shapes have their channels first; FLOPs are per example, a multiply-add counting two. Of several networks of
    keras.applications those that cannot be captured are left out and named; it is a failure when they are half of them
    or more.

    Example: slotool capture --keras ResNet50 -o resnet50.jsonl

    Example: slotool capture --keras all -o applications.parquet

    Example: slotool capture --torch torch.nn:ReLU --input-shape 1,8,8

    Example: slotool capture --torch nets:small --torch nets:large --input-shape 3,32,32 -o nets.jsonl
    """
    from slotool.api.networks import captured_sources
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.graphs.capture.apart import Limits
    from slotool.graphs.store import require_graph_suffix, write_graphs

    if sum(bool(source) for source in (keras, torch, onnx)) != 1:
        raise typer.BadParameter("give exactly one of --keras, --torch and --onnx")
    sources = sources_of(keras, torch, onnx, input_shape, input_dtype)
    applications = keras if keras is not None and (keras == "all" or "," in keras) else None
    if applications is not None:
        refuse_without_effect(("timeout", "max_memory_gb"), "for several networks of keras.applications")
    if out is None:
        refuse_without_effect(("force",), "without --out")
    else:
        require_graph_suffix(out)
        refuse_existing(out, force)
    output = Output(as_json=json)
    failed: dict[str, str] | None = None
    if applications is not None:
        graphs, failed = captured_applications(output, applications)
    else:
        graphs = captured_sources(sources, Limits(timeout, None if max_memory_gb is None else int(max_memory_gb * 1e9)))
    names = [source.name for source in sources]
    if out is not None:
        key = sources[0].framework
        shapes = {"input_shape": [list(source.input_shape) for source in sources]} if torch else {}
        write_graphs(out, graphs, {key: names if len(names) > 1 else names[0], **shapes})
    if failed is None and len(graphs) == 1:
        _report(output, graphs[0], names[0], out)
    else:
        _report_several(output, graphs, failed or {}, out, "keras.applications" if keras else sources[0].framework)


def sources_of(
    keras: str | None = None,
    torch: Sequence[str] | None = None,
    onnx: Sequence[Path] | None = None,
    input_shape: Sequence[str] | None = None,
    input_dtype: str | None = None,
) -> list[Source]:
    """What these options name, in order. A usage error when shapes do not belong to ``--torch`` one for one."""
    from slotool.graphs.capture.sources import Source

    if bool(torch) != bool(input_shape):
        raise typer.BadParameter("--torch and --input-shape go together", param_hint="--input-shape")
    if input_dtype is not None and not torch:
        raise typer.BadParameter("it belongs to --torch; give both or neither", param_hint="--input-dtype")
    if not torch:
        return [Source("onnx", str(path)) for path in onnx or ()] or [Source("keras", keras or "")]
    shapes = [_shape(text) for text in input_shape or ()]
    if len(shapes) not in (1, len(torch)):
        raise typer.BadParameter(
            f"{len(shapes)} shapes for {len(torch)} of --torch; give one for all, or one for each",
            param_hint="--input-shape",
        )
    each = shapes * len(torch) if len(shapes) == 1 else shapes
    return [Source("torch", name, shape, input_dtype) for name, shape in zip(torch, each, strict=True)]


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


def _report_several(
    output: Output, graphs: list[OperatorGraph], failed: dict[str, str], out: Path | None, whence: str
) -> None:
    from slotool.cli.output import table

    rows = [[g.name, g.id, f"{len(g.operators):,}", f"{g.weights:,}", f"{g.flops / 1e9:,.3f}"] for g in graphs]
    _warn_of_unknown(output, graphs)
    document = {
        "out": None if out is None else str(out),
        "graphs": [{"name": graph.name, **_facts(graph)} for graph in graphs],
        "failed": failed,
    }
    title = f"{len(graphs)} networks of {whence}" + (f", {len(failed)} left out" if failed else "")
    shown = table(title, ["network", "graph", "operators", "weights", "GFLOPs"], rows)
    output.result("capture", document, shown, *([] if out is None else [f"wrote {out}"]))


def _facts(graph: OperatorGraph) -> dict[str, Any]:
    return {
        "graph_id": graph.id,
        "operators": len(graph.operators),
        "weights": graph.weights,
        "flops": graph.flops,
        "unknown": [operator.name for operator in graph.unknown],
        "unknown_share": graph.unknown_share,
        "unknown_flops_share": graph.unknown_flops_share,
        "counted_flops": graph.counted_flops,
        "flops_mismatch": graph.flops_mismatch,
        "examples_interact": graph.examples_interact,
        "uncosted": list(graph.uncosted),
        "element_type": graph.element_type,
        "compiled": graph.compiled,
    }


def _unknown_work(graph: OperatorGraph) -> str:
    if not graph.unknown_flops_share:
        return "their FLOPs are not counted, however many they are, and predictions leave them out"
    return f"{graph.unknown_flops_share:.0%} of the counted FLOPs are theirs"


def _warn_of_unknown(output: Output, graphs: list[OperatorGraph]) -> None:
    """What a graph leaves out of its network, and how much that is."""
    for graph in graphs:
        named = f"{graph.name}: " if len(graphs) > 1 else ""
        if graph.unknown:
            ops = ", ".join(sorted({operator.op for operator in graph.unknown}))
            output.warn(
                f"{named}slotool does not know {len(graph.unknown)} of {len(graph.operators) - 1} operators ({ops}): "
                f"{_unknown_work(graph)}; no backend can run the graph, so profile cannot measure it"
            )
        if graph.uncounted_flops_share > UNCOUNTED_WARNED:
            output.warn(
                f"{named}{graph.uncounted_flops_share:.0%} of the FLOPs that the framework's own counter finds "
                f"({graph.counted_flops:,}) are missing from the graph: what is predicted from it is too little"
            )
        if graph.flops_mismatch > UNCOUNTED_WARNED:
            output.warn(
                f"{named}the graph counts {1 + graph.flops_mismatch:.3g} times the FLOPs of the framework's "
                f"own counter ({graph.counted_flops:,}): what is predicted from it is too much"
            )
        if graph.examples_interact:
            output.warn(
                f"{named}the examples of a batch interact, or the code loops over them: the FLOPs are not those of one "
                "example, and what is predicted from them holds for no other batch"
            )
        if graph.uncosted:
            output.warn(f"{named}nothing tells what {', '.join(graph.uncosted)} costs: what is predicted leaves it out")
        if not graph.plain:
            output.warn(f"{named}the network is {graph.form}; predictions and profiles of graphs are of float32 ones")
