"""Outcome table of an elastic model: its answers to labelled examples at each operating point, and their latency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.data.dataset import LabelSets
from slotool.elastic.model import ElasticModel, version_name
from slotool.errors import InputError, RunError, SlotoolError, TimedOut
from slotool.models import Classification
from slotool.models.tasks import confidence
from slotool.printable import row_name
from slotool.tables import OperatingPoint
from slotool.timing.interference import state
from slotool.timing.turns import Turns, in_turns, timing_columns

if TYPE_CHECKING:
    from slotool.tables import OutcomeTable

# Number of best labels: enough for P@5, and for a confidence among ten classes.
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
    prices: Mapping[str, float] | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> OutcomeTable:
    """Answer every example at every point (default: all), one at a time: error, confidence, median latency.

    Errors and confidences are those of the model's task. For examples with several labels, and models that leave
    classes out, the best labels are compared instead: ``metric`` p@1 is 1 if the first is right, p@5 the share of the
    five best that are, and confidence is the softmax of the best among the ``ANSWERS`` best. ``repeats``: calls per
    example. ``prices``: of one answer, by version; without one it costs its seconds. ``progress`` is called per
    example. Versions are point keys; a family's are its plain version names.

    Raises ``InputError`` if the data do not fit the model or have too few classes for the metric, and ``RunError`` if
    answers do not fit the truth.
    """
    chosen = tuple(points or model.points)
    if metric not in METRICS:
        raise InputError(f"no metric called {metric!r}; there are {', '.join(METRICS)}")
    if not len(split):
        raise InputError("there is no example to evaluate on")
    if metric != METRICS[0] and isinstance(split.y, np.ndarray):
        raise InputError(f"{metric} is for sets of several labels per example; these have one answer each")
    if model.leaves_out or (isinstance(split.y, LabelSets) and isinstance(model.task, Classification)):
        if tuple(split.x.shape[1:]) != tuple(model.input_shape):
            raise InputError(f"{model.name} takes inputs {model.input_shape}, the data set has {split.x.shape[1:]}")
        return _table(chosen, split, ask_all(model, split.x, chosen, repeats, progress), metric, provenance)
    model.check_inputs(model.inputs(split.x[:1]))
    answered = ask_versions(model, split, chosen, repeats, progress)
    return outcome_table(model, answered, split.y, prices or {}, provenance)


@dataclass(frozen=True)
class TimedAnswers:
    """Answers of every point to every example: ``labels`` int32, ``scores`` float32 [points, n, answers], best first.

    ``turns``: the timed calls, points as variants.
    """

    labels: np.ndarray
    scores: np.ndarray
    turns: Turns


def ask_all(
    model: ElasticModel,
    x: Any,
    points: Sequence[OperatingPoint],
    repeats: int,
    progress: Callable[[], None] = lambda: None,
) -> TimedAnswers:
    """Ask for each row of ``x`` [n, *input_shape], an array or CSR, at each point."""
    n, count = x.shape[0], min(ANSWERS, model.classes)
    sessions = [model.session(point, count) for point in points]
    labels = np.empty((len(points), n, count), dtype=np.int32)
    scores = np.empty((len(points), n, count), dtype=np.float32)

    def queries(block: range) -> list[list[tuple[Any, ...]]]:
        part = x[block.start : block.stop]
        return [[session.prepare(part, i) for i in range(len(block))] for session in sessions]

    def received(p: int, i: int, _: object) -> None:
        labels[p, i], scores[p, i] = sessions[p].best()

    calls = [session.run for session in sessions]
    turns = in_turns(calls, queries, n, repeats=repeats, received=received, progress=progress)
    return TimedAnswers(labels, scores, turns)


def accuracy_by_target(
    model: ElasticModel, split: Any, targets: Iterable[float], outcomes: OutcomeTable
) -> list[dict[str, float]]:
    """Return ACLO (slo-aware-neural-networks, Eq. 2): per accuracy target the cheapest point for each input.

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

    With timed calls in the table, latencies are of undisturbed calls, ``mean_of_all_s`` is of all calls, and ``timing``
    is "stable" or "disturbed". Without timed calls both are None.
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
    """Return sentences on versions whose mean latency is unreliable by itself."""
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


def precision(labels: np.ndarray, y: Any, p: int) -> np.ndarray:
    """Return the share of the ``p`` best of ``labels`` [n, ≥ p] that are right, float64 [n].

    ``y``: classes int [n] or ``LabelSets``. An example of fewer labels than ``p`` cannot have them all right, as is
    usual for P@p.
    """
    compared = labels[:, :p]
    right = compared == y[:, None] if isinstance(y, np.ndarray) else y.contain(compared) & (compared >= 0)
    return right.sum(axis=1) / p


