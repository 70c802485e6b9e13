"""``slotool.evaluate``: the outcome table of an elastic model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.display import Column, Part, records_table
from slotool.commands.elastic.evaluate_endpoints import evaluate_endpoints
from slotool.commands.elastic.tables_built import loss_table
from slotool.commands.outputs import writes
from slotool.commands.result import Result, output, result, unlisted
from slotool.commands.values import at_least, between, inside
from slotool.errors import ArgumentError
from slotool.machine import cores_given
from slotool.printable import duration
from slotool.process import using_torch_threads
from slotool.progress import Reporting, reporter_of
from slotool.sources import FilePath

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.elastic import ElasticModel
    from slotool.elastic.slo_nn.model import SloNN
    from slotool.tables import OutcomeTable

TARGETS = (0.8, 0.9, 0.95, 0.97, 0.99)
ALLOWED_LOSS = 0.002


@command_line(
    arguments=("artifact",),
    required=("out",),
    modes={"endpoints": evaluate_endpoints},
    panels={"For an SLO-NN": ("targets", "allowed_loss", "confidence")},
)
@writes("out")
def evaluate(
    artifact: FilePath | None = None,
    out: FilePath | None = None,
    *,
    data: str | DataSource | None = None,
    split: str | None = None,
    repeats: Annotated[int, at_least(1)] = 3,
    limit: Annotated[int, at_least(1)] | None = None,
    metric: str = "p@1",
    threads: Annotated[int, at_least(1)] = 1,
    device: str = "cpu",
    targets: Sequence[float] | None = None,
    allowed_loss: Annotated[float, between(0, 1)] | None = None,
    confidence: Annotated[float, inside(0, 1)] | None = None,
    force: bool = False,
    progress: Reporting = "auto",
) -> Evaluation:
    """Write the outcome table: held-out examples × points.

    Example: slotool evaluate slo-nn -o outcomes.parquet

    Args:
        artifact: A network, family, SLO-NN or supernet; none with ``endpoints``.
        out: File for the outcome table.
        data: Data set; None: that of its training.
        split: test or validation; for services and data other than that of its training also all; None: test, for
            services all.
        repeats: Timed calls per example and point.
        limit: Use only this many examples, the first ones.
        metric: 1 minus the error: p@1, or p@5 for several labels.
        threads: Compute threads.
        device: cpu, cuda or cuda:N.
        targets: Accuracy targets; None: 0.8,0.9,0.95,0.97,0.99.
        allowed_loss: Show the k that loses no more accuracy; None: 0.002.
        confidence: Confidence of that promise; None: that of ``build_tables``.

    Returns:
        ``outcomes``, the table; ``frame()`` has a row per point.

    Raises:
        ArgumentError: An argument has a value that it cannot have, or that this model would ignore.
        ArtifactError: ``artifact`` is damaged or no such model.
        DataError: The data set cannot be read, or does not fit the model.
    """
    if artifact is None:
        raise ArgumentError("artifact", "name an artifact, or live services as endpoints")
    split = split or "test"
    from slotool.artifacts import open_artifact
    from slotool.data.dataset import ALL, first_examples
    from slotool.elastic import load_model
    from slotool.elastic.evaluation import METRICS
    from slotool.elastic.evaluation import evaluate as outcome_table
    from slotool.elastic.model import identities
    from slotool.elastic.queries import dataset_of
    from slotool.elastic.slo_nn.last_layer.model import seen_by_tables, tabled
    from slotool.elastic.slo_nn.model import SloNN
    from slotool.machine import machine_id

    if split not in ("test", "validation", ALL):
        raise ArgumentError("split", f"{split!r} is neither test, validation nor all")
    opened = open_artifact(artifact)
    training_data = opened.manifest["config"].get("data", "auto")
    with using_torch_threads(cores_given(threads)):
        model = load_model(opened)
        of_slo_nn = {"allowed_loss": allowed_loss, "confidence": confidence, "targets": targets}
        _require_effect(model, metric, of_slo_nn)
        on_device, chooses = model.on(device), tabled(model) or model
        dataset = dataset_of(model, data or training_data)
        if split == ALL and training_data in (dataset.source, dataset.name):
            raise ArgumentError("split", f"{dataset.name} includes what {model.name} was made with: test is held out")
        name, examples = dataset.name, first_examples(dataset.examples(split), limit)
        provenance: dict[str, Any] = {
            "subject": model.name,
            "kind": opened.kind,
            "artifact_id": opened.id,
            "models": identities(model),
            "data": name,
            "split": split,
            "metric": metric,
            "threads": threads,
            "device": on_device.device,
            "machine": machine_id(),
        }
        with reporter_of(progress).progress(f"evaluating {model.name} on {name}", total=len(examples)) as steps:
            outcomes = outcome_table(
                on_device, examples, repeats=repeats, metric=metric, provenance=provenance, progress=steps.advance
            )
        if out is not None:
            outcomes.save(Path(out))
        sweep = SweepReport({"accuracy_targets": []})
        # Targets are calibrated for the first metric only.
        if metric == METRICS[0]:
            accuracy_targets, loss = targets or TARGETS, ALLOWED_LOSS if allowed_loss is None else allowed_loss
            if isinstance(chooses, SloNN) and confidence is not None:
                chooses = chooses.stating(confidence)
            sweep = _sweeps(chooses, seen_by_tables(model, examples), outcomes, accuracy_targets, loss)
    return Evaluation(outcomes, provenance, sweep, len(examples), None if out is None else Path(out))


def _require_effect(model: ElasticModel, metric: str, arguments: dict[str, Any]) -> None:
    """Raise ``ArgumentError`` for an argument that this model or metric would ignore."""
    from slotool.elastic.evaluation import METRICS
    from slotool.elastic.slo_nn.last_layer.model import tabled
    from slotool.models import Classification

    if metric != METRICS[0] and not isinstance(model.task, Classification):
        raise ArgumentError("metric", f"has no effect on {model.name}, whose errors are those of its task")
    if tabled(model) is not None and metric == METRICS[0]:
        return
    for argument, value in arguments.items():
        if value is not None:
            problem = f"has an effect only on an SLO-NN with the metric {METRICS[0]}; this is {model.name}, {metric}"
            raise ArgumentError(argument, problem)


@dataclass(frozen=True)
class SweepReport:
    """Parts of the document and of the text for models that choose a point per input."""

    document: dict[str, Any] = field(default_factory=dict)
    human: Sequence[Part] = ()


@result
class Evaluation(Result):
    """Table ``outcomes`` of ``examples`` (a number), its ``provenance``, and the ``sweep`` of an SLO-NN."""

    outcomes: OutcomeTable = unlisted()
    provenance: dict[str, Any] = unlisted()
    sweep: SweepReport = unlisted()
    examples: int
    out: Path | None = output("outcomes")

    schema = "evaluate"
    rows_key = "points"

    def findings(self) -> dict[str, Any]:
        return {**self.provenance, **super().findings(), **self.sweep.document}

    def records(self) -> list[dict[str, Any]]:
        from slotool.elastic.evaluation import summary

        return summary(self.outcomes)

    @property
    def warnings(self) -> list[str]:
        from slotool.elastic.evaluation import timing_warnings

        return timing_warnings(self.outcomes)

    def shown(self) -> list[Part]:
        provenance = self.provenance
        columns = (
            Column("version", "point"),
            Column("accuracy", {"p@1": "accuracy"}.get(provenance["metric"], provenance["metric"]), ".4f"),
            Column("standard_error", "± SE", ".4f"),
            Column("confidence", form=".3f"),
            Column("median_latency_s", "median latency", duration),
            Column("mean_latency_s", "mean latency", duration),
            Column("timing"),
        )
        title = f"{provenance['subject']} on {self.examples:,} {provenance['split']} examples of {provenance['data']}"
        return [records_table(title, self.records(), columns), *self.sweep.human]


def _sweeps(
    model: ElasticModel,
    examples: Any,
    outcomes: OutcomeTable,
    targets: Sequence[float],
    allowed_loss: float,
) -> SweepReport:
    """Return accuracy targets of a model that chooses per input; of an SLO-NN also sweeps of allowed losses."""
    from slotool.elastic.evaluation import accuracy_by_target
    from slotool.elastic.slo_nn.assessment import sweep_document
    from slotool.elastic.slo_nn.model import SloNN
    from slotool.elastic.slo_nn.promises import Promise

    by_target = accuracy_by_target(model, examples, targets, outcomes)
    if not by_target or not isinstance(model, SloNN):
        return SweepReport({"accuracy_targets": by_target})
    promise = Promise.of(model, allowed_loss)
    swept = sweep_document(model, examples.x, outcomes)
    document: dict[str, Any] = {"accuracy_targets": by_target, "sweeps": [swept], "promise": asdict(promise)}
    sure = f"{100 * model.calibration.stated:g} % confidence"
    human = [
        _targets_table(model, by_target),
        loss_table(
            f"{model.name}, {model.ranker}: k for an accuracy allowed to be lost, promised with {sure}",
            # Targets have their own table.
            [{name: row[name] for name in row if name != "target"} for row in swept["losses"]],
        ),
        f"{model.name}: if each input's need were known, a mean k of {swept['ideal_mean_k']:.4g} would lose nothing; "
        f"confidence is by {model.measure}",
        *promise.sentences,
    ]
    return SweepReport(document, human)


_TARGETS = (
    Column("target", form=".3f"),
    Column("met_share", "share it can be met for", ".3f"),
    Column("accuracy", "accuracy reached", ".4f"),
    Column("latency_s", "mean latency", duration),
    Column("remark", ""),
)


def _targets_table(model: SloNN, by_target: Sequence[dict[str, Any]]) -> Part:
    best = float(model.calibration.by_point[-1])
    unmet = f"cannot be met: the full network has {best:.4f}"
    rows = [{**row, "remark": unmet if row["target"] > best else ""} for row in by_target]
    title = "Accuracy-constrained, latency-optimised: the cheapest point each input needs"
    return records_table(title, rows, _TARGETS)
