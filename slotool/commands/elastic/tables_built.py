"""Results of ``slotool.build_tables``: plans, and finished models with their points and promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Column, Part, Table, records_table
from slotool.commands.result import Verdict, output, result, unlisted
from slotool.printable import duration
from slotool.timing.interference import sentence as timing_sentence

if TYPE_CHECKING:
    from slotool.elastic.slo_nn.last_layer.build import LayerShare
    from slotool.elastic.slo_nn.last_layer.model import LastLayerSloNN
    from slotool.elastic.slo_nn.model import SloNN
    from slotool.elastic.slo_nn.payoff import BuildPlan, Payoff
    from slotool.elastic.slo_nn.promises import Promise

# Below this entropy a hash hardly tells inputs apart.
MIN_ENTROPY_BITS = 1.0
# Accuracy of a point, or of another way to answer, beside that of all nodes.
_ACCURACY = (
    Column("nodes", form=","),
    Column("accuracy", "acc.", ".4f"),
    Column("difference", "vs full", "+.4f"),
    Column("standard_error", "± SE", ".4f"),
)
_POINTS = (
    Column("point"),
    *_ACCURACY,
    Column("static_accuracy", "static", ".4f"),
    Column("agreement", "agree", ".4f"),
    Column("latency_us", "µs", ",.2f"),
    Column("layer_us", "last layer", ".1f"),
    Column("speedup", "×", ".2f"),
)
_ALTERNATIVES = (
    Column("way"),
    *_ACCURACY,
    Column("promised_loss", "lost at most", ".4f"),
    Column("latency_us", "µs", ",.1f"),
    Column("speedup", "×", ".2f"),
)
# Of the rows of ``assessment.aclo_sweep``.
_LOSSES = (
    Column("loss", "allowed", ".3f"),
    Column("target", "target", ".4f"),
    Column("mean_k", "mean k", ".4g"),
    Column("accuracy", "accuracy", ".4f"),
    Column("difference", "vs full", "+.4f"),
    Column("standard_error", "± SE", ".4f"),
    Column("latency_s", "latency", duration),
    Column("fixed_k", "fixed k", ".4g"),
    Column("fixed_accuracy", "its accuracy", ".4f"),
    Column("same_accuracy_k", "k as accurate", ".4g"),
)


def loss_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of allowed losses, rows of ``assessment.aclo_sweep``."""
    return records_table(title, rows, _LOSSES)


@result
class TablesPlan(Verdict):
    """Plan of a build; ``data``: name of the data set; ``payoff``: possible savings on this machine."""

    plan: BuildPlan = unlisted()
    data: str
    payoff: Payoff = unlisted()

    schema = "build-tables-plan"

    @property
    def verdict(self) -> str | None:
        return self.payoff.verdict

    @property
    def decided(self) -> bool:
        return self.payoff.decided

    def findings(self) -> dict[str, Any]:
        return {**vars(self.plan), "payoff": self.payoff.document, **super().findings()}

    def shown(self) -> list[Part]:
        plan = self.plan
        layers = ", ".join(f"{name} ({units:,} nodes)" for name, units in plan.layers.items())
        return [
            f"activated layers: {layers}; {len(plan.k)} values of k from {plan.k[0]:.4g} to {plan.k[-1]:.4g}",
            f"ranker {plan.ranker}: learnt from {plan.examples:,} training examples of {self.data}",
            f"tables of at most {plan.most_table_bytes:,} bytes",
            self.payoff.sentence,
            timing_sentence(self.payoff.turns.document),
        ]


@result
class Built(Verdict):
    """Built tables with their measured savings.

    ``model``: the SLO-NN, or a network whose last layer is one. ``promise``: the point to use for the allowed loss.
    ``measured``: figures of one run on the test split.
    """

    model: SloNN | LastLayerSloNN = unlisted()
    promise: Promise
    measured: dict[str, Any] = unlisted()
    out: Path | None = output("artifact")

    rows_key = "points"
    columns = _POINTS

    def findings(self) -> dict[str, Any]:
        return {**self.measured, **super().findings()}

    def records(self) -> list[dict[str, Any]]:
        return list(self.measured["points"])

    @property
    def title(self) -> str:
        measured = self.measured
        return f"{measured['examples']:,} test examples of {measured['data']}, one thread, one query at a time"

    @property
    def _losses(self) -> Table:
        title = f"Loss allowed, with {self._sure}: k chosen per input, and fixed k"
        return loss_table(title, self.measured["accuracy_targets"])

    @property
    def _sure(self) -> str:
        return f"{100 * self.promise.confidence:g} % confidence"


@result
class TablesBuilt(Built):
    """Built SLO-NN; ``payoff``: possible savings on this machine, as in a plan."""

    model: SloNN = unlisted()
    payoff: Payoff = unlisted()

    schema = "build-tables"

    @property
    def verdict(self) -> str | None:
        return self.promise.verdict() or self.payoff.verdict

    @property
    def decided(self) -> bool:
        return self.promise.verdict() is not None or self.payoff.decided

    def findings(self) -> dict[str, Any]:
        return {**super().findings(), "payoff": self.payoff.document}

    def shown(self) -> list[Part]:
        document = self.measured
        entropy = ", ".join(f"{name} {bits:.2f}" for name, bits in document["bucket_entropy_bits"].items())
        measures = ", ".join(f"{name} {k:.4g}" for name, k in document["mean_k_by_measure"].items())
        return [
            f"ranker {document['ranker']}: {document['tables']} tables of {document['buckets']} buckets; bucket "
            f"entropy in bits: {entropy}",
            f"confidence by {document['measure']}, which saves most on validation data (mean k {measures})",
            f"tables: {document['table_bytes']:,} bytes, {document['table_share']:.1%} of the network's",
            self.table(),
            timing_sentence(document["timing"]),
            "static: as many nodes, but the most popular ones for every input; agree: same class as full",
            f"×: speedup over the same compiled kernel with all nodes; PyTorch takes {document['torch_us']:.2f} µs",
            _of_rows(document),
            self._losses,
            "k as accurate: the least fixed k that reaches here what k chosen per input reached; "
            f"the ideal per input is a mean k of {document['ideal_mean_k']:.4g}",
            *self.promise.sentences,
        ]

    @property
    def warnings(self) -> list[str]:
        informed = self.model.activators[self.model.first].ranker.informed
        return [*guessing(self.measured, self.model.classes), *_doubts(self.measured, informed)]


