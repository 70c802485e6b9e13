"""One predictor of many settings, on tables that others published: networks that it was not shown.

timm (``$SLOTOOL_DATA_DIR/timm``, throughputs of an i9-10940X and four GPUs in eight settings): families, modules of
timm, are held out in five folds. Beside the predictor least squares in log FLOPs, operators and activation elements,
boosted trees on the table's columns (parameters, GMACs, activations, image size), and a roofline scaled to the
labels. All of the same networks and folds. Three choices were made by what is scored here, so its scores are
optimistic: the ridge, how intervals widen with the distance, and the form of features in which resizing has no price.
Devices that have ten labels: ``ten_labels``.

timm's networks are known by their features (``datasets/timm-network-features.parquet``). ``python -m
benchmarks.settings capture`` captures them, half an hour of an idle core with timm, and writes the graphs that
``--networks timm`` knows and their features; ``python -m benchmarks.settings ship`` then makes
``models/predictor-devices`` of the features and the tables.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from slotool.graphs import OperatorGraph
from slotool.graphs.shipped import FILES, ShippedNetworks
from slotool.graphs.store import read_graphs, write_graphs
from slotool.predictors.features.domain import Domain
from slotool.predictors.features.network_features import FEATURES, network_features
from slotool.predictors.labels import Setting, SettingsLabelled
from slotool.predictors.settings.model import SettingsModel
from slotool.predictors.settings.predictor import SettingsPredictor
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.training.many_settings import SettingsRun, hold_out_settings

ROOT = Path(__file__).parents[1]
SHIPPED, DATASETS = ROOT / "models" / "predictor-devices", ROOT / "datasets"
FEATURES_FILE = DATASETS / "timm-network-features.parquet"
# Its throughputs are of batches of 64 to 1,024, the largest that fit: the latency of 256 examples at that rate.
GPU_BATCH = 256


def gpu(device: str, backend: str = "torch") -> Setting:
    return Setting("published", device, backend, 1, GPU_BATCH, precision="amp")


TABLES = {
    f"benchmark-infer-{name}.csv.gz": setting
    for name, setting in {
        "fp32-nchw-pt240-cpu-i9_10940x-dynamo": Setting("published", "i9-10940x", "torch.compile", 14, 1),
        "fp32-nchw-pt221-cpu-i9_10940x-dynamo": Setting("published", "i9-10940x", "torch.compile 2.2", 14, 1),
        "amp-nchw-pt240-cu124-rtx4090": gpu("rtx4090"),
        "amp-nhwc-pt240-cu124-rtx4090": gpu("rtx4090", "torch channels-last"),
        "amp-nchw-pt291-cu128-4090-dynamo": gpu("rtx4090", "torch.compile"),
        "amp-nchw-pt240-cu124-rtx3090": gpu("rtx3090"),
        "amp-nchw-pt291-cu130-5090": gpu("rtx5090"),
        "amp-nchw-pt291-cu130-pro6000maxq-dynamo": gpu("rtx-pro-6000-max-q", "torch.compile"),
    }.items()
}
COLUMNS = ("param_count", "infer_gmacs", "infer_macts", "infer_img_size")


def published(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Rows of each table, by file name."""
    return {name: list(csv.DictReader(gzip.open(folder / name, "rt"))) for name in TABLES}


def named(row: dict[str, str]) -> str:
    """What a captured network is called: model and image size."""
    return f"{row['model']}@{row['infer_img_size']}"


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
    table = pd.read_parquet(FEATURES_FILE).set_index("name", drop=False)
    latency_s = np.full((len(table), len(TABLES)), np.nan)
    columns = np.zeros((len(table), len(COLUMNS)))
    for s, (name, rows) in enumerate(published(folder).items()):
        for row in rows:
            if (key := named(row)) in table.index:
                at = table.index.get_loc(key)
                # The tables of torch 2.2 have no multiply-accumulates.
                columns[at] = [
                    float(row.get(column) or known) for column, known in zip(COLUMNS, columns[at], strict=True)
                ]
                latency_s[at, s] = TABLES[name].batch_size / float(row["infer_samples_per_sec"])
    return table, latency_s, columns


def timm_report(folder: Path) -> dict[str, dict[str, float]]:
    table, latency_s, columns = timm_features(folder)
    features, settings = table[list(FEATURES)].to_numpy(np.float64), tuple(TABLES.values())
    held_out = hold_out_settings(features, latency_s, settings, table["kind"].tolist())
    trees = boosted_trees(columns, latency_s, held_out.fold)
    roofline = scaled_roofline(features, latency_s, held_out.fold)
    figures = {}
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
        figures[name] = {key: float(value or np.nan) for key, value in own.items()}
        print(f"{name}: " + ", ".join(f"{key} {value:.1%}" for key, value in figures[name].items()), flush=True)
    return figures


