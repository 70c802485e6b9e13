"""``slotool train supernet``: one network that holds many subnets, and the choice of those to offer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import (
    DataImages,
    DataInputs,
    DataLabel,
    DataName,
    Force,
    Json,
    Out,
    Seed,
    Threads,
    cores_given,
    data_source,
    panel,
    parse_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slotool.cli.output import Output
    from slotool.data import Dataset
    from slotool.elastic.supernets.own import OwnNetwork
    from slotool.elastic.supernets.space import Subnet
    from slotool.elastic.supernets.supernet import Supernet

NETWORKS = ("resnet", "transformer")
_own = panel("Your own network")
Points = Annotated[
    int, typer.Option("--points", min=2, help="Subnets to offer, the smallest and the largest with them.")
]


def train_supernet(
    out: Out,
    data: DataName = "auto",
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    network: Annotated[
        str | None,
        typer.Option("--network", help="resnet or transformer, sized to the images.", show_default="resnet"),
    ] = None,
    module: Annotated[
        str | None,
        _own("--from", metavar="MODULE:FACTORY", help="A torch network of your own; its weights are taken over."),
    ] = None,
    graph: Annotated[
        Path | None, _own("--graph", help="A graph file with one network of your own; weights start at random.")
    ] = None,
    rule: Annotated[
        str,
        typer.Option("--rule", help="sandwich, or progressive: depth, inner sizes and width one by one."),
    ] = "sandwich",
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=0, help="Passes over the data; 0 keeps the weights.", show_default="by its size"),
    ] = None,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", help="Of Adam, at the height of the schedule.")
    ] = 0.003,
    drawn: Annotated[int, typer.Option("--drawn", min=0, help="Random subnets per step, besides both ends.")] = 1,
    drop: Annotated[int, typer.Option("--drop", min=0, help="Blocks that each stage may leave out.")] = 2,
    expand: Annotated[
        str, typer.Option("--expand", help="Shares of the channels or units inside blocks.")
    ] = "0.25,0.5,1",
    heads: Annotated[str, typer.Option("--heads", help="Shares of the attention heads.")] = "0.25,0.5,1",
    width: Annotated[
        str | None,
        typer.Option(
            "--width", help="Shares of the channels between blocks.", show_default="0.5,0.75,1; transformers 1"
        ),
    ] = None,
    points: Points = 8,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda:0.")] = "auto",
    seed: Seed = 0,
    threads: Threads = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train a network of shared weights by the sandwich rule with in-place distillation, and choose its points.

    Points are the Pareto front of FLOPs and accuracy on validation data. The code behind --from is run once; the
    artifact holds none of it. Interrupted, the same command takes the training up after the last finished epoch.

    Example: slotool train supernet -o supernet --data digits
    """
    import torch

    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.data import load_dataset
    from slotool.elastic.supernets.own import make
    from slotool.elastic.supernets.training import MIN_EPOCHS, Training
    from slotool.elastic.training import default_epochs

    refuse_existing(out, force)
    torch.set_num_threads(cores_given(threads))
    dataset, output = load_dataset(data_source(data, label, inputs, images)), Output(as_json=json)
    own = _network(network, module, graph, dataset)
    widths = width or ("1" if own.has_attention else "0.5,0.75,1")
    shares = {"expand": expand, "heads": heads, "width": widths}
    space = own.wrapped(drop=drop, shares={name: parse_numbers(text, f"--{name}") for name, text in shares.items()})
    passes = default_epochs(dataset, MIN_EPOCHS) if epochs is None else epochs
    training = Training(passes, rule, drawn, learning_rate=learning_rate, seed=seed) if passes else None
    checkpoint = out.with_name(f".{out.name}.training")
    with output.progress(f"training on {dataset.name}", total=passes) as progress:
        trained = own.trained(
            space, dataset, training, checkpoint=checkpoint, device=_device(device), progress=progress.advance
        )
    with output.progress("measuring the accuracy of subnets") as progress:
        made = make(out.name, own, space, trained, dataset, points, seed=seed, progress=progress.advance)
    source = module or (str(graph) if graph else network or "resnet")
    config = {"data": dataset.source or dataset.name, "network": source, "epochs": passes, "rule": rule, "drawn": drawn}
    made.model.save(out, config={**config, "learning_rate": learning_rate}, seed=seed, force=force)
    _forget(checkpoint)
    details = {"data": dataset.name, "epochs": passes, "network": source, **own.details}
    report(output, "train-supernet", made.model, dataset, out, details, made.before, own.remarks)


