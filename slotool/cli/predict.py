"""``slotool predict``: the latency of a network that was not measured, solo or co-located, with its interval."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import slotool
from slotool.cli.capture import CaptureTimeout, InputDtype, InputShape, Onnx, Torch, sources_of
from slotool.cli.commands import require_none_failed
from slotool.cli.options import Force, Json, parse_latency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slotool.graphs.capture.sources import Source


def register(app: typer.Typer) -> None:
    app.command()(predict)


def predict(
    predictor: Annotated[
        Path | None,
        typer.Argument(help="Predictor artifact.", show_default="calibrated or shipped"),
    ] = None,
    graph: Annotated[
        list[Path] | None, typer.Option("--graph", help="Graph file (.parquet or .jsonl); repeatable.")
    ] = None,
    keras: Annotated[
        list[str] | None,
        typer.Option("--keras", help="Keras application, .keras file, or as --torch; repeatable."),
    ] = None,
    torch: Torch = None,
    onnx: Onnx = None,
    input_shape: InputShape = None,
    input_dtype: InputDtype = None,
    timeout: CaptureTimeout = 600.0,
    backend: Annotated[
        str | None,
        typer.Option("--backend", help="What runs them: torch, keras (TensorFlow) …"),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="Shipped: rtx4090, rtx3090, i9-10940x.")] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="Such as amp.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Compute threads.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, help="Examples in a call.")] = None,
    co_runners: Annotated[
        list[str] | None,
        typer.Option(
            "--co-runners",
            help="Co-runner: name or id in --graph, or as --keras.",
        ),
    ] = None,
    slo: Annotated[str | None, typer.Option("--slo", help="Say how likely it takes at most 500us, 20ms, 1s.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say where the time goes, by type of operator.")] = False,
    sweep: Annotated[
        str | None,
        typer.Option("--sweep", help="batch=1:64, threads=1:2, size=64:256:32 or length=16,64."),
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="PNG of what --explain or --sweep finds.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Latency table to write, marked as predicted.")
    ] = None,
    family: Annotated[str | None, typer.Option("--family", help="Name it so in --out, for plan and serve.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Predict the latency of networks, solo or co-located.

    It is that on the machine and backend whose measurements were learnt. Each has a 90 % interval, the wider the less
    it is like the networks learnt from, or a sentence why it has none. Of several networks those that cannot be
    captured are left out and named, and the exit code is 1. With --co-runners it predicts the latency while all of them
    run, and by how much that is longer.

    Example: slotool predict --keras ResNet50 --co-runners VGG16 --slo 100ms

    Example: slotool predict predictor --torch nets:tiny --torch nets:wide --input-shape 3,32,32 --slo 2ms
    """
    from slotool.cli.output import Output

    output = Output(as_json=json)
    found = slotool.predict(
        _networks(graph, keras, torch, onnx, input_shape, input_dtype, predictor),
        predictor=predictor,
        backend=backend,
        device=device,
        precision=precision,
        threads=threads,
        batch_size=batch_size,
        co_runners=co_runners or (),
        slo_s=parse_latency(slo, "--slo"),
        explain=explain,
        sweep=sweep,
        plot=plot,
        out=out,
        family=family,
        force=force,
        timeout_s=timeout,
        progress=output,
    )
    output.show(found)
    require_none_failed(found.failed)


# Of files that are networks, the flags that take them.
_NETWORK_FILES = {".keras": "--keras", ".h5": "--keras", ".onnx": "--onnx", ".jsonl": "--graph", ".py": "--torch"}


def _networks(
    graph: list[Path] | None,
    keras: list[str] | None,
    torch: list[str] | None,
    onnx: list[Path] | None,
    input_shape: list[str] | None,
    input_dtype: str | None,
    predictor: Path | None,
) -> Sequence[Source | Path]:
    """What these options name. A usage error unless exactly one sort is given, and a shape for every ``--torch``."""
    from slotool.graphs.store import require_graph_suffix

    if (flag := _NETWORK_FILES.get((predictor or Path()).suffix)) is not None:
        factory = ":FACTORY --input-shape 3,32,32" if flag == "--torch" else ""
        wanted = f"a network goes behind its flag: slotool predict {flag} {predictor}{factory}"
        raise typer.BadParameter(f"{predictor} is no predictor; {wanted}")
    if sum(bool(own) for own in (graph, keras, torch, onnx)) != 1:
        raise typer.BadParameter("give exactly one of --graph, --keras, --torch and --onnx, once or several times")
    if graph:
        for given, flag in ((input_shape, "--input-shape"), (input_dtype, "--input-dtype")):
            if given:
                raise typer.BadParameter("it has no effect with --graph; leave it out", param_hint=flag)
        for path in graph:
            require_graph_suffix(path)
        return graph
    return sources_of(keras, torch, onnx, input_shape, input_dtype)
