"""How long the graph network trains, how that compares with its bare matrix products, and what it learns.

The floor is the products of all steps alone, by the library that training uses, as many networks at once as it trains.
Beside its scores stand three coefficients (``three-term``), a ridge regression of log latency on six logarithms of
totals, and ``additive``. Timed networks of 250 operators have made-up labels: a roofline per operator, FLOPs slower in
small images, weights dearer beyond a cache, 1 % of noise; they
are trained on for all epochs, the longest that it takes. Scores are on networks held out, mean and range over seeds.

Predictions a second are those of one process on one thread, by wall clock, garbage collections included.

NAS-Bench-201 is used where ``$SLOTOOL_DATA_DIR/nb201`` is there. ``SLOTOOL_BENCH=full`` adds 6,000 networks of 60
operators, in some minutes. ``SLOTOOL_BENCH_SEEDS``: how many seeds.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.calibrate_shipped import MODELS, random_networks
from benchmarks.predictor_study import split_known
from benchmarks.settings import cell_graphs
from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import MEASURES, operator_measures
from slotool.graphs.generators import BLOCKS, RandomGraphs, SearchSpace
from slotool.predictors.base import Examples
from slotool.predictors.labels import LabelledSet, Setting
from slotool.predictors.solo import graph_network
from slotool.predictors.solo.additive import AdditivePredictor
from slotool.predictors.solo.graph_network import HIDDEN_UNITS, OPERATORS_AT_ONCE, GraphNetworkPredictor
from slotool.predictors.solo.three_term import ThreeTermPredictor
from slotool.predictors.splits import RowSplit
from slotool.predictors.trained.artifact import TrainedPredictor

FULL = os.environ.get("SLOTOOL_BENCH") == "full"
CELLS = Path(os.environ.get("SLOTOOL_DATA_DIR", "")) / "nb201"
# Of NAS-Bench-201.
DEVICES = ("titan_rtx_32", "pixel3")
SEEDS = range(int(os.environ.get("SLOTOOL_BENCH_SEEDS", "3")))
FEW, MANY, WANTED_S = 400, 6000, {400: 60, 6000: 600}
WANTED_PER_S = 10_000
PREDICTORS, ROUNDS, SINGLES = ("predictor-torch", "predictor-architectures"), 3, 100
CACHE_BYTES, MADE_UP = 4e6, "made up"


class RidgeOfTotals:
    """log latency, linear in the logarithms of a network's totals; the penalty by leaving labels out one by one."""

    name = "ridge"

    def fit(self, train: Examples[OperatorGraph]) -> None:
        from sklearn.linear_model import RidgeCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        self._fitted = make_pipeline(StandardScaler(), RidgeCV(alphas=10.0 ** np.arange(-4, 4)))
        self._fitted.fit(_totals(train.items), np.log(train.latency_s))

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        return np.exp(self._fitted.predict(_totals(graphs)))


