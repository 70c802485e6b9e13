"""``slotool.evaluate``: the outcome table of an elastic model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.display import Part, duration, table
from slotool.commands.elastic.evaluate_colocated import evaluate_colocated
from slotool.commands.elastic.evaluate_endpoints import evaluate_endpoints
from slotool.commands.elastic.evaluate_sweeps import SweepOptions, SweepReport, sweeps
from slotool.commands.inputs import FilePath, cores_given, paths_of, torch_threads
from slotool.commands.outputs import writes
from slotool.commands.progress import Reporting, reporter_of
from slotool.commands.result import Result
from slotool.commands.values import at_least, between
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.elastic import ElasticModel
    from slotool.tables import OutcomeTable

TARGETS = (0.8, 0.9, 0.95, 0.97, 0.99)
ALLOWED_LOSS = 0.002


@command_line(
    arguments=("artifact",),
    required=("out",),
    modes={"co_runners": evaluate_colocated, "endpoints": evaluate_endpoints},
    panels={"For an SLO-NN": ("targets", "compare", "plots", "allowed_loss", "confidence")},
)
@writes("out", folders=("plots",))
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
    compare: FilePath | Sequence[FilePath] = (),
    plots: FilePath | None = None,
    allowed_loss: Annotated[float, between(0, 1)] | None = None,
    confidence: float | None = None,
    force: bool = False,
    progress: Reporting = "auto",
) -> Evaluation:
    """Write the outcome table: held-out examples × points.

    Example: slotool evaluate slo-nn -o outcomes.parquet

    Args:
        artifact: A network, family, SLO-NN or supernet; none with ``endpoints``.
        out: File for the outcome table.
        data: Data set; None: what it was trained on.
        split: test or validation; of services also all; None: test; all.
        repeats: Timed calls per example and point.
        limit: Only the first so many examples.
        metric: 1 minus the error: p@1 or p@5. The latter is of several labels.
        threads: Compute threads.
        device: cpu, cuda or cuda:N.
        targets: Accuracy targets; None: 0.8,0.9,0.95,0.97,0.99.
        compare: Another SLO-NN of the same data; repeatable.
        plots: Folder for plots (PNG).
        allowed_loss: Show the k that loses no more accuracy; None: 0.002.
        confidence: Confidence of that promise; None: as given to ``build_tables``.
        force: Replace ``out`` if it exists.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

    Returns:
        ``outcomes``, the table; ``frame()`` has a row per point.

    Raises:
        ArgumentError: An argument has a value that it cannot have, or that this model would ignore.
        ArtifactError: ``artifact`` is damaged or no such model.
        DataError: The data set cannot be read, or does not fit the model.
        AlreadyExistsError: ``out`` exists.
    """
    if artifact is None:
        raise ArgumentError("artifact", "name an artifact, or live services with --endpoint")
    split = split or "test"
    from slotool.artifacts import open_artifact
    from slotool.elastic import load_model
    from slotool.elastic.evaluation import identities
    from slotool.elastic.slo_nn.last_layer.model import seen_by_tables, tabled
    from slotool.machine import machine_id

    if confidence is not None and not 0 < confidence < 1:
        raise ArgumentError("confidence", "must lie between 0 and 1, both excluded")
    if split not in ("test", "validation"):
        raise ArgumentError("split", f"{split!r} is neither test nor validation")
    opened = open_artifact(artifact)
    with torch_threads(cores_given(threads)):
        model = load_model(opened)
        own = {"allowed_loss": allowed_loss, "confidence": confidence, "targets": targets}
        _require_effect(model, metric, own)
        options = SweepOptions(
            TARGETS if targets is None else targets,
            metric,
            tuple(paths_of(compare)),
            None if plots is None else Path(plots),
            ALLOWED_LOSS if allowed_loss is None else allowed_loss,
            confidence,
        )
        on_device, others = model.on(device), options.load(tabled(model) or model)
        name, examples = held_out(model, data or opened.manifest["config"].get("data", "auto"), split, limit)
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
            outcomes = measured(on_device, examples, metric, repeats, provenance, steps.advance)
        if out is not None:
            outcomes.save(Path(out))
        found = sweeps(tabled(model) or model, others, seen_by_tables(model, examples), outcomes, options)
    return Evaluation(outcomes, provenance, found, len(examples), None if out is None else Path(out))


def measured(
    model: ElasticModel,
    examples: Any,
    metric: str,
    repeats: int,
    provenance: dict[str, Any],
    advance: Callable[[], None],
) -> OutcomeTable:
    """The outcome table of ``model``; the error of a family of models of one's own is that of its task."""
    from slotool.elastic.evaluation import METRICS, evaluate
    from slotool.elastic.family_evaluation import evaluate_family
    from slotool.elastic.model_family import ModelFamily

    if not isinstance(model, ModelFamily):
        return evaluate(model, examples, repeats=repeats, metric=metric, provenance=provenance, progress=advance)
    if metric != METRICS[0]:
        raise ArgumentError("metric", f"has no effect on {model.name}, whose errors are those of {model.task.name}")
    return evaluate_family(model, examples, repeats=repeats, provenance=provenance, progress=advance)


