"""``slotool train supernet``: one network that holds many subnets, and the choice of those to offer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import DataName, Force, Json, Out, Seed, Threads, cores_given, parse_numbers

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.data import Dataset
    from slotool.elastic.supernets.supernet import Supernet

NETWORKS = ("resnet", "transformer")
Points = Annotated[
    int, typer.Option("--points", min=2, help="Subnets to offer, the smallest and the largest with them.")
]


def train_supernet(
    out: Out,
    data: DataName = "auto",
    network: Annotated[str, typer.Option("--network", help="resnet or transformer, sized to the images.")] = "resnet",
    rule: Annotated[
        str,
        typer.Option("--rule", help="sandwich, or progressive: depth, inner sizes and width one by one."),
    ] = "sandwich",
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Passes over the data.", show_default="by its size")
    ] = None,
    drawn: Annotated[int, typer.Option("--drawn", min=0, help="Random subnets per step, besides both ends.")] = 1,
    drop: Annotated[int, typer.Option("--drop", min=0, help="Blocks that each stage may leave out.")] = 2,
    expand: Annotated[
        str, typer.Option("--expand", help="Shares of the channels or units inside blocks.")
    ] = "0.25,0.5,1",
    heads: Annotated[str, typer.Option("--heads", help="Shares of the attention heads.")] = "0.25,0.5,1",
    width: Annotated[
        str | None,
        typer.Option(
            "--width", help="Shares of the channels between blocks.", show_default="0.5,0.75,1; transformer 1"
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

    Points are the Pareto front of FLOPs and accuracy on validation data.
    Interrupted, the same command takes the training up after the last finished epoch.

    Example: slotool train supernet -o supernet --data digits
    """
    from dataclasses import asdict

    import torch

    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.data import load_dataset
    from slotool.elastic.supernets.choosing import chosen
    from slotool.elastic.supernets.networks import resnet_for, transformer_for
    from slotool.elastic.supernets.training import MIN_EPOCHS, Training, train
    from slotool.elastic.supernets.wrapping import wrap
    from slotool.elastic.training import default_epochs

    if network not in NETWORKS:
        raise typer.BadParameter(f"{network!r} is neither resnet nor transformer", param_hint="--network")
    refuse_existing(out, force)
    torch.set_num_threads(cores_given(threads))
    dataset, output = load_dataset(data), Output(as_json=json)
    graph = resnet_for(dataset) if network == "resnet" else transformer_for(dataset)
    shares = {"expand": expand, "heads": heads, "width": width or ("0.5,0.75,1" if network == "resnet" else "1")}
    space = wrap(graph, drop=drop, **{name: parse_numbers(text, f"--{name}") for name, text in shares.items()})
    training = Training(epochs=epochs or default_epochs(dataset, MIN_EPOCHS), rule=rule, drawn=drawn, seed=seed)
    where = _device(device)
    checkpoint = out.with_name(f".{out.name}.training")
    with output.progress(f"training on {dataset.name}", total=training.epochs) as progress:
        module = train(space, dataset, training, checkpoint=checkpoint, device=where, progress=progress.advance)
    with output.progress("measuring the accuracy of subnets") as progress:
        model = chosen(out.name, space, module, dataset, points, seed=seed, progress=progress.advance)
    model.save(out, config={"data": dataset.name, "network": network, **asdict(training)}, seed=seed, force=force)
    _forget(checkpoint)
    report(output, "train-supernet", model, dataset, out, {"data": dataset.name, "epochs": training.epochs})


def report(output: Output, command: str, model: Supernet, dataset: Dataset, out: Path, details: dict[str, Any]) -> None:
    """The points, what they cost and how well they answer."""
    from slotool.cli.output import duration, table

    expected = details.get("expected_latency_s", {})
    rows = []
    for point, subnet in model.subnets.items():
        graph = model.space.narrowed(subnet)
        cost = {"parameters": graph.weights, "flops": graph.flops}
        rows.append({"point": point.key, **cost, **model.scores.get(subnet, {})})
    shown = [
        [
            row["point"],
            f"{row['parameters']:,}",
            f"{row['flops']:,}",
            *([duration(expected[row["point"]])] if expected else []),
            f"{row['validation_accuracy']:.4f}",
            f"{row['test_accuracy']:.4f}",
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
    output.result(command, document, table(title, columns, shown), memory, f"wrote {out}")


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
