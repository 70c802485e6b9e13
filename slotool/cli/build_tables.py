"""``slotool build-tables``: make a trained ReLU network SLO-aware, and report latency and accuracy of each k."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import slotool
from slotool.cli.options import (
    DataImages,
    DataInputs,
    DataLabel,
    Force,
    Json,
    Out,
    Seed,
    optional_source,
    panel,
)

_tables, _loss = map(panel, ("Tables", "Accuracy"))


def register(app: typer.Typer) -> None:
    app.command("build-tables")(build_tables)


def build_tables(
    network: Annotated[
        Path,
        typer.Argument(
            help="A network, or a family with --version; a .keras or .onnx file; module:factory of a torch module."
        ),
    ],
    out: Out,
    data: Annotated[str | None, typer.Option("--data", help="Data set.", show_default="what it was trained on")] = None,
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    version: Annotated[str | None, typer.Option("--version", help="Version of a family.")] = None,
    ranker: Annotated[
        str,
        _tables(
            "--ranker",
            help="freehash, centred-freehash, clusters; baselines: mongoose, random; auto: of the first three the one "
            "that reads the fewest bytes on validation data.",
        ),
    ] = "auto",
    tables: Annotated[int, _tables("--tables", min=1, help="Hash tables per layer (L).")] = 2,
    bits: Annotated[
        int | None, _tables("--bits", min=1, help="Bits per key (K).", show_default="by size and data")
    ] = None,
    k: Annotated[
        str | None, _tables("--k", help="Shares of nodes: a list or start:stop:step.", show_default="by size")
    ] = None,
    weight_dtype: Annotated[
        str,
        _tables(
            "--weight-dtype",
            help="float32; int8: weights of a large output layer at every k below 100 %; auto: int8 for a large "
            "output layer where accuracy holds.",
        ),
    ] = "auto",
    allowed_loss: Annotated[
        float,
        _loss(
            "--allowed-loss",
            min=0,
            max=1,
            help="Accuracy that may be lost against the full network (0.002: 0.2 points). Ranker and confidence "
            "measure are chosen for it, and the k to use is printed.",
        ),
    ] = 0.002,
    confidence: Annotated[float, _loss("--confidence", help="Confidence of that promise: 0.9 is nine in ten.")] = 0.9,
    prune: Annotated[bool, _loss("--prune", help="First remove hidden units that are never or hardly used.")] = False,
    prune_loss: Annotated[
        float | None,
        _loss(
            "--prune-loss",
            min=0,
            max=1,
            help="With --prune: held-out accuracy that it may cost, ± SE included.",
            show_default="0.003",
        ),
    ] = None,
    last_layer: Annotated[
        bool,
        _tables("--last-layer", help="Tables for the last layer only; its own library runs the rest."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its predicted time only.")] = False,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make a network an SLO-NN: tables for its large layers.

    All large layers of a ReLU chain get tables, of others the last layer. Tables are learnt on the training split,
    calibrated on the validation split, and scored on the test split. Exit code 1: choosing nodes does not pay, or no k
    keeps the allowed loss (written); 4: not decided on a disturbed machine (written).

    Example: slotool build-tables mlp -o slo-nn --data digits
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.failures import NOT_DECIDED
    from slotool.cli.options import parse_numbers
    from slotool.cli.output import Output

    output = Output(as_json=json)
    asked: dict[str, Any] = {
        "data": optional_source(data, label, inputs, images),
        "version": version,
        "ranker": ranker,
        "tables": tables,
        "bits": bits,
        "k": parse_numbers(k, "--k") if k else None,
        "weight_dtype": weight_dtype,
        "allowed_loss": allowed_loss,
        "confidence": confidence,
        "prune": prune,
        "prune_loss": prune_loss,
        "last_layer": last_layer,
        "seed": seed,
    }
    if dry_run:
        refuse_existing(out, force)
        found: Any = slotool.plan_tables(network, **asked, progress=output)
    else:
        found = slotool.build_tables(network, out, **asked, force=force, progress=output)
    output.show(found)
    if found.verdict is not None:
        raise typer.Exit(1 if found.decided else NOT_DECIDED)
