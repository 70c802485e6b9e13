"""SLO-NNs built in a second or two: dense inputs with activated hidden layers, sparse ones with an activated output."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix, random_array

from slotool.data import Dataset
from slotool.data.dataset import LabelSets, MultiLabelDataset, MultiLabelSplit, Split
from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.elastic.slo_nn.model import SloNN

INPUTS, FEATURES, CLASSES = 20, 60, 300


def network(*widths: int) -> MLP:
    rng = np.random.default_rng(len(widths))
    layers = [
        DenseLayer(f"dense_{at}", rng.normal(size=(n, m)).astype(np.float32), rng.normal(size=n).astype(np.float32))
        for at, (m, n) in enumerate(pairwise(widths))
    ]
    return MLP((widths[0],), tuple(layers))


@cache
def dense_model(ranker: str = "centred-freehash") -> SloNN:
    """Inputs are not negative, so that int8 can mean all layers in full."""
    mlp, x = network(INPUTS, 40, 30, 5), examples(False, 600, 1)
    y = mlp.logits(x).argmax(axis=1)
    y[::4] = 0
    parts = [Split(x[part], y[part]) for part in (slice(0, 400), slice(400, 500), slice(500, 600))]
    data = Dataset("small", *parts, classes=5, labels=tuple("abcde"))
    return build("small", TableSubject(mlp, data), ranker, TableSettings((0.2, 0.5)))


@cache
def sparse_model(ranker: str = "clusters") -> SloNN:
    mlp, splits = network(FEATURES, 24, CLASSES), []
    for n in (3_000, 400, 200):
        x = examples(True, n, n)
        best = mlp.logits(x).argmax(axis=1).astype(np.int32)
        best[::3] = 0
        splits.append(MultiLabelSplit(x, LabelSets(np.arange(n + 1), best)))
    data = MultiLabelDataset("labelled", *splits, classes=CLASSES, source="labelled")
    return build("labelled", TableSubject(mlp, data), ranker, TableSettings())


def examples(sparse: bool, n: int, seed: int) -> np.ndarray | csr_matrix:
    rng = np.random.default_rng(seed)
    if sparse:
        return csr_matrix(random_array((n, FEATURES), density=0.1, rng=rng, dtype=np.float32))
    return rng.random((n, INPUTS), dtype=np.float32)
