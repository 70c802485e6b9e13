"""``slotool.build_tables`` for a network that is no chain of ReLU layers: tables for its last layer, or a verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Part, duration, table
from slotool.commands.elastic.loss_table import loss_table
from slotool.commands.elastic.tables_built import guessing
from slotool.commands.progress import Reporter
from slotool.commands.result import Verdict
from slotool.timing.interference import sentence as timing_sentence

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.elastic.slo_nn.build import TableSettings
    from slotool.elastic.slo_nn.last_layer.build import LastLayerSource, LayerShare
    from slotool.elastic.slo_nn.last_layer.model import LastLayerSloNN
    from slotool.elastic.slo_nn.promises import Promise


def last_layer_share(reporter: Reporter, network: Path, data: str | DataSource) -> LastLayerShare:
    """What the last layer takes of a query's time."""
    with TemporaryDirectory() as folder:
        return _measured(reporter, network, data, folder)[1]


def build_last_layer(
    reporter: Reporter,
    network: Path,
    data: str | DataSource,
    out: Path | None,
    name: str,
    ranker: str,
    settings: TableSettings,
    confidence: float,
    weight_dtype: str,
    *,
    force: bool,
) -> LastLayerBuilt | LastLayerShare:
    """Writes nothing where choosing nodes of the last layer cannot pay, or does not."""
    from slotool.elastic.slo_nn.build import build, steps, with_weight_dtype
    from slotool.elastic.slo_nn.promises import Promise

    # The model runs a file in it, so it lasts as long as the result.
    folder = TemporaryDirectory()
    source, share = _measured(reporter, network, data, folder.name)
    if share.verdict is not None and share.decided:
        folder.cleanup()
        return share
    with reporter.progress(f"computing features on {source.original.name}"):
        subject = source.subject
    text = f"learning tables on {source.original.name}"
    with reporter.progress(text, total=steps(subject, settings)) as done:
        head = build(name, subject.reporting(done.advance), ranker, settings)
        head = with_weight_dtype(head.stating(confidence), subject.data, weight_dtype, settings.allowed_loss)
    model = source.model(name, head)
    promise = Promise.of(model.head, settings.allowed_loss)
    measured = {
        "data": source.original.name,
        "network": str(network),
        **source.assessed(model, settings.allowed_loss),
        "promise": asdict(promise),
    }
    built = LastLayerBuilt(model, promise, measured, folder)
    if out is None or not built.pays:
        return built
    config = {
        "data": getattr(source.original, "source", "") or source.original.name,
        "network": str(network),
        "ranker": head.ranker,
        "weight_dtype": "int8" if head.int8 else "float32",
        "allowed_loss": settings.allowed_loss,
        "confidence": confidence,
        "k": list(head.shares),
    }
    model.save(out, config=config, seed=settings.seed, force=force)
    return replace(built, out=out)


def _measured(
    reporter: Reporter, network: Path, data: str | DataSource, folder: str
) -> tuple[LastLayerSource, LastLayerShare]:
    """The network cut in two, its front in ``folder``, and what its last layer takes of a query's time."""
    from slotool.elastic.slo_nn.last_layer.build import LastLayerSource, cut
    from slotool.elastic.slo_nn.trained_source import load_data

    dataset = load_data(data)
    with reporter.progress("measuring the last layer"):
        source = LastLayerSource(cut(str(network), dataset.input_shape, Path(folder)), dataset)
        found = source.share()
    if (positions := source.cut.positions) is not None:
        each = f"each of {positions:,} positions" if positions else "each position"
        reporter.note(
            f"{network} scores {each} of a sequence; tables are for the last one, of what comes next, and nodes of its "
            "feed-forward blocks are not chosen: for several tokens at a time int8 is quicker"
        )
    return source, LastLayerShare(found, str(network), source.cut.layer.name, source.cut.runtime)


@dataclass(frozen=True, repr=False, eq=False)
class LastLayerShare(Verdict):
    """``measured``: what a query costs; ``verdict`` says why choosing nodes cannot pay, None where it may."""

    measured: LayerShare
    network: str
    layer: str
    runtime: str

    schema = "build-tables-share"

    @property
    def verdict(self) -> str | None:
        """Why choosing nodes of the last layer cannot pay, or why that is not decided; None where it may."""
        return self.measured.verdict

    @property
    def decided(self) -> bool:
        return self.measured.decided

    def findings(self) -> dict[str, Any]:
        return {
            "network": self.network,
            "layer": self.layer,
            "runtime": self.runtime,
            **asdict(self.measured),
            "share": self.measured.share,
            "verdict": self.verdict,
            "decided": self.decided,
        }

    def shown(self) -> list[Part]:
        said = self.verdict or (
            f"the last layer {self.layer!r} ({self.measured.nodes:,} nodes) takes {self.measured.share:.1%} of the "
            f"{duration(self.measured.whole_us / 1e6)} of a query; choosing its nodes may pay"
        )
        return [said, timing_sentence(self.measured.timing)]


