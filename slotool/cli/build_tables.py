"""``slotool build-tables``: make a trained ReLU network SLO-aware, and report latency and accuracy of each k."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.data import DataSource
    from slotool.elastic.activators.build import TableSettings
    from slotool.elastic.activators.pruning import Pruned
    from slotool.elastic.activators.slo_nn import SloNN
    from slotool.elastic.activators.trained_source import TrainedSource

PRUNE_LOSS = 0.003
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
        str | None, _tables("--k", help="Shares of a layer's nodes, list or start:stop:step.", show_default="by size")
    ] = None,
    weight_dtype: Annotated[
        str,
        _tables(
            "--weight-dtype",
            help="float32; int8: weights of a large output layer at every k, else of all layers at 100 %; auto: int8 "
            "where accuracy holds and fewer bytes are read.",
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
    """Make a trained network an SLO-NN, with tables for its large layers.

    All large layers of a ReLU chain get tables, of others the last layer. Tables are learnt on the training split,
    calibrated on the validation split, and scored on the test split. Exit code 1: choosing nodes cannot pay.

    Example: slotool build-tables mlp -o slo-nn --data digits
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.build_last_layer import build_last_layer
    from slotool.cli.build_tables_report import report, report_plan
    from slotool.cli.options import parse_numbers
    from slotool.cli.output import Output
    from slotool.elastic.activators.build import TableSettings, TableSubject
    from slotool.elastic.activators.choosing import choose, plan, steps
    from slotool.elastic.activators.rankers.registry import CANDIDATES, registry
    from slotool.elastic.activators.weight_dtype import with_weight_dtype

    if ranker != "auto" and ranker not in registry:
        raise typer.BadParameter(registry.unknown(ranker, "auto"), param_hint="--ranker")
    if weight_dtype not in ("auto", "float32", "int8"):
        raise typer.BadParameter(f"{weight_dtype!r} is none of auto, float32, int8", param_hint="--weight-dtype")
    if prune_loss is not None and not prune:
        raise typer.BadParameter("has an effect only with --prune", param_hint="--prune-loss")
    if not 0 < confidence < 1:
        raise typer.BadParameter("must lie between 0 and 1, both excluded", param_hint="--confidence")
    shares = tuple(sorted({share for share in parse_numbers(k, "--k") if share != 1.0})) if k else None
    settings = TableSettings(shares, tables, bits, seed, allowed_loss)
    refuse_existing(out, force)
    output, rankers = Output(as_json=json), CANDIDATES if ranker == "auto" else (ranker,)
    known = optional_source(data, label, inputs, images)
    source = _whole_chain(output, network, version, known, last_layer)
    if source is None:
        assert known is not None
        if prune:
            raise typer.BadParameter("is for networks whose hidden layers get tables", param_hint="--prune")
        if weight_dtype == "int8":
            raise typer.BadParameter(
                "int8 is for layers behind a ReLU; features of another network may be negative",
                param_hint="--weight-dtype",
            )
        build_last_layer(output, network, known, out, rankers, settings, confidence, dry_run=dry_run, force=force)
        return
    dataset = source.data
    pruned = _prune(output, source, PRUNE_LOSS if prune_loss is None else prune_loss) if prune else None
    subject = TableSubject(pruned.mlp if pruned else source.version.mlp, dataset)
    if dry_run:
        report_plan(output, plan(subject, rankers, settings), dataset.name)
        return
    text = f"learning tables on {dataset.name}"
    with output.progress(text, total=steps(subject, rankers, settings)) as progress:
        model, candidates = choose(out.name, subject.reporting(progress.advance), rankers, settings)
        model = with_weight_dtype(model.stating(confidence), dataset, weight_dtype, allowed_loss)
    _save(model, out, source, settings, pruned, force)
    report(output, model, candidates, source, pruned, out, allowed_loss)


def _whole_chain(
    output: Output, network: Path, version: str | None, data: DataSource | None, last_layer: bool
) -> TrainedSource | None:
    """The network as layers that slotool computes itself; None where only its last layer is to be one."""
    from slotool.elastic.activators.trained_source import NotAChain, TrainedSource, is_foreign

    if last_layer:
        if not is_foreign(network) or data is None or version is not None:
            raise typer.BadParameter(
                "is for a .keras or .onnx file or module:factory, with --data", param_hint="--last-layer"
            )
        return None
    try:
        return TrainedSource.of(network, version, data)
    except NotAChain as error:
        output.note(f"{error}; so only the last layer gets tables")
        return None


def _prune(output: Output, source: TrainedSource, loss: float) -> Pruned:
    from slotool.elastic.activators import pruning

    mlp = source.version.mlp
    with output.progress("pruning hidden units", total=pruning.steps(mlp)) as progress:
        return pruning.prune(mlp, source.data, loss, progress.advance)


def _save(
    model: SloNN, out: Path, source: TrainedSource, settings: TableSettings, pruned: Pruned | None, force: bool
) -> None:
    first = model.activators[model.first].ranker
    config = {
        "data": source.data_name,
        "version": source.version.name,
        "ranker": model.ranker,
        "tables": first.tables,
        "buckets": first.buckets,
        "weight_dtype": "int8" if model.int8 else "float32",
        "allowed_loss": settings.allowed_loss,
        "confidence": model.calibration.stated,
        "k": list(model.shares),
        **({"pruned": pruned.document} if pruned else {}),
    }
    model.save(out, config=config, seed=settings.seed, parents=source.parents, force=force)
