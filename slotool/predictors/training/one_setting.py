"""Training runs: several predictors on one split, scored on the same held-out rows, of which one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

from slotool import devices
from slotool.artifacts import Artifact, create_artifact
from slotool.errors import ArgumentError
from slotool.predictors.base import FROM_OTHERS, Asked, Predictor
from slotool.predictors.labels import LabelledSet
from slotool.predictors.scoring import PredictionsTable
from slotool.predictors.splits import RowSplit
from slotool.predictors.trained.artifact import (
    COLOCATED,
    COLOCATED_PREDICTIONS,
    COLOCATED_SCORES,
    KIND,
    PREDICTIONS,
    SCORES,
    SOLO,
    SOLO_LATENCIES,
    TrainedPredictor,
)
from slotool.progress import Quiet, Reporter, stepping
from slotool.sources import as_list

AUTO = "auto"
# Numbers of hidden layers that the DNN tries; the paper's range.
DEPTHS = tuple(range(1, 21))


def new_predictors(
    names: Sequence[str], depths: Sequence[int], *, colocated: bool = False, device: str = devices.CPU
) -> list[Predictor[Any]]:
    """Return an untrained predictor of each name, slotool's own or a plugin's.

    ``device`` trains the DNN, which tries numbers of hidden layers, ``depths``, and the graph network. Raises
    ``ArgumentError`` for another device than the CPU if neither of the two is among ``names``.
    """
    from slotool.predictors.registry import predictor_class
    from slotool.predictors.solo.dnn import DnnPredictor
    from slotool.predictors.solo.graph_network import GraphNetworkPredictor

    on_device: dict[str, Callable[[], Predictor[Any]]] = {
        DnnPredictor.name: lambda: DnnPredictor(depths, device=device),
        GraphNetworkPredictor.name: lambda: GraphNetworkPredictor(device=device),
    }
    if devices.is_cuda(device) and not on_device.keys() & set(names):
        raise ArgumentError("training_device", f"{', '.join(names)} train on the CPU only; leave it out")
    return [(on_device.get(name) or predictor_class(name, colocated=colocated))() for name in names]


def models_among(models: str | Sequence[str], built_in: Sequence[str]) -> list[str]:
    """Return the names in ``models``, each once.

    Raises ``ArgumentError`` for one that is neither among ``built_in`` nor a plugin's.
    """
    from slotool.predictors.registry import PREDICTORS, registry

    names = list(dict.fromkeys(as_list(models)))
    for name in names:
        if name not in built_in and name not in registry.plugins:
            is_of_others = name in PREDICTORS and FROM_OTHERS not in PREDICTORS[name][1]
            of_others = "; it is for the other kind of latencies, solo or co-located" if is_of_others else ""
            choices = ", ".join([*built_in, *registry.plugins])
            raise ArgumentError("model", f"{name!r} is none of {choices}{of_others}")
    return names


@dataclass(frozen=True)
class TrainingRun(Generic[Asked]):
    """Result of training: ``trained`` and ``held_out`` (the test set) by predictor name, and the name ``chosen``."""

    labelled: LabelledSet[Asked]
    split: RowSplit
    trained: Mapping[str, TrainedPredictor[Asked]]
    held_out: Mapping[str, PredictionsTable]
    chosen: str

    def scores(self) -> dict[str, Any]:
        """Return a JSON document of the split and each predictor's scores on the test set, in all and by kind."""
        labelled = self.labelled
        if labelled.solo_s:
            counts = {"networks": len(labelled.solo_s), "rows_without_graph": labelled.labels_without_graph}
        else:
            names = ("graphs_without_label", "labels_without_graph")
            counts = {name: getattr(labelled, name) for name in names}
        return {
            "chosen": self.chosen,
            "setting": labelled.setting.document(),
            "rows": {part: len(getattr(self.split, part)) for part in ("train", "dev", "test")},
            "predictors": {
                name: {"dev_mae_s": self.trained[name].dev_mae_s, **table.scores(), "by_kind": table.scores_by_kind()}
                for name, table in self.held_out.items()
            },
            **counts,
        }

    def save(
        self, path: Path, solo: Artifact | None = None, *, config: Mapping[str, Any], seed: int, force: bool = False
    ) -> None:
        """Write the chosen predictor, its held-out predictions and all scores as one artifact.

        For co-locations, it also holds the solo latencies of all networks, and the solo predictor of ``solo``.
        """
        provenance = {"predictor": self.chosen, "setting": self.labelled.setting.document()}
        table = PredictionsTable(self.held_out[self.chosen].rows, provenance)
        alone: TrainedPredictor[Any] | None = None if solo is None else TrainedPredictor.load(solo)
        colocated = bool(self.labelled.solo_s)
        with create_artifact(path, KIND, config=config, seed=seed, force=force) as writer:
            self.trained[self.chosen].write(writer, COLOCATED if colocated else SOLO)
            writer.write_json(COLOCATED_SCORES if colocated else SCORES, self.scores())
            writer.write_table(COLOCATED_PREDICTIONS if colocated else PREDICTIONS, table)
            if colocated:
                writer.write_json(SOLO_LATENCIES, dict(self.labelled.solo_s))
            if alone is not None and solo is not None:
                alone.write(writer)
                if SCORES in solo.manifest["files"]:
                    writer.write_json(SCORES, solo.json(SCORES))


def train_and_score(
    candidates: Sequence[Predictor[Asked]],
    labelled: LabelledSet[Asked],
    split: RowSplit,
    *,
    model: str | Sequence[str] = AUTO,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> TrainingRun[Asked]:
    """Train all ``candidates``, baselines included, and choose one.

    Among ``model``, one or several names or ``auto`` for all, the predictor of lowest MAE on dev rows that no candidate
    has seen is chosen. Of solo latencies only that one is calibrated, on held-out kinds of networks, and scored with
    intervals. The test set decides nothing.
    """
    colocated = bool(labelled.solo_s)
    text = f"training on {len(split.train)} {'co-locations' if colocated else 'networks'}"
    # For solo latencies the last step holds out kinds of networks for the intervals of the chosen predictor.
    total = (not colocated) + sum(candidate.fit_steps for candidate in candidates)
    with (reporter or Quiet()).progress(text, total=total) as steps:
        finished = stepping(steps, text)
        trained = {
            predictor.name: TrainedPredictor.train(predictor, labelled, split, seed=seed, progress=finished)
            for predictor in candidates
        }
        eligible = list(trained) if model == AUTO else [model] if isinstance(model, str) else model
        best = min(eligible, key=lambda name: trained[name].dev_mae_s)
        if not colocated:
            finished(f"{best}: holding out kinds of networks for its interval")
            trained[best] = trained[best].calibrated(labelled, split, seed=seed)
        # Intervals before calibration would depend on which predictor is chosen.
        scored = {
            name: each if colocated or name == best else replace(each, residuals=None) for name, each in trained.items()
        }
        held_out = {name: predictor.held_out(labelled, split.test) for name, predictor in scored.items()}
    return TrainingRun(labelled, split, trained, held_out, best)
