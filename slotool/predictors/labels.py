"""Labels: the measured latency of each graph, under one setting of machine, device and threads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Generic, Self

import numpy as np
import pandas as pd

from slotool import strict_json
from slotool.errors import InputError, TableError
from slotool.graphs import OperatorGraph
from slotool.graphs.graph import FLOAT32
from slotool.machine import differences, machine_facts, machine_id
from slotool.predictors.base import Asked, Examples
from slotool.printable import counted
from slotool.tables import FULL, LatencyTable
from slotool.tables.rounds import Counts, round_medians

# Rows of one network in one setting that differ by more times are hardly all of it.
MAX_APART = 2.0
# Labels that a setting is learnt from, at least.
MIN_LABELS_OF_SETTING = 10


@dataclass(frozen=True)
class Setting:
    """What a latency belongs to: columns of the latency table that must be the same for all labels.

    Of co-located labels also ``placement``, shared or split, and how many ``cores`` a member may use. ``precision``:
    what numbers are computed in, such as float32, amp or int8.
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
        """Values of the latency table's columns."""
        return {name: getattr(self, name) for name in SETTING_COLUMNS}

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        where = f"machine {self.machine}" + (f" ({self.cpu})" if self.cpu else "")
        cores = (
            f" on {self.cores} {self.placement} core{'s' if self.cores and self.cores > 1 else ''}"
            if self.placement
            else ""
        )
        backend = self.backend if self.precision == "float32" else f"{self.backend} {self.precision}"
        return f"{self.device}, {backend}, {threads}{cores}, batch {self.batch_size}, {where}"

    def oversubscription(self, members: int) -> float:
        """How many times more threads than cores there are when so many run side by side, at least 1.

        An accelerator counts as one core, and one thread of each member.
        """
        if self.device != "cpu":
            return float(members)
        threads = self.threads * (1 if self.placement == "split" else members)
        return max(1.0, threads / (self.cores or self.threads))


SETTING_COLUMNS = tuple(each.name for each in fields(Setting) if each.name not in ("cpu", "placement", "cores"))


