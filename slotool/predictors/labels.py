"""Labels: the measured latency of each graph, under one setting of machine, device and threads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Generic, Self

import numpy as np
import pandas as pd

from slotool import strict_json
from slotool.errors import InputError, TableError
from slotool.graphs import OperatorGraph
from slotool.graphs.graph import FLOAT32
from slotool.machine import machine_facts, machine_id
from slotool.predictors.base import Asked, Examples
from slotool.printable import counted, name_list
from slotool.tables import FULL, LatencyTable
from slotool.tables.rounds import Counts, round_medians

# Rows of one network that differ by a larger factor can hardly all be right.
MAX_APART = 2.0
MIN_LABELS_OF_SETTING = 10


@dataclass(frozen=True)
class Setting:
    """Conditions of a measurement: columns of the latency table that must be the same for all labels.

    ``precision``: the number format of computation, such as float32, amp or int8. Co-located labels also have a
    ``placement``, shared or split, and the number of ``cores`` that a member may use.
    """

    machine: str
    device: str
    backend: str
    threads: int
    batch_size: int
    cpu: str | None = None
    placement: str = ""
    cores: int | None = None
    precision: str = "float32"

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        return strict_json.convert(document, cls)

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def columns(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SETTING_COLUMNS}

    def differences(self, measured: Setting) -> list[str]:
        """Describe the columns in which the setting of labels differs from this one."""
        return [
            f"{column.replace('_', ' ')} {getattr(measured, column)} instead of {getattr(self, column)}"
            for column in SETTING_COLUMNS
            if getattr(self, column) != getattr(measured, column)
        ]

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        where = f"machine {self.machine}" + (f" ({self.cpu})" if self.cpu else "")
        plural = "s" if self.cores and self.cores > 1 else ""
        cores = f" on {self.cores} {self.placement} core{plural}" if self.placement else ""
        backend = self.backend if self.precision == "float32" else f"{self.backend} {self.precision}"
        return f"{self.device}, {backend}, {threads}{cores}, batch {self.batch_size}, {where}"

    def oversubscription(self, members: int) -> float:
        """Return busy threads per core while ``members`` networks run, at least 1; a GPU counts as one core."""
        if self.device != "cpu":
            return float(members)
        threads = self.threads * (1 if self.placement == "split" else members)
        return max(1.0, threads / (self.cores or self.threads))


SETTING_COLUMNS = tuple(each.name for each in fields(Setting) if each.name not in ("cpu", "placement", "cores"))


@dataclass(frozen=True)
class LabelledSet(Generic[Asked]):
    """Networks or co-locations with their labels, for training and scoring predictors.

    Attributes:
        items: Networks or co-locations.
        latency_s: Labels, float64 seconds > 0 [n].
        noise_s: Standard error of each label, float64 seconds [n] (``label_noise_s``), NaN where unknown.
        setting: Setting of all labels.
        graphs_without_label: Number of graphs that were not measured.
        labels_without_graph: Number of measured subjects, or co-located rows, that lack a graph.
        unstable: Number of labels without any stable row; 0 where the table has no verdicts.
        solo_s: For co-locations, the median of all solo samples of each network, by graph id.
        apart: Medians of the rows of a network, where they differ by ``MAX_APART`` times or more, by graph id.
    """

    items: tuple[Asked, ...]
    latency_s: np.ndarray
    noise_s: np.ndarray
    setting: Setting
    graphs_without_label: int = 0
    labels_without_graph: int = 0
    unstable: int = 0
    solo_s: Mapping[str, float] = field(default_factory=dict)
    apart: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def kinds(self) -> list[str]:
        return [item.kind for item in self.items]

    def take(self, rows: np.ndarray) -> Examples[Asked]:
        return Examples([self.items[i] for i in rows], self.latency_s[rows])

    def only(self, rows: np.ndarray) -> Self:
        items, latency_s = self.take(rows)
        return replace(self, items=tuple(items), latency_s=latency_s, noise_s=self.noise_s[rows])


def join_labels(
    table: LatencyTable, graphs: Iterable[OperatorGraph], picked: Mapping[str, Any] | None = None
) -> LabelledSet[OperatorGraph]:
    """Join graphs with the median latency of their measured solo rows: subject = graph id or name, point full.

    ``picked``: values of setting columns (``SETTING_COLUMNS``) to select. Predicted and co-located rows, failed ones,
    and rows of several replicas are left out. Equal graphs count once; the label is the median of all their samples.

    Raises ``InputError`` when nothing joins, rows of several settings remain, or different graphs share a measured
    name; ``TableError`` for a label that is not a finite number.
    """
    all_graphs = list(graphs)
    by_id = {graph.id: graph for graph in all_graphs}
    measured = measured_rows(table, picked or {}, colocated=False)
    by_name = graphs_by_name(all_graphs, measured["subject"])
    measured = measured.assign(subject=[by_name[name].id if name in by_name else name for name in measured["subject"]])
    rows = measured[measured["subject"].isin(by_id)]
    subjects = measured["subject"].nunique()
    if rows.empty:
        raise InputError(
            f"none of the {counted(len(by_id), 'graph')} has a label: "
            f"no subject of the {subjects} measured is a graph's id or name"
        )
    parts = {str(subject): part for subject, part in rows.groupby("subject", sort=False)}
    labelled = [graph for id_, graph in by_id.items() if id_ in parts]
    measured_parts = [parts[graph.id] for graph in labelled]
    samples_s, rounds = (
        [np.concatenate(part[column].tolist()) for part in measured_parts]
        for column in ("samples_s", "samples_per_round")
    )
    latency_s = np.array([np.median(samples) for samples in samples_s])
    if not np.isfinite(latency_s).all():
        subject = labelled[int(np.isfinite(latency_s).argmin())].id
        raise TableError(f"latency table: the median of subject {subject} is not a finite number of seconds")
    medians_s = [sorted(float(np.median(samples)) for samples in part["samples_s"]) for part in measured_parts]
    return LabelledSet(
        items=tuple(labelled),
        latency_s=latency_s,
        noise_s=np.array([label_noise_s(*of_label) for of_label in zip(samples_s, rounds, strict=True)]),
        setting=only_setting(rows),
        graphs_without_label=len(by_id) - len(labelled),
        labels_without_graph=subjects - len(labelled),
        unstable=sum(not part["stable"].astype(bool).any() for part in measured_parts) if "stable" in rows else 0,
        apart={
            graph.id: values
            for graph, values in zip(labelled, medians_s, strict=True)
            if values[-1] >= MAX_APART * values[0]
        },
    )


def measured_rows(table: LatencyTable, picked: Mapping[str, Any], *, colocated: bool) -> pd.DataFrame:
    """Return the solo or co-located rows to learn from. ``picked``: values of columns to select, None for any.

    Raises ``InputError`` when there are none.
    """
    conditions = {column: value for column, value in picked.items() if value is not None}
    filters = {"status": "ok", "point": FULL.key, "predicted": False, "replicas": 1}
    rows = table.rows
    # Tables from elsewhere may leave the number format out.
    precision = rows["precision"].replace("", FLOAT32) if "precision" in rows else FLOAT32
    rows = rows.assign(precision=precision)
    keep: np.ndarray = (rows["co_runners"] != "").to_numpy() == colocated
    for column, value in filters.items():
        keep = keep & (rows[column] == value).to_numpy()
    measured = chosen = rows[keep]
    for column, value in conditions.items():
        chosen = chosen[chosen[column] == value] if column in rows else chosen[:0]
    if chosen.empty:
        noun, alone = ("co-located row", "") if colocated else ("row", ", alone")
        in_words = "".join(f", {column} {value}" for column, value in conditions.items())
        others = {name: sorted(measured[name].unique().tolist()) for name in conditions if name in measured}
        differing = {name: values for name, values in others.items() if values and conditions[name] not in values}
        there_are = "".join(
            f"; its rows have {name} {name_list(map(str, each), 6)}" for name, each in differing.items()
        )
        raise InputError(
            f"the latency table has no measured {noun} (status ok, point full{alone}{in_words}){there_are}"
        )
    return chosen


def graphs_by_name(graphs: Iterable[OperatorGraph], measured: Iterable[str]) -> dict[str, OperatorGraph]:
    """Return graphs by id and by name. Raises ``InputError`` if different graphs share a measured name."""
    by_name: dict[str, dict[str, OperatorGraph]] = {}
    for graph in graphs:
        for name in filter(None, (graph.id, graph.name)):
            by_name.setdefault(name, {})[graph.id] = graph
    for name in sorted(set(measured) & set(by_name)):
        if len(by_name[name]) > 1:
            raise InputError(f"{len(by_name[name])} different graphs are named {name}, which was measured")
    return {name: next(iter(named.values())) for name, named in by_name.items()}


def only_setting(rows: pd.DataFrame, columns: Sequence[str] = SETTING_COLUMNS) -> Setting:
    """Return the setting of these rows. Raises ``InputError`` when values of one of ``columns`` differ."""
    for column in columns:
        values = sorted(rows[column].unique().tolist())
        if len(values) > 1:
            shown = ", ".join(map(str, values))
            raise InputError(
                f"the latency table mixes {column.replace('_', ' ')} {shown}: a predictor learns one setting, "
                f"pick it with --{column.replace('_', '-')}, or train one of all with --model settings"
            )
    first = rows.iloc[0]
    return Setting(
        machine=str(first["machine"]),
        device=str(first["device"]),
        backend=str(first["backend"]),
        threads=int(first["threads"]),
        batch_size=int(first["batch_size"]),
        cpu=machine_facts()["cpu"] if first["machine"] == machine_id() else None,
        precision=str(first["precision"]),
    )


def facts_of(setting: Setting) -> dict[str, Any] | None:
    """Return facts and speed of the machine of these labels if it is this one, else None."""
    from slotool.timing.speed import facts_with_speed

    return facts_with_speed() if setting.machine == machine_id() else None


def label_noise_s(samples: np.ndarray, per_round: Counts = ()) -> float:
    """Return an estimate of the error of a label, the median of its samples, in seconds; NaN for a single round.

    ``samples``: float64 seconds [n], in the order measured; ``per_round``: number of samples of each round. Without
    rounds, each half of the samples counts as one.

    The estimate is the difference between the mean of the first rounds' medians and that of the last, scaled to the
    deviation of the mean of all. If errors of rounds are independent and symmetric, it is distributed as the error of
    the label, so a predictor that knows every true latency is off by so much. It misses disturbances of all rounds
    alike, and is too high where one round scatters widely, which moves the median of all samples little.
    """
    half = len(samples) // 2
    medians = round_medians(samples, per_round if len(per_round) else (half, len(samples) - half))
    first = len(medians) // 2
    if not first:
        return math.nan
    last = len(medians) - first
    return float(abs(medians[:first].mean() - medians[first:].mean())) * math.sqrt(first * last) / len(medians)


@dataclass(frozen=True)
class SettingsLabelled:
    """Networks with labels in several settings: ``latency_s`` float64 seconds [n, S], NaN where there is none.

    ``left_out``: settings that have too few labels, and their number of labels.
    """

    items: tuple[OperatorGraph, ...]
    settings: tuple[Setting, ...]
    latency_s: np.ndarray
    left_out: tuple[tuple[Setting, int], ...] = ()


def join_settings(
    table: LatencyTable, graphs: Iterable[OperatorGraph], picked: Mapping[str, Any] | None = None
) -> SettingsLabelled:
    """Join the labels of every setting of a table as ``join_labels`` does; at least one must have ten labels."""
    all_graphs = list(graphs)
    rows = measured_rows(table, picked or {}, colocated=False)
    per_setting: list[tuple[Setting, dict[str, float]]] = []
    left_out: list[tuple[Setting, int]] = []
    by_id: dict[str, OperatorGraph] = {}
    for _, part in rows.groupby(list(SETTING_COLUMNS), sort=False):
        try:
            labelled = join_labels(LatencyTable(part.reset_index(drop=True), table.provenance), all_graphs)
        except InputError:
            continue
        if len(labelled) < MIN_LABELS_OF_SETTING:
            left_out.append((labelled.setting, len(labelled)))
            continue
        ids = [graph.id for graph in labelled.items]
        by_id |= zip(ids, labelled.items, strict=True)
        per_setting.append((labelled.setting, dict(zip(ids, labelled.latency_s.tolist(), strict=True))))
    if not per_setting:
        raise InputError(f"no setting has labels of {MIN_LABELS_OF_SETTING} of the {counted(len(all_graphs), 'graph')}")
    latency_s = np.array([[labels.get(id_, np.nan) for _, labels in per_setting] for id_ in by_id])
    settings = tuple(setting for setting, _ in per_setting)
    return SettingsLabelled(tuple(by_id.values()), settings, latency_s, tuple(left_out))
