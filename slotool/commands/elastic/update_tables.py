"""``slotool.update_tables``: let a network's tables follow the inputs it is served now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.display import Part, table
from slotool.commands.inputs import FilePath
from slotool.commands.outputs import writes
from slotool.commands.progress import Reporter, Reporting, reporter_of
from slotool.commands.result import Result
from slotool.commands.values import at_least
from slotool.errors import InputError

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.elastic.slo_nn.last_layer.model import LastLayerSloNN
    from slotool.elastic.slo_nn.model import SloNN
    from slotool.elastic.slo_nn.updates import TableUpdates

# Inputs that are taken in at once.
BATCH = 256


@command_line(required=("out",))
@writes(folders=("out",))
def update_tables(
    artifact: FilePath,
    data: str | DataSource,
    out: FilePath | None = None,
    *,
    half_life: Annotated[int, at_least(1)] = 4_096,
    force: bool = False,
    progress: Reporting = "auto",
) -> TablesUpdated:
    """Update an SLO-NN's tables for the inputs served now.

    Weights, rankers and table size stay. The training split, in its order, stands for served inputs and moves the
    ranked lists. Confidence, calibration and promises are counted on the validation split. Accuracy before and after is
    of the test split.

    Example: slotool update-tables slo-nn --data digits -o slo-nn-now

    Args:
        artifact: An SLO-NN, as ``build_tables`` writes it.
        data: Data set of what is served now.
        out: Artifact to write.
        half_life: After so many inputs an input counts half as much.
        force: Replace ``out`` if it exists.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

    Returns:
        ``model``, the SLO-NN with its new tables; ``frame()`` has the accuracy of each point before and after.

    Raises:
        InputError: The data set has other inputs or classes than the SLO-NN, or the half-life is too short.
        DataError: The data set cannot be read.
        ArtifactError: ``artifact`` is no SLO-NN.
        AlreadyExistsError: ``out`` exists.
    """
    from slotool.artifacts import open_artifact
    from slotool.artifacts.bundle import refuse_existing
    from slotool.elastic.loading import load_model
    from slotool.elastic.queries import dataset_of
    from slotool.elastic.slo_nn.last_layer.model import KIND as LAST_LAYER
    from slotool.elastic.slo_nn.last_layer.model import LastLayerSloNN, seen_by_tables, tabled
    from slotool.elastic.slo_nn.model import KIND
    from slotool.elastic.slo_nn.updates import TableUpdates

    written = None if out is None else Path(out)
    if written is not None:
        refuse_existing(written, force)
    opened = open_artifact(artifact, (KIND, LAST_LAYER))
    model: Any = load_model(opened)
    dataset: Any = dataset_of(model, data)
    if dataset.input_shape != model.input_shape or dataset.classes != model.classes:
        raise InputError(
            f"{model.name} takes inputs {model.input_shape} and knows {model.classes} classes, but {dataset.name} has "
            f"{dataset.input_shape} and {dataset.classes}"
        )
    head = tabled(model)
    assert head is not None  # by the kind of the artifact
    updates = TableUpdates(head, half_life)
    _follow(updates, dataset, partial(seen_by_tables, model), reporter_of(progress))
    new_head = updates.updated()
    now = model.with_head(new_head) if isinstance(model, LastLayerSloNN) else new_head
    if written is not None:
        config = {**opened.manifest["config"], "data": getattr(dataset, "source", dataset.name), "half_life": half_life}
        now.save(written, config=config, seed=opened.manifest.get("seed") or 0, parents=(opened,), force=force)
    rows = _accuracies(head, new_head, seen_by_tables(model, dataset.test))
    return TablesUpdated(now, rows, dataset, promised_by(new_head), written)


def promised_by(model: SloNN) -> int:
    """Validation examples that the promises are counted on."""
    evidence = model.calibration.evidence_by_point
    return evidence.examples if evidence else 0


def _follow(updates: TableUpdates, dataset: Any, seen: Callable[[Any], Any], reporter: Reporter) -> None:
    ranked, counted = (range(0, len(split), BATCH) for split in (dataset.train, dataset.validation))
    with reporter.progress(f"following {dataset.name}", total=len(ranked) + len(counted)) as steps:
        for start in ranked:
            updates.rank(seen(_batch(dataset.train, start)).x)
            steps.advance()
        for start in counted:
            part = seen(_batch(dataset.validation, start))
            updates.count(part.x, part.y)
            steps.advance()


def _batch(split: Any, start: int) -> Any:
    import numpy as np

    return split.take(np.arange(start, min(start + BATCH, len(split))))


def _accuracies(model: SloNN, now: SloNN, test: Any) -> list[dict[str, Any]]:
    """By point of both models, the accuracy on the test split."""
    from slotool.elastic.slo_nn.assessment import PointPredictions

    before, after = (PointPredictions.of(m, test).correct.mean(axis=0).tolist() for m in (model, now))
    return [
        {"point": point.key, "before": was, "after": is_now}
        for point, was, is_now in zip(model.points, before, after, strict=True)
    ]


@dataclass(frozen=True, repr=False, eq=False)
class TablesUpdated(Result):
    """``model``: the SLO-NN with its new tables. ``rows``: by point, accuracy on the test split before and after.
    ``data``: the data set. ``promised_by``: validation examples that the promises are counted on. ``out``: the
    artifact, if written."""

    model: SloNN | LastLayerSloNN
    rows: list[dict[str, Any]]
    data: Any
    promised_by: int
    out: Path | None = None

    schema = "update-tables"
    rows_key = "points"

    def findings(self) -> dict[str, Any]:
        return {
            "artifact": None if self.out is None else str(self.out),
            "data": self.data.name,
            "examples": len(self.data.test),
            "observed": len(self.data.train),
            "promised_by": self.promised_by,
            "points": self.rows,
        }

    def shown(self) -> list[Part]:
        title = (
            f"{self.model.name} after {len(self.data.train):,} inputs: accuracy on {len(self.data.test):,} test "
            f"examples of {self.data.name}"
        )
        cells = [[row["point"], f"{row['before']:.4f}", f"{row['after']:.4f}"] for row in self.rows]
        promised = f"promises are counted on {self.promised_by:,} validation examples, none of which moved a list"
        written = [] if self.out is None else [f"wrote {self.out}"]
        return [table(title, ["point", "before", "after"], cells), promised, *written]
