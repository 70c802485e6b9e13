"""Predictors of co-located latency, as ``slotool.train_predictor`` trains them on co-located tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Part, table
from slotool.commands.inputs import FilePath
from slotool.commands.measured import MeasuredNetworks
from slotool.commands.predictors.predictor_training import (
    PredictorTraining,
    covers,
    names_among,
    predictor_makers,
    trained_and_scored,
)
from slotool.commands.progress import Reporter
from slotool.commands.result import result, unlisted
from slotool.errors import ArgumentError
from slotool.printable import counted

if TYPE_CHECKING:
    from slotool.predictors.colocations import Colocation
    from slotool.predictors.training.selection import TrainingRun

RELATIVE = ("predictor", "MAPE", "MAE s", "of added s", "±5 %", "±10 %", "90 % covers")
PROTOCOLS = {
    "pairs, random": "70-15-15 of the pairs, five times",
    "pairs unseen": "no pair of the test set was in training; ten folds",
    "network unseen": "no training row had that network; each in turn",
    "trios from pairs": "training had pairs only",
}


@result
class ColocationTraining(PredictorTraining):
    """Scores of each predictor on rows held out, overall and under every protocol, and the one that was kept.

    ``solo``: the predictor of solo latencies that the artifact holds too.
    """

    run: TrainingRun[Colocation] = unlisted()
    solo: Path | None = unlisted(default=None)

    schema = "train-colocation-predictor"

    def shown(self) -> list[Part]:
        from slotool.predictors.labels import Setting

        rows, predictors = self.scores["rows"], self.scores["predictors"]
        kinds = ", ".join(f"{kind['n']} {name}s" for name, kind in predictors[self.kept]["by_kind"].items())
        title = f"Co-located latency, on {rows['test']} held-out rows ({kinds}); trained on {rows['train']}"
        parts: list[Part] = [table(title, RELATIVE, _cells(predictors))]
        for name, each in self.scores["protocols"].items():
            parts.append(table(f"{name[0].upper()}{name[1:]}: {PROTOCOLS[name]}", RELATIVE, _cells(each)))
        why = "it has the lowest MAE on the dev set" if self.model == "auto" else "as asked"
        measured = f"with the measured solo latencies of {counted(self.scores['networks'], 'network')}"
        parts.append(f"labels: {Setting.from_document(self.scores['setting'])}")
        parts.append(f"kept {self.kept}: {why}; {measured}")
        if self.solo is not None:
            parts.append(f"solo latencies of other networks: the predictor of {self.solo}")
        return parts


def trained_on_colocations(
    source: MeasuredNetworks,
    out: Path | None,
    *,
    solo: FilePath | None,
    model: str | Sequence[str],
    depths: Sequence[int],
    device: str,
    seed: int,
    force: bool,
    reporter: Reporter,
) -> ColocationTraining:
    """Train predictors on the co-located rows of ``source``, and write the best to ``out``; see ``train_predictor``."""
    from slotool.artifacts import open_artifact
    from slotool.predictors.base import COLOCATED
    from slotool.predictors.colocated.artifact import require_same_setting
    from slotool.predictors.colocated.labels import colocated_splits, join_colocated, random_colocated_split
    from slotool.predictors.registry import names_of, registry
    from slotool.predictors.trained.artifact import KIND, TrainedPredictor
    from slotool.predictors.training.selection import AUTO

    own = names_of(COLOCATED)
    model, *others = names_among(model, (AUTO, *own), "model", plugins=registry)
    if others:
        raise ArgumentError("model", f"one predictor of co-located latency is kept: {model}, or {others[0]}")
    names = own if model in (AUTO, *own) else [*own, model]
    makers = predictor_makers(names, depths, colocated=True, device=device)
    labelled = join_colocated(source.table(), source.read_graphs(), source.rows)
    opened = None if solo is None else open_artifact(solo, KIND)
    if opened is not None:
        require_same_setting(TrainedPredictor.load(opened), labelled)
    if labelled.labels_without_graph:
        reporter.warn(f"{labelled.labels_without_graph} rows with a network that is none of the graphs are left out")
    split, protocols = random_colocated_split(labelled.items, seed), colocated_splits(labelled.items, seed)
    candidates = [make() for make in makers.values()]
    run = trained_and_scored(reporter, candidates, labelled, split, protocols, model=model, seed=seed)
    if out is not None:
        config = {**source.config(), "solo": solo and str(solo), "model": model, "depths": list(depths)}
        run.save(out, opened, config={**config, **source.rows}, seed=seed, force=force)
    return ColocationTraining(run, model, out, None if opened is None else opened.path)


def _cells(scores: Mapping[str, Any]) -> list[list[str]]:
    """Rows of ``RELATIVE``, and the noise floor that all of a table share."""
    shown = []
    for name, each in scores.items():
        if each is None:
            shown.append([f"{name}, cannot take these", *["–"] * (len(RELATIVE) - 1)])
            continue
        refused = f", but for {each['refused']}" if each.get("refused") else ""
        added = f"{each['degradation_mean_s']:.3g}"
        shown.append([name + refused, *_errors(each, added), covers(each)])
    floor = [each["floor"] for each in scores.values() if each is not None][-1:]
    return [*shown, *(["noise floor", *_errors(each, "–"), "–"] for each in floor if each["mape"] is not None)]


def _errors(score: Mapping[str, Any], added: str) -> list[str]:
    within = [f"{score[key]:.0%}" for key in ("within_5_percent", "within_10_percent")]
    return [f"{score['mape']:.1%}", f"{score['mae_s']:.3g}", added, *within]