@dataclass(frozen=True, repr=False, eq=False)
class LastLayerBuilt(Verdict):
    """``model``: the network with an SLO-NN as its last layer. ``promise``: the point to use for the allowed loss.
    ``measured``: the document's own keys. ``folder``: holds the file that ``model`` runs. ``out``: the artifact, if
    written."""

    model: LastLayerSloNN
    promise: Promise
    measured: dict[str, Any]
    folder: TemporaryDirectory[str]
    out: Path | None = None

    schema = "build-tables-last-layer"
    rows_key = "points"

    @property
    def verdict(self) -> str | None:
        """Why choosing nodes saves nothing within the allowed loss, or no time, or why that is not decided; None where
        it saves both."""
        tables = self.measured["tables"]
        if self.promise.verdict() is not None or tables["pays"]:
            return self.promise.verdict()
        times = f"{tables['latency_us']:,.1f} µs, the unmodified network {self.measured['whole_us']:,.1f} µs"
        doubt = tables["doubt"] or "choosing nodes of the last layer does not pay"
        return f"{doubt}: the quicker way with tables takes {times}"

    @property
    def decided(self) -> bool:
        return self.promise.verdict() is not None or self.measured["tables"]["pays"] is not None

    @property
    def pays(self) -> bool:
        """False if tables were measured to save too little time."""
        return self.measured["tables"] is None or self.measured["tables"]["pays"] is not False

    def findings(self) -> dict[str, Any]:
        artifact = None if self.out is None else str(self.out)
        return {"artifact": artifact, **self.measured, "verdict": self.verdict, "decided": self.decided}

    @property
    def warnings(self) -> list[str]:
        found, measured = guessing(self.measured, self.model.classes), self.measured
        if measured["promised_us"] >= measured["whole_us"]:
            found.append(
                f"a fixed k, as a server has, does not pay here: {measured['promised_point']} takes "
                f"{measured['promised_us']:,.1f} µs, and the unmodified network {measured['whole_us']:,.1f} µs"
            )
        return found

    def shown(self) -> list[Part]:
        assessed = self.measured
        sure = f"{100 * self.promise.confidence:g} % confidence"
        return [
            f"{assessed['runtime']} runs the network up to its last layer {assessed['layer']!r} "
            f"({assessed['features']:,} features, {assessed['nodes']:,} nodes), and slotool this layer",
            f"µs of a query, median: the unmodified network {assessed['whole_us']:,.1f}; here up to the last layer "
            f"{assessed['front_us']:,.1f}, with all nodes {assessed['full_us']:,.1f}, at {assessed['promised_point']} "
            f"{assessed['promised_us']:,.1f}",
            _points(assessed),
            "×: speedup over the unmodified network, measured in the same run; µs: up to the last layer and that layer",
            loss_table(f"Loss allowed, with {sure}: k chosen per input, and fixed k", assessed["accuracy_targets"]),
            *self.promise.sentences,
            _alternatives(assessed, sure),
            *self._without_list,
            timing_sentence(self.measured["timing"]),
            self._conclusion,
            *([] if self.pays else [f"{self.verdict}; nothing was written"]),
            *([] if self.out is None else [f"wrote {self.out}"]),
        ]

    @property
    def _without_list(self) -> list[str]:
        """Why no list of popular nodes is among the alternatives, where there is none."""
        if any("most popular" in row["way"] for row in self.measured["alternatives"]):
            return []
        longest, allowed = self.measured["longest_list_tried"], self.promise.allowed_loss
        return [
            f"left out: a list of the most popular nodes for every input; none of up to {longest:,} nodes loses at "
            f"most {allowed:g} with {100 * self.promise.confidence:g} % confidence"
        ]

    @property
    def _conclusion(self) -> str:
        """What to use: the quickest way that keeps the allowed loss."""
        quickest, whole_us = self.measured["quickest"], self.measured["whole_us"]
        if quickest["pays"] is False:
            return "nothing measured here keeps the allowed loss and is quicker than the unmodified network"
        measured = f"{quickest['way']}, {quickest['latency_us']:,.1f} µs"
        if quickest["pays"] is None:
            return f"quickest within the allowed loss: {quickest['doubt']}; {measured}, unmodified {whole_us:,.1f} µs"
        return (
            f"quickest within the allowed loss: {measured}, {quickest['speedup']:.1f} × as fast as the unmodified "
            "network"
        )


def _alternatives(document: dict[str, Any], sure: str) -> Part:
    return table(
        "What else answers, measured in the same run",
        ["way", "nodes", "acc.", "vs full", "± SE", f"lost at most, {sure}", "µs", "×"],
        [
            [
                row["way"],
                f"{row['nodes']:,}",
                f"{row['accuracy']:.4f}",
                f"{row['difference']:+.4f}",
                f"{row['standard_error']:.4f}",
                f"{row['promised_loss']:.4f}",
                f"{row['latency_us']:,.1f}",
                f"{row['speedup']:.2f}",
            ]
            for row in document["alternatives"]
        ],
    )


def _points(document: dict[str, Any]) -> Part:
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
