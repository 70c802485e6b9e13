"""``slotool train supernet``: one network that holds many subnets, and the choice of those to offer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
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
    data_source,
    panel,
    parse_numbers,
)

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
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
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
    from slotool.cli.output import Output

    if sum(option is not None for option in (network, module, graph)) > 1:
        raise typer.BadParameter("--network, --from and --graph name one network each; give one of them")
    output = Output(as_json=json)
    found = slotool.train_supernet(
        out,
        data=data_source(data, label, inputs, images),
        network=network,
        module=module,
        graph=graph,
        rule=rule,
        epochs=epochs,
        learning_rate=learning_rate,
        drawn=drawn,
        drop=drop,
        expand=parse_numbers(expand, "--expand"),
        heads=parse_numbers(heads, "--heads"),
        width=None if width is None else parse_numbers(width, "--width"),
        points=points,
        device=device,
        seed=seed,
        threads=threads,
        force=force,
        progress=output,
    )
    output.show(found)
