"""Summary of a campaign: counts, statistics and reasons of its latency table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from slotool.profiling.rows import Key
from slotool.tables import LatencyTable
from slotool.tables.latency import HEADINGS
from slotool.timing.interference import state

MAX_REASONS = 20
# Number of networks that are listed, the fastest first.
MAX_NETWORKS = 10


def summary(latency: LatencyTable, titles: Mapping[str, str], keys: Collection[Key]) -> dict[str, Any]:
    """Return figures of the closing tables: statuses of the rows of ``keys``, ``measured`` and seconds of this run.

    ``others``: number of other rows in the table.
    """
    every = latency.rows
    named = zip(*(every[column] for column in ("subject", "point", "batch_size", "co_runners")), strict=True)
    selected = LatencyTable(every[[key in keys for key in named]], latency.provenance, latency.source)
    run, rows, statistics = latency.provenance["campaign"], selected.rows, selected.statistics()
    half_width = (statistics["high_s"] - statistics["low_s"]) / 2 / statistics["median_s"]
    statistics = statistics.assign(half_width=half_width)
    ok = rows[rows["status"] == "ok"].reset_index(drop=True)
    shown = ["subject", "point", "batch_size", "co_runners", "median_s", "low_s", "high_s", "half_width", "n"]
    columns = [*shown, *ok.columns.intersection([*HEADINGS])]
    statistics = statistics.assign(**ok[columns[len(shown) :]])
    status = rows["status"].value_counts()
    reasons = rows.loc[rows["status"] != "ok", ["subject", "status", "reason"]].drop_duplicates()
    medians = statistics["median_s"]
    joules = statistics["energy_j"].dropna() if "energy_j" in statistics else pd.Series(dtype=float)
    degradation = []
    if "degradation_ratio" in ok:
        solo = ok["solo_s"].map(lambda samples: float(np.median(samples)))
        states = ok["stable"].astype(bool).map(state)
        every_row = statistics[shown].join(ok[["degradation_s", "degradation_ratio"]]).assign(solo_s=solo, state=states)
        degradation = every_row[every_row["co_runners"] != ""].to_dict("records")
    of_models = statistics["backend"] == "elastic"
    points = statistics[of_models].sort_values(["subject", "batch_size", "median_s"])
    networks = statistics[~of_models & (statistics["co_runners"] == "")].sort_values("median_s")[:MAX_NETWORKS]
    networks = networks.assign(network=[titles.get(subject, subject) for subject in networks["subject"]])
    return {
        **run,
        "others": len(every) - len(rows),
        "rows_per_second": run["measured"] / run["seconds"] if run["measured"] else 0.0,
        **{name: int(status.get(name, 0)) for name in ("skipped", "failed", "timeout")},
        "out_of_memory": int(status.get("out-of-memory", 0)),
        "ok_rows": len(ok),
        "unstable": int((~ok["stable"].astype(bool)).sum()),
        "interrupted": int(ok["interrupted"].sum()),
        "discarded": int(ok["discarded"].sum()),
        "latency_s": [medians.min(), medians.median(), medians.max()] if len(medians) else [],
        "energy_j": [joules.min(), joules.median(), joules.max()] if len(joules) else [],
        "points": points[columns].to_dict("records"),
        "networks": networks[["network", *columns]].to_dict("records"),
        "degradation": degradation,
        "device_remarks": list(dict.fromkeys(part for text in ok["remarks"] for part in text.split("; ") if part)),
        "reasons": [
            f"{titles.get(subject, subject)}: {how}, {why}" for subject, how, why in reasons.itertuples(index=False)
        ][:MAX_REASONS],
    }
