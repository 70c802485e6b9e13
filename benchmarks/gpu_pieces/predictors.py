"""What predictors make of the other pieces' labels, beside least squares of three coefficients and the noise floor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

import slotool
from benchmarks.colocation.protocols import colocated_splits, protocol_score
from benchmarks.gpu_pieces import pairs
from benchmarks.gpu_pieces.piece import Figures, Left, NotYet, Piece
from benchmarks.gpu_pieces.solo import CAMPAIGNS, DATASETS, RANDOM, SEED, ZOO
from benchmarks.zoo_latency import ten_labels
from slotool.errors import InputError
from slotool.graphs.store import read_graphs, write_graphs
from slotool.predictors.base import Examples
from slotool.predictors.colocated.labels import join_colocated
from slotool.predictors.colocations import Colocation
from slotool.predictors.labels import LabelledSet, join_labels
from slotool.predictors.scoring import score
from slotool.predictors.solo.three_term import ThreeTermPredictor
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.transfer.adapted import propose
from slotool.tables import LatencyTable

CHANCE = "random networks by chance"
FEW = 10
# Kinds of fewer labels are left out: a split takes as many of each kind for scoring.
MIN_OF_A_KIND = 12
# Of which all pairs are just enough to learn from.
FEW_NETWORKS = 13
BASELINE = "three coefficients"
# Of a score, what the results page shows.
SHOWN = ("n", "mape", "mae_over_mean", "within_10_percent", "interval_coverage")
# Of models/: they learnt from CPUs, and the last one from published tables of other GPUs too.
SHIPPED = ("predictor-torch", "predictor-architectures", "predictor-devices")
# Trained on the device; the others train on the CPU only.
ON_DEVICE = ("graph", "dnn")
# Those trained, depths of the co-located network, and draws of ten labels at random.
NAMES, DEPTHS, DRAWS = ("costs", "additive"), (2, 4), 8
# By what was measured: the pieces that do, the one of most labels first.
PIECES_OF = {RANDOM: ("solo-many", "solo-random"), ZOO: ("solo-zoo",)}
PAIRS = ("pairs-all", "pairs")
TIMM = "timm with ten labels, predictor-devices"


def run(piece: Piece) -> None:
    piece.step(CHANCE, lambda: by_chance(piece, piece.sized(NAMES, NAMES[1:]), artifact(piece)))
    piece.step("zoo from random networks", lambda: zoo(piece))
    piece.step("zoo with ten labels", lambda: few_labels(piece, own(piece), labels(piece, ZOO)))
    for name in SHIPPED:
        step = f"zoo with ten labels, {name}"
        piece.step(step, lambda name=name: few_labels(piece, shipped(name), labels(piece, ZOO)))
    piece.step(TIMM, lambda: few_labels(piece, shipped(SHIPPED[-1]), timm_labels(piece)))
    for sharing in pairs.TABLES:
        piece.step(f"pairs, {sharing}", lambda sharing=sharing: colocated(piece, sharing))
    # Last, for its training cannot go on where it was cut off.
    piece.step("graph network", lambda: graph_network(piece))


def by_chance(piece: Piece, names: Sequence[str], out: Path) -> Figures:
    """Learnt from 70 % of the random networks, scored on 15 %. The predictor that is best on the others is kept."""
    device = piece.device if set(names) & set(ON_DEVICE) else "cpu"
    labelled = labels(piece, RANDOM)
    scarce = [kind for kind, count in Counter(labelled.kinds).items() if count < MIN_OF_A_KIND]
    graphs = piece.folder / "learnt-from.parquet"
    write_graphs(graphs, [graph for graph in labelled.items if graph.kind not in scarce])
    with enough_to_split():
        trained = slotool.train_predictor(
            label_tables(piece, RANDOM), graphs=graphs, model=names, out=out, seed=SEED,
            training_device=device, force=True, progress=None,
        )  # fmt: skip
    scores = trained.scores["predictors"]
    return {"kept": trained.kept, "rows": trained.scores["rows"], "too_scarce": scarce,
            "floor": floor(scores[trained.kept]),
            "scores": {name: shown(each) for name, each in scores.items()}}  # fmt: skip


@contextmanager
def enough_to_split() -> Iterator[None]:
    """In the block, too few labels leave a step out: a device may have been there for minutes."""
    try:
        yield
    except InputError as error:
        if "too few" not in str(error):
            raise
        raise Left(str(error)) from error


def graph_network(piece: Piece) -> Figures:
    """The same of the graph network, trained on the device, and its error on the zoo."""
    if not piece.full:
        raise Left("its training takes too long for a rehearsal")
    out = piece.folder / "graph-network"
    figures = by_chance(piece, ["graph"], out)
    asked = slotool.evaluate_predictor(out, latency=label_tables(piece, ZOO), graphs=graphs_file(piece, ZOO))
    return {**figures, "zoo": shown(asked.scores["all"])}


def artifact(piece: Piece) -> Path:
    return piece.folder / "predictor"


def zoo(piece: Piece) -> Figures:
    """The predictor of random networks, and three coefficients fitted to the same labels, asked about the zoo."""
    piece.figures_of(piece.name, CHANCE)
    evaluation = slotool.evaluate_predictor(
        artifact(piece), latency=label_tables(piece, ZOO), graphs=graphs_file(piece, ZOO)
    )
    known, asked = labels(piece, RANDOM), labels(piece, ZOO)
    baseline = ThreeTermPredictor()
    baseline.fit(Examples(known.items, known.latency_s))
    predicted_s = baseline.predict(asked.items)
    scores = evaluation.scores["all"]
    return {
        "predictor": evaluation.trained.predictor.name,
        "floor": floor(scores),
        "scores": {evaluation.trained.predictor.name: shown(scores), BASELINE: errors(asked.latency_s, predicted_s)},
    }


def own(piece: Piece) -> TrainedPredictor[Any]:
    """That of the device's own random networks."""
    piece.figures_of(piece.name, CHANCE)
    return TrainedPredictor.load(str(artifact(piece)))