def guessing(document: dict[str, Any], classes: int) -> list[str]:
    """Return a warning for a network that is no better than a guess, where a smaller k seems as good."""
    accuracy = document["points"][-1]["accuracy"]
    if accuracy > 1 / classes:
        return []
    return [
        f"with all nodes {accuracy:.1%} of the test examples are answered right, and guessing among {classes} "
        f"classes gives {1 / classes:.1%}: is this network trained on {document['data']}, and are its classes in the "
        "order of their names?"
    ]


def _doubts(document: dict[str, Any], informed: bool) -> list[str]:
    from slotool.elastic.slo_nn.build import TABLE_BYTES_SHARE

    sentences = []
    if document["table_share"] > TABLE_BYTES_SHARE:
        sentences.append(
            f"the tables take {document['table_share']:.1%} of the network's bytes; fewer --bits or --tables keep them "
            f"under {TABLE_BYTES_SHARE:.0%}"
        )
    for layer, bits in document["bucket_entropy_bits"].items():
        if bits < MIN_ENTROPY_BITS and informed:
            sentences.append(
                f"{layer}: the hash hardly tells inputs apart ({bits:.2f} bits of entropy); "
                "--ranker centred-freehash or more --bits may"
            )
    return sentences


def _of_rows(document: dict[str, Any]) -> str:
    exact = "; k=full reads float32 ones" if document["weight_dtype"] == "int8" else ""
    return f"weights of a large output layer are read as {document['weight_dtype']}{exact}"


@result
class LastLayerShare(Verdict):
    """Share of the last layer in the time of a query (``measured``), which decides if choosing nodes can pay."""

    measured: LayerShare = unlisted()
    network: str
    layer: str
    runtime: str

    schema = "build-tables-share"

    @property
    def verdict(self) -> str | None:
        return self.measured.verdict

    @property
    def decided(self) -> bool:
        return self.measured.decided

    def findings(self) -> dict[str, Any]:
        return {**vars(self.measured), "share": self.measured.share, **super().findings()}

    def shown(self) -> list[Part]:
        verdict = self.verdict or (
            f"the last layer {self.layer!r} ({self.measured.nodes:,} nodes) takes {self.measured.share:.1%} of the "
            f"{duration(self.measured.whole_us / 1e6)} of a query; choosing its nodes may pay"
        )
        return [verdict, timing_sentence(self.measured.timing)]


@result
class LastLayerBuilt(Built):
    """Built network with an SLO-NN as last layer."""

    model: LastLayerSloNN = unlisted()

    schema = "build-tables-last-layer"

    @property
    def verdict(self) -> str | None:
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

    @property
    def warnings(self) -> list[str]:
        sentences, measured = guessing(self.measured, self.model.classes), self.measured
        if measured["promised_us"] >= measured["whole_us"]:
            sentences.append(
                f"a fixed k, as a server has, does not pay here: {measured['promised_point']} takes "
                f"{measured['promised_us']:,.1f} µs, and the unmodified network {measured['whole_us']:,.1f} µs"
            )
        return sentences

    def shown(self) -> list[Part]:
        assessed = self.measured
        return [
            f"{assessed['runtime']} runs the network up to its last layer {assessed['layer']!r} "
            f"({assessed['features']:,} features, {assessed['nodes']:,} nodes), and slotool this layer",
            f"µs of a query, median: the unmodified network {assessed['whole_us']:,.1f}; here up to the last layer "
            f"{assessed['front_us']:,.1f}, with all nodes {assessed['full_us']:,.1f}, at {assessed['promised_point']} "
            f"{assessed['promised_us']:,.1f}",
            self.table(),
            "×: speedup over the unmodified network, measured in the same run; µs: up to the last layer and that layer",
            self._losses,
            *self.promise.sentences,
            records_table("What else answers, measured in the same run", assessed["alternatives"], _ALTERNATIVES),
            f"lost at most: with {self._sure}",
            *self._without_list,
            timing_sentence(self.measured["timing"]),
            self._conclusion,
            *([] if self.pays else [f"{self.verdict}; nothing was written"]),
        ]

    @property
    def _without_list(self) -> list[str]:
        """Sentence on a missing list of popular nodes among the alternatives."""
        if any("most popular" in row["way"] for row in self.measured["alternatives"]):
            return []
        longest, allowed = self.measured["longest_list_tried"], self.promise.allowed_loss
        return [
            f"left out: a list of the most popular nodes for every input; none of up to {longest:,} nodes loses at "
            f"most {allowed:g} with {self._sure}"
        ]

    @property
    def _conclusion(self) -> str:
        """Sentence that names the quickest way that keeps the allowed loss."""
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
