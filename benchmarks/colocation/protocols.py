"""Protocols of holding out co-located networks, and scores under them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from benchmarks.predictor_study import split_known
from slotool.errors import GraphError, InputError
from slotool.predictors.base import Asked, Predictor
from slotool.predictors.colocated.labels import DEV_SHARE, random_colocated_split
from slotool.predictors.colocations import Colocation
from slotool.predictors.labels import LabelledSet
from slotool.predictors.scoring import PredictionsTable, Score
from slotool.predictors.splits import RowSplit
from slotool.predictors.trained.artifact import TrainedPredictor

FOLDS = 10
RANDOM_PAIRS, NEW_PAIRS, NEW_NETWORKS, TRIOS = "pairs, random", "pairs unseen", "network unseen", "trios from pairs"


def colocated_splits(colocations: Sequence[Colocation], seed: int) -> dict[str, list[RowSplit]]:
    """Return splits by protocol, whose test sets are scored together; protocols that lack co-locations are absent.

    ``pairs, random``: 70-15-15 of the pairs, five times. ``pairs unseen``: ten folds of pairs, no pair of the test set
    in training. ``network unseen``: each network in turn is the subject of the test set and in no training row.
    ``trios from pairs``: training has pairs only.
    """
    sizes = np.array([len(colocation) for colocation in colocations])
    pairs, trios = np.flatnonzero(sizes == 2), np.flatnonzero(sizes == 3)
    makers: dict[str, Callable[[], list[RowSplit]]] = {
        RANDOM_PAIRS: lambda: [
            random_colocated_split(colocations, seed + i, pairs.tolist()) for i in range(FOLDS // 2)
        ],
        NEW_PAIRS: lambda: _new_pairs(colocations, pairs, seed),
        NEW_NETWORKS: lambda: _new_networks(colocations, pairs, seed),
        TRIOS: lambda: [_learnt_from(pairs, trios, seed)],
    }
    splits = {}
    for name, make in makers.items():
        try:
            splits[name] = make()
        except InputError:
            continue
    return splits


def _new_pairs(colocations: Sequence[Colocation], pairs: np.ndarray, seed: int) -> list[RowSplit]:
    names = ["+".join(sorted(graph.id for graph in colocations[i].members)) for i in pairs]
    different = np.random.default_rng(seed).permutation(sorted(set(names)))
    if len(different) < FOLDS:
        raise InputError(f"{len(different)} pairs are too few to leave some out in turn")
    fold = {name: i % FOLDS for i, name in enumerate(different)}
    folds = np.array([fold[name] for name in names])
    return [_learnt_from(pairs[folds != i], pairs[folds == i], seed) for i in range(FOLDS)]


def _new_networks(colocations: Sequence[Colocation], pairs: np.ndarray, seed: int) -> list[RowSplit]:
    networks = sorted({colocations[i].subject.id for i in pairs})
    members = [[graph.id for graph in colocation.members] for colocation in colocations]
    splits = []
    for network in networks:
        test = np.array([i for i in pairs if colocations[i].subject.id == network])
        others = np.array([i for i in pairs if network not in members[i]], dtype=np.int64)
        splits.append(_learnt_from(others, test, seed))
    return splits


def _learnt_from(rows: np.ndarray, test: np.ndarray, seed: int) -> RowSplit:
    return split_known(rows, test, DEV_SHARE, seed, "co-locations")


def protocol_score(
    predictor: Predictor[Asked], labelled: LabelledSet[Asked], splits: Sequence[RowSplit], seed: int
) -> Score | None:
    """Return the score of all test rows that the predictor supports, or None; ``refused`` counts the others.

    Its surrogate is trained, which repeats no search.
    """
    tables, refused = [], 0
    for split in splits:
        trained = TrainedPredictor.train(predictor.surrogate(), labelled, split, seed=seed)
        try:
            tables.append(trained.held_out(labelled, split.test).rows)
        except GraphError:
            refused += len(split.test)
    if not tables:
        return None
    return {**PredictionsTable(pd.concat(tables, ignore_index=True)).scores(), "refused": refused}
