"""What ``slotool.build_tables`` and ``plan_tables`` return: the plan, and a finished model with points and promises."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Part, duration, table
from slotool.commands.elastic.loss_table import loss_table
from slotool.commands.result import Verdict
from slotool.timing.interference import sentence as timing_sentence

if TYPE_CHECKING:
    from slotool.elastic.slo_nn.model import SloNN
    from slotool.elastic.slo_nn.payoff import BuildPlan, Payoff
    from slotool.elastic.slo_nn.promises import Promise
    from slotool.elastic.slo_nn.trained_source import TrainedSource

# Below it a hash hardly tells inputs apart.
MIN_ENTROPY_BITS = 1.0


@dataclass(frozen=True, repr=False, eq=False)
class TablesPlan(Verdict):
    """``plan``: what would be done, and how long it would take. ``data``: name of the data set. ``payoff``: what
    choosing nodes can save on this machine."""

    plan: BuildPlan
    data: str
    payoff: Payoff

    schema = "build-tables-plan"

    @property
    def verdict(self) -> str | None:
        """Why choosing nodes cannot pay, or why that is not decided; None where it may."""
        return self.payoff.verdict

    @property
    def decided(self) -> bool:
        return self.payoff.decided

    def findings(self) -> dict[str, Any]:
        about = {"payoff": self.payoff.document, "verdict": self.verdict, "decided": self.decided}
        return {**asdict(self.plan), "data": self.data, **about}

    def shown(self) -> list[Part]:
        plan = self.plan
        layers = ", ".join(f"{name} ({units:,} nodes)" for name, units in plan.layers.items())
        return [
            f"activated layers: {layers}; {len(plan.k)} values of k from {plan.k[0]:.4g} to {plan.k[-1]:.4g}",
            f"ranker {plan.ranker}: learnt from {plan.examples:,} training examples of {self.data}",
            f"tables of at most {plan.most_table_bytes:,} bytes; about {duration(plan.predicted_s)}, by two small "
            "builds",
            self.payoff.sentence,
            timing_sentence(self.payoff.turns.document),
        ]


@dataclass(frozen=True, repr=False, eq=False)
class TablesBuilt(Verdict):
    """``model``: the SLO-NN. ``promise``: the point to use for the allowed loss. ``payoff``: what choosing nodes can
    save on this machine, as a plan has it. ``measured``: the document's own keys, from one run on the test split.
    ``out``: the artifact, if written."""

    model: SloNN
    promise: Promise
    payoff: Payoff
    measured: dict[str, Any]
    out: Path | None = None

    schema = "build-tables"
    rows_key = "points"

    @classmethod
    def of(
        cls,
        model: SloNN,
        source: TrainedSource,
        payoff: Payoff,
        out: Path | None,
        allowed_loss: float,
    ) -> TablesBuilt:
        """Measure ``model`` on the test split."""
        from slotool.elastic.slo_nn.assessment import assess
        from slotool.elastic.slo_nn.promises import Promise

        promise = Promise.of(model, allowed_loss)
        measured = {
            "data": source.data.name,
            **assess(model, source.version, source.data.test),
            "promise": asdict(promise),
        }
        return cls(model, promise, payoff, measured, out)

    @property
    def verdict(self) -> str | None:
        """Why choosing nodes saves nothing within the allowed loss, or no time, or why that is not decided; None where
        it saves both."""
        return self.promise.verdict() or self.payoff.verdict

    @property
    def decided(self) -> bool:
        return self.promise.verdict() is not None or self.payoff.decided

    def findings(self) -> dict[str, Any]:
        about = {"payoff": self.payoff.document, "verdict": self.verdict, "decided": self.decided}
        return {"artifact": None if self.out is None else str(self.out), **self.measured, **about}

    def shown(self) -> list[Part]:
        written = [] if self.out is None else [f"wrote {self.out}"]
        return [*_lines(self.measured, self.promise.sentences), *written]

    @property
    def warnings(self) -> list[str]:
        informed = self.model.activators[self.model.first].ranker.informed
        return [*guessing(self.measured, self.model.classes), *_doubts(self.measured, informed)]


def guessing(document: dict[str, Any], classes: int) -> list[str]:
    """Where the network answers no better than a guess, a smaller k seems as good, or better."""
    accuracy = document["points"][-1]["accuracy"]
    if accuracy > 1 / classes:
        return []
    return [
        f"with all nodes {accuracy:.1%} of the test examples are answered right, and guessing among {classes} "
        f"classes gives {1 / classes:.1%}: is this network trained on {document['data']}?"
    ]


def _doubts(document: dict[str, Any], informed: bool) -> list[str]:
    from slotool.elastic.slo_nn.build import TABLE_BYTES_SHARE

    found = []
    if document["table_share"] > TABLE_BYTES_SHARE:
        found.append(
            f"the tables take {document['table_share']:.1%} of the network's bytes; fewer --bits or --tables keep them "
            f"under {TABLE_BYTES_SHARE:.0%}"
        )
    for layer, bits in document["bucket_entropy_bits"].items():
        if bits < MIN_ENTROPY_BITS and informed:
            found.append(
                f"{layer}: the hash hardly tells inputs apart ({bits:.2f} bits of entropy); "
                "--ranker centred-freehash or more --bits may"
            )
    return found


def _lines(document: dict[str, Any], promise: list[str]) -> list[Part]:
    """What a person reads: the tables, the points, and the accuracy targets."""
    sure = f"{100 * document['promise']['confidence']:g} % confidence"
    entropy = ", ".join(f"{name} {bits:.2f}" for name, bits in document["bucket_entropy_bits"].items())
    measures = ", ".join(f"{name} {k:.4g}" for name, k in document["mean_k_by_measure"].items())
    return [
        f"ranker {document['ranker']}: {document['tables']} tables of {document['buckets']} buckets; bucket entropy in "
        f"bits: {entropy}",
        f"confidence by {document['measure']}, which saves most on validation data (mean k {measures})",
        f"tables: {document['table_bytes']:,} bytes, {document['table_share']:.1%} of the network's",
        _points(document),
        timing_sentence(document["timing"]),
        "static: as many nodes, but the most popular ones for every input; agree: same class as full",
        f"×: speedup over the same compiled kernel with all nodes; PyTorch takes {document['torch_us']:.2f} µs",
        _of_rows(document),
        loss_table(f"Loss allowed, with {sure}: k chosen per input, and fixed k", document["accuracy_targets"]),
        "k as accurate: the least fixed k that reaches here what k chosen per input reached; "
        f"the ideal per input is a mean k of {document['ideal_mean_k']:.4g}",
        *promise,
    ]


def _points(document: dict[str, Any]) -> Part:
    return table(
        f"{document['examples']:,} test examples of {document['data']}, one thread, one query at a time",
        ["point", "nodes", "acc.", "vs full", "± SE", "static", "agree", "µs", "×"],
        [
            [
                r["point"],
                r["nodes"],
                f"{r['accuracy']:.4f}",
                f"{r['difference']:+.4f}",
                f"{r['standard_error']:.4f}",
                f"{r['static_accuracy']:.4f}",
                f"{r['agreement']:.4f}",
                f"{r['latency_us']:.2f}",
                f"{r['speedup']:.2f}",
            ]
            for r in document["points"]
        ],
    )


def _of_rows(document: dict[str, Any]) -> str:
    exact = "; k=full reads float32 ones" if document["weight_dtype"] == "int8" else ""
    return f"weights of a large output layer are read as {document['weight_dtype']}{exact}"
