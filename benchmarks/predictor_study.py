"""A study: every predictor under every protocol, scored on the same held-out networks, with the noise floor."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from slotool.errors import GraphError, InputError, RunError
from slotool.graphs import Operator, OperatorGraph
from slotool.journal import Journal
from slotool.predictors.base import Predictor
from slotool.predictors.labels import LabelledSet
from slotool.predictors.scoring import PREDICTIONS_SCHEMA, PredictionsTable, Score
from slotool.predictors.splits import DEV_SHARE, DEV_SHARE_OTHER, MIN_DEV_ROWS, RowSplit, paper_split
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.tables import Column, Schema, Table

RANDOM = "random"

STUDY_SCHEMA = Schema(
    "study",
    1,
    (
        Column("protocol", "text", "how networks were held out: random, depth, width or family"),
        Column("split", "text", "which networks: a kind, all, or the kind that was unseen"),
        Column("seed", "integer", "of the split and the training"),
        Column("labels", "integer", "measured networks learnt from, training and dev set together"),
        Column("predictor", "text", "its name"),
        *PREDICTIONS_SCHEMA.columns,
    ),
)
# What scores are averaged over seeds of.
GROUP = ("protocol", "split", "labels", "predictor")


def split_known(
    labelled: np.ndarray, test: np.ndarray, dev_share: float, seed: int, what: str = "labelled graphs"
) -> RowSplit:
    """Split the ``labelled`` rows into training and dev set, ``dev_share`` of them dev, for a given test set.

    Raises ``InputError`` when the rows are too few, or the test set is empty.
    """
    rows = np.random.default_rng(seed).permutation(labelled)
    dev = max(MIN_DEV_ROWS, round(dev_share * len(rows)))
    if len(rows) < 2 * dev or not len(test):
        raise InputError(f"too few {what} to learn from: {len(rows)}, of which {dev} would be the dev set")
    return RowSplit(np.sort(rows[dev:]), np.sort(rows[:dev]), test)


@dataclass(frozen=True)
class StudyTask:
    """One split, for every predictor to learn from."""

    protocol: str
    split: str
    seed: int
    rows: RowSplit

    @property
    def labels(self) -> int:
        return len(self.rows.train) + len(self.rows.dev)

    def columns(self) -> dict[str, Any]:
        return {"protocol": self.protocol, "split": self.split, "seed": self.seed, "labels": self.labels}


class StudyTable(Table):
    """Rows of ``STUDY_SCHEMA``: held-out networks, measured and predicted, of each trial."""

    schema = STUDY_SCHEMA

    def groups(self) -> Iterator[tuple[dict[str, Any], list[PredictionsTable]]]:
        """Per ``GROUP``, in the order met: its columns, and the held-out predictions of each seed."""
        for key, rows in self.rows.groupby(list(GROUP), sort=False):
            columns: tuple[Any, ...] = key if isinstance(key, tuple) else (key,)
            tables = [PredictionsTable(of_seed) for _, of_seed in rows.groupby("seed")]
            yield dict(zip(GROUP, columns, strict=True)), tables

    def scores(self) -> list[dict[str, Any]]:
        """Per ``GROUP``: the mean of the seeds' scores, ``by_kind`` as well, and ``deviation`` over seeds of MAPE and
        MAE over mean.
        """
        rows = []
        for columns, tables in self.groups():
            scores = [table.scores() for table in tables]
            rows.append(
                {
                    **columns,
                    "seeds": len(tables),
                    **mean_score(scores),
                    "deviation": {
                        figure: float(np.std([score[figure] for score in scores]))
                        for figure in ("mape", "mae_over_mean")
                    },
                    "by_kind": _mean_by_kind([table.scores_by_kind() for table in tables]),
                }
            )
        return rows


@dataclass(frozen=True)
class Study:
    """``refused``: trials of a predictor that cannot take such networks, with the reason. ``train_s``: seconds that
    training took, by predictor and number of labels.
    """

    labelled: LabelledSet[OperatorGraph]
    table: StudyTable
    refused: Sequence[Mapping[str, Any]]
    train_s: Mapping[str, Mapping[int, float]]


def plan_tasks(
    labelled: LabelledSet[OperatorGraph],
    protocols: Sequence[str],
    seeds: Sequence[int],
    curve: Sequence[int | None] = (),
) -> list[StudyTask]:
    """Every split of every protocol for each seed; and ``curve``, numbers of networks (None: all there are) to learn
    from in the random split of all kinds, the test set staying the same.

    Raises ``InputError`` for a protocol that these networks do not allow, or a point beyond what is there.
    """
    tasks = []
    for seed in seeds:
        for protocol in protocols:
            splits = splits_of(protocol, labelled.items, seed)
            tasks += [StudyTask(protocol, name, seed, split) for name, split in splits.items()]
        if curve:
            name, whole = list(splits_of(RANDOM, labelled.items, seed).items())[-1]
            points = [whole if labels is None else fewer(whole, labels, seed) for labels in curve]
            tasks += [StudyTask(RANDOM, name, seed, split) for split in points]
    # The curve's last point may be the protocol's own split.
    return list({tuple(task.columns().values()): task for task in tasks}.values())


def run_study(
    labelled: LabelledSet[OperatorGraph],
    tasks: Sequence[StudyTask],
    makers: Mapping[str, Callable[[], Predictor[OperatorGraph]]],
    journal: Journal,
    *,
    progress: Callable[[str], None] | None = None,
) -> Study:
    """Train a new predictor of each of ``makers`` (by name) for each task, but for those that the journal holds.

    Each finished trial is in the journal before the next begins. A predictor that cannot take the networks of a task,
    or learns nothing, is among ``refused``. ``progress`` is called with what was finished.
    """
    rows = {_key(row["trial"]): row for row in journal.rows}
    for task, name in _trials(tasks, makers):
        trial = {**task.columns(), "predictor": name}
        if _key(trial) not in rows:
            row = {"trial": trial, **_outcome(makers[name](), labelled, task, progress)}
            journal.append(row)
            rows[_key(trial)] = row
    wanted = [(task, rows[_key({**task.columns(), "predictor": name})]) for task, name in _trials(tasks, makers)]
    frames = [_frame(labelled, task, row) for task, row in wanted if "predicted_s" in row]
    if not frames:
        raise InputError(f"no predictor can take these networks: {wanted[0][1]['refused']}")
    return Study(
        labelled=labelled,
        table=StudyTable(pd.concat(frames, ignore_index=True)),
        refused=[{**row["trial"], "reason": row["refused"]} for _, row in wanted if "refused" in row],
        train_s=_train_seconds(row for _, row in wanted),
    )


def data_digest(labelled: LabelledSet[OperatorGraph]) -> str:
    """Hash of graphs and labels: trials of other data are other trials."""
    digest = hashlib.sha256(np.ascontiguousarray(labelled.latency_s).tobytes())
    digest.update("".join(graph.id for graph in labelled.items).encode())
    return digest.hexdigest()[:16]


def _trials(tasks: Sequence[StudyTask], makers: Mapping[str, Any]) -> Iterator[tuple[StudyTask, str]]:
    return ((task, name) for task in tasks for name in makers)


def _key(trial: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(trial[name] for name in ("protocol", "split", "seed", "labels", "predictor"))


def _outcome(
    predictor: Predictor[OperatorGraph],
    labelled: LabelledSet[OperatorGraph],
    task: StudyTask,
    progress: Callable[[str], None] | None,
) -> dict[str, Any]:
    """What a trial found, as JSON."""
    where = f"{task.protocol}/{task.split}, {task.labels} networks, seed {task.seed}: "
    tell = None if progress is None else lambda what: progress(where + what)
    started = time.perf_counter()
    try:
        trained = TrainedPredictor.train(predictor, labelled, task.rows, seed=task.seed, progress=tell)
        train_s = time.perf_counter() - started
        held_out = trained.held_out(labelled, task.rows.test).rows
    except (GraphError, RunError) as error:
        return {"train_s": time.perf_counter() - started, "refused": str(error)}
    columns = {name: held_out[name].tolist() for name in ("predicted_s", "low_s", "high_s")}
    # JSON has no NaN, which is what stands where a network has no interval.
    return {"train_s": train_s, **{name: [_or_none(v) for v in values] for name, values in columns.items()}}


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _frame(labelled: LabelledSet[OperatorGraph], task: StudyTask, row: Mapping[str, Any]) -> pd.DataFrame:
    graphs, latency_s = labelled.take(task.rows.test)
    columns = {"graph_id": [graph.id for graph in graphs], "kind": [graph.kind for graph in graphs]}
    answers = {name: np.array(row[name], dtype=np.float64) for name in ("predicted_s", "low_s", "high_s")}
    seconds = {"measured_s": latency_s, **answers}
    frame = pd.DataFrame({**columns, **seconds, "noise_s": labelled.noise_s[task.rows.test]})
    return frame.assign(**row["trial"])


def _train_seconds(rows: Iterator[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    seconds: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        trial = row["trial"]
        seconds.setdefault(trial["predictor"], {}).setdefault(trial["labels"], []).append(row["train_s"])
    return {name: {n: float(np.mean(each)) for n, each in by.items()} for name, by in seconds.items()}


def _mean_by_kind(by_seed: Sequence[Mapping[str, Score]]) -> dict[str, Score]:
    kinds = sorted({kind for scores in by_seed for kind in scores})
    return {kind: mean_score([scores[kind] for scores in by_seed if kind in scores]) for kind in kinds}


# What extrapolation is asked of, roughly: networks come in whole steps of depth or width.
BEYOND_SHARE = 0.20
ALL = "all"


def fewer(split: RowSplit, labels: int, seed: int) -> RowSplit:
    """The same test rows, but ``labels`` rows to learn from, training and dev set in the proportion they have here.

    Of one seed, a smaller one's rows are among a larger one's. Raises ``InputError`` for more labels than there
    are, or so few that no interval could be had from them.
    """
    there = len(split.train) + len(split.dev)
    if not 2 * MIN_DEV_ROWS <= labels <= there:
        raise InputError(
            f"a learning curve cannot have a point at {labels:,} networks: "
            f"it needs {2 * MIN_DEV_ROWS} at least, and {there:,} are there to learn from"
        )
    dev = max(MIN_DEV_ROWS, round(labels * len(split.dev) / there))
    rng = np.random.default_rng(seed)
    train_rows, dev_rows = (rng.permutation(rows) for rows in (split.train, split.dev))
    return RowSplit(np.sort(train_rows[: labels - dev]), np.sort(dev_rows[:dev]), split.test)


def random_splits(graphs: Sequence[OperatorGraph], seed: int) -> dict[str, RowSplit]:
    """``paper_split`` of each kind alone, under its name, and of ``all`` where there are several.

    A kind too scarce to be split alone is only among all.
    """
    kinds = np.array([graph.kind for graph in graphs], dtype=object)
    counts = Counter(kinds.tolist())
    if len(counts) < 2:
        return {kind: paper_split(kinds.tolist(), seed) for kind in counts or [ALL]}
    splits = {}
    for kind in sorted(counts, key=lambda kind: -counts[kind]):
        if round(DEV_SHARE.get(kind, DEV_SHARE_OTHER) * counts[kind]) >= MIN_DEV_ROWS:
            rows = np.flatnonzero(kinds == kind)
            alone = paper_split([kind] * len(rows), seed)
            splits[kind] = RowSplit(rows[alone.train], rows[alone.dev], rows[alone.test])
    return {**splits, ALL: paper_split(kinds.tolist(), seed)}


def depth_split(graphs: Sequence[OperatorGraph], seed: int) -> dict[str, RowSplit]:
    """Learn from the shallower networks of each kind, predict its deepest, about a fifth.

    Depth is the most operators with weights that lie on one path.
    """
    return {ALL: _beyond(graphs, [depth_of(graph) for graph in graphs], "depth", seed)}


def width_split(graphs: Sequence[OperatorGraph], seed: int) -> dict[str, RowSplit]:
    """Learn from the narrower networks of each kind, predict its widest, about a fifth.

    Width is the most units or channels that an operator with weights puts out.
    """
    return {ALL: _beyond(graphs, [width_of(graph) for graph in graphs], "width", seed)}


def family_splits(graphs: Sequence[OperatorGraph], seed: int) -> dict[str, RowSplit]:
    """For each kind: learn from the others and predict it. Raises ``InputError`` when all are of one kind."""
    kinds = np.array([graph.kind for graph in graphs], dtype=object)
    names = sorted(set(kinds.tolist()))
    if len(names) < 2:
        raise InputError(
            f"the family protocol leaves one kind of network out, but all {len(graphs)} are {''.join(names) or 'none'}"
        )
    return {f"{kind} unseen": _learnt_from(kinds != kind, seed) for kind in names}


PROTOCOLS: dict[str, Callable[[Sequence[OperatorGraph], int], dict[str, RowSplit]]] = {
    "random": random_splits,
    "depth": depth_split,
    "width": width_split,
    "family": family_splits,
}


def splits_of(protocol: str, graphs: Sequence[OperatorGraph], seed: int) -> dict[str, RowSplit]:
    """The splits, by name, of one of ``PROTOCOLS``. The dev set always comes from the side that is learnt from.

    Raises ``InputError`` for a protocol that there is none of, or that these networks do not allow.
    """
    if protocol not in PROTOCOLS:
        raise InputError(f"{protocol!r} is no protocol; there are {', '.join(PROTOCOLS)}")
    return PROTOCOLS[protocol](graphs, seed)


def _beyond(graphs: Sequence[OperatorGraph], sizes: Sequence[int], what: str, seed: int) -> RowSplit:
    """Test on what is larger than a limit of its kind, the limit that leaves nearest to ``BEYOND_SHARE`` beyond it."""
    kinds = np.array([graph.kind for graph in graphs], dtype=object)
    size = np.array(sizes)
    seen = np.ones(len(size), dtype=bool)
    for kind in set(kinds.tolist()):
        own = kinds == kind
        levels = np.unique(size[own])[1:]
        if len(levels):
            beyond = [np.mean(size[own] >= level) for level in levels]
            seen &= ~own | (size < levels[int(np.argmin(np.abs(np.array(beyond) - BEYOND_SHARE)))])
    if seen.all():
        raise InputError(f"the {what} protocol needs networks of one kind but different {what}; there are none")
    return _learnt_from(seen, seed)


def _learnt_from(seen: np.ndarray, seed: int) -> RowSplit:
    """Train and dev set from the rows ``seen``, a tenth of them dev; all others are the test set."""
    return split_known(np.flatnonzero(seen), np.flatnonzero(~seen), 0.10, seed)


def depth_of(graph: OperatorGraph) -> int:
    above: dict[str, int] = {}
    for operator in graph.operators:
        above[operator.name] = max((above[name] for name in operator.inputs), default=0) + (operator.weights > 0)
    return max(above.values())


def width_of(graph: OperatorGraph) -> int:
    return max((_channels(operator) for operator in graph.operators if operator.weights), default=0)


def _channels(operator: Operator) -> int:
    """Channels come first in [channels, height, width], features last in [steps, features]."""
    shape = operator.shape or (1,)
    return shape[-1] if len(shape) == 2 else shape[0]


def mean_score(scores: Sequence[Score]) -> Score:
    """The mean of each figure over several scores, None where one has none; ``n`` stays a whole number."""
    means: Score = {}
    for name, first in scores[0].items():
        values = [score[name] for score in scores]
        if isinstance(first, dict):
            means[name] = mean_score(values)
        elif any(value is None for value in values):
            means[name] = None
        else:
            means[name] = round(float(np.mean(values))) if isinstance(first, int) else float(np.mean(values))
    return means
