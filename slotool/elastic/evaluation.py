"""What an elastic model answers at each operating point, and how long each answer takes: its outcome table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.elastic.model import ElasticModel
from slotool.errors import InputError
from slotool.models.tasks import confidence
from slotool.tables import OperatingPoint
from slotool.timing.interference import state
from slotool.timing.turns import Turns, in_turns, timing_columns

if TYPE_CHECKING:
    from slotool.tables import OutcomeTable

# So many best labels are asked for: enough for P@5, and for a confidence among ten classes.
ANSWERS = 10
# A mean of so many medians is worth a warning where nothing is known of disturbances.
SKEWED = 3.0
# Metrics of an answer; the first is the accuracy of a set of one class per example.
METRICS = ("p@1", "p@5")


def evaluate(
    model: ElasticModel,
    split: Any,
    *,
    points: Sequence[OperatingPoint] | None = None,
    repeats: int = 3,
    metric: str = METRICS[0],
    provenance: Mapping[str, Any] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> OutcomeTable:
    """Every example at every point (default: all), one at a time: error, confidence, median latency of ``repeats``.

    ``split``: a ``Split``, or a ``MultiLabelSplit`` for a model that was trained on many labels. ``metric``: what the
    error is the rest of. p@1: whether the first answer is right; p@5: the share of the five best that are.
    Confidence is the softmax of the best answer among the ``ANSWERS`` best, so of up to ten classes among all.
    ``progress`` is called per example. Versions are point keys; a family's are its plain version names.
    Raises ``InputError`` when the data do not have the model's input shape or too few classes for the metric.
    """
    chosen = tuple(points or model.points)
    _check(model, split, metric)
    taken = ask_all(model, split.x, chosen, repeats, progress)
    return _table(chosen, split, taken, metric, provenance)


@dataclass(frozen=True)
class Taken:
    """Answers of every point to every example: ``labels`` int32 and ``scores`` float32 [points, n, answers], best
    first; ``turns``: the timed calls, points as variants."""

    labels: np.ndarray
    scores: np.ndarray
    turns: Turns


def ask_all(
    model: ElasticModel,
    x: Any,
    points: Sequence[OperatingPoint],
    repeats: int,
    progress: Callable[[], None] = lambda: None,
) -> Taken:
    """Ask for each row of ``x`` [n, *input_shape], an array or CSR, at each point."""
    n, wanted = x.shape[0], min(ANSWERS, model.classes)
    sessions = [model.session(point, wanted) for point in points]
    labels = np.empty((len(points), n, wanted), dtype=np.int32)
    scores = np.empty((len(points), n, wanted), dtype=np.float32)

    def queries(block: range) -> list[list[tuple[Any, ...]]]:
        part = x[block.start : block.stop]
        return [[session.prepare(part, i) for i in range(len(block))] for session in sessions]

    def received(p: int, i: int, _: object) -> None:
        labels[p, i], scores[p, i] = sessions[p].best()

    calls = [session.run for session in sessions]
    turns = in_turns(calls, queries, n, repeats=repeats, received=received, progress=progress)
    return Taken(labels, scores, turns)


def version_name(point: OperatingPoint) -> str:
    """What outcome tables call a point: a family's plain version name, else the point's key."""
    name = point.get("version")
    return point.key if name is None else str(name)


def identities(model: ElasticModel) -> dict[str, str]:
    """Return ``ElasticModel.identity_of`` by version, of those that have one."""
    found = {version_name(point): model.identity_of(point) for point in model.points}
    return {version: identity for version, identity in found.items() if identity}


def accuracy_by_target(
    model: ElasticModel, split: Any, targets: Iterable[float], outcomes: OutcomeTable
) -> list[dict[str, float]]:
    """ACLO (slo-aware-neural-networks, Eq. 2): per accuracy target the cheapest point for each input.

    Returns per target: the share of inputs it could be met for, the accuracy reached (inputs that cannot meet it are
    answered in full), and mean latency in seconds; errors and latencies are those of ``outcomes``, which ``evaluate``
    made of the same model and split. Empty when the model cannot tell inputs apart.
    """
    column = [outcomes.versions.index(version_name(point)) for point in model.points]
    error, latency_s = (outcomes.matrix(name)[:, column] for name in ("error", "latency_s"))
    rows, every = [], np.arange(len(split))
    for target in targets:
        at = model.cheapest(split.x, target)
        if at is None:
            return []
        met = at >= 0
        rows.append(
            {
                "target": target,
                "met_share": float(met.mean()),
                "accuracy": 1.0 - float(error[every, at].mean()),
                "latency_s": float(latency_s[every, at].mean()),
            }
        )
    return rows


def summary(outcomes: OutcomeTable) -> list[dict[str, Any]]:
    """Per version: accuracy and its standard error, mean confidence, median and mean latency in seconds.

    Of a table with timed calls the latencies are those of undisturbed calls, ``mean_of_all_s`` is that of all, and
    ``timing`` says "stable" or "disturbed"; of another table both are None.
    """
    error, sure, latency_s = (outcomes.matrix(column) for column in ("error", "confidence", "latency_s"))
    turns = Turns.of_outcomes(outcomes)
    return [
        {
            "version": version,
            "accuracy": 1.0 - float(error[:, i].mean()),
            "standard_error": float(error[:, i].std() / np.sqrt(len(error))),
            "confidence": float(sure[:, i].mean()),
            "median_latency_s": float(np.median(latency_s[:, i]) if turns is None else turns.medians_s[i]),
            "mean_latency_s": float(latency_s[:, i].mean() if turns is None else turns.means_s[i]),
            "mean_of_all_s": None if turns is None else float(turns.samples_s[i].mean()),
            "timing": None if turns is None else state(bool(turns.stable[i])),
        }
        for i, version in enumerate(outcomes.versions)
    ]


def timing_warnings(outcomes: OutcomeTable) -> list[str]:
    """Sentences on versions whose mean latency is not to be trusted by itself."""
    turns, latency_s = Turns.of_outcomes(outcomes), outcomes.matrix("latency_s")
    if turns is not None:
        return [
            f"{outcomes.versions[at]}: other processes disturbed calls, whose mean is {1e6 * of_all:,.0f} µs; counted "
            f"are undisturbed calls, {1e6 * mean:,.0f} µs"
            for at, (mean, of_all) in turns.disagreements.items()
        ]
    medians, means = np.median(latency_s, axis=0), latency_s.mean(axis=0)
    return [
        f"{version}: the mean of its latencies, {1e6 * mean:,.0f} µs, is {mean / median:.1f} × their median; savings "
        "rest on the mean, and the table does not say which calls other processes disturbed"
        for version, median, mean in zip(outcomes.versions, medians, means, strict=True)
        if mean > SKEWED * median > 0
    ]


def _check(model: ElasticModel, split: Any, metric: str) -> None:
    if metric not in METRICS:
        raise InputError(f"no metric called {metric!r}; there are {', '.join(METRICS)}")
    if tuple(split.x.shape[1:]) != tuple(model.input_shape):
        raise InputError(f"{model.name} takes inputs {model.input_shape}, the data set has {split.x.shape[1:]}")
    if not len(split):
        raise InputError("there is no example to evaluate on")
    if metric == METRICS[1] and isinstance(split.y, np.ndarray):
        raise InputError("p@5 is for sets of several labels per example; this one has one class each")


def precision(labels: np.ndarray, y: Any, p: int) -> np.ndarray:
    """float64 [n]: the share of the ``p`` best of ``labels`` [n, ≥ p] that are right, for classes int [n] or
    ``LabelSets``. An example of fewer labels than ``p`` cannot have them all right, as is usual for P@p."""
    asked = labels[:, :p]
    right = asked == y[:, None] if isinstance(y, np.ndarray) else y.contain(asked) & (asked >= 0)
    scores: np.ndarray = right.sum(axis=1) / p
    return scores


def _table(
    points: Sequence[OperatingPoint],
    split: Any,
    taken: Taken,
    metric: str,
    provenance: Mapping[str, Any] | None,
) -> OutcomeTable:
    import pandas as pd

    from slotool.tables import OutcomeTable

    examples, best = [str(i) for i in range(len(split))], int(metric.removeprefix("p@"))
    per_point = [
        pd.DataFrame(
            {
                "example": examples,
                "version": version_name(point),
                "error": 1.0 - precision(taken.labels[p], split.y, best),
                "confidence": confidence(taken.scores[p]),
                **timing_columns(taken.turns, p),
            }
        )
        for p, point in enumerate(points)
    ]
    return OutcomeTable(pd.concat(per_point, ignore_index=True), provenance)