def _require_effect(model: ElasticModel, metric: str, own: dict[str, Any]) -> None:
    """Refuses what this model or metric would ignore."""
    from slotool.elastic.evaluation import METRICS
    from slotool.elastic.slo_nn.last_layer.model import tabled

    if tabled(model) is not None and metric == METRICS[0]:
        return
    for argument, value in own.items():
        if value is not None:
            problem = f"has an effect only on an SLO-NN with --metric {METRICS[0]}; this is {model.name}, {metric}"
            raise ArgumentError(argument, problem)


def held_out(model: ElasticModel, data: Any, split: str, limit: int | None) -> tuple[str, Any]:
    """The name of a data set, of one class or several labels per example, and its first examples of ``split``."""
    import numpy as np

    from slotool.elastic.queries import dataset_of

    dataset = dataset_of(model, data)
    chosen = getattr(dataset, split)
    return dataset.name, chosen if limit is None else chosen.take(np.arange(min(limit, len(chosen))))


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation(Result):
    """``outcomes`` of so many ``examples``, and what was run on what (``provenance``); ``sweep``: what a model that
    chooses per input adds; ``out``: the file written, if any."""

    outcomes: OutcomeTable
    provenance: dict[str, Any]
    sweep: SweepReport
    examples: int
    out: Path | None = None

    schema = "evaluate"
    rows_key = "points"

    def findings(self) -> dict[str, Any]:
        from slotool.elastic.evaluation import summary

        return {
            **self.provenance,
            "examples": self.examples,
            "outcomes": None if self.out is None else str(self.out),
            "points": summary(self.outcomes),
            **self.sweep.document,
        }

    @property
    def warnings(self) -> list[str]:
        from slotool.elastic.evaluation import timing_warnings

        return timing_warnings(self.outcomes)

    def shown(self) -> list[Part]:
        from slotool.elastic.evaluation import summary

        of = self.provenance
        what = {"p@1": "accuracy"}.get(of["metric"], of["metric"])
        cells = [
            [
                row["version"],
                f"{row['accuracy']:.4f}",
                f"{row['standard_error']:.4f}",
                f"{row['confidence']:.3f}",
                duration(row["median_latency_s"]),
                duration(row["mean_latency_s"]),
                row["timing"],
            ]
            for row in summary(self.outcomes)
        ]
        title = f"{of['subject']} on {self.examples:,} {of['split']} examples of {of['data']}"
        points = table(title, ["point", what, "± SE", "confidence", "median latency", "mean latency", "timing"], cells)
        written = [] if self.out is None else [f"wrote {self.out}"]
        return [points, *self.sweep.human, *written]