def shipped(name: str) -> TrainedPredictor[Any]:
    """One that has never seen the device."""
    return TrainedPredictor.load(str(DATASETS.parent / "models" / name))


def few_labels(piece: Piece, trained: TrainedPredictor[Any], labelled: LabelledSet[Any]) -> Figures:
    """Ten labels of a zoo, chosen by the tool and drawn at random, and the errors on the others."""
    everything = np.arange(len(labelled))
    draws = [np.array(propose(trained.predictor, labelled.items, FEW))]
    draws += [np.random.default_rng(seed).permutation(everything)[:FEW] for seed in range(piece.sized(DRAWS, 1))]
    scores = [
        ten_labels(trained.predictor, labelled.take(drawn), labelled.take(np.setdiff1d(everything, drawn)))
        for drawn in draws
    ]
    return {"networks": len(labelled), "chosen": scores[0], "drawn": mean_of(scores[1:]), "draws": len(scores) - 1}


def piece_of(piece: Piece, name: str) -> str:
    """The piece that measured these networks, of several the one of most labels."""
    *better, last = PIECES_OF[name]
    return next((each for each in better if (piece.out / f"{each}.json").is_file()), last)


def graphs_file(piece: Piece, name: str) -> Path:
    return piece.table_of(piece_of(piece, name), f"{name}-graphs.parquet")


def label_tables(piece: Piece, name: str) -> list[Path]:
    """Both campaigns' tables."""
    return [piece.table_of(piece_of(piece, name), f"{name}-latency-{campaign}.parquet") for campaign in CAMPAIGNS]


def timm_labels(piece: Piece) -> LabelledSet[Any]:
    """Labels of timm's networks at batch size 1. Raises ``Left`` where window 2 has not run."""
    try:
        table = LatencyTable.load(piece.table_of("timm", "timm-float32.parquet"))
        graphs = list(read_graphs(piece.table_of("timm", "timm-graphs.parquet")))
    except NotYet as error:
        raise Left(str(error)) from error
    labelled = join_labels(LatencyTable(table.rows[table.rows["batch_size"] == 1], table.provenance), graphs)
    if len(labelled) < 2 * FEW:
        raise Left(f"{len(labelled)} networks are too few")
    return labelled


