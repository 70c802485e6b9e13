"""Ratio of latencies in two backends, by types of operators.

``python -m benchmarks.backend_prices`` prints the prices from the labels in ``datasets/``, without the factor that all
types have in common: it differs between machines, and labels tell it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Document
from slotool.predictors.features.type_costs import OperatorRows, Prices, TypeCosts, price_of
from slotool.predictors.labels import Setting

# Log prices of calls, FLOPs and bytes, in tenths; under "" those of other types, and of types within a tenth.
_ROWS: dict[str, dict[str, tuple[int, int, int]]] = {
    "torch": {},
    "keras": {
        "": (3, -3, 0),
        "AveragePooling2D": (2, -4, -1),
        "BatchNormalization": (-2, -8, -8),
        "Concatenate": (0, -3, -4),
        "Conv2D": (-3, -10, -5),
        "Conv2D 1×1": (-3, -7, -7),
        "Conv2D of groups": (-5, 45, 27),
        "Dense": (3, -8, -1),
        "Embedding": (-1, -3, -5),
        "GlobalAveragePooling2D": (1, -3, -1),
        "LayerNormalization": (10, 5, 11),
        "MaxPooling2D": (0, -5, -3),
        "Multiply": (3, -2, 2),
        "ReLU": (0, -5, -3),
        "Reshape": (11, -3, 9),
        "ScaledDotProductAttention": (12, 8, 10),
        "Transpose": (13, -3, 0),
        "gelu()": (5, 0, 3),
        "hard_silu()": (4, -1, 2),
        "relu6()": (-1, -6, -4),
        "silu()": (4, -2, 0),
    },
}
BACKEND_LOG_PRICES: dict[str, dict[str, Prices]] = {
    backend: {kind: (calls / 10, flops / 10, moved / 10) for kind, (calls, flops, moved) in rows.items()}
    for backend, rows in _ROWS.items()
}


@dataclass(frozen=True)
class BackendChange:
    """Prices of work in one backend and in another, each relative to torch, by type of operator, in log.

    Attributes:
        before: Prices in the backend of the base; none for torch, and where the two do not differ.
        after: Prices in the other backend.
        prices: Prices in the other backend wherever they are known, for shares of cost.
    """

    before: Mapping[str, Prices] = field(default_factory=dict)
    after: Mapping[str, Prices] = field(default_factory=dict)
    prices: Mapping[str, Prices] = field(default_factory=dict)

    @classmethod
    def of(cls, learnt: Setting | None, target: Setting) -> Self:
        """Return the change from one setting to another, or none from several settings, ``learnt`` None."""
        prices = prices_in(target)
        if learnt is None or not _is_known(learnt) or not _is_known(target) or learnt.backend == target.backend:
            return cls(prices=prices)
        return cls(prices_in(learnt), prices, prices)

    def __bool__(self) -> bool:
        """True if latencies differ by more than one factor."""
        return bool(self.before or self.after)

    def times(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """Return latency after ÷ before, up to a factor common to all networks, float64 > 0 [n]."""
        if not self or not graphs:
            return np.ones(len(graphs))
        costs = TypeCosts.of(graphs)
        after_s, before_s = (costs.priced_s(prices).sum(axis=1) for prices in (self.after, self.before))
        return np.asarray(after_s / before_s)

    def operator_times(self, graph: OperatorGraph) -> np.ndarray:
        """Return time after ÷ before of each operator, float64 > 0 [operators]."""
        rows = OperatorRows.of([graph])

        def priced_s(prices: Mapping[str, Prices]) -> np.ndarray:
            log_prices = np.array([price_of(kind, prices) for kind in rows.types])[rows.kinds]
            return np.asarray(np.sum(rows.terms_s * np.exp(log_prices), axis=1))

        return priced_s(self.after) / priced_s(self.before)

    def document(self) -> dict[str, Any]:
        return {name: dict(getattr(self, name)) for name in ("before", "after", "prices")}

    @classmethod
    def from_document(cls, document: Document) -> Self:
        """Restore from ``document``. Raises ``InputError`` for other than three numbers of a type."""
        names = ("before", "after", "prices")
        return cls(*(strict_json.convert(document[name], dict[str, Prices]) for name in names))


def prices_in(setting: Setting) -> Mapping[str, Prices]:
    """Return log prices of a setting's backend ÷ those of torch; none for torch, and where they are unknown."""
    return BACKEND_LOG_PRICES[setting.backend] if _is_known(setting) else {}


def _is_known(setting: Setting) -> bool:
    # Prices were learnt on CPUs: another device differs by more than another backend.
    is_measured = setting.device == "cpu" and setting.precision == "float32"
    return is_measured and setting.backend in BACKEND_LOG_PRICES
