"""How labelled co-locations are held out: at random as in the paper, and with something new in the test set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from slotool.errors import InputError
from slotool.predictors.colocations import Colocation
from slotool.predictors.splits import MIN_DEV_ROWS, RowSplit, split_each, split_known

# Source: inference-latency-prediction, 5.2: 70-15-15.
DEV_SHARE = 0.15
FOLDS = 10
RANDOM_PAIRS, NEW_PAIRS, NEW_NETWORKS, TRIOS = "pairs, random", "pairs unseen", "network unseen", "trios from pairs"


def random_colocated_split(colocations: Sequence[Colocation], seed: int) -> RowSplit:
    """70-15-15 of all rows, in co-locations of each size. Raises ``InputError`` when the dev set would be too small."""
    return _split_at_random(colocations, np.arange(len(colocations)), np.random.default_rng(seed))


def colocated_splits(colocations: Sequence[Colocation], seed: int) -> dict[str, list[RowSplit]]:
    """By protocol, splits whose test sets are scored as one. Protocols that the co-locations do not allow are absent.

    ``pairs, random``: 70-15-15 of the pairs, five times. ``pairs unseen``: ten folds of pairs, no pair of the test set
    in training. ``network unseen``: each network in turn is the subject of the test set and in no training row.
    ``trios from pairs``: training has pairs only.
    """
    sizes = np.array([len(colocation) for colocation in colocations])
    pairs, trios = np.flatnonzero(sizes == 2), np.flatnonzero(sizes == 3)
    makers: dict[str, Callable[[], list[RowSplit]]] = {
        RANDOM_PAIRS: lambda: [
            _split_at_random(colocations, pairs, np.random.default_rng(seed + i)) for i in range(FOLDS // 2)
        ],
        NEW_PAIRS: lambda: _new_pairs(colocations, pairs, seed),
        NEW_NETWORKS: lambda: _new_networks(colocations, pairs, seed),
        TRIOS: lambda: [_learnt_from(pairs, trios, seed)],
    }
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except InputError:
            continue
    return found


def _split_at_random(colocations: Sequence[Colocation], rows: np.ndarray, rng: np.random.Generator) -> RowSplit:
    sizes = np.array([len(colocations[i]) for i in rows])
    groups = [rows[sizes == size] for size in np.unique(sizes)]
    split = split_each(groups, lambda count: round(DEV_SHARE * count), rng)
    if len(split.dev) < MIN_DEV_ROWS:
        raise InputError(
            f"too few labelled co-locations to split ({len(rows)}): about {round(MIN_DEV_ROWS / DEV_SHARE)} are "
            f"needed, {MIN_DEV_ROWS} of them to choose by"
        )
    return split


def _new_pairs(colocations: Sequence[Colocation], pairs: np.ndarray, seed: int) -> list[RowSplit]:
    names = ["+".join(sorted(colocations[i].member_ids)) for i in pairs]
    different = np.random.default_rng(seed).permutation(sorted(set(names)))
    if len(different) < FOLDS:
        raise InputError(f"{len(different)} pairs are too few to leave some out in turn")
    fold = {name: i % FOLDS for i, name in enumerate(different)}
    folds = np.array([fold[name] for name in names])
    return [_learnt_from(pairs[folds != i], pairs[folds == i], seed) for i in range(FOLDS)]


def _new_networks(colocations: Sequence[Colocation], pairs: np.ndarray, seed: int) -> list[RowSplit]:
    networks = sorted({colocations[i].subject.id for i in pairs})
    splits = []
    for network in networks:
        asked = np.array([i for i in pairs if colocations[i].subject.id == network])
        rest = np.array([i for i in pairs if network not in colocations[i].member_ids], dtype=np.int64)
        splits.append(_learnt_from(rest, asked, seed))
    return splits


def _learnt_from(rows: np.ndarray, test: np.ndarray, seed: int) -> RowSplit:
    return split_known(rows, test, DEV_SHARE, seed, "co-locations")
