"""One predictor of many settings, on tables that others published: networks that it was not shown.

timm (``$SLOTOOL_DATA_DIR/timm``, throughputs of an i9-10940X, an RTX 3090 and an RTX 4090): families, modules of
timm, are held out in five folds. Beside the predictor least squares in log FLOPs, operators and activation elements,
boosted trees on the table's columns (parameters, GMACs, activations, image size), and a roofline scaled to the
labels. All of the same networks and folds; nothing was chosen by what is scored here. Devices that have ten labels:
``ten_labels``.

timm's networks are known by their features (``datasets/timm-network-features.parquet``). To ship a predictor they
must be captured, which takes half an hour of two cores and needs timm: ``python -m benchmarks.settings capture
GRAPHS.parquet``; ``python -m benchmarks.settings ship GRAPHS.parquet`` then makes ``models/predictor-devices``.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from slotool.graphs import OperatorGraph
from slotool.graphs.store import read_graphs, write_graphs
from slotool.predictors.features.network_features import FEATURES
from slotool.predictors.labels import Setting, SettingsLabelled
from slotool.predictors.training.many_settings import SettingsRun, hold_out_settings, train_settings

ROOT = Path(__file__).parents[1]
SHIPPED, DATASETS = ROOT / "models" / "predictor-devices", ROOT / "datasets"
# Its throughputs are of batches of 64 to 1,024, the largest that fit: the latency of 256 examples at that rate.
GPU_BATCH = 256
I9 = "benchmark-infer-fp32-nchw-pt240-cpu-i9_10940x-dynamo.csv.gz"
GPU = "benchmark-infer-amp-{}-pt240-cu124-{}.csv.gz"
TABLES = {
    I9: Setting("published", "i9-10940x", "torch.compile", 14, 1),
    GPU.format("nchw", "rtx4090"): Setting("published", "rtx4090", "torch", 1, GPU_BATCH, precision="amp"),
    GPU.format("nhwc", "rtx4090"): Setting(
        "published", "rtx4090", "torch channels-last", 1, GPU_BATCH, precision="amp"
    ),
    GPU.format("nchw", "rtx3090"): Setting("published", "rtx3090", "torch", 1, GPU_BATCH, precision="amp"),
}
COLUMNS = ("param_count", "infer_gmacs", "infer_macts", "infer_img_size")


def published(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Rows of each table, by file name."""
    return {name: list(csv.DictReader(gzip.open(folder / name, "rt"))) for name in TABLES}


def named(row: dict[str, str]) -> str:
    """What a captured network is called: model and image size."""
    return f"{row['model']}@{row['infer_img_size']}"


def timm_labels(folder: Path, graphs: Path) -> SettingsLabelled:
    """Labels of the captured networks."""
    tables = published(folder)
    found = {graph.name: graph for graph in read_graphs(graphs)}
    seconds: dict[str, dict[str, float]] = {}
    for name, rows in tables.items():
        for row in rows:
            seconds.setdefault(named(row), {})[name] = TABLES[name].batch_size / float(row["infer_samples_per_sec"])
    # One network, captured at two sizes or under two names, may be the same graph.
    unique = {graph.id: name for name, graph in found.items() if name in seconds}
    names = sorted(unique.values())
    latency_s = np.array([[seconds[name].get(table, np.nan) for table in TABLES] for name in names])
    return SettingsLabelled(tuple(found[name] for name in names), tuple(TABLES.values()), latency_s)