def labels(piece: Piece, name: str) -> LabelledSet[Any]:
    return join_labels(LatencyTable.load_all(label_tables(piece, name)), read_graphs(graphs_file(piece, name)))


def colocated(piece: Piece, sharing: str) -> Figures:
    """Pairs by chance, and pairs that no training row had, each in one of ten folds."""
    if sharing == "streams" and not piece.full:
        raise Left("streams are those of a GPU")
    measured = next((each for each in PAIRS if (piece.out / f"{each}.json").is_file()), PAIRS[-1])
    table = piece.table_of(measured, pairs.TABLES[sharing]) if piece.full else shipped_pairs(piece)
    graphs = DATASETS / "keras-applications-graphs.parquet"
    device = piece.device if piece.on_gpu else "cpu"
    with enough_to_split():
        trained = slotool.train_predictor(
            table,
            graphs=graphs,
            depths=piece.sized(DEPTHS, DEPTHS[:1]),
            seed=SEED,
            training_device=device,
            progress=None,
        )
    labelled = join_colocated(LatencyTable.load(table), read_graphs(graphs))
    protocols = {}
    for name, splits in colocated_splits(labelled.items, SEED).items():
        predictors = {other: each.predictor for other, each in trained.run.trained.items()}
        every = {other: protocol_score(each, labelled, splits, SEED) for other, each in predictors.items()}
        scored = {other: each for other, each in every.items() if each is not None}
        scores = {other: shown(each) for other, each in scored.items()}
        asked = [three_coefficients(labelled, split) for split in splits]
        scores[BASELINE] = errors(*(np.concatenate(each) for each in zip(*asked, strict=True)))
        protocols[name] = {"floor": floor(next(iter(scored.values()))), "scores": scores}
    return {"kept": trained.kept, "rows": trained.scores["rows"], "protocols": protocols}


def shipped_pairs(piece: Piece) -> Path:
    """A table of some of the pairs that ship: no more than a rehearsal needs."""
    shipped, out = LatencyTable.load(DATASETS / pairs.TABLES["processes"]), piece.folder / "shipped-pairs.parquet"
    rows = shipped.rows[~shipped.rows["co_runners"].str.contains("+", regex=False)]
    names = sorted(set(rows["subject"]))[:FEW_NETWORKS]
    LatencyTable(rows[rows["subject"].isin(names) & rows["co_runners"].isin(names)], shipped.provenance).save(out)
    return out


def three_coefficients(labelled: LabelledSet[Any], split: Any) -> tuple[np.ndarray, np.ndarray]:
    """Measured and predicted seconds of the test rows: a · own solo latency + b · the co-runners' + c, all ≥ 0, by
    least squares of relative errors."""
    known = np.concatenate([split.train, split.dev])
    terms = solo_terms(labelled.items)
    relative = terms[known] / labelled.latency_s[known, None]
    coefficients, _ = nnls(relative, np.ones(len(known)))
    return labelled.latency_s[split.test], np.maximum(terms[split.test] @ coefficients, 1e-9)


def solo_terms(items: Sequence[Colocation]) -> np.ndarray:
    """float64 [n, 3]: seconds of the subject and of its co-runners alone, and 1."""
    return np.array([(item.solo_s[0], sum(item.solo_s[1:]), 1.0) for item in items])


def errors(measured_s: np.ndarray, predicted_s: np.ndarray) -> Figures:
    none = np.full(len(measured_s), np.nan)
    return shown(score(measured_s, predicted_s, none, none))


def shown(scores: Figures) -> Figures:
    return {name: scores.get(name) for name in SHOWN}


def floor(scores: Figures) -> Figures:
    return {name: scores["floor"].get(name) for name in ("mape", "mae_over_mean", "within_10_percent")}


def mean_of(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([each[name] for each in scores])) for name in scores[0]}
