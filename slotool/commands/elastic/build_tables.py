"""``slotool.build_tables``: make a trained ReLU network SLO-aware, and report latency and accuracy of each k."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from slotool.commands.command_line import command_line
from slotool.commands.elastic.last_layer_tables import (
    LastLayerBuilt,
    LastLayerShare,
    build_last_layer,
    last_layer_share,
)
from slotool.commands.elastic.tables_built import TablesBuilt, TablesPlan
from slotool.commands.inputs import FilePath
from slotool.commands.outputs import writes
from slotool.commands.progress import Reporter, Reporting, reporter_of
from slotool.commands.values import at_least, between
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.elastic.slo_nn.build import TableSettings, TableSubject
    from slotool.elastic.slo_nn.model import SloNN
    from slotool.elastic.slo_nn.payoff import Payoff
    from slotool.elastic.slo_nn.pruning import Pruned
    from slotool.elastic.slo_nn.trained_source import TrainedSource

PRUNE_LOSS = 0.003
WEIGHT_DTYPES = ("auto", "float32", "int8")


@command_line(
    required=("out",),
    panels={
        "Tables": ("ranker", "tables", "bits", "k", "weight_dtype", "last_layer"),
        "Accuracy": ("allowed_loss", "confidence", "prune", "prune_loss"),
    },
)
@writes(folders=("out",))
def build_tables(
    network: FilePath,
    out: FilePath | None = None,
    *,
    data: str | DataSource | None = None,
    version: str | None = None,
    ranker: str = "auto",
    tables: Annotated[int, at_least(1)] = 2,
    bits: Annotated[int, at_least(1)] | None = None,
    k: Sequence[float] | None = None,
    weight_dtype: str = "auto",
    allowed_loss: Annotated[float, between(0, 1)] = 0.002,
    confidence: float = 0.9,
    prune: bool = False,
    prune_loss: Annotated[float, between(0, 1)] | None = None,
    last_layer: bool = False,
    dry_run: bool = False,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> TablesBuilt | TablesPlan | LastLayerBuilt | LastLayerShare:
    """Make a network an SLO-NN: tables for its large layers.

    All large layers of a ReLU chain get tables, of others the last layer. Tables are learnt on the training split,
    calibrated on the validation split, and scored on the test split. Exit code 1: choosing nodes does not pay, or no k
    keeps the allowed loss (written); 4: not decided on a disturbed machine (written).

    Example: slotool build-tables mlp -o slo-nn --data digits

    Args:
        network: A network, or a family with ``version``; a .keras or .onnx file; ``"module:factory"`` of a torch
            module.
        out: Artifact to write.
        data: Data set; None: what it was trained on.
        version: Version of a family.
        ranker: freehash, centred-freehash, clusters; baselines: mongoose, random; ``"auto"``: of the first three the
            one that reads the fewest bytes on validation data.
        tables: Hash tables per layer (L).
        bits: Bits per key (K); None: by size and data.
        k: Shares of nodes: a list or start:stop:step; None: by size.
        weight_dtype: float32; int8: weights of a large output layer at every k below 100 %; ``"auto"``: int8 for a
            large output layer where accuracy holds.
        allowed_loss: Accuracy that may be lost against the full network (0.002: 0.2 points). Ranker and confidence
            measure are chosen for it, and the k to use is shown.
        confidence: Confidence of that promise: 0.9 is nine in ten.
        prune: First remove hidden units that are never or hardly used.
        prune_loss: Held-out accuracy that pruning may cost, ± SE included; None: 0.003.
        last_layer: Tables for the last layer only; its own library runs the rest.
        dry_run: Only make the plan and predict its time.
        seed: Same seed, same result.
        force: Replace ``out`` if it exists.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

    Returns:
        ``model``, the SLO-NN; ``frame()`` has a row per point. Of a network whose last layer alone would get tables,
        and where these cannot pay: a ``LastLayerShare``, whose ``verdict`` says why; nothing is written then. Of a dry
        run: ``plan``, with layers, values of k, bytes and seconds.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        InputError: The network cannot be read, or does not fit the data.
        DataError: The data set cannot be read.
        AlreadyExistsError: ``out`` exists.
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.elastic.slo_nn.choosing import choose, plan, steps, with_weight_dtype

    rankers, settings = _settings(
        ranker, tables, bits, k, weight_dtype, allowed_loss, confidence, prune, prune_loss, seed
    )
    written, reporter = None if out is None else Path(out), reporter_of(progress)
    if written is not None:
        refuse_existing(written, force)
    name = "slo-nn" if written is None else written.name
    source = _whole_chain(reporter, Path(network), version, data, last_layer)
    if source is None:
        _check_last_layer(prune)
        assert data is not None
        if dry_run:
            return last_layer_share(reporter, Path(network), data)
        return build_last_layer(
            reporter, Path(network), data, written, name, rankers, settings, confidence, weight_dtype, force=force
        )
    pruned = _pruned(reporter, source, prune, prune_loss)
    subject = _subject(source, pruned)
    if weight_dtype == "int8" and len(subject.mlp.layers) - 1 not in subject.activated:
        raise ArgumentError("weight_dtype", "int8 is for networks whose output layer gets tables; this one's gets none")
    payoff = _payoff(source, subject, rankers, settings)
    if dry_run:
        return TablesPlan(plan(subject, rankers, settings), source.data.name, payoff)
    reporter.note(payoff.sentence)
    total = steps(subject, rankers, settings)
    with reporter.progress(f"learning tables on {source.data.name}", total=total) as done:
        model, candidates = choose(name, subject.reporting(done.advance), rankers, settings)
        model = with_weight_dtype(model.stating(confidence), source.data, weight_dtype, allowed_loss)
    if written is not None:
        _save(model, written, source, settings, pruned, force)
    return TablesBuilt.of(model, candidates, source, pruned, payoff, written, allowed_loss)


