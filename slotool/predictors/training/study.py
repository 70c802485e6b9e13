"""A study: every predictor under every protocol, scored on the same held-out networks, with the noise floor."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slotool.artifacts import create_artifact
from slotool.errors import GraphError, InputError, RunError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Predictor
from slotool.predictors.labels import LabelledSet
from slotool.predictors.scoring import PREDICTIONS_SCHEMA, PredictionsTable, Score, mean_score
from slotool.predictors.splits import PROTOCOLS, RowSplit, splits_of
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.profiling.journal import Journal
from slotool.tables import Column, Schema, Table

KIND = "predictor-study"
SCORES, PREDICTIONS = "scores.json", "predictions.parquet"
RANDOM = "random"

STUDY_SCHEMA = Schema(
    "study",
    1,
    (
        Column("protocol", "text", f"how networks were held out: {', '.join(PROTOCOLS)}"),
        Column("split", "text", "which networks: a kind, all, or the kind that was unseen"),
        Column("seed", "integer", "of the split and the training"),
        Column("labels", "integer", "measured networks learnt from, training and dev set together"),
        Column("predictor", "text", "its name"),
        *PREDICTIONS_SCHEMA.columns,
    ),
)
# What scores are averaged over seeds of.
GROUP = ("protocol", "split", "labels", "predictor")


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
        found = []
        for columns, tables in self.groups():
            scores = [table.scores() for table in tables]
            found.append(
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
        return found


@dataclass(frozen=True)
class Study:
    """``refused``: trials of a predictor that cannot take such networks, with the reason. ``train_s``: seconds that
    training took, by predictor and number of labels.
    """

    labelled: LabelledSet[OperatorGraph]
    table: StudyTable
    refused: Sequence[Mapping[str, Any]]
    train_s: Mapping[str, Mapping[int, float]]

    def document(self) -> dict[str, Any]:
        """JSON: what was learnt from, and the scores of each predictor under each protocol."""
        return {
            "setting": self.labelled.setting.document(),
            "networks": len(self.labelled),
            "graphs_without_label": self.labelled.graphs_without_label,
            "labels_without_graph": self.labelled.labels_without_graph,
            "scores": self.table.scores(),
            "refused": [dict(each) for each in self.refused],
            "train_s": {name: {str(n): seconds for n, seconds in by.items()} for name, by in self.train_s.items()},
        }

    def save(self, path: Path, *, config: Mapping[str, Any], seed: int, force: bool = False) -> dict[str, Any]:
        """Write the held-out predictions and the scores as one artifact; returns ``document``."""
        document = self.document()
        provenance = {"setting": self.labelled.setting.document(), "seed": seed}
        with create_artifact(path, KIND, config=config, seed=seed, force=force) as writer:
            writer.write_json(SCORES, document)
            writer.write_table(PREDICTIONS, StudyTable(self.table.rows, provenance))
        return document


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
            points = [whole if labels is None else whole.fewer(labels, seed) for labels in curve]
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
    or learns nothing, is among ``refused``. ``progress`` is called with what was finished, ``steps_left`` times in all.
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


def steps_left(
    tasks: Sequence[StudyTask], makers: Mapping[str, Callable[[], Predictor[OperatorGraph]]], journal: Journal
) -> int:
    """How often ``run_study`` will call ``progress``, unless a predictor fails."""
    done = {_key(row["trial"]) for row in journal.rows}
    left = [name for task, name in _trials(tasks, makers) if _key({**task.columns(), "predictor": name}) not in done]
    return sum(makers[name]().fit_steps for name in left)


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


def whole_scores(scores: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of ``StudyTable.scores`` those that learnt from all there was, without the shorter points of a curve."""
    most: dict[tuple[str, str], int] = {}
    for score in scores:
        where = (score["protocol"], score["split"])
        most[where] = max(most.get(where, 0), score["labels"])
    return [dict(score) for score in scores if score["labels"] == most[score["protocol"], score["split"]]]


def curve_scores(scores: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of ``StudyTable.scores`` the learning curve: the random split that has several numbers of labels, if any has."""
    random = [score for score in scores if score["protocol"] == RANDOM]
    counts: dict[str, set[int]] = {}
    for score in random:
        counts.setdefault(score["split"], set()).add(score["labels"])
    curved = {split for split, labels in counts.items() if len(labels) > 1}
    return sorted((dict(score) for score in random if score["split"] in curved), key=lambda score: score["labels"])
