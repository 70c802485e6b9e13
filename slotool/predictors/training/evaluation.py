"""Scores of a trained predictor on networks that were measured elsewhere or later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.labels import SETTING_COLUMNS, LabelledSet, Setting, measured_rows
from slotool.predictors.scoring import PredictionsTable, Score
from slotool.predictors.trained.artifact import SettingPredictor
from slotool.tables import LatencyTable


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation: ``predictions`` and, for each network, a name, and why it is ``outside`` the domain."""

    predictions: PredictionsTable
    outside: list[str | None]
    names: list[str]

    def scores(self) -> dict[str, Score]:
        """Return scores of all networks, of each of several kinds, and of those like and unlike the training set."""
        rows, inside = self.predictions.rows, np.array([reason is None for reason in self.outside])
        kinds = sorted(rows["kind"].unique())
        groups = {kind: (rows["kind"] == kind).to_numpy() for kind in kinds} if len(kinds) > 1 else {}
        if inside.any() and not inside.all():
            groups |= {"like the training networks": inside, "unlike the training networks": ~inside}
        groups["all"] = np.ones(len(rows), dtype=bool)
        return {name: PredictionsTable(rows[chosen]).scores() for name, chosen in groups.items()}

    def furthest_off(self, most: int) -> list[dict[str, Any]]:
        """Return the ``most`` networks of largest relative error."""
        measured, predicted = (self.predictions.rows[c].to_numpy() for c in ("measured_s", "predicted_s"))
        error = predicted / measured - 1
        return [
            {
                "network": self.names[i],
                "measured_s": float(measured[i]),
                "predicted_s": float(predicted[i]),
                "relative_error": float(error[i]),
                "outside": self.outside[i],
            }
            for i in np.argsort(-np.abs(error), kind="stable")[:most]
        ]


def evaluate_on(trained: SettingPredictor[OperatorGraph], labelled: LabelledSet[OperatorGraph]) -> Evaluation:
    """Predict every labelled network. Raises ``GraphError`` for an unsupported one."""
    table = trained.held_out(labelled, np.arange(len(labelled)))
    outside = trained.predict(labelled.items).outside
    provenance = {"predictor": trained.predictor.name, "setting": labelled.setting.document()}
    names = [graph.name or graph.id for graph in labelled.items]
    return Evaluation(PredictionsTable(table.rows, provenance), outside, names)


def rows_to_pick(table: LatencyTable, setting: Setting) -> dict[str, Any]:
    """Return column values that select the rows of a setting from a table of several."""
    rows = measured_rows(table, {}, colocated=False)
    return {column: getattr(setting, column) for column in SETTING_COLUMNS if rows[column].nunique() > 1}
