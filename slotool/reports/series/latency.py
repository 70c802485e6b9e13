"""Latency tables: latency by batch size or of every network, and what co-runners do to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from slotool.reports.figure import PALETTE, Axis, Band, Curve, Figure, Rows, Unit, duration, percent
from slotool.tables import LatencyTable

# Columns that distinguish latencies of one batch size.
_WHERE = ["device", "backend", "threads", "replicas", "machine", "predicted"]
# As many curves as colours; nobody reads more rows than this.
MAX_CURVES, MAX_ROWS = len(PALETTE), 10
# Ranked networks in a plot: more overlap, and make the page large.
MAX_DOTS = 1_000


def latency_figures(name: str, table: LatencyTable, source: str) -> Iterator[Figure]:
    """Solo latency, by batch size where several were measured, and degradation where rows are co-located."""
    statistics = table.statistics()
    solo = statistics[statistics["co_runners"] == ""]
    if len(solo):
        curve = solo.groupby(["subject", "point", *_WHERE], sort=False)
        batched = curve["batch_size"].transform("nunique") > 1
        yield _by_batch_size(name, solo[batched], source) if batched.any() else _ranked(name, solo, source)
    colocated = _degradations(table)
    # Co-runners on one device have no effect on another.
    devices: list[str] = list(colocated["device"].unique()) if len(colocated) else []
    for device in devices:
        of = f"{name} on {device}" if len(devices) > 1 else name
        yield _degradation(of, colocated[colocated["device"] == device], source)


def _by_batch_size(name: str, rows: pd.DataFrame, source: str) -> Figure:
    key = ["subject", "point", *_WHERE]
    by_curve = dict(zip(_labels(rows, key), [part for _, part in rows.groupby(key, sort=False)], strict=True))
    # The fastest, the slowest and those between, evenly.
    ordered = sorted(by_curve, key=lambda label: float(by_curve[label]["median_s"].min()))
    shown = [ordered[i] for i in np.unique(np.linspace(0, len(ordered) - 1, MAX_CURVES).round().astype(int))]
    drawn = pd.concat([by_curve[label] for label in shown])
    unit = Unit.best_for(drawn["median_s"].to_numpy())
    curves = []
    for colour, label in enumerate(shown):
        part = by_curve[label].sort_values("batch_size")
        y = unit.of(part["median_s"].to_numpy())
        curves.append(Curve(label, part["batch_size"].to_numpy(float), y, "dots and line", colour))
    left_out = len(ordered) - len(shown)
    sizes = np.sort(drawn["batch_size"].unique())
    ticks = tuple((float(size), str(size)) for size in sizes) if len(sizes) <= MAX_CURVES else ()
    return Figure(
        id=f"latency-{name}",
        title=f"{name}: latency by batch size",
        caption="Median latency of one call."
        + (f" {len(shown)} of {len(ordered)} operating points are drawn." if left_out else ""),
        source=source,
        x=Axis("batch size, examples", log=True, ticks=ticks),
        y=Axis(f"latency of one call, {unit.name}", log=True),
        curves=tuple(curves),
        table=Rows(
            ("point", *(f"batch {size}" for size in sizes)),
            tuple((label, *_cells(by_curve[label], sizes)) for label in shown),
        ),
    )


def _cells(rows: pd.DataFrame, sizes: np.ndarray) -> list[str]:
    median_s = dict(zip(rows["batch_size"], rows["median_s"], strict=True))
    return [duration(median_s[size]) if size in median_s else "–" for size in sizes]


def _ranked(name: str, rows: pd.DataFrame, source: str) -> Figure:
    """Return every network or point, fastest first: for a table without batch sizes this is all there is to compare."""
    unit = Unit.best_for(rows["median_s"].to_numpy())
    curves, bands = [], []
    labels = dict.fromkeys(_labels(rows, _WHERE))
    groups = [_drawn(part.sort_values("median_s")) for _, part in rows.groupby(_WHERE, sort=False)]
    for colour, (label, part) in enumerate(zip(labels, groups, strict=True)):
        rank, y = part["rank"].to_numpy(), unit.of(part["median_s"].to_numpy())
        curves.append(Curve(label or name, rank, y, "dots", colour))
    if len(groups) == 1 and groups[0][["low_s", "high_s"]].gt(0).all(axis=None):
        low, high = (unit.of(groups[0][column].to_numpy()) for column in ("low_s", "high_s"))
        bands.append(Band("where a repetition's median lies in 95 %", curves[0].x, low, high))
    left_out = len(rows) - sum(map(len, groups))
    slowest_first = rows.sort_values("median_s", ascending=False)
    return Figure(
        id=f"latency-{name}",
        title=f"{name}: latency of each network and point",
        caption=f"Each dot is one of {len(rows):,} medians, the fastest first: {duration(rows['median_s'].min())} to "
        f"{duration(rows['median_s'].max())}." + (f" {left_out:,} of them are not drawn." if left_out else ""),
        source=source,
        x=Axis("rank by latency"),
        y=Axis(f"median latency, {unit.name}", log=True),
        curves=tuple(curves),
        bands=tuple(bands),
        table=Rows(
            ("slowest", "median", "batch size"),
            tuple(
                (_what(row), duration(row.median_s), str(row.batch_size)) for row in _each(slowest_first.head(MAX_ROWS))
            ),
        ),
    )


def _drawn(part: pd.DataFrame) -> pd.DataFrame:
    """Return at most ``MAX_DOTS`` of the sorted rows, with the first and the last, and their ``rank`` from 1 on."""
    chosen = np.unique(np.linspace(0, len(part) - 1, min(len(part), MAX_DOTS)).round().astype(int))
    return part.iloc[chosen].assign(rank=chosen + 1.0)


def _degradations(table: LatencyTable) -> pd.DataFrame:
    """Co-located ``ok`` rows with ``solo_median_s`` and ``slowdown``, co-located latency over solo latency."""
    rows = table.rows
    if "solo_s" not in rows:
        return rows.iloc[:0]
    rows = rows[(rows["status"] == "ok") & (rows["co_runners"] != "")]
    has_solo = [samples is not None and len(samples) > 0 for samples in rows["solo_s"]]
    rows = rows[np.array(has_solo, dtype=bool)]
    solo_s = np.array([np.median(samples) for samples in rows["solo_s"]], dtype=np.float64)
    colocated_s = np.array([np.median(samples) for samples in rows["samples_s"]], dtype=np.float64)
    slowdowns = rows.assign(solo_median_s=solo_s, slowdown=colocated_s / solo_s)
    finite: pd.DataFrame = slowdowns[np.isfinite(slowdowns["slowdown"]) & (slowdowns["solo_median_s"] > 0)]
    return finite


def _degradation(name: str, rows: pd.DataFrame, source: str) -> Figure:
    unit = Unit.best_for(rows["solo_median_s"].to_numpy())
    count = rows["co_runners"].str.count(r"\+") + 1
    curves = []
    for colour, (co_runners, part) in enumerate(rows.groupby(count)):
        label = f"{co_runners} co-runner{'s' * (co_runners > 1)}"
        x, y = unit.of(part["solo_median_s"].to_numpy()), part["slowdown"].to_numpy()
        curves.append(Curve(label, x, y, "dots", colour))
    slowdown = rows["slowdown"].to_numpy()
    ends = np.array([min(c.x.min() for c in curves), max(c.x.max() for c in curves)])
    curves.insert(0, Curve("as fast as solo", ends, np.ones(2), "dashes", 5))
    worst = rows.nlargest(MAX_ROWS, "slowdown")
    return Figure(
        id=f"degradation-{name}",
        title=f"{name}: latency under co-location",
        caption=f"Each dot is a network with its co-runners: median slow-down {np.median(slowdown):.2f} ×, "
        f"{percent(float((slowdown > 2).mean()))} of {len(rows):,} take more than twice as long as solo.",
        source=source,
        x=Axis(f"solo latency, {unit.name}", log=True),
        y=Axis("co-located latency over solo latency", log=True),
        curves=tuple(curves),
        table=Rows(
            ("most slowed down", "co-runners", "solo", "slow-down"),
            tuple(
                (_what(row), row.co_runners, duration(row.solo_median_s), f"{row.slowdown:.2f} ×")
                for row in _each(worst)
            ),
        ),
        headlines=((f"{name}: median slow-down under co-location", f"{np.median(slowdown):.2f} ×"),),
    )


def _each(rows: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows by the names of their columns."""
    return iter(rows.itertuples(index=False))


def _what(row: Any) -> str:
    return str(row.subject) if row.point == "full" else f"{row.subject} {row.point}"


def _labels(rows: pd.DataFrame, columns: list[str]) -> list[str]:
    """Per group of ``columns``, in the order met: the values that tell it from the others."""
    groups = rows[columns].drop_duplicates()
    differing = [column for column in columns if groups[column].nunique() > 1]
    if not differing and "subject" in columns:
        differing = ["subject"]
    return [", ".join(_cell_text(column, row[column]) for column in differing) for _, row in groups.iterrows()]


def _cell_text(column: str, value: object) -> str:
    if column == "predicted":
        return "predicted" if value else "measured"
    return f"{value} {column}" if column in ("threads", "replicas") else str(value)