def boosted_trees(columns: np.ndarray, latency_s: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """log(measured ÷ predicted) of each label while its fold was held out, float64 [n, S]."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    errors = np.full(latency_s.shape, np.nan)
    for setting, own in enumerate(np.isfinite(latency_s).T):
        log_s = np.log(np.where(own, latency_s[:, setting], 1.0))
        for number in range(fold.max() + 1):
            shown, asked = own & (fold != number), own & (fold == number)
            trees = HistGradientBoostingRegressor(max_iter=200, random_state=0).fit(columns[shown], log_s[shown])
            errors[asked, setting] = log_s[asked] - trees.predict(columns[asked])
    return errors


def scaled_roofline(features: np.ndarray, latency_s: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """The same of a neutral roofline times one factor a setting."""
    ratio = np.log(latency_s) - features[:, FEATURES.index("log roofline"), None]
    errors = np.full(latency_s.shape, np.nan)
    for number in range(fold.max() + 1):
        errors[fold == number] = ratio[fold == number] - np.nanmedian(ratio[fold != number], axis=0)
    return errors


def mape(errors: np.ndarray) -> float:
    """Of log(measured ÷ predicted), NaN where there is no label."""
    return float(np.nanmean(np.abs(np.expm1(-errors))))


def cell_graphs(folder: Path) -> list[OperatorGraph]:
    """Cells of NAS-Bench-201."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "cells.jsonl"
        path.write_bytes(gzip.decompress((folder / "cells.jsonl.gz").read_bytes()))
        return list(read_graphs(path))


def cells(folder: Path) -> SettingsLabelled:
    """NAS-Bench-201: each different cell once, with the median of the labels of its names."""
    graphs = {graph.name: graph for graph in cell_graphs(folder)}
    table = pd.read_csv(folder / "latency.csv.gz")
    table["id"] = [graphs[name].id for name in table["subject"]]
    wide = table.pivot_table(index="id", columns="device", values="latency_s", aggfunc="median")
    by_id = {graph.id: graph for graph in graphs.values()}
    return SettingsLabelled(tuple(by_id[i] for i in wide.index), tuple(map(of_device, wide.columns)), wide.to_numpy())


def of_device(name: str) -> Setting:
    """``titanx_32``: a Titan X at batch 32; ``gold_6240``: a processor."""
    head, _, tail = name.rpartition("_")
    batch = int(tail) if tail in ("1", "32", "256") else 1
    return Setting("published", head if tail in ("1", "32", "256") else name, "unknown", 1, batch)


def timm_features(folder: Path) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Features of the captured networks; seconds, float64 [n, S], NaN where there is no label; ``COLUMNS`` [n, 4]."""
    table = pd.read_parquet(DATASETS / "timm-network-features.parquet").set_index("name", drop=False)
    latency_s = np.full((len(table), len(TABLES)), np.nan)
    columns = np.zeros((len(table), len(COLUMNS)))
    for s, (name, rows) in enumerate(published(folder).items()):
        for row in rows:
            if (key := named(row)) in table.index:
                at = table.index.get_loc(key)
                columns[at] = [float(row[column] or 0) for column in COLUMNS]
                latency_s[at, s] = TABLES[name].batch_size / float(row["infer_samples_per_sec"])
    return table, latency_s, columns


def timm_report(folder: Path) -> dict[str, dict[str, float]]:
    table, latency_s, columns = timm_features(folder)
    features, settings = table[list(FEATURES)].to_numpy(np.float64), tuple(TABLES.values())
    held_out = hold_out_settings(features, latency_s, settings, table["kind"].tolist())
    trees = boosted_trees(columns, latency_s, held_out.fold)
    roofline = scaled_roofline(features, latency_s, held_out.fold)
    found = {}
    print(f"timm: {len(table)} networks of {table['kind'].nunique()} families, held out in five")
    for s, setting in enumerate(settings):
        score = held_out.score(s)
        own = {
            "mape": score["mape"],
            "least_squares": score["least_squares_mape"],
            "boosted_trees": mape(trees[:, s]),
            "roofline": mape(roofline[:, s]),
            "covered": score["interval_coverage"],
        }
        name = f"{setting.device} {setting.backend} {setting.precision}"
        found[name] = {key: float(value or np.nan) for key, value in own.items()}
        print(f"{name}: " + ", ".join(f"{key} {value:.1%}" for key, value in found[name].items()), flush=True)
    return found


def main() -> None:
    data = os.environ.get("SLOTOOL_DATA_DIR")
    if data is None:
        print(json.dumps({"skipped": "no tables: SLOTOOL_DATA_DIR is not set"}))
        return
    print(json.dumps({"benchmark": "settings", "timm": timm_report(Path(data) / "timm")}))


def ship(graphs: Path) -> SettingsRun:
    """The shipped predictor, from all captured networks."""
    labelled = timm_labels(Path(os.environ["SLOTOOL_DATA_DIR"]) / "timm", graphs)
    run = train_settings(labelled, progress=print)
    run.save(SHIPPED, config={"tables": list(TABLES), "networks": len(labelled.items)}, seed=0, force=True)
    return run


def captured(folder: Path) -> Iterator[OperatorGraph]:
    """Every network of the tables that timm builds without weights and slotool captures, by name and module."""
    import timm
    import torch

    from slotool.graphs.capture import capture_torch

    wanted = {
        named(row): (row["model"], int(row["infer_img_size"])) for rows in published(folder).values() for row in rows
    }
    for name, (model, size) in sorted(wanted.items()):
        try:
            with torch.device("meta"):
                network = timm.create_model(model, pretrained=False).eval()
            graph = capture_torch(network, (3, size, size))
        except Exception as error:
            print(f"{name}: {error!r}"[:200], file=sys.stderr)
            continue
        module = type(network).__module__.rpartition(".")[2]
        yield replace(graph, name=name, kind=module)


if __name__ == "__main__":
    if sys.argv[1:2] == ["capture"]:
        write_graphs(Path(sys.argv[2]), captured(Path(os.environ["SLOTOOL_DATA_DIR"]) / "timm"))
    elif sys.argv[1:2] == ["ship"]:
        print(ship(Path(sys.argv[2])).scores())
    else:
        main()