def main() -> None:
    data = os.environ.get("SLOTOOL_DATA_DIR")
    if data is None:
        print(json.dumps({"skipped": "no tables: SLOTOOL_DATA_DIR is not set"}))
        return
    print(json.dumps({"benchmark": "settings", "timm": timm_report(Path(data) / "timm")}))


def ship() -> SettingsRun:
    """The shipped predictor, from the features of all captured networks and the published tables."""
    table, latency_s, _ = timm_features(Path(os.environ["SLOTOOL_DATA_DIR"]) / "timm")
    old: TrainedPredictor[OperatorGraph] = TrainedPredictor.load(str(SHIPPED))
    run = settings_run(old, table, latency_s, tuple(TABLES.values()))
    run.save(SHIPPED, config={"tables": list(TABLES), "networks": len(table)}, seed=0, force=True)
    return run


def settings_run(
    old: TrainedPredictor[OperatorGraph], table: pd.DataFrame, latency_s: np.ndarray, settings: tuple[Setting, ...]
) -> SettingsRun:
    """The predictor of these labels, float64 seconds [n, S]; its machine is that of ``old``."""
    graphs = ShippedNetworks.of("timm").graphs(table["name"])
    # Distances between similar networks: every second one from the others.
    like = Domain.of(graphs[::2]).with_like(graphs[1::2]).like
    domain = replace(Domain.of(graphs), like=like)
    features = table[list(FEATURES)].to_numpy(np.float64)
    held_out = hold_out_settings(features, latency_s, settings, table["kind"].tolist(), 0, print)
    predictor = SettingsPredictor(SettingsModel.fit(features, latency_s, settings))
    predictor.known_residuals = tuple(map(held_out.residuals, range(len(settings))))
    error_s = held_out.mae_s(latency_s)
    trained = replace(
        old, predictor=predictor, residuals=predictor.residuals, dev_mae_s=error_s, setting=settings[0], domain=domain
    )
    nameless: Any = tuple(table["name"])
    return SettingsRun(SettingsLabelled(nameless, settings, latency_s), trained, held_out)


def wanted_networks(folder: Path) -> list[tuple[str, int]]:
    """Models and sides of images in the tables; of each model also the side that timm's own weights take."""
    from timm.models import get_pretrained_cfg

    rows = [row for rows in published(folder).values() for row in rows]
    wanted = {(row["model"], int(row["infer_img_size"])) for row in rows}
    usual = {model: get_pretrained_cfg(model) for model, _ in wanted}
    return sorted(wanted | {(model, own.input_size[-1]) for model, own in usual.items() if own is not None})


def captured(model: str, side: int) -> OperatorGraph | None:
    """The graph of a network of timm, built without weights; None where it cannot be built or captured."""
    import timm
    import torch

    from slotool.graphs.capture import capture_torch

    # Networks of patches are built for their images.
    for options in ({}, {"img_size": side}):
        try:
            with torch.device("meta"):
                network = timm.create_model(model, pretrained=False, **options).eval()
            graph = capture_torch(network, (3, side, side))
        except Exception as error:
            print(f"{model}@{side}: {error!r}"[:200], file=sys.stderr)
            continue
        return replace(graph, name=f"{model}@{side}", kind=type(network).__module__.rpartition(".")[2])
    return None


def write_networks(graphs: Iterable[OperatorGraph]) -> None:
    """``datasets/timm-networks.parquet``: these networks, those of the usual side also by the model's name alone, equal
    ones side by side, which take no space; and their features among those of all networks."""
    from timm.models import get_pretrained_cfg

    rows = list(graphs)
    table = pd.read_parquet(FEATURES_FILE).set_index("name", drop=False)
    features = network_features(rows).astype(np.float32)
    known = [graph.name in table.index for graph in rows]
    table.loc[[graph.name for graph, own in zip(rows, known, strict=True) if own], list(FEATURES)] = features[known]
    table.to_parquet(FEATURES_FILE, index=False, compression="zstd")
    for graph in list(rows):
        model, _, side = graph.name.partition("@")
        if (own := get_pretrained_cfg(model)) is not None and own.input_size[-1] == int(side):
            rows.append(replace(graph, name=model))
    path = DATASETS / FILES["timm"]
    write_graphs(path, sorted(rows, key=lambda graph: (graph.id, graph.name)))
    # It is part of every installation, and a third of the size so.
    pq.write_table(pq.read_table(path), path, compression="zstd", compression_level=22, use_dictionary=["kind"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["capture"]:
        wanted = wanted_networks(Path(os.environ["SLOTOOL_DATA_DIR"]) / "timm")
        write_networks(graph for model, side in wanted if (graph := captured(model, side)) is not None)
    elif sys.argv[1:2] == ["ship"]:
        print(ship().scores())
    else:
        main()