@dataclass(frozen=True)
class LabelledSet(Generic[Asked]):
    """What predictors are trained on and scored by: networks, or co-locations, with labels, float64 seconds > 0 [n].

    ``noise_s``: how far each label may be off, float64 seconds [n] (``label_noise_s``), NaN where unknown.
    ``unstable``: labels none of whose rows is stable, 0 where the table does not say.
    ``labels_without_graph``: measured subjects, or co-located rows, of which some network is none of the graphs.
    ``solo_s``: of co-locations, the median of all solo samples of each network, by graph id. ``apart``: rows of one
    network whose medians differ by ``MAX_APART`` times or more, by graph id.
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
        """The items and labels of these rows."""
        return Examples([self.items[i] for i in rows], self.latency_s[rows])

    def only(self, rows: np.ndarray) -> Self:
        """These rows alone, with all that is known of them."""
        items, latency_s = self.take(rows)
        return replace(self, items=tuple(items), latency_s=latency_s, noise_s=self.noise_s[rows])


def join_labels(
    table: LatencyTable, graphs: Iterable[OperatorGraph], picked: Mapping[str, Any] | None = None
) -> LabelledSet[OperatorGraph]:
    """Each graph with the median latency of its measured solo rows: subject = graph id or name, point full, status ok.

    ``picked``: values of setting columns (``SETTING_COLUMNS``) to keep. Predicted and co-located rows, and rows of
    several replicas, never count. A graph given twice counts once, with the labels of all its names; its label is the
    median of all their samples.

    Raises ``InputError`` when nothing joins, rows of several settings remain, or different graphs share a name that
    was measured, ``TableError`` for a label that is not a finite number.
    """
    given = list(graphs)
    by_id = {graph.id: graph for graph in given}
    measured = measured_rows(table, picked or {}, colocated=False)
    known = graphs_by_name(given, measured["subject"])
    measured = measured.assign(subject=[known[name].id if name in known else name for name in measured["subject"]])
    rows = measured[measured["subject"].isin(by_id)]
    subjects = measured["subject"].nunique()
    if rows.empty:
        raise InputError(
            f"none of the {counted(len(by_id), 'graph')} has a label: "
            f"no subject of the {subjects} measured is a graph's id or name"
        )
    setting = only_setting(rows, facts=facts_in(table))
    samples_s, counts = _pooled(rows, "samples_s"), _pooled(rows, "samples_per_round")
    medians = _medians(samples_s)
    found = [graph for id_, graph in by_id.items() if id_ in medians]
    return LabelledSet(
        items=tuple(found),
        latency_s=np.array([medians[graph.id] for graph in found]),
        noise_s=np.array([label_noise_s(samples_s[graph.id], counts[graph.id]) for graph in found]),
        setting=setting,
        graphs_without_label=len(by_id) - len(found),
        labels_without_graph=subjects - len(found),
        unstable=_unstable(rows),
        apart=_apart(rows),
    )


def _apart(rows: pd.DataFrame) -> dict[str, list[float]]:
    """Medians of the rows of each network whose rows cannot all be right, seconds ascending."""
    medians = rows["samples_s"].map(lambda samples: float(np.median(samples)))
    by_network = {str(subject): sorted(own) for subject, own in medians.groupby(rows["subject"], sort=False)}
    return {subject: own for subject, own in by_network.items() if own[-1] >= MAX_APART * own[0]}


def _unstable(rows: pd.DataFrame) -> int:
    if "stable" not in rows:
        return 0
    return int((~rows["stable"].astype(bool).groupby(rows["subject"]).any()).sum())


def measured_rows(table: LatencyTable, picked: Mapping[str, Any], *, colocated: bool) -> pd.DataFrame:
    """The rows of networks alone, or of co-located ones, that may be learnt from. ``picked``: values of columns to
    keep, None for any. Raises ``InputError`` when there are none."""
    conditions = {column: value for column, value in picked.items() if value is not None}
    wanted = {"status": "ok", "point": FULL.key, "predicted": False, "replicas": 1, **conditions}
    rows = table.rows
    # Tables from elsewhere may leave the number format out.
    precision = rows["precision"].replace("", FLOAT32) if "precision" in rows else FLOAT32
    rows = rows.assign(precision=precision)
    keep: np.ndarray = (rows["co_runners"] != "").to_numpy() == colocated
    for column, value in wanted.items():
        keep = keep & ((rows[column] == value).to_numpy() if column in rows else False)
    if not keep.any():
        what, alone = ("co-located row", "") if colocated else ("row", ", alone")
        asked = "".join(f", {column} {value}" for column, value in conditions.items())
        raise InputError(f"the latency table has no measured {what} (status ok, point full{alone}{asked})")
    chosen: pd.DataFrame = rows[keep]
    return chosen


def graphs_by_name(graphs: Iterable[OperatorGraph], measured: Iterable[str]) -> dict[str, OperatorGraph]:
    """Graphs by their id, and by their name. Raises ``InputError`` for different graphs of a name that was measured."""
    found: dict[str, dict[str, OperatorGraph]] = {}
    for graph in graphs:
        for name in filter(None, (graph.id, graph.name)):
            found.setdefault(name, {})[graph.id] = graph
    for name in sorted(set(measured) & set(found)):
        if len(found[name]) > 1:
            raise InputError(f"{len(found[name])} different graphs are named {name}, which was measured")
    return {name: next(iter(named.values())) for name, named in found.items()}


def _pooled(rows: pd.DataFrame, column: str) -> dict[str, np.ndarray]:
    """Every subject's numbers of all its rows, in the order measured."""
    return {
        str(subject): np.concatenate(numbers.tolist())
        for subject, numbers in rows.groupby("subject", sort=False)[column]
    }


def _medians(samples_s: Mapping[str, np.ndarray]) -> dict[str, float]:
    medians = {subject: float(np.median(samples)) for subject, samples in samples_s.items()}
    endless = [subject for subject, median in medians.items() if not np.isfinite(median)]
    if endless:
        raise TableError(f"latency table: the median of subject {endless[0]} is not a finite number of seconds")
    return medians


