"""Networks that tests of Node Activators share: a trained one on digits, and random ones of other shapes."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch

from slotool.data import Dataset, load_dataset
from slotool.data.dataset import Split
from slotool.elastic.network import Network
from slotool.elastic.slo_nn import importers
from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.rankers.registry import RANKERS
from slotool.elastic.training import mlp as mlp_graph
from slotool.elastic.training import train_version

SHARES = (0.1, 0.3, 0.5, 0.75)


def mlp_of(version: Network) -> MLP:
    return importers.from_graph(version.graph, {name: t.numpy() for name, t in version.module.state_dict().items()})


@lru_cache(maxsize=1)
def digits() -> Dataset:
    return load_dataset("digits")


@lru_cache(maxsize=2)
def trained(*hidden_units: int) -> Network:
    """A network on digits, 112-112 unless said otherwise, really trained; so small that a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return train_version("mlp", mlp_graph(digits(), hidden_units or (112, 112)), digits(), epochs=20)
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=len(RANKERS))
def digits_model(ranker: str = "centred-freehash") -> SloNN:
    return build("digits", TableSubject(mlp_of(trained()), digits()), ranker, TableSettings(SHARES))


@lru_cache(maxsize=8)
def random_model(units: tuple[int, ...] = (24, 40, 16), classes: int = 5, tables: int = 3, bits: int = 3) -> SloNN:
    """A network of random weights with tables of random inputs: exercises shapes that digits does not have."""
    network, data = random_mlp(units, classes), random_data(units, classes)
    return build("random", TableSubject(network, data), "centred-freehash", TableSettings(SHARES, tables, bits))


def random_mlp(units: tuple[int, ...], classes: int) -> MLP:
    rng = np.random.default_rng(len(units) + classes)
    widths = (12, *units, classes)
    layers = [
        DenseLayer(f"dense_{i}", rng.normal(size=(n, m)).astype(np.float32), rng.normal(size=n).astype(np.float32))
        for i, (m, n) in enumerate(pairwise(widths))
    ]
    return MLP((3, 2, 2), tuple(layers))


def random_data(units: tuple[int, ...], classes: int) -> Dataset:
    """Random inputs, of the classes that ``random_mlp`` gives them."""
    x = np.random.default_rng(len(units) + classes).normal(size=(600, 3, 2, 2)).astype(np.float32)
    y = random_mlp(units, classes).logits(x.reshape(len(x), -1)).argmax(axis=1)
    parts = [Split(x[part], y[part]) for part in (slice(0, 400), slice(400, 500), slice(500, 600))]
    return Dataset("random", *parts, classes=classes, labels=tuple(map(str, range(classes))))
