"""Labels of co-located networks, and their split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from slotool.errors import InputError, TableError
from slotool.graphs import OperatorGraph
from slotool.predictors.colocations import Colocation
from slotool.predictors.labels import (
    SETTING_COLUMNS,
    LabelledSet,
    Setting,
    graphs_by_name,
    label_noise_s,
    measured_rows,
    only_setting,
)
from slotool.predictors.splits import MIN_DEV_ROWS, RowSplit, split_each
from slotool.tables import LatencyTable

JOINT = "+"
# Source: inference-latency-prediction, 5.2: 70-15-15.
DEV_SHARE = 0.15


def is_colocated(table: LatencyTable) -> bool:
    """True if all measured rows are co-located."""
    measured = table.rows[(table.rows["status"] == "ok") & ~table.rows["predicted"]]
    return bool(len(measured) and (measured["co_runners"] != "").all())


def join_colocated(
    table: LatencyTable, graphs: Iterable[OperatorGraph], picked: Mapping[str, Any] | None = None
) -> LabelledSet[Colocation]:
    """Join the co-locations of a table whose members all are among ``graphs``, by id or name, with their latencies.

    Rows of one subject with the same co-runners are one label: the median of the subject's co-located samples, relative
    to the solo samples just before and after, so that drift cancels. ``picked``: values of setting columns, or of
    ``placement``, to select. Raises ``InputError`` if nothing joins, rows of several settings or placements remain, or
    solo samples are missing; ``TableError`` for solo samples that are no latency.
    """
    if "solo_s" not in table.rows:
        raise InputError(
            "the latency table has no column solo_s: co-located rows need their solo samples, "
            "as profile colocated writes them"
        )
    rows = measured_rows(table, picked or {}, colocated=True)
    if (empty := rows["solo_s"].map(len) == 0).any():
        raise TableError(f"latency table: a row of subject {rows['subject'][empty].iloc[0]} has no solo samples")
    names = [
        [subject, *others.split(JOINT)] for subject, others in zip(rows["subject"], rows["co_runners"], strict=True)
    ]
    measured = {name for row in names for name in row}
    by_name = graphs_by_name(graphs, measured)
    members = pd.Series([[by_name.get(name) for name in row] for row in names], index=rows.index, dtype=object)
    rows = rows.assign(members=members, solo_median_s=rows["solo_s"].map(np.median))
    complete = rows[[None not in row for row in members]]
    if complete.empty:
        absent = sorted(measured - set(by_name))
        raise InputError(
            f"none of the {len(rows)} co-located rows can be learnt from: no graph has the id or name {absent[0]}"
            + (f" or {len(absent) - 1} others" if len(absent) > 1 else "")
        )
    setting = _setting(complete)
    medians = complete["solo_median_s"].groupby([row[0].id for row in complete["members"]], sort=False).median()
    solo_s = {str(id_): float(median) for id_, median in medians.items()}
    labels = list(_labels(complete, solo_s, setting))
    if not labels:
        raise InputError("no co-located row can be learnt from: a co-runner's own solo latency is nowhere in the table")
    colocations, latency_s, noise_s = zip(*labels, strict=True)
    return LabelledSet(
        items=colocations,
        latency_s=np.array(latency_s),
        noise_s=np.array(noise_s),
        setting=setting,
        labels_without_graph=len(rows) - len(complete),
        solo_s=solo_s,
    )


def _setting(rows: pd.DataFrame) -> Setting:
    for column in ("placement", "affinity"):
        rows = rows if column in rows else rows.assign(**{column: ""})
    setting = only_setting(rows, (*SETTING_COLUMNS, "placement"))
    cores = {len(str(text).split(",")) for text in rows["affinity"] if text}
    if len(cores) > 1:
        raise InputError(f"the latency table mixes numbers of cores: {', '.join(map(str, sorted(cores)))}")
    return replace(setting, placement=str(rows.iloc[0]["placement"] or "shared"), cores=next(iter(cores), None))


def _labels(
    rows: pd.DataFrame, solo_s: Mapping[str, float], setting: Setting
) -> Iterator[tuple[Colocation, float, float]]:
    """Yield co-location, label and noise; rows of one co-location are one label."""
    same: dict[tuple[str, ...], list[Mapping[Any, Any]]] = {}
    for row in rows.to_dict("records"):
        subject, *others = row["members"]
        same.setdefault((subject.id, *sorted(graph.id for graph in others)), []).append(row)
    for ids, repeats in same.items():
        if all(id_ in solo_s for id_ in ids):
            subject, *others = repeats[0]["members"]
            alone_s = float(np.median([row["solo_median_s"] for row in repeats]))
            oversubscription = setting.oversubscription(len(ids))
            colocation = Colocation.of(subject, others, {**solo_s, subject.id: alone_s}, oversubscription)
            # Each row relative to its own solo samples, since the machine may have been slower in one of them.
            latency_s = alone_s * float(np.median([np.median(r["samples_s"]) / r["solo_median_s"] for r in repeats]))
            yield colocation, latency_s, _noise_s(repeats, latency_s / alone_s)


def _noise_s(rows: Sequence[Mapping[Any, Any]], ratio: float) -> float:
    """Return the error of a label from its samples and, times the ratio, from the solo samples."""
    together, solo = (np.concatenate([np.asarray(row[name]) for row in rows]) for name in ("samples_s", "solo_s"))
    # A single round is split into halves; each row has solo samples of its own, before and after.
    counts = np.concatenate([np.asarray(row.get("samples_per_round", ())) for row in rows])
    return float(np.hypot(label_noise_s(together, counts if len(counts) > 1 else ()), ratio * label_noise_s(solo)))


def random_colocated_split(colocations: Sequence[Colocation], seed: int, rows: Sequence[int] | None = None) -> RowSplit:
    """Split ``rows``, None for all, 70-15-15 within each size of co-locations.

    Raises ``InputError`` if the dev set would be too small.
    """
    chosen = np.arange(len(colocations)) if rows is None else np.asarray(rows)
    sizes = np.array([len(colocations[i]) for i in chosen.tolist()])
    groups = [chosen[sizes == size] for size in np.unique(sizes)]
    split = split_each(groups, lambda count: round(DEV_SHARE * count), np.random.default_rng(seed))
    if len(split.dev) < MIN_DEV_ROWS:
        raise InputError(
            f"too few labelled co-locations to split ({len(chosen)}): about {round(MIN_DEV_ROWS / DEV_SHARE)} are "
            f"needed, {MIN_DEV_ROWS} of them to choose by"
        )
    return split