def _network(network: str | None, module: str | None, graph: Path | None, dataset: Dataset) -> OwnNetwork:
    """What the options name, for the inputs and classes of the data."""
    from slotool.elastic.supernets.networks import resnet_for, transformer_for
    from slotool.elastic.supernets.own import OwnNetwork
    from slotool.graphs.capture import load_torch
    from slotool.graphs.store import read_graphs

    if sum(option is not None for option in (network, module, graph)) > 1:
        raise typer.BadParameter("--network, --from and --graph name one network each; give one of them")
    if module is not None:
        return OwnNetwork.of_module(load_torch(module), dataset)
    if graph is not None:
        found = list(read_graphs(graph))
        if len(found) != 1:
            raise typer.BadParameter(f"{graph} holds {len(found)} networks; give a file of one", param_hint="--graph")
        return OwnNetwork.of_graph(found[0], dataset)
    if network not in (None, *NETWORKS):
        raise typer.BadParameter(f"{network!r} is neither resnet nor transformer", param_hint="--network")
    return OwnNetwork(transformer_for(dataset) if network == "transformer" else resnet_for(dataset))


def report(
    output: Output,
    command: str,
    model: Supernet,
    dataset: Dataset,
    out: Path,
    details: dict[str, Any],
    before: Mapping[Subnet, float] | None = None,
    remarks: Sequence[str] = (),
) -> None:
    """The points, what they cost and how well they answer; ``before``: test accuracy with the weights as they came."""
    from slotool.cli.output import duration, table

    expected = details.get("expected_latency_s", {})
    rows = []
    for point, subnet in model.subnets.items():
        graph = model.space.narrowed(subnet)
        cost = {"parameters": graph.weights, "flops": graph.flops}
        rows.append({"point": point.key, **cost, **model.scores.get(subnet, {})})
        if before is not None:
            rows[-1]["test_accuracy_before"] = before.get(subnet)
    shown = [
        [
            row["point"],
            f"{row['parameters']:,}",
            f"{row['flops']:,}",
            *([duration(expected[row["point"]])] if expected else []),
            f"{row['validation_accuracy']:.4f}",
            f"{row['test_accuracy']:.4f}",
            *([f"{row['test_accuracy_before']:.4f}"] if before else []),
        ]
        for row in rows
    ]
    title = f"{len(rows)} of {model.space.size:,} subnets, trained on {len(dataset.train):,} examples of {dataset.name}"
    columns = [
        "point",
        "parameters",
        "FLOPs",
        *(["latency"] if expected else []),
        "validation accuracy",
        "test accuracy",
        *(["test before"] if before else []),
    ]
    memory = (
        f"weights, once for all: {model.weight_bytes:,} bytes; batch statistics of all points: {model.norm.bytes:,}"
    )
    document = {
        "artifact": str(out),
        **details,
        "subnets": model.space.size,
        "weight_bytes": model.weight_bytes,
        "statistics_bytes": model.norm.bytes,
        "points": rows,
    }
    output.result(command, document, table(title, columns, shown), *remarks, memory, f"wrote {out}")


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if name != "cpu" and not re.fullmatch(r"cuda(:\d+)?", name):
        raise typer.BadParameter(f"{name!r} is neither auto, cpu nor cuda:0", param_hint="--device")
    if name != "cpu" and not torch.cuda.is_available():
        raise typer.BadParameter(f"{name}: no CUDA device can be used here", param_hint="--device")
    return name


def _forget(checkpoint: Path) -> None:
    import shutil

    shutil.rmtree(checkpoint, ignore_errors=True)
