"""Result of ``slotool.train_predictor`` of co-located latencies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Part, table
from slotool.commands.predictors.predictor_training import PredictorTraining, covers
from slotool.commands.result import result, unlisted
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
    """Scores of each predictor on held-out rows, overall and under every protocol, and the chosen one.

    ``solo``: source of the predictor of solo latencies in the artifact.
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
        for name, protocol_scores in self.scores["protocols"].items():
            parts.append(table(f"{name[0].upper()}{name[1:]}: {PROTOCOLS[name]}", RELATIVE, _cells(protocol_scores)))
        why = "lowest MAE on the dev set" if self.model == "auto" else "as requested"
        measured = f"with the measured solo latencies of {counted(self.scores['networks'], 'network')}"
        parts.append(f"labels: {Setting.from_document(self.scores['setting'])}")
        parts.append(f"chosen: {self.kept}, {why}; {measured}")
        if self.solo is not None:
            parts.append(f"solo latencies of other networks: the predictor of {self.solo}")
        return parts


def _cells(scores: Mapping[str, Any]) -> list[list[str]]:
    """Return rows of ``RELATIVE``, the last one the noise floor."""
    rows = []
    for name, score in scores.items():
        if score is None:
            rows.append([f"{name}, cannot take these", *["–"] * (len(RELATIVE) - 1)])
            continue
        refused = f", but for {score['refused']}" if score.get("refused") else ""
        added = f"{score['degradation_mean_s']:.3g}"
        rows.append([name + refused, *_errors(score, added), covers(score)])
    floor = [score["floor"] for score in scores.values() if score is not None][-1:]
    return [*rows, *(["noise floor", *_errors(score, "–"), "–"] for score in floor if score["mape"] is not None)]


def _errors(score: Mapping[str, Any], added: str) -> list[str]:
    within = [f"{score[key]:.0%}" for key in ("within_5_percent", "within_10_percent")]
    return [f"{score['mape']:.1%}", f"{score['mae_s']:.3g}", added, *within]