def _totals(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """float64 [n, 6]: operators, FLOPs, padded FLOPs, bytes of weights, read and written."""
    rows = [[len(graph.operators), *operator_measures(graph)[:, :5].sum(axis=0)] for graph in graphs]
    return np.log1p(np.array(rows))


@dataclass(frozen=True)
class Run:
    """One training: networks learnt from, its seconds, those of its bare products, MAPE by predictor on the others."""

    networks: int
    train_s: float
    floor_s: float
    mape: dict[str, float]


def run(labelled: LabelledSet[OperatorGraph], split: RowSplit, seed: int) -> Run:
    train, dev, test = (labelled.take(rows) for rows in (split.train, split.dev, split.test))
    predictor = GraphNetworkPredictor()
    with counted_flops() as flops, to_the_end(labelled.setting.machine == MADE_UP):
        started = time.perf_counter()
        predictor.fit(train, dev, seed=seed)
        seconds = time.perf_counter() - started
    mape = {predictor.name: _mape(predictor, test)}
    both = Examples([*train.items, *dev.items], np.concatenate([train.latency_s, dev.latency_s]))
    rivals: tuple[Any, ...] = (AdditivePredictor(), ThreeTermPredictor(), RidgeOfTotals())
    for rival in rivals:
        rival.fit(both)
        mape[rival.name] = _mape(rival, test)
    at_once = min(predictor.members, torch.get_num_threads())
    return Run(len(both.items), seconds, sum(flops) / flops_per_s() / at_once, mape)


def _mape(predictor: Any, test: Examples[OperatorGraph]) -> float:
    return float(np.mean(np.abs(predictor.predict(test.items) / test.latency_s - 1)))


@contextmanager
def counted_flops() -> Iterator[list[int]]:
    """FLOPs of each product that a training computes meanwhile, the two of its gradients included."""
    flops: list[int] = []
    plain = torch.nn.functional.linear

    def counting(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        flops.append((6 if torch.is_grad_enabled() else 2) * len(x) * weight.numel())
        return plain(x, weight, bias)

    torch.nn.functional.linear = counting
    try:
        yield flops
    finally:
        torch.nn.functional.linear = plain


@contextmanager
def to_the_end(asked: bool) -> Iterator[None]:
    """Trainings meanwhile do not stop early where that is ``asked``."""
    patience = graph_network.PATIENCE_TO_STOP
    graph_network.PATIENCE_TO_STOP = graph_network.MAX_EPOCHS if asked else patience
    try:
        yield
    finally:
        graph_network.PATIENCE_TO_STOP = patience


def flops_per_s(repeats: int = 200) -> float:
    """Of the largest product alone, on one core: the median."""
    x, weight = torch.randn(OPERATORS_AT_ONCE, 3 * HIDDEN_UNITS), torch.randn(HIDDEN_UNITS, 3 * HIDDEN_UNITS)
    threads, took = torch.get_num_threads(), []
    torch.set_num_threads(1)
    for _ in range(repeats):
        started = time.perf_counter()
        torch.nn.functional.linear(x, weight, torch.zeros(HIDDEN_UNITS))
        took.append(time.perf_counter() - started)
    torch.set_num_threads(threads)
    return 2 * len(x) * weight.numel() / statistics.median(took)


def drawn(count: int, depth: tuple[int, int]) -> LabelledSet[OperatorGraph]:
    """CNNs of all blocks with labels from a made-up rule: a roofline per operator whose FLOPs are the slower the
    smaller the image, weights five times dearer in a network that exceeds a cache, 1 % of noise."""
    space = SearchSpace(depth, (2, 8), (3, 32, 32), blocks=tuple(BLOCKS), resolutions=(32, 64))
    graphs = tuple(RandomGraphs("cnn", count, seed=1, space=space))
    rng, latency_s = np.random.default_rng(1), []
    for graph in graphs:
        measures = operator_measures(graph)
        _, padded, weights, read, written = measures[:, :5].T
        rate = 5e10 / (1 + 200 / measures[:, MEASURES.index("positions")])
        per_byte = 1e-10 * (5 if weights.sum() > CACHE_BYTES else 1)
        own = np.maximum(padded / rate, weights * per_byte + (read + written) * 5e-11)
        latency_s.append((1e-5 + np.sum(5e-7 + own)) * rng.lognormal(0, 0.01))
    setting = Setting(machine=MADE_UP, device="cpu", backend="torch", threads=1, batch_size=1)
    return LabelledSet(graphs, np.array(latency_s), np.full(count, np.nan), setting)


def of_device(table: pd.DataFrame, graphs: dict[str, OperatorGraph], device: str) -> LabelledSet[OperatorGraph]:
    """One label each, so nobody can tell their noise."""
    rows = table[table["device"] == device]
    known = [(graphs[str(name)], float(s)) for name, s in zip(rows["subject"], rows["latency_s"], strict=True)]
    latency_s = np.array([seconds for _, seconds in known])
    setting = Setting(machine="unknown", device=device, backend="unknown", threads=1, batch_size=1)
    return LabelledSet(tuple(graph for graph, _ in known), latency_s, np.full(len(known), np.nan), setting)


def sets() -> Iterator[tuple[str, LabelledSet[OperatorGraph]]]:
    """What is trained on, by name."""
    yield "made-up labels, deep", drawn(FEW + 100, (28, 40))
    if CELLS.is_dir():
        graphs = {graph.name or graph.id: graph for graph in cell_graphs(CELLS)}
        table = pd.read_csv(CELLS / "latency.csv.gz")
        for device in DEVICES:
            yield f"NAS-Bench-201, {device}", of_device(table, graphs, device)
    yield "shipped random networks", random_networks()
    if FULL:
        yield "made-up labels, shallow", drawn(MANY + 100, (6, 10))


def networks_of(labelled: LabelledSet[OperatorGraph]) -> int:
    """How many to learn from."""
    return MANY if len(labelled) > MANY else FEW


def some_known(labels: int, known: int, seed: int) -> RowSplit:
    """So many to learn from, a tenth of them to choose by, all others to score on."""
    order = np.random.default_rng(seed).permutation(labels)
    return split_known(order[:known], np.sort(order[known:]), 0.1, seed)


def speeds() -> dict[str, list[float]]:
    """Predictions a second of the shipped random networks by shipped predictors, in each of ``ROUNDS``: latencies alone
    and with intervals, of networks that nothing was computed of yet and again of the same; and milliseconds of one."""
    shipped = random_networks().items
    figures: dict[str, list[float]] = {}
    for name in PREDICTORS:
        trained: TrainedPredictor[OperatorGraph] = TrainedPredictor.load(str(MODELS / name))
        answers: dict[str, Callable[[list[OperatorGraph]], Any]] = {
            "latencies": trained.predictor.predict,
            "with intervals": trained.predict,
        }
        for _ in range(ROUNDS):
            for what, answer in answers.items():
                asked = new_copies(shipped)
                for when in ("first", "again"):
                    seconds = seconds_of(answer, asked)
                    figures.setdefault(f"{name}, {what}, {when}", []).append(len(asked) / seconds)
            ones = [seconds_of(trained.predict, new_copies([graph])) for graph in shipped[:: len(shipped) // SINGLES]]
            figures.setdefault(f"{name}, one network alone, ms", []).append(1e3 * statistics.median(ones))
    return figures


def new_copies(graphs: Sequence[OperatorGraph]) -> list[OperatorGraph]:
    """The same, with operators shared as before: graphs and operators keep what was computed of them."""
    distinct = {id(operator): operator for graph in graphs for operator in graph.operators}
    made = {number: replace(operator) for number, operator in distinct.items()}
    return [replace(graph, operators=tuple(made[id(operator)] for operator in graph.operators)) for graph in graphs]


def seconds_of(answer: Callable[[list[OperatorGraph]], Any], asked: list[OperatorGraph]) -> float:
    started = time.perf_counter()
    answer(asked)
    return time.perf_counter() - started


def told(name: str, labelled: LabelledSet[OperatorGraph], runs: list[Run]) -> dict[str, Any]:
    """Prints what was found of one set and returns its figures."""
    seconds, asked = [each.train_s for each in runs], runs[0].networks
    ratio = statistics.median(each.train_s / each.floor_s for each in runs)
    operators = float(np.mean([len(graph.operators) for graph in labelled.items]))
    mape = {rival: [each.mape[rival] for each in runs] for rival in runs[0].mape}
    errors = (f"{rival} {np.mean(own):.1%} ({min(own):.1%} to {max(own):.1%})" for rival, own in mape.items())
    print(
        f"{name}: {asked:,} networks of {operators:.0f} operators in {statistics.median(seconds):.1f} s "
        f"({min(seconds):.1f} to {max(seconds):.1f}; wanted ≤ {WANTED_S[asked]}), {ratio:.1f} × the bare products\n"
        f"  MAPE, mean and range: {', '.join(errors)}",
        flush=True,
    )
    return {"networks": asked, "operators": operators, "train_s": seconds, "times_floor": ratio, "mape": mape}


def main() -> None:
    print(f"{torch.get_num_threads()} threads; one core multiplies at {flops_per_s() / 1e9:.0f} GFLOP/s", flush=True)
    trainings = {}
    for name, labelled in sets():
        runs = [run(labelled, some_known(len(labelled), networks_of(labelled), seed), seed) for seed in SEEDS]
        trainings[name] = told(name, labelled, runs)
    result = speeds()
    for name, each in result.items():
        unit = "" if name.endswith("ms") else f" predictions a second (wanted ≥ {WANTED_PER_S:,} with intervals, first)"
        low, middle, high = (f"{value:,.3g}" if value < 10 else f"{value:,.0f}" for value in ordered(each))
        print(f"{name}: {middle} ({low} to {high}){unit}")
    per_s = statistics.median(result[f"{PREDICTORS[0]}, with intervals, first"])
    figures = {"predictions_per_s": per_s, "speeds": result}
    print(json.dumps({"benchmark": "graph_network", "trainings": trainings, **figures}))


def ordered(values: Sequence[float]) -> tuple[float, float, float]:
    """Least, median and most."""
    return min(values), statistics.median(values), max(values)


if __name__ == "__main__":
    main()
