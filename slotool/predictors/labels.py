"""Labels: the measured latency of each graph, under one setting of machine, device and threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
import pandas as pd

from slotool.errors import InputError, TableError
from slotool.graphs import OperatorGraph
from slotool.machine import machine_facts, machine_id
from slotool.tables import FULL, LatencyTable


@dataclass(frozen=True)
class Setting:
    """What a latency belongs to: columns of the latency table that must be the same for all labels."""

    machine: str
    device: str
    backend: str
    threads: int
    batch_size: int
    cpu: str | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        return cls(**document)

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def columns(self) -> dict[str, Any]:
        """Values of the latency table's columns."""
        return {name: getattr(self, name) for name in SETTING_COLUMNS}

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        where = f"machine {self.machine}" + (f" ({self.cpu})" if self.cpu else "")
        return f"{self.device}, {self.backend}, {threads}, batch {self.batch_size}, {where}"


SETTING_COLUMNS = tuple(field.name for field in fields(Setting) if field.name != "cpu")


@dataclass(frozen=True)
class LabelledGraphs:
    """Graphs with their labels, float64 seconds > 0 [n]: the median of all samples of that graph."""

    graphs: tuple[OperatorGraph, ...]
    latency_s: np.ndarray
    setting: Setting
    graphs_without_label: int
    labels_without_graph: int

    def __len__(self) -> int:
        return len(self.graphs)

    @property
    def kinds(self) -> list[str]:
        return [graph.kind for graph in self.graphs]

    def take(self, rows: np.ndarray) -> tuple[list[OperatorGraph], np.ndarray]:
        """The graphs and labels of these rows."""
        return [self.graphs[i] for i in rows], self.latency_s[rows]


def join_labels(
    table: LatencyTable, graphs: Iterable[OperatorGraph], picked: Mapping[str, Any] | None = None
) -> LabelledGraphs:
    """Each graph with the median latency of its measured solo rows: subject = graph id, point full, status ok.

    ``picked``: values of setting columns (``SETTING_COLUMNS``) to keep. Predicted and co-located rows, and rows of
    several replicas, never count. A graph given twice counts once.

    Raises ``InputError`` when nothing joins or rows of several settings remain, ``TableError`` for a label that is
    not a finite number.
    """
    conditions = {column: value for column, value in (picked or {}).items() if value is not None}
    by_id = {graph.id: graph for graph in graphs}
    measured = _measured_solo(table, conditions)
    rows = measured[measured["subject"].isin(by_id)]
    subjects = measured["subject"].nunique()
    if rows.empty:
        raise InputError(
            f"none of the {len(by_id)} graphs has a label: no subject of the {subjects} measured is a graph's id"
        )
    setting = _only_setting(rows)
    medians = _medians(rows)
    found = [graph for id_, graph in by_id.items() if id_ in medians]
    return LabelledGraphs(
        graphs=tuple(found),
        latency_s=np.array([medians[graph.id] for graph in found]),
        setting=setting,
        graphs_without_label=len(by_id) - len(found),
        labels_without_graph=subjects - len(found),
    )


def _measured_solo(table: LatencyTable, conditions: Mapping[str, Any]) -> pd.DataFrame:
    wanted = {"status": "ok", "point": FULL.key, "predicted": False, "co_runners": "", "replicas": 1, **conditions}
    rows = table.rows
    keep = np.ones(len(rows), dtype=bool)
    for column, value in wanted.items():
        keep &= (rows[column] == value).to_numpy()
    if not keep.any():
        asked = "".join(f", {column} {value}" for column, value in conditions.items())
        raise InputError(f"the latency table has no measured row (status ok, point full, alone{asked})")
    return rows[keep]


def _medians(rows: pd.DataFrame) -> dict[str, float]:
    medians = {
        str(subject): float(np.median(np.concatenate(samples.tolist())))
        for subject, samples in rows.groupby("subject", sort=False)["samples_s"]
    }
    endless = [subject for subject, median in medians.items() if not np.isfinite(median)]
    if endless:
        raise TableError(f"latency table: the median of subject {endless[0]} is not a finite number of seconds")
    return medians


def _only_setting(rows: pd.DataFrame) -> Setting:
    for column in SETTING_COLUMNS:
        values = sorted(rows[column].unique().tolist())
        if len(values) > 1:
            shown = ", ".join(map(str, values))
            raise InputError(
                f"the latency table mixes {column.replace('_', ' ')} {shown}: a predictor learns one setting, "
                f"pick it with --{column.replace('_', '-')}"
            )
    first = rows.iloc[0]
    return Setting(
        machine=str(first["machine"]),
        device=str(first["device"]),
        backend=str(first["backend"]),
        threads=int(first["threads"]),
        batch_size=int(first["batch_size"]),
        cpu=_cpu_of(str(first["machine"])),
    )


def _cpu_of(machine: str) -> str | None:
    """The processor's name when the labels come from this very machine."""
    return machine_facts()["cpu"] if machine == machine_id() else None
