"""One training run: several predictors on one split, scored on the same held-out networks, one of them kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotool.artifacts import create_artifact
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Predictor
from slotool.predictors.labels import LabelledGraphs
from slotool.predictors.scoring import PredictionsTable
from slotool.predictors.splits import RowSplit
from slotool.predictors.trained import KIND, PREDICTIONS, SCORES, TrainedPredictor

AUTO = "auto"


@dataclass(frozen=True)
class TrainingRun:
    """``trained`` and ``held_out`` (the test set) by predictor name; ``chosen`` is the name of the one to keep."""

    labelled: LabelledGraphs
    split: RowSplit
    trained: Mapping[str, TrainedPredictor[OperatorGraph]]
    held_out: Mapping[str, PredictionsTable]
    chosen: str

    def scores(self) -> dict[str, Any]:
        """JSON document: what was split how, and each predictor's scores on the test set, also by kind of network."""
        return {
            "chosen": self.chosen,
            "setting": self.labelled.setting.document(),
            "rows": {part: len(getattr(self.split, part)) for part in ("train", "dev", "test")},
            "graphs_without_label": self.labelled.graphs_without_label,
            "labels_without_graph": self.labelled.labels_without_graph,
            "predictors": {name: self._scores_of(name) for name in self.trained},
        }

    def save(self, path: Path, *, config: Mapping[str, Any], seed: int, force: bool = False) -> None:
        """Write the chosen predictor, all scores and the chosen one's held-out predictions as one artifact."""
        provenance = {"predictor": self.chosen, "setting": self.labelled.setting.document()}
        table = PredictionsTable(self.held_out[self.chosen].rows, provenance)
        with create_artifact(path, KIND, config=config, seed=seed, force=force) as writer:
            self.trained[self.chosen].write(writer)
            writer.write_json(SCORES, self.scores())
            writer.write_table(PREDICTIONS, table)

    def _scores_of(self, name: str) -> dict[str, Any]:
        table = self.held_out[name]
        return {"dev_mae_s": self.trained[name].dev_mae_s, **table.scores(), "by_kind": table.scores_by_kind()}


def train_and_score(
    candidates: Sequence[Predictor[OperatorGraph]],
    labelled: LabelledGraphs,
    split: RowSplit,
    *,
    model: str | Sequence[str] = AUTO,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> TrainingRun:
    """Train all ``candidates``, so the baselines are always scored too.

    ``model``: name of the one to keep, several, or ``auto`` for all: of these the one of lowest MAE on the dev rows
    that no candidate has seen. It alone is calibrated on kinds of networks held out; the others have no interval for
    networks unlike those they learnt from. The test set decides nothing.
    """
    trained = {
        predictor.name: TrainedPredictor.train(predictor, labelled, split, seed=seed, progress=progress)
        for predictor in candidates
    }
    eligible = list(trained) if model == AUTO else [model] if isinstance(model, str) else model
    best = min(eligible, key=lambda name: trained[name].dev_mae_s)
    if progress:
        progress(f"{best}: holding out kinds of networks for its interval")
    kept = trained[best]
    trained[best] = kept.calibrated(kept.predictor.surrogate, labelled, split, seed=seed)
    held_out = {name: each.held_out(labelled, split.test) for name, each in trained.items()}
    return TrainingRun(labelled, split, trained, held_out, best)