def _settings(
    ranker: str,
    tables: int,
    bits: int | None,
    k: Sequence[float] | None,
    weight_dtype: str,
    allowed_loss: float,
    confidence: float,
    prune: bool,
    prune_loss: float | None,
    seed: int,
) -> tuple[tuple[str, ...], TableSettings]:
    """The rankers that are tried, and how tables are built. Raises ``ArgumentError``."""
    from slotool.elastic.slo_nn.build import TableSettings
    from slotool.elastic.slo_nn.rankers.registry import CANDIDATES, registry

    if ranker != "auto" and ranker not in registry:
        raise ArgumentError("ranker", registry.unknown(ranker, "auto"))
    if weight_dtype not in WEIGHT_DTYPES:
        raise ArgumentError("weight_dtype", f"{weight_dtype!r} is none of {', '.join(WEIGHT_DTYPES)}")
    if prune_loss is not None and not prune:
        raise ArgumentError("prune_loss", "has an effect only with --prune")
    if not 0 < confidence < 1:
        raise ArgumentError("confidence", "must lie between 0 and 1, both excluded")
    for argument, share in (("allowed_loss", allowed_loss), ("prune_loss", prune_loss)):
        if share is not None and not 0 <= share <= 1:
            raise ArgumentError(argument, f"{share:g} does not lie between 0 and 1")
    for argument, count in (("tables", tables), ("bits", bits)):
        if count is not None and count < 1:
            raise ArgumentError(argument, f"{count} is too few, at least 1")
    shares = tuple(sorted({share for share in k if share != 1.0})) if k is not None else None
    rankers = CANDIDATES if ranker == "auto" else (ranker,)
    return rankers, TableSettings(shares, tables, bits, seed, allowed_loss)


def _whole_chain(
    reporter: Reporter, network: Path, version: str | None, data: str | DataSource | None, last_layer: bool
) -> TrainedSource | None:
    """The network as layers that slotool computes itself; None where only its last layer is to be one."""
    from slotool.elastic.slo_nn.trained_source import NotAChain, TrainedSource, is_foreign

    if last_layer:
        if not is_foreign(network) or data is None or version is not None:
            raise ArgumentError("last_layer", "is for a .keras or .onnx file or module:factory, with --data")
        return None
    try:
        return TrainedSource.of(network, version, data)
    except NotAChain as error:
        reporter.note(f"{error}; so only the last layer gets tables")
        return None


def _check_last_layer(prune: bool) -> None:
    if prune:
        raise ArgumentError("prune", "is for networks whose hidden layers get tables")


def _pruned(reporter: Reporter, source: TrainedSource, prune: bool, loss: float | None) -> Pruned | None:
    from slotool.elastic.slo_nn import pruning

    if not prune:
        return None
    mlp = source.version.mlp
    with reporter.progress("pruning hidden units", total=pruning.steps(mlp)) as steps:
        return pruning.prune(mlp, source.data, PRUNE_LOSS if loss is None else loss, steps.advance)


def _payoff(source: TrainedSource, subject: TableSubject, rankers: Sequence[str], settings: TableSettings) -> Payoff:
    """What choosing nodes can save here, by tables of few examples."""
    from slotool.elastic.slo_nn.choosing import trial
    from slotool.elastic.slo_nn.payoff import Payoff

    return Payoff.of(trial(subject, rankers[0], settings), source.version, source.data.test.x)


def _subject(source: TrainedSource, pruned: Pruned | None) -> TableSubject:
    from slotool.elastic.slo_nn.build import TableSubject

    return TableSubject(pruned.mlp if pruned else source.version.mlp, source.data)


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
