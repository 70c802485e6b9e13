"""What ``adapt-predictor`` makes of ten labels drawn at random: error and coverage on all the others.

Rows: the 40 Keras applications run by torch and by TensorFlow, base ``models/predictor-torch``; of TensorFlow also the
networks left out ten at a time, the other thirty given, which is what ``models/predictor`` (adapted to all 40) would be
for networks that it has not seen; and NAS-Bench-201, where ``$SLOTOOL_DATA_DIR/nb201`` is there: ten cells of one
device, a base trained on 300 cells of another, devices drawn at random. The least, the mean and the greatest of
all draws are printed, no draw left out. Beside them the simplest rival: three terms by non-negative least squares.

The small-sample widening of intervals and the weights of the ensemble were chosen while looking at these two sets, so
these rows are somewhat optimistic about others.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.calibrate_shipped import MODELS, applications
from slotool.graphs import OperatorGraph
from slotool.graphs.store import read_graphs
from slotool.predictors.labels import LabelledSet, Setting
from slotool.predictors.solo.additive import AdditivePredictor
from slotool.predictors.solo.three_term import ThreeTermPredictor
from slotool.predictors.splits import RowSplit
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.transfer.adaptation import adapt

FEW = 10
# Cells: what a base learns from, and how many of the others are asked about.
BASE_CELLS, ASKED_CELLS = 300, 200


@dataclass(frozen=True)
class Draw:
    """Of one draw, on the networks that were not given: shares, but for ``width``, the median of high ÷ low."""

    given_interval: float
    covered: float
    width: float
    mape: float
    three_term_mape: float


def scored(base: TrainedPredictor, labelled: LabelledSet[OperatorGraph], given: np.ndarray, asked: np.ndarray) -> Draw:
    adapted, _, _ = adapt(base, labelled.only(given))
    scores = adapted.held_out(labelled, asked).scores()
    rival = ThreeTermPredictor()
    rival.fit(labelled.take(given))
    graphs, measured_s = labelled.take(asked)
    return Draw(
        given_interval=scores["interval_given"],
        covered=scores["interval_coverage"],
        width=scores["interval_width"],
        mape=scores["mape"],
        three_term_mape=float(np.mean(np.abs(rival.predict(graphs) / measured_s - 1))),
    )


def few_of(base: TrainedPredictor, labelled: LabelledSet[OperatorGraph], draws: int) -> Iterator[Draw]:
    """Ten random labels each time; the others are asked."""
    for seed in range(draws):
        order = np.random.default_rng(seed).permutation(len(labelled))
        yield scored(base, labelled, order[:FEW], order[FEW:])


def ten_left_out(base: TrainedPredictor, labelled: LabelledSet[OperatorGraph], seed: int = 0) -> Iterator[Draw]:
    """Each network left out once."""
    order = np.random.default_rng(seed).permutation(len(labelled))
    for asked in np.array_split(order, len(labelled) // FEW):
        yield scored(base, labelled, np.setdiff1d(order, asked), asked)


def cells(folder: Path, draws: int) -> Iterator[Draw]:
    """Of each draw another pair of devices, and other cells."""
    graphs = {graph.name or graph.id: graph for graph in cell_graphs(folder)}
    table = pd.read_csv(folder / "latency.csv.gz")
    devices = sorted(table["device"].unique())
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        source, target = rng.choice(devices, 2, replace=False)
        there, here = (of_device(table, graphs, str(device)) for device in (source, target))
        order = rng.permutation(len(there))
        first, held_out = order[:BASE_CELLS], order[BASE_CELLS:]
        split = RowSplit(np.sort(first[30:]), np.sort(first[:30]), np.sort(held_out))
        base: TrainedPredictor[OperatorGraph] = TrainedPredictor.train(AdditivePredictor(), there, split, seed=seed)
        base = base.calibrated(AdditivePredictor, there, split, seed=seed)
        names = {there.items[i].id for i in held_out}
        fresh = rng.permutation([i for i, graph in enumerate(here.items) if graph.id in names])
        yield scored(base, here, fresh[:FEW], fresh[FEW : FEW + ASKED_CELLS])


def cell_graphs(folder: Path) -> list[OperatorGraph]:
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "cells.jsonl"
        path.write_bytes(gzip.decompress((folder / "cells.jsonl.gz").read_bytes()))
        return list(read_graphs(path))


def of_device(table: pd.DataFrame, graphs: dict[str, OperatorGraph], device: str) -> LabelledSet[OperatorGraph]:
    """One label each, so nobody can tell their noise."""
    rows = table[table["device"] == device]
    known = [(graphs[str(name)], float(s)) for name, s in zip(rows["subject"], rows["latency_s"], strict=True)]
    latency_s = np.array([seconds for _, seconds in known])
    setting = Setting(machine="unknown", device=device, backend="unknown", threads=1, batch_size=1)
    return LabelledSet(tuple(graph for graph, _ in known), latency_s, np.full(len(known), np.nan), setting)


def summary(what: str, draws: Iterator[Draw]) -> dict[str, float]:
    """Prints each draw; mean, least and greatest of all."""
    print(what, flush=True)
    found = []
    for draw in draws:
        found.append(vars(draw))
        print(f"   covered {draw.covered:.1%}, MAPE {draw.mape:.1%}, high ÷ low {draw.width:.2f}", flush=True)
    table = pd.DataFrame(found)
    shown, figures = [f"{len(table)} draws"], {"draws": len(table), "width": float(table["width"].median())}
    for name in ("given_interval", "covered", "mape", "three_term_mape"):
        own = table[name]
        figures |= {name: float(own.mean()), f"{name}_min": float(own.min()), f"{name}_max": float(own.max())}
        shown.append(f"{name} {own.mean():.1%} ({own.min():.0%} to {own.max():.0%})")
    print("; ".join([*shown, f"high ÷ low, median {figures['width']:.2f}"]), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=14)
    parser.add_argument("--only", choices=("torch", "keras", "left-out", "cells"))
    wanted, _ = parser.parse_known_args()
    base: TrainedPredictor[OperatorGraph] = TrainedPredictor.load(str(MODELS / "predictor-torch"))
    folder = Path(os.environ.get("SLOTOOL_DATA_DIR", "")) / "nb201"
    sets: dict[str, tuple[str, Callable[[], Iterator[Draw]]]] = {
        "torch": ("Keras applications in torch", lambda: few_of(base, applications("torch"), wanted.draws)),
        "keras": ("Keras applications in TensorFlow", lambda: few_of(base, applications("keras"), wanted.draws)),
        "left-out": (
            "Keras applications in TensorFlow, all but ten labelled",
            lambda: ten_left_out(base, applications("keras")),
        ),
    }
    if folder.is_dir():
        sets["cells"] = ("NAS-Bench-201, base of another device", lambda: cells(folder, wanted.draws))
    found = {what: summary(what, draws()) for key, (what, draws) in sets.items() if wanted.only in (None, key)}
    print(json.dumps({"benchmark": "ten_labels", "sets": found}))


if __name__ == "__main__":
    main()
