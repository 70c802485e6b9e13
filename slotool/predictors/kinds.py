"""Kinds of networks to hold out: what tells how wrong a predictor is on networks unlike those it learnt from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.domain import cost_shares
from slotool.predictors.splits import depth_of, width_of
from slotool.predictors.typecosts import operator_type

CLUSTERS = 8
LARGEST_SHARE = 0.2
# A kind of fewer says little; one of more than this share leaves nothing to learn from.
MIN_ROWS, MAX_SHARE = 8, 0.6


def held_out_kinds(graphs: Sequence[OperatorGraph], seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of each kind that may be held out, by name. Kinds overlap; equal ones appear once.

    Kinds are: those that the graphs name; clusters of networks that spend their cost on the same operator types; all
    networks with a certain type; and the largest fifth by depth, width, FLOPs and weights.
    """
    found: dict[str, np.ndarray] = {}
    names = np.array([graph.kind for graph in graphs], dtype=object)
    for name in sorted(set(names.tolist())):
        found[f"kind {name}"] = np.flatnonzero(names == name)
    labels = _clusters(graphs, seed)
    for cluster in sorted(set(labels.tolist())):
        found[f"cluster {cluster + 1}"] = np.flatnonzero(labels == cluster)
    types = [{operator_type(operator) for operator in graph.operators} for graph in graphs]
    for kind in sorted(set().union(*types)):
        found[f"with {kind}"] = np.flatnonzero([kind in own for own in types])
    for what, sizes in (
        ("deepest", [depth_of(graph) for graph in graphs]),
        ("widest", [width_of(graph) for graph in graphs]),
        ("most FLOPs", [graph.flops for graph in graphs]),
        ("most weights", [graph.weights for graph in graphs]),
    ):
        found[what] = np.flatnonzero(np.array(sizes) > np.quantile(sizes, 1 - LARGEST_SHARE))
    return _usable(found, len(graphs))


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


def _clusters(graphs: Sequence[OperatorGraph], seed: int) -> np.ndarray:
    """int64 [n]: networks of one number spend their cost alike."""
    from sklearn.cluster import KMeans

    shares = np.sqrt(cost_shares(graphs))
    count = min(CLUSTERS, len(np.unique(shares.round(3), axis=0)))
    return np.asarray(KMeans(count, n_init=4, random_state=seed).fit_predict(shares))


def _usable(found: dict[str, np.ndarray], n: int) -> dict[str, np.ndarray]:
    kept: dict[str, np.ndarray] = {}
    seen: set[bytes] = set()
    for name, rows in found.items():
        if MIN_ROWS <= len(rows) <= MAX_SHARE * n and rows.tobytes() not in seen:
            seen.add(rows.tobytes())
            kept[name] = rows
    return kept
