"""``slotool.build_tables``: make a trained ReLU network SLO-aware, and report latency and accuracy of each k."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.elastic.tables_built import LastLayerBuilt, LastLayerShare, TablesBuilt, TablesPlan
from slotool.commands.outputs import writes
from slotool.commands.values import at_least, between, inside
from slotool.errors import ArgumentError
from slotool.progress import Reporter, Reporting, reporter_of, short_phase
from slotool.sources import FilePath

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.elastic.slo_nn.build import TableSettings
    from slotool.elastic.slo_nn.trained_source import TrainedSource

WEIGHT_DTYPES = ("auto", "float32", "int8")


@command_line(
    required=("out",),
    panels={
        "Tables": ("ranker", "tables", "bits", "k", "weight_dtype", "last_layer"),
        "Accuracy": ("allowed_loss", "confidence"),
    },
)
@writes(folders=("out",))
def build_tables(
    network: FilePath,
    out: FilePath | None = None,
    *,
    data: str | DataSource | None = None,
    version: str | None = None,
    ranker: str = "clusters",
    tables: Annotated[int, at_least(1)] = 2,
    bits: Annotated[int, at_least(1)] | None = None,
    k: Sequence[float] | None = None,
    weight_dtype: str = "auto",
    allowed_loss: Annotated[float, between(0, 1)] = 0.002,
    confidence: Annotated[float, inside(0, 1)] = 0.9,
    last_layer: bool = False,
    dry_run: bool = False,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> TablesBuilt | TablesPlan | LastLayerBuilt | LastLayerShare:
    """Make a network an SLO-NN: tables for its large layers.

    In a chain of ReLU layers all large layers get tables, in other networks the last layer. Tables are fitted on the
    training split, calibrated on the validation split, and scored on the test split. Exit code 1: choosing nodes does
    not pay, or no k keeps the allowed loss (written); 4: not decided on a disturbed machine (written).

    Example: slotool build-tables mlp -o slo-nn --data digits

    Args:
        network: A network, or a family with ``version``; a .keras or .onnx file; ``"module:factory"`` of a torch
            module.
        out: Artifact to write.
        data: Data set; None: that of its training.
        version: Version of a family.
        ranker: clusters, freehash, centred-freehash; baselines: mongoose, random.
        tables: Hash tables per layer (L).
        bits: Bits per key (K); None: by size and data.
        k: Shares of nodes: a list or start:stop:step; None: by size.
        weight_dtype: float32; int8: weights of a large output layer at every k below 100 %; ``"auto"``: int8 for a
            large output layer where accuracy holds.
        allowed_loss: Accuracy that may be lost against the full network (0.002: 0.2 points). The confidence measure is
            chosen for it, and the k to use is shown.
        confidence: Confidence of that promise: 0.9 is nine in ten.
        last_layer: Tables for the last layer only; its own library runs the rest.
        dry_run: Only make the plan, and measure what choosing nodes can save.

    Returns:
        ``model``, the SLO-NN; ``frame()`` has a row per point. If only the last layer would get tables and these cannot
        pay, a ``LastLayerShare``, whose ``verdict`` gives the reason; nothing is written then. For a dry run ``plan``,
        with layers, values of k, bytes and seconds.

    Raises:
        InputError: The network cannot be read, or does not fit the data.
        DataError: The data set cannot be read.
    """
    from slotool.elastic.slo_nn.assessment import assess
    from slotool.elastic.slo_nn.build import TableSubject, build_and_quantise, settings_of
    from slotool.elastic.slo_nn.payoff import Payoff, plan, trial
    from slotool.elastic.slo_nn.promises import Promise

    settings = _settings(ranker, tables, bits, k, weight_dtype, allowed_loss, seed)
    written, reporter = None if out is None else Path(out), reporter_of(progress)
    name = "slo-nn" if written is None else written.name
    source = _whole_chain(reporter, Path(network), version, data, last_layer)
    learning: dict[str, Any] = {"confidence": confidence, "weight_dtype": weight_dtype}
    if source is None:
        assert data is not None
        return _last_layer(
            Path(network), data, written, name, ranker, settings, learning, reporter, dry_run=dry_run, force=force
        )
    subject = TableSubject(source.version.mlp, source.data)
    if weight_dtype == "int8" and len(subject.mlp.layers) - 1 not in subject.activated:
        raise ArgumentError("weight_dtype", "int8 is for networks whose output layer gets tables; this one's gets none")
    # Possible savings on this machine, by tables of few examples.
    with short_phase(reporter, "timing what choosing nodes could save"):
        payoff = Payoff.of(trial(subject, ranker, settings), source.version, source.data.test.x)
    if dry_run:
        return TablesPlan(plan(subject, ranker, settings), source.data.name, payoff)
    reporter.note(payoff.sentence)
    model = build_and_quantise(name, subject, source.data, ranker, settings, **learning, reporter=reporter)
    if written is not None:
        first = model.activators[model.first].ranker
        config = {**source.data.origin, "version": source.version.name, "tables": first.tables}
        config |= {"buckets": first.buckets, **settings_of(model, settings)}
        model.save(written, config=config, seed=seed, parents=source.parents, force=force)
    with short_phase(reporter, f"scoring all points on {source.data.name}"):
        measured = {"data": source.data.name, **assess(model, source.version, source.data.test)}
    return TablesBuilt(model, Promise.of(model, allowed_loss), measured, written, payoff)


def _settings(
    ranker: str,
    tables: int,
    bits: int | None,
    k: Sequence[float] | None,
    weight_dtype: str,
    allowed_loss: float,
    seed: int,
) -> TableSettings:
    """Return the options of a build. Raises ``ArgumentError``."""
    from slotool.elastic.slo_nn.build import TableSettings
    from slotool.elastic.slo_nn.rankers.registry import registry

    if ranker not in registry:
        raise ArgumentError("ranker", registry.unknown(ranker))
    if weight_dtype not in WEIGHT_DTYPES:
        raise ArgumentError("weight_dtype", f"{weight_dtype!r} is none of {', '.join(WEIGHT_DTYPES)}")
    shares = tuple(sorted({share for share in k if share != 1.0})) if k is not None else None
    return TableSettings(shares, tables, bits, seed, allowed_loss)


def _whole_chain(
    reporter: Reporter, network: Path, version: str | None, data: str | DataSource | None, last_layer: bool
) -> TrainedSource | None:
    """Return the network as layers that slotool computes; None if it computes the last layer only."""
    from slotool.elastic.slo_nn.trained_source import NotAChain, TrainedSource, is_foreign

    if last_layer:
        if not is_foreign(network) or data is None or version is not None:
            raise ArgumentError("last_layer", "is for a .keras or .onnx file or module:factory, with a data set")
        return None
    try:
        return TrainedSource.of(network, version, data)
    except NotAChain as error:
        reporter.note(f"{error}; so only the last layer gets tables")
        return None


def _last_layer(
    network: Path,
    data: str | DataSource,
    out: Path | None,
    name: str,
    ranker: str,
    settings: TableSettings,
    learning: Mapping[str, Any],
    reporter: Reporter,
    *,
    dry_run: bool,
    force: bool,
) -> LastLayerBuilt | LastLayerShare:
    """Build tables for the last layer; nothing is written if they cannot pay, or do not."""
    from slotool.elastic.slo_nn.build import build_and_quantise, settings_of
    from slotool.elastic.slo_nn.last_layer.build import measured_cut
    from slotool.elastic.slo_nn.promises import Promise

    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        source, measured_share = measured_cut(network, data, Path(folder), reporter)
        share = LastLayerShare(measured_share, str(network), source.cut.layer.name, source.cut.runtime)
        if dry_run or (share.verdict is not None and share.decided):
            return share
        with reporter.progress(f"computing features on {source.original.name}"):
            subject = source.subject
        head = build_and_quantise(name, subject, source.original, ranker, settings, **learning, reporter=reporter)
        model, facts = source.model(name, head), {"data": source.original.name, "network": str(network)}
        measured = {**facts, **source.assessed(model, settings.allowed_loss)}
        # The model runs a file in the folder.
        weakref.finalize(model, stack.pop_all().close)
    built = LastLayerBuilt(model, Promise.of(model.head, settings.allowed_loss), measured, None)
    if out is None or not built.pays:
        return built
    model.save(
        out, config={**facts, **source.original.origin, **settings_of(head, settings)}, seed=settings.seed, force=force
    )
    return replace(built, out=out)
