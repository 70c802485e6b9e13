"""``slotool build-tables`` for a network that is no chain of ReLU layers: tables for its last layer, or a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.data import DataSource
    from slotool.elastic.activators.build import TableSettings
    from slotool.elastic.activators.last_layer.build import LastLayerSource, LayerShare
    from slotool.elastic.activators.last_layer.model import LastLayerSloNN


def build_last_layer(
    output: Output,
    network: Path,
    data: DataSource,
    out: Path,
    rankers: tuple[str, ...],
    settings: TableSettings,
    confidence: float,
    *,
    dry_run: bool,
    force: bool,
) -> None:
    """Ends with exit code 1 and writes nothing where choosing nodes of the last layer cannot pay."""
    import tempfile

    import typer

    from slotool.elastic.activators.choosing import choose, steps
    from slotool.elastic.activators.last_layer.build import LastLayerSource
    from slotool.elastic.activators.last_layer.loading import cut
    from slotool.elastic.activators.trained_source import load_data

    dataset = load_data(data)
    with tempfile.TemporaryDirectory() as folder:
        with output.progress("measuring the last layer"):
            source = LastLayerSource(cut(str(network), dataset.input_shape, Path(folder)), dataset)
            share = source.share()
        if share.verdict is not None or dry_run:
            _report_share(output, network, source, share)
            raise typer.Exit(0 if share.verdict is None else 1)
        with output.progress(f"computing features on {dataset.name}"):
            subject = source.subject
        text = f"learning tables on {dataset.name}"
        with output.progress(text, total=steps(subject, rankers, settings)) as progress:
            head, _ = choose(out.name, subject.reporting(progress.advance), rankers, settings)
        model = source.model(out.name, head.stating(confidence))
        config = {
            "data": getattr(dataset, "source", "") or dataset.name,
            "network": str(network),
            "ranker": head.ranker,
            "allowed_loss": settings.allowed_loss,
            "confidence": confidence,
            "k": list(head.shares),
        }
        model.save(out, config=config, seed=settings.seed, force=force)
        _report(output, network, source, model, out, settings.allowed_loss)


def _report_share(output: Output, network: Path, source: LastLayerSource, share: LayerShare) -> None:
    from dataclasses import asdict

    from slotool.cli.output import duration

    layer = source.cut.layer
    document = {
        "network": str(network),
        "layer": layer.name,
        "runtime": source.cut.runtime,
        **asdict(share),
        "share": share.share,
        "verdict": share.verdict,
    }
    said = share.verdict or (
        f"the last layer {layer.name!r} ({layer.units:,} nodes) takes {share.share:.1%} of the "
        f"{duration(share.whole_us / 1e6)} of a query; choosing its nodes may pay"
    )
    output.result("build-tables-share", document, said)


def _report(
    output: Output, network: Path, source: LastLayerSource, model: LastLayerSloNN, out: Path, allowed_loss: float
) -> None:
    from dataclasses import asdict

    from slotool.api.loss_table import loss_table
    from slotool.cli.build_tables_report import warn_of_guessing
    from slotool.elastic.activators.promises import Promise

    promise = Promise.of(model.head, allowed_loss)
    assessed = source.assessed(model, allowed_loss)
    document: dict[str, Any] = {
        "artifact": str(out),
        "data": source.original.name,
        "network": str(network),
        **assessed,
        "promise": asdict(promise),
    }
    warn_of_guessing(output, document, model.classes)
    if assessed["promised_us"] >= assessed["whole_us"]:
        output.warn(
            f"choosing nodes does not pay here: {assessed['promised_point']} takes {assessed['promised_us']:,.1f} µs, "
            f"and the unmodified network {assessed['whole_us']:,.1f} µs"
        )
    sure = f"{100 * promise.confidence:g} % confidence"
    output.result(
        "build-tables-last-layer",
        document,
        f"{assessed['runtime']} runs the network up to its last layer {assessed['layer']!r} ({assessed['features']:,} "
        f"features, {assessed['nodes']:,} nodes), and slotool this layer",
        f"µs of a query, median: the unmodified network {assessed['whole_us']:,.1f}; here up to the last layer "
        f"{assessed['front_us']:,.1f}, with all nodes {assessed['full_us']:,.1f}, at {assessed['promised_point']} "
        f"{assessed['promised_us']:,.1f}",
        _points(document),
        "×: speedup over the unmodified network, measured in the same run; µs: up to the last layer and that layer",
        loss_table(f"Loss allowed, with {sure}: k chosen per input, and fixed k", assessed["accuracy_targets"]),
        *promise.sentences,
        f"wrote {out}",
    )


def _points(document: dict[str, Any]) -> Any:
    from slotool.cli.output import table

    return table(
        f"{document['examples']:,} test examples of {document['data']}, one thread, one query at a time",
        ["point", "nodes", "acc.", "vs full", "± SE", "static", "agree", "µs", "last layer", "×"],
        [
            [
                row["point"],
                row["nodes"],
                f"{row['accuracy']:.4f}",
                f"{row['difference']:+.4f}",
                f"{row['standard_error']:.4f}",
                f"{row['static_accuracy']:.4f}",
                f"{row['agreement']:.4f}",
                f"{row['latency_us']:.1f}",
                f"{row['layer_us']:.1f}",
                f"{row['speedup']:.2f}",
            ]
            for row in document["points"]
        ],
    )
