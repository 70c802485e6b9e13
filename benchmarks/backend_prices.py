"""Print the rows of ``slotool/predictors/transfer/backend_change.py``, from networks that were measured in both
backends, and how well they tell kinds of networks that had no part; those of ONNX Runtime too, which are not shipped.

TensorFlow: 200 random architectures, and those of them with depthwise convolutions once more with these written as
convolutions of as many groups as channels, which TensorFlow computes by another kernel; two threads of a Xeon. ONNX
Runtime: the same 200, one thread of an EPYC. Both beside torch on the same machine and threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from benchmarks.calibrate_shipped import DATASETS
from slotool.graphs import OperatorGraph
from slotool.graphs.store import read_graphs
from slotool.predictors.features.type_costs import BYTES, CALLS, COST_TERMS, FLOPS, Column, TypeCosts, covariance
from slotool.predictors.labels import join_labels
from slotool.tables import LatencyTable

# How far prices may differ between backends, in units of ``typecosts.covariance``: chosen among 0.1 to 1.5 by kinds
# held out of both pairs of backends.
DEVIATION = 0.4
# Labels measured beside other work are off by far at times, so errors are Student's t of so many degrees of freedom.
FREEDOM = 4.0
SHIFT_DEVIATION, MIN_DEVIATION, START_DEVIATION = 2.0, 0.02, 0.2
STEPS = 1500
# A type of operator may be computed by another kernel there, its prices apart by so much more, where that makes labels
# so much likelier, in log.
OUTLIER, MIN_GAIN = 3.5, 10.0
GRAPHS = ("random-architectures", "random-architectures-grouped")
TABLES = {
    "keras": ("random-architectures-backends-latency",),
    "onnx": ("random-architectures-latency", "random-architectures-onnx-latency"),
}


@dataclass(frozen=True)
class Pairs:
    """n networks measured in torch and in another backend: log of how many times as long they took, float64 [n]."""

    graphs: tuple[OperatorGraph, ...]
    log_times: np.ndarray

    @property
    def kinds(self) -> np.ndarray:
        return np.array([graph.kind for graph in self.graphs])

    def only(self, rows: np.ndarray) -> Pairs:
        return Pairs(tuple(self.graphs[row] for row in np.flatnonzero(rows)), self.log_times[rows])


def pairs(backend: str) -> Pairs:
    """Of a backend beside torch, by the tables in ``datasets/``."""
    graphs = [graph for name in GRAPHS for graph in read_graphs(DATASETS / f"{name}.parquet")]
    tables = LatencyTable.load_all([DATASETS / f"{name}.parquet" for name in TABLES[backend]])
    there, here = (join_labels(tables, graphs, {"backend": own}) for own in (backend, "torch"))
    known = dict(zip([graph.id for graph in here.items], here.latency_s.tolist(), strict=True))
    both = [(graph, s / known[graph.id]) for graph, s in zip(there.items, there.latency_s.tolist(), strict=True)]
    return Pairs(tuple(graph for graph, _ in both), np.log([times for _, times in both]))


def fitted(own: Pairs, standing_out: Sequence[str] = ()) -> dict[str, tuple[float, ...]]:
    """Log price of the terms of each type, and of any other type under ""."""
    costs = TypeCosts.of(own.graphs)
    asked = (*costs.columns, *((term, "") for term in COST_TERMS))
    joint = _before(asked, costs.columns, standing_out)
    log_price = joint @ np.linalg.solve(joint[: len(costs.columns)], _likeliest(costs, own.log_times, standing_out)[1])
    by_column = dict(zip(asked, log_price.tolist(), strict=True))
    types = sorted({kind for _, kind in asked})
    return {kind: tuple(by_column.get((term, kind), by_column[term, ""]) for term in COST_TERMS) for kind in types}


def types_that_stand_out(own: Pairs) -> list[str]:
    """Those of which another kernel is used there: one after the other, while the labels become so much likelier."""
    costs, outliers = TypeCosts.of(own.graphs), list[str]()
    unlikely = _likeliest(costs, own.log_times, outliers)[0]
    while True:
        others = sorted({kind for _, kind in costs.columns} - set(outliers))
        best, kind = min((_likeliest(costs, own.log_times, [*outliers, kind])[0], kind) for kind in others)
        if best > unlikely - MIN_GAIN:
            return outliers
        unlikely, outliers = best, [*outliers, kind]


def _before(first: Sequence[Column], second: Sequence[Column], standing_out: Sequence[str]) -> np.ndarray:
    """Covariance of log prices before any label, float64 [first, second]."""
    types = np.equal.outer([kind for _, kind in first], [kind for _, kind in second])
    terms = np.equal.outer([term for term, _ in first], [term for term, _ in second])
    far = np.isin([kind for _, kind in first], list(standing_out))[:, None] * types * (1.0 + terms)
    return np.asarray(DEVIATION**2 * covariance(first, second) + OUTLIER**2 * far)


def _likeliest(costs: TypeCosts, log_times: np.ndarray, standing_out: Sequence[str]) -> tuple[float, np.ndarray]:
    """How unlikely labels and prices are, −log, and the likeliest log prices, float64 [columns], beside a factor of all
    and a deviation of labels."""
    factor = np.linalg.cholesky(_before(costs.columns, costs.columns, standing_out))

    def unlikely(at: np.ndarray) -> tuple[float, np.ndarray]:
        priced = costs.seconds * np.exp(factor @ at[:-2])
        shares, answer = priced / priced.sum(axis=1)[:, None], np.log(priced.sum(axis=1) / costs.total_s)
        apart = (log_times - at[-2] - answer) * np.exp(-at[-1])
        heavy = 1 + apart**2 / FREEDOM
        pull = (FREEDOM + 1) / FREEDOM * apart / heavy
        prior = at[:-2] @ at[:-2] + (at[-2] / SHIFT_DEVIATION) ** 2
        value = 0.5 * prior + (FREEDOM + 1) / 2 * np.log(heavy).sum() + len(apart) * at[-1]
        slope_of_prices = at[:-2] - np.exp(-at[-1]) * (factor.T @ (shares.T @ pull))
        slope_of_shift = at[-2] / SHIFT_DEVIATION**2 - np.exp(-at[-1]) * pull.sum()
        return float(value), np.concatenate([slope_of_prices, [slope_of_shift, len(apart) - (pull * apart).sum()]])

    # What stands out may do so by FLOPs or by bytes, of which one hides the other: the search starts at both.
    far = {CALLS: 0.0, FLOPS: 5.0, BYTES: 3.0}
    first = np.array([far[term] * (kind in standing_out) for term, kind in costs.columns])
    bounds = [(-np.inf, np.inf)] * (len(factor) + 1) + [(np.log(MIN_DEVIATION), 0.0)]
    rest = [float(np.median(log_times)), float(np.log(START_DEVIATION))]
    starts = [np.zeros(len(factor)), *([np.linalg.solve(factor, first)] if standing_out else [])]
    options = {"maxiter": STEPS, "maxfun": 2 * STEPS}
    rows = [
        minimize(unlikely, np.append(start, rest), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        for start in starts
    ]
    best = min(rows, key=lambda each: each.fun)
    return float(best.fun), np.asarray(factor @ best.x[:-2])


def of_kinds_left_out(own: Pairs, standing_out: Sequence[str]) -> tuple[float, float]:
    """Error of how many times as long a network takes there, a factor of all apart: by one factor, and by prices
    learnt without its kind. Medians over networks of |log|."""
    alone, priced = [], []
    for kind in sorted(set(own.kinds.tolist())):
        known, asked = own.only(own.kinds != kind), own.only(own.kinds == kind)
        prices = fitted(known, standing_out)
        left = known.log_times - _log_times(known.graphs, prices)
        alone.append(np.abs(asked.log_times - np.median(known.log_times)))
        priced.append(np.abs(asked.log_times - _log_times(asked.graphs, prices) - np.median(left)))
    return float(np.median(np.concatenate(alone))), float(np.median(np.concatenate(priced)))


def _log_times(graphs: Sequence[OperatorGraph], prices: dict[str, tuple[float, ...]]) -> np.ndarray:
    costs = TypeCosts.of(graphs)
    return np.asarray(np.log(costs.priced_s(prices).sum(axis=1) / costs.total_s))


def main() -> None:
    for backend in TABLES:
        own = pairs(backend)
        outliers = types_that_stand_out(own)
        alone, priced = of_kinds_left_out(own, outliers)
        print(f"# {backend}: {len(own.graphs)} networks, {outliers} stand out", flush=True)
        print(f"# kinds left out: {alone:.3f} off by a factor alone, {priced:.3f} by prices", flush=True)
        rows = {kind: tuple(round(10 * price) for price in prices) for kind, prices in fitted(own, outliers).items()}
        for kind, row in rows.items():
            if not kind or np.abs(np.subtract(row, rows[""])).max() > 1:
                print(f'        "{kind}": {row},', flush=True)


if __name__ == "__main__":
    main()
