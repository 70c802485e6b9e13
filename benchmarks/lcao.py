"""LCAO co-located with a busy copy of the model on the same core: the deadline is the uninterfered full network's p95.

``python -m benchmarks lcao`` reads networks from the folders in ``$SLOTOOL_NETWORKS`` (see ``slo_nn``; a 112-112
network of Fashion-MNIST may lie there too, in ``fashion-mnist``) and sets from ``$SLOTOOL_DATA_DIR``; what is missing
is left out with its reason; ``$SLOTOOL_BENCH_SETS`` names some of the sets only. Rows are int8 where that loses nothing
on validation data, as ``build-tables`` chooses them; the full network, whose p95 is the deadline and which the points
are lost against, is the one in float32 all the same. T(k, β) is measured on validation examples, deadlines are kept or
missed on test examples. The floor is the cheapest point's share: what it misses in the same minute, no choice of k
could have saved; the baseline is the full network. Points lost are paired, with their standard error, on the examples
that both answered. LCAO plans with the 99th percentile, because the target is 98 % in time. It knows β first, then
estimates it from latencies.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SETS = {"fashion-mnist": 0.021, "tate-16k": 0.003, "tibkat-35k": 0.003, "tibkat-words-196k": 0.003}
ASKED = 0.98
QUANTILE = 0.99
SECONDS = 8.0


def main() -> None:
    import torch

    torch.set_num_threads(1)
    results = {}
    for name in os.environ.get("SLOTOOL_BENCH_SETS", ",".join(SETS)).split(","):
        folder = Path(os.environ.get("SLOTOOL_NETWORKS", "networks")) / name
        if "SLOTOOL_DATA_DIR" not in os.environ or not (folder / "manifest.json").is_file():
            print(f"{name}: left out, no network {folder} or no $SLOTOOL_DATA_DIR")
            continue
        results[name] = _one_set(name, folder, SETS[name])
    print(json.dumps({"benchmark": "lcao", "sets": results}))


def _one_set(name: str, folder: Path, allowed: float) -> list[dict[str, Any]]:
    from benchmarks.colocation import measured as co_location
    from slotool.artifacts import open_artifact
    from slotool.elastic.family_files import load_family
    from slotool.elastic.queries import dataset_of
    from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build, with_weight_dtype

    source = load_family(open_artifact(folder))
    data = dataset_of(source, name)
    began = time.perf_counter()
    subject = TableSubject(source.networks[0].mlp, data)
    model = with_weight_dtype(build("clusters", subject, "clusters", TableSettings()), data)
    print(f"\n{name}: {'int8' if model.int8 else 'float32'} rows; built in {time.perf_counter() - began:.0f} s")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        model.save(f"{place}/model", config={"data": name}, seed=0)
        request = {"path": f"{place}/model", "point": model.full.key, "data": name}
        latency = None
        for estimate in (False, True):
            settings = co_location.CoLocationSettings(
                quantile=QUANTILE, seconds=SECONDS, sweep=False, estimate=estimate
            )
            measured = co_location.measure(model, data, request, settings, latency=latency)
            latency = measured.latency
            for row in measured.table.summary():
                row["beta"] = "estimated" if estimate else "given"
                row["slice_us"] = 1e6 * float(
                    np.median(measured.pauses_s[row["co_runners"]] if row["co_runners"] else [0.0])
                )
                rows.append(row)
    _print(name, rows, allowed)
    return rows


def _print(name: str, rows: list[dict[str, Any]], allowed: float) -> None:
    pause = next(row["slice_us"] for row in rows if row["co_runners"])
    print(
        f"{name}: deadline {rows[0]['deadline_us']:.4g} µs; with a co-runner the core is away {pause:,.0f} µs at a time"
    )
    heads = ("β", "co-runners", "in time", "full net", "floor", "rejected", "mean k", "lost", "± SE")
    print(" ".join(f"{head:>10}" for head in heads))
    for row in rows:
        shares = [f"{100 * row[what]:.2f} %" for what in ("met_share", "full_met_share", "least_met_share")]
        lost = [f"{100 * row[what]:.2f}" for what in ("lost", "lost_standard_error")]
        cells = [
            row["beta"],
            row["co_runners"],
            *shares,
            f"{100 * row['rejected_share']:.1f} %",
            f"{row['mean_k']:.4f}",
            *lost,
        ]
        print(" ".join(f"{cell!s:>10}" for cell in cells))
    for row in rows:
        if row["co_runners"]:
            kept, true = row["met_share"] >= ASKED, row["lost"] <= allowed
            print(
                f"β {row['beta']}: {'met' if kept else 'MISSED'} ≥ {100 * ASKED:g} % in time, "
                f"{'met' if true else 'MISSED'} ≤ {100 * allowed:g} points lost"
            )


if __name__ == "__main__":
    main()
