"""Prices of operators by kind and shape, fitted to whole networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import NO_EXAMPLES, Document, Labels, Predictor, Progress, Tensors
from slotool.predictors.features.operator_terms import OPERATOR_FEATURES, OPERATOR_TERMS, OperatorTerms, is_product

# Prior: seconds of a call, FLOPs and bytes per second, and seconds of a network beyond its operators.
CALL_S, FLOPS_PER_SECOND, BYTES_PER_SECOND, NETWORK_S = 3e-6, 5e10, 1e10, 2e-5
# Standard deviations of log prices: of products and of all else, of a kind around these, and of the change by one
# deviation of a feature. Chosen on held-out kinds of random architectures.
COMMON, TYPE_ALONE, BY_FEATURE = 2.0, 1.5, 0.15
# Log errors beyond this count linearly, smaller ones by their square.
DELTA = 0.1
ITERATIONS, FEW_ITERATIONS, HISTORY = 150, 40, 30
MIN_DEVIATION = 0.5
MAX_LOG_PRICE, MAX_LOG_SHAPE = 6.0, 4.0
# Arrays of ``ShapeFeatures``.
SCALING = ("low", "high", "deviation", "mean")


class OperatorCostPredictor(Predictor[OperatorGraph]):
    """Latency = a constant + Σ over operators of Σ over ``OPERATOR_TERMS`` of amount × e^(price of its kind + shape).

    ``shape`` is linear in the ``OPERATOR_FEATURES`` of the operator, and changes the price of a FLOP, a byte moved and
    a byte of weights, not that of a call. All prices are fitted together by L-BFGS to |log(predicted ÷ label)| (its
    square for small errors) with Gaussian priors: of a kind around those of all products, or of all else. So a rare
    kind pays about what others pay, an unknown kind exactly that, and features are clipped to the training range. Dev
    set and seed play no part.
    """

    name = "costs"

    def __init__(self, iterations: int = ITERATIONS):
        self._iterations = iterations

    def fit(self, train: Labels, dev: Labels = NO_EXAMPLES, *, seed: int = 0, progress: Progress | None = None) -> None:
        train.require("training")
        terms = OperatorTerms.of(train.items)
        self._shapes = ShapeFeatures.fit(terms)
        self._prices = _fitted(self._shapes, terms, np.log(train.latency_s), self._iterations)
        if progress:
            error = np.mean(np.abs(self.predict(train.items) / train.latency_s - 1))
            progress(f"{self.name}: {len(self._shapes.kinds)} kinds of operators, training error {error:.1%}")

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        terms = OperatorTerms.of(graphs)
        seconds = np.bincount(terms.owners, self._seconds(terms)[terms.rows], len(graphs))
        return np.asarray(seconds + NETWORK_S * np.exp(self._prices["network"][0]))

    def operator_seconds(self, item: OperatorGraph) -> np.ndarray:
        terms = OperatorTerms.of([item])
        return np.bincount(terms.operators, self._seconds(terms)[terms.rows], len(item.operators))

    def surrogate(self) -> Predictor[OperatorGraph]:
        """Return one that stops early, in a quarter of the time."""
        return type(self)(FEW_ITERATIONS)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        shapes = {f"shapes.{name}": getattr(self._shapes, name) for name in SCALING}
        tensors = shapes | {f"prices.{name}": prices for name, prices in self._prices.items()}
        names = {"terms": list(OPERATOR_TERMS), "features": list(OPERATOR_FEATURES)}
        return tensors, {"kinds": list(self._shapes.kinds), **names}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        if document["terms"] != list(OPERATOR_TERMS) or document["features"] != list(OPERATOR_FEATURES):
            raise InputError("the costs predictor was trained with other terms than this slotool has")
        restored, kinds = cls(), tuple(strict_json.convert(document["kinds"], list[str]))
        rows, width = len(kinds) + 2, len(OPERATOR_TERMS)
        expected = {f"shapes.{name}": (rows, len(OPERATOR_FEATURES)) for name in SCALING} | {
            "prices.common": (2, width),
            "prices.own": (rows, width),
            "prices.shape": (rows, len(OPERATOR_FEATURES), width - 1),
        }
        for name, shape in expected.items():
            if tensors[name].shape != shape:
                raise InputError(f"{name} of the costs predictor do not fit its {len(kinds)} kinds of operators")
        restored._shapes = ShapeFeatures(kinds, *(tensors[f"shapes.{name}"] for name in SCALING))
        restored._prices = {name: tensors[f"prices.{name}"] for name in ("common", "own", "shape", "network")}
        return restored

    def _seconds(self, terms: OperatorTerms) -> np.ndarray:
        """Return seconds of each distinct operator, float64 [d]."""
        at, products = self._shapes.rows(terms)
        shape = np.einsum("nf,nft->nt", self._shapes.of(terms, at), self._prices["shape"][at])
        price = np.clip(self._prices["common"][products] + self._prices["own"][at], -MAX_LOG_PRICE, MAX_LOG_PRICE)
        price[:, 1:] += np.clip(shape, -MAX_LOG_SHAPE, MAX_LOG_SHAPE)
        return np.asarray(np.sum(_neutral_s(terms) * np.exp(price), axis=1))


@dataclass(frozen=True)
class ShapeFeatures:
    """Scaling of the features of each kind, float64 [kinds + 2, features].

    The last two rows are for products and for other operators of unknown kinds, whose shape plays no part.
    """

    kinds: tuple[str, ...]
    low: np.ndarray
    high: np.ndarray
    deviation: np.ndarray
    mean: np.ndarray

    @classmethod
    def fit(cls, terms: OperatorTerms) -> Self:
        kinds = tuple(sorted(set(terms.kinds.tolist())))
        low, high, deviation, mean = np.zeros((4, len(kinds) + 2, len(OPERATOR_FEATURES)))
        deviation[:] = 1.0
        for row, kind in enumerate(kinds):
            features = terms.features[terms.rows[terms.kinds[terms.rows] == kind]]
            low[row], high[row], mean[row] = features.min(axis=0), features.max(axis=0), features.mean(axis=0)
            deviation[row] = np.maximum(features.std(axis=0), MIN_DEVIATION)
        return cls(kinds, low, high, deviation, mean)

    def rows(self, terms: OperatorTerms) -> tuple[np.ndarray, np.ndarray]:
        """Return the row of each operator, and 0 for a product, 1 for any other, int64 [n] each."""
        at = {kind: row for row, kind in enumerate(self.kinds)}
        kinds = terms.kinds.tolist()
        products = np.array([int(not is_product(kind)) for kind in kinds], dtype=np.int64)
        rows = [at.get(kind, len(at) + other) for kind, other in zip(kinds, products.tolist(), strict=True)]
        return np.array(rows, dtype=np.int64), products

    def of(self, terms: OperatorTerms, at: np.ndarray) -> np.ndarray:
        """Return scaled features, 0 at the mean of a kind, float64 [n, features]."""
        inside = np.clip(terms.features, self.low[at], self.high[at])
        return np.asarray((inside - self.mean[at]) / self.deviation[at])


def _neutral_s(terms: OperatorTerms) -> np.ndarray:
    """Return seconds of ``OPERATOR_TERMS`` at prior prices, float64 [d, terms]."""
    rates = np.array([CALL_S, 1 / FLOPS_PER_SECOND, 1 / BYTES_PER_SECOND, 1 / BYTES_PER_SECOND])
    return np.asarray(terms.terms * rates)


def _fitted(shapes: ShapeFeatures, terms: OperatorTerms, log_s: np.ndarray, iterations: int) -> dict[str, np.ndarray]:
    """Return the prices of greatest posterior likelihood."""
    import torch

    at, products = (torch.from_numpy(values) for values in shapes.rows(terms))
    features = torch.from_numpy(shapes.of(terms, at.numpy()))
    neutral = torch.from_numpy(_neutral_s(terms))
    owners, labels = torch.from_numpy(terms.owners), torch.from_numpy(log_s)
    # Networks repeat operators: each distinct one is priced once.
    same = torch.from_numpy(terms.rows)
    rows = len(shapes.kinds) + 2
    sizes = {"common": (2, len(OPERATOR_TERMS)), "own": (rows, len(OPERATOR_TERMS)), "network": (1,)}
    sizes["shape"] = (rows, features.shape[1], len(OPERATOR_TERMS) - 1)
    deviations = {"common": COMMON, "own": TYPE_ALONE, "shape": BY_FEATURE, "network": 1.0}
    prices = {name: torch.zeros(size, dtype=torch.float64, requires_grad=True) for name, size in sizes.items()}

    optimum = torch.optim.LBFGS(
        list(prices.values()), max_iter=iterations, history_size=HISTORY, line_search_fn="strong_wolfe"
    )

    def loss_with_gradient() -> float:
        optimum.zero_grad()
        shape = torch.einsum("nf,nft->nt", features, prices["shape"][at]).clamp(-MAX_LOG_SHAPE, MAX_LOG_SHAPE)
        price = (prices["common"][products] + prices["own"][at]).clamp(-MAX_LOG_PRICE, MAX_LOG_PRICE)
        price = price + torch.nn.functional.pad(shape, (1, 0))
        constant = NETWORK_S * torch.exp(prices["network"]).expand(len(labels))
        seconds = (neutral * torch.exp(price)).sum(dim=1)
        error = torch.log(constant.index_add(0, owners, seconds[same])) - labels
        loss = (torch.sqrt(1 + (error / DELTA) ** 2) - 1).sum()
        for name, values in prices.items():
            loss = loss + (values**2).sum() / (2 * deviations[name] ** 2)
        loss.backward()
        return float(loss.detach())

    optimum.step(loss_with_gradient)
    return {name: values.detach().numpy().copy() for name, values in prices.items()}