def only_setting(
    rows: pd.DataFrame, columns: Sequence[str] = SETTING_COLUMNS, facts: Mapping[str, Mapping[str, Any]] | None = None
) -> Setting:
    """The setting of these rows. Raises ``InputError`` when they are of several in one of ``columns``; ``facts`` of
    machines by their id (``facts_in``) say in words what differs."""
    for column in columns:
        values = sorted(rows[column].unique().tolist())
        if len(values) > 1:
            shown = ", ".join(map(str, values))
            differ = machines_in_words(values, facts or {}) if column == "machine" else ""
            raise InputError(
                f"the latency table mixes {column.replace('_', ' ')} {shown}{differ}: a predictor learns one setting, "
                f"pick it with --{column.replace('_', '-')}, or train one of all with --model settings"
            )
    first = rows.iloc[0]
    return Setting(
        machine=str(first["machine"]),
        device=str(first["device"]),
        backend=str(first["backend"]),
        threads=int(first["threads"]),
        batch_size=int(first["batch_size"]),
        cpu=_cpu_of(str(first["machine"])),
        precision=str(first["precision"]),
    )


def facts_in(table: LatencyTable) -> dict[str, dict[str, Any]]:
    """Facts of the machines that a table, or those it was put together from, were measured on, by the machine's id;
    of this one too. A machine whose facts were not written down is not in it."""
    sources = [table.provenance, *table.provenance.values()]
    stated = [each["machine_facts"] for each in sources if isinstance(each, Mapping) and "machine_facts" in each]
    found = {}
    for facts in stated:
        with suppress(TypeError, ValueError, AttributeError):  # what a foreign table states need not be facts
            found[machine_id(facts)] = dict(facts)
    return {**found, machine_id(): machine_facts()}


def machines_in_words(machines: Sequence[Any], facts: Mapping[str, Mapping[str, Any]]) -> str:
    """What differs between the first of these machines and each other one, in brackets after a space; empty where it is
    not known."""
    first, *others = machines
    if first not in facts:
        return ""
    known = [differences(facts[first], facts[other]) for other in others if other in facts]
    words = "; ".join(", ".join(each) for each in known if each)
    return f" ({words})" if words else ""


def facts_of(setting: Setting) -> dict[str, Any] | None:
    """Return the facts, with speed, of the machine that labels of this setting are of, where that is this one."""
    from slotool.timing.speed import facts_with_speed

    return facts_with_speed() if setting.machine == machine_id() else None


def _cpu_of(machine: str) -> str | None:
    """The processor's name when the labels come from this very machine."""
    return machine_facts()["cpu"] if machine == machine_id() else None


def label_noise_s(samples: np.ndarray, per_round: Counts = ()) -> float:
    """How far a label, the median of its samples, may be off, in seconds, by what its rounds show.

    ``samples``: float64 seconds [n], in the order measured, of which each round gave ``per_round``; where the rounds
    are unknown, the halves of the samples stand for two. The difference between the mean of the first rounds' medians
    and that of the last, scaled to the deviation of the mean of all: if rounds err independently and as often up as
    down, this is distributed as the error of the label, so a predictor that knows every true latency is off by so much.
    What hit all rounds alike, it does not see; and it is too high where one round scatters widely, for the label, the
    median of all together, keeps to the others. NaN for a single round or sample.
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
    for _, part in rows.groupby(list(SETTING_COLUMNS), sort=False):
        try:
            labelled = join_labels(LatencyTable(part.reset_index(drop=True), table.provenance), given)
        except InputError:
            continue
        if len(labelled) < MIN_LABELS_OF_SETTING:
            left_out.append((labelled.setting, len(labelled)))
            continue
        ids = [graph.id for graph in labelled.items]
        by_id |= dict(zip(ids, labelled.items, strict=True))
        found.append((labelled.setting, dict(zip(ids, labelled.latency_s.tolist(), strict=True))))
    if not found:
        raise InputError(f"no setting has labels of {MIN_LABELS_OF_SETTING} of the {counted(len(given), 'graph')}")
    latency_s = np.array([[labels.get(id_, np.nan) for _, labels in found] for id_ in by_id])
    settings = tuple(setting for setting, _ in found)
    return SettingsLabelled(tuple(by_id.values()), settings, latency_s, tuple(left_out))
