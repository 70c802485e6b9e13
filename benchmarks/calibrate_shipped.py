"""Calibrate the shipped predictors anew, their weights untouched, and say what their intervals cover.

``models/predictor-torch``: kinds of random networks are held out in turn, and the graph network trained without each,
for 30 epochs and once. ``models/predictor``: adapted to the Keras applications in TensorFlow, its errors are on each of
them left out. Nothing is chosen by the coverage that is printed. ``--write`` puts the artifacts back; takes some 20
minutes of a core. ``--only architectures``: ``models/predictor-architectures`` instead, trained
and calibrated anew in two minutes, as ``train-predictor`` does.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slotool.artifacts import create_artifact, open_artifact
from slotool.graphs.store import read_graphs
from slotool.predictors.colocated.artifact import PredictorArtifact
from slotool.predictors.features.domain import Domain
from slotool.predictors.labels import LabelledSet, Setting, join_labels
from slotool.predictors.scoring import PredictionsTable
from slotool.predictors.solo.graph_network import GraphNetworkPredictor
from slotool.predictors.solo.operator_costs import OperatorCostPredictor
from slotool.predictors.splits import RowSplit, paper_split
from slotool.predictors.trained.artifact import (
    COLOCATED,
    COLOCATED_PREDICTIONS,
    KIND,
    PREDICTIONS,
    SCORES,
    SOLO_LATENCIES,
    TrainedPredictor,
)
from slotool.predictors.trained.calibration import Calibration, hold_out_kinds
from slotool.predictors.transfer.adaptation import adapt_and_score
from slotool.tables import LatencyTable

ROOT = Path(__file__).parents[1]
DATASETS, MODELS = ROOT / "datasets", ROOT / "models"


def random_networks() -> LabelledSet[Any]:
    """The 7,700 that predictor-torch learnt from."""
    names = ("mlps", "cnns", "blocks")
    graphs = [g for name in names for g in read_graphs(DATASETS / f"random-networks-{name}.parquet")]
    tables = [DATASETS / f"random-networks-{name}latency.parquet" for name in ("", "blocks-")]
    return join_labels(LatencyTable.load_all(tables), graphs)


def architectures() -> LabelledSet[Any]:
    """The 795 that predictor-architectures learnt from."""
    graphs = [
        g for name in ("architectures", "networks-blocks") for g in read_graphs(DATASETS / f"random-{name}.parquet")
    ]
    tables = [DATASETS / f"random-{name}-latency.parquet" for name in ("architectures", "networks-blocks-epyc")]
    return join_labels(LatencyTable.load_all(tables), graphs)


def applications(backend: str) -> LabelledSet[Any]:
    """The 40 Keras applications, run by torch or by Keras."""
    infix = "torch-" if backend == "torch" else ""
    table = LatencyTable.load(DATASETS / f"keras-applications-{infix}latency.parquet")
    return join_labels(table, read_graphs(DATASETS / "keras-applications-graphs.parquet"))


def calibrated(trained: TrainedPredictor, labelled: LabelledSet[Any], split: RowSplit) -> TrainedPredictor:
    """With what it was trained on, and the errors on kinds held out."""
    rows = np.concatenate([split.train, split.dev])
    graphs, latency_s = labelled.take(rows)
    held_out = hold_out_kinds(
        lambda: GraphNetworkPredictor(members=1, epochs=30),
        graphs,
        latency_s,
        progress=lambda text: print(text, flush=True),
    )
    domain = Domain.of(labelled.take(split.train)[0]).with_like(labelled.take(split.dev[1::2])[0])
    calibration = Calibration.of(held_out)
    return replace(trained, domain=domain, calibration=calibration)


def tell(what: str, trained: TrainedPredictor, labelled: LabelledSet[Any], rows: np.ndarray) -> None:
    """What its intervals cover of these rows, and how wide they are."""
    scores = trained.held_out(labelled, rows).scores()
    near = trained.predict(labelled.take(rows)[0]).outside.count(None)
    print(
        f"{what}: MAPE {scores['mape']:.1%}; interval for {scores['interval_given']:.0%} of {scores['n']}, "
        f"{near} of them like training; covers {scores['interval_coverage']:.0%}, "
        f"high ÷ low {scores['interval_width']:.2f} (median)",
        flush=True,
    )


def write(name: str, trained: TrainedPredictor, scores: dict[str, Any], table: PredictionsTable | None = None) -> None:
    """Put the artifact back with this predictor of networks alone, its scores and held-out predictions; all else in it
    stays."""
    path = MODELS / name
    old = open_artifact(path)
    files = [file for file in old.manifest["files"] if file.startswith(COLOCATED) and file.endswith("-scores.json")]
    with create_artifact(path, KIND, config=old.manifest["config"], seed=old.manifest["seed"], force=True) as to:
        trained.write(to)
        to.write_json(SCORES, scores)
        if table is not None:
            to.write_table(PREDICTIONS, table)
        if COLOCATED_PREDICTIONS in old.manifest["files"]:
            opened = PredictorArtifact.load(str(path))
            assert opened.colocated is not None
            replace(opened.colocated, facts=trained.facts).write(to, COLOCATED)
            to.write_json(SOLO_LATENCIES, dict(opened.solo_s))
            to.write_table(COLOCATED_PREDICTIONS, PredictionsTable.load(old.file(COLOCATED_PREDICTIONS)))
        for file in files:
            to.write_json(file, old.json(file))
    print(f"wrote {path}", flush=True)


def write_scored(name: str, trained: TrainedPredictor, labelled: LabelledSet[Any], split: RowSplit) -> None:
    """Put it back with scores of these intervals on the test set."""
    table = trained.held_out(labelled, split.test)
    scores = open_artifact(MODELS / name).json(SCORES)
    scored = {"dev_mae_s": trained.dev_mae_s, **table.scores(), "by_kind": table.scores_by_kind()}
    scores["predictors"][trained.predictor.name] |= scored
    write(name, trained, scores, table)


def of_architectures(keep: bool) -> None:
    labelled, stored = architectures(), open_artifact(MODELS / "predictor-architectures").json("predictor.json")
    split, own = paper_split(labelled.kinds, 0), partial(print, flush=True)
    anew: TrainedPredictor[Any] = TrainedPredictor.train(OperatorCostPredictor(), labelled, split, seed=0, progress=own)
    trained = replace(anew, facts=stored["machine_facts"], setting=Setting.from_document(stored["setting"]))
    trained = trained.calibrated(labelled, split, seed=0, progress=own)
    tell("predictor-architectures, random networks held out", trained, labelled, split.test)
    if keep:
        write_scored("predictor-architectures", trained, labelled, split)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", choices=("architectures",))
    wanted = parser.parse_args()
    if wanted.only:
        of_architectures(wanted.write)
        return
    labelled = random_networks()
    split = paper_split(labelled.kinds, 0)
    old = TrainedPredictor.load(str(MODELS / "predictor-torch"))
    facts = old.facts or open_artifact(MODELS / "predictor-torch").manifest["machine"]
    torch = calibrated(replace(old, facts=facts), labelled, split)
    tell("predictor-torch, random networks held out", torch, labelled, split.test)
    there = applications("torch")
    tell("predictor-torch, Keras applications in torch", torch, there, np.arange(len(there)))
    if wanted.write:
        write_scored("predictor-torch", torch, labelled, split)
    here = applications("keras")
    run = adapt_and_score(torch, here)
    print({name: f"{run.held_out.mape(name):.1%}" for name in run.held_out.log_errors})
    if wanted.write:
        write("predictor", replace(run.adapted, facts=facts), run.scores())


if __name__ == "__main__":
    main()
