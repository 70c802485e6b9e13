"""Kinds of networks to hold out: what tells how wrong a predictor is on networks unlike those it learnt from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.features.domain import cost_shares

CLUSTERS = 8
# A kind of fewer says little. One of more than this share is parted: without it hardly anything would be left to learn
# from, and the errors would be those of a predictor of half the labels.
MIN_ROWS, MAX_SHARE = 8, 0.2


def held_out_kinds(graphs: Sequence[OperatorGraph], seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of each kind that may be held out, by name; no row is in two of them.

    Kinds are those that the graphs name. One of more than ``MAX_SHARE`` of all is parted into clusters of networks that
    spend their cost on the same types of operators, of about half that share each.
    """
    found: dict[str, np.ndarray] = {}
    names = np.array([graph.kind for graph in graphs], dtype=object)
    for name in sorted(set(names.tolist())):
        rows = np.flatnonzero(names == name)
        share = len(rows) / len(graphs)
        if share <= MAX_SHARE:
            found[f"kind {name}"] = rows
            continue
        labels = _clusters([graphs[i] for i in rows.tolist()], seed, math.ceil(2 * share / MAX_SHARE))
        found |= {f"kind {name}, {own + 1}": rows[labels == own] for own in sorted(set(labels.tolist()))}
    return {name: rows for name, rows in found.items() if len(rows) >= MIN_ROWS}


def even_sample(graphs: Sequence[OperatorGraph], most: int, seed: int = 0) -> np.ndarray:
    """Rows, sorted, ``most`` at most: of each cluster as many as of any other, as far as there are."""
    if len(graphs) <= most:
        return np.arange(len(graphs))
    labels, rng = _clusters(graphs, seed), np.random.default_rng(seed)
    order = rng.permutation(len(graphs))
    # How many of its cluster come before it: the first of every cluster, then the second …
    turn = np.empty(len(graphs), dtype=np.int64)
    for cluster in set(labels.tolist()):
        own = order[labels[order] == cluster]
        turn[own] = np.arange(len(own))
    return np.sort(order[np.argsort(turn[order], kind="stable")][:most])


def _clusters(graphs: Sequence[OperatorGraph], seed: int, most: int = CLUSTERS) -> np.ndarray:
    """int64 [n]: networks of one number spend their cost alike; ``most`` numbers."""
    from sklearn.cluster import KMeans

    shares = np.sqrt(cost_shares(graphs))
    count = min(most, len(np.unique(shares.round(3), axis=0)))
    return np.asarray(KMeans(count, n_init=4, random_state=seed).fit_predict(shares))