def _table(
    points: Sequence[OperatingPoint],
    split: Any,
    answered: TimedAnswers,
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
                "error": 1.0 - precision(answered.labels[p], split.y, best),
                "confidence": confidence(answered.scores[p]),
                **timing_columns(answered.turns, p),
            }
        )
        for p, point in enumerate(points)
    ]
    return OutcomeTable(pd.concat(per_point, ignore_index=True), provenance)


@dataclass(frozen=True)
class Responses:
    """Outputs by point, of each example by name, [1, …].

    ``turns``: the timed calls, points as variants, or None. ``rows``: of the data set's file, one per example, if
    known.
    """

    outputs: Mapping[OperatingPoint, Sequence[Mapping[str, np.ndarray]]]
    turns: Turns | None = None
    rows: np.ndarray | None = None

    def joined(self, point: OperatingPoint, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return these outputs of all examples, [n, …]. Raises ``InputError`` if their shapes differ."""
        try:
            return {name: np.concatenate([output[name] for output in self.outputs[point]]) for name in names}
        except ValueError:
            raise InputError(f"{point}: outputs {', '.join(names)} have another shape for each example") from None


def ask_versions(
    model: ElasticModel,
    split: Any,
    points: Sequence[OperatingPoint],
    repeats: int,
    progress: Callable[[], None] = lambda: None,
) -> Responses:
    """Ask each version for each example of ``split``, one at a time. What a version raises names it and the example."""
    x, n, rows = split.x, len(split), getattr(split, "rows", None)
    outputs: dict[OperatingPoint, list[Mapping[str, np.ndarray]]] = {point: [{}] * n for point in points}

    def queries(block: range) -> list[list[tuple[Any, ...]]]:
        part = x[block.start : block.stop]
        examples = [part[at : at + 1] for at in range(len(block))]
        return [[(example, point, i) for example, i in zip(examples, block, strict=True)] for point in points]

    def ask(query: Any, point: OperatingPoint, i: int) -> Mapping[str, np.ndarray]:
        try:
            return model.respond(query, point)
        except SlotoolError as error:
            raise _located(error, point, i, rows) from error

    def received(p: int, i: int, response: Mapping[str, np.ndarray]) -> None:
        outputs[points[p]][i] = response

    turns = in_turns([ask] * len(points), queries, n, repeats=repeats, received=received, progress=progress)
    return Responses(outputs, turns, rows)


def outcome_table(
    model: ElasticModel,
    answered: Responses,
    truth: Any,
    prices: Mapping[str, float],
    provenance: Mapping[str, Any] | None = None,
    columns: Mapping[str, np.ndarray] | None = None,
) -> OutcomeTable:
    """Return the outcome table of responses to examples whose answers should be ``truth``.

    ``columns``: further columns, by example.
    """
    import pandas as pd

    from slotool.tables import OutcomeTable

    truth = true_answers(model, truth)
    parts = []
    for p, point in enumerate(answered.outputs):
        name = version_name(point)
        each = answered.outputs[point]
        errors, sure = np.empty(len(each)), np.empty(len(each))
        # Overflow shows in the confidence.
        with np.errstate(invalid="ignore", over="ignore"):
            for i, outputs in enumerate(each):
                try:
                    errors[i] = model.errors(outputs, truth[i : i + 1])[0]
                    confidences = model.confidences_of(outputs)
                    # Without a confidence an answer is certain, so that no other version is called.
                    sure[i] = 1.0 if confidences is None else float(confidences[0])
                except (InputError, IndexError) as error:
                    # The examples are right, or they could not have been asked: the answer is wrong.
                    raise _located(RunError(str(error)), point, i, answered.rows) from error
        if not np.isfinite(sure).all():
            at = int((~np.isfinite(sure)).argmax())
            wrong = RunError(f"its confidence is {sure[at]}, which is no number")
            raise _located(wrong, point, at, answered.rows)
        part = {"example": [str(i) for i in range(len(each))], "version": name, "error": errors, "confidence": sure}
        cost = {"cost": prices[name]} if name in prices else {}
        assert answered.turns is not None
        parts.append(pd.DataFrame({**part, **timing_columns(answered.turns, p), **cost, **(columns or {})}))
    return OutcomeTable(pd.concat(parts, ignore_index=True), provenance)


def true_answers(model: ElasticModel, y: Any) -> np.ndarray:
    """Return a split's truth in the form of the family's task: sets of labels become bool [n, labels]."""
    return y.matrix(model.classes) if isinstance(y, LabelSets) else np.asarray(y)


def _located(error: SlotoolError, point: OperatingPoint, example: int, rows: np.ndarray | None) -> SlotoolError:
    """Return ``error`` naming the version, and the row or example, counted from 1, that it is of."""
    kind = next(kind for kind in (RunError, TimedOut, InputError, SlotoolError) if isinstance(error, kind))
    where = f"example {example + 1}" if rows is None else row_name(rows[example])
    return kind(f"version {version_name(point)}, {where} of the data: {error}")
