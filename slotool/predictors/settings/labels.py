"""Labels of many settings side by side: one row a network, one column a setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.labels import SETTING_COLUMNS, Setting, join_labels, measured_rows
from slotool.predictors.settings.model import MIN_LABELS_OF_SETTING
from slotool.tables import LatencyTable

# A column that a table may have beside those of its schema: what the numbers were computed in.
PRECISION = "precision"


@dataclass(frozen=True)
class SettingsLabelled:
    """n networks with their labels in S settings, ``latency_s`` float64 seconds [n, S], NaN where there is none.

    ``left_out``: settings of too few labels, with how many each had.
    """

    items: tuple[OperatorGraph, ...]
    settings: tuple[Setting, ...]
    latency_s: np.ndarray
    left_out: tuple[tuple[Setting, int], ...] = ()


def join_settings(
    table: LatencyTable, graphs: Iterable[OperatorGraph], picked: Mapping[str, Any] | None = None
) -> SettingsLabelled:
    """The labels of every setting of a table, each joined as ``join_labels`` does.

    Raises ``InputError`` when no setting has ten labels.
    """
    given = list(graphs)
    rows = measured_rows(table, picked or {}, colocated=False)
    found: list[tuple[Setting, dict[str, float]]] = []
    left_out: list[tuple[Setting, int]] = []
    by_id: dict[str, OperatorGraph] = {}
    for precision, part in _parts(rows):
        try:
            labelled = join_labels(LatencyTable(part.reset_index(drop=True), table.provenance), given)
        except InputError:
            continue
        setting = replace(labelled.setting, precision=precision)
        if len(labelled) < MIN_LABELS_OF_SETTING:
            left_out.append((setting, len(labelled)))
            continue
        ids = [graph.id for graph in labelled.items]
        by_id |= dict(zip(ids, labelled.items, strict=True))
        found.append((setting, dict(zip(ids, labelled.latency_s.tolist(), strict=True))))
    if not found:
        raise InputError(f"no setting has labels of {MIN_LABELS_OF_SETTING} of the {len(given)} graphs")
    latency_s = np.array([[labels.get(id_, np.nan) for _, labels in found] for id_ in by_id])
    settings = tuple(setting for setting, _ in found)
    return SettingsLabelled(tuple(by_id.values()), settings, latency_s, tuple(left_out))


def _parts(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Rows of each setting, with its precision, in the order they first appear."""
    if PRECISION in rows:
        # Tables that were measured before there was the column have none.
        rows = rows.assign(**{PRECISION: rows[PRECISION].fillna("float32")})
    columns = [*SETTING_COLUMNS, *([PRECISION] if PRECISION in rows else [])]
    parts = [part for _, part in rows.groupby(columns, sort=False)]
    return [(str(part[PRECISION].iloc[0]) if PRECISION in part else "float32", part) for part in parts]
