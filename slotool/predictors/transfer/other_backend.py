"""What another backend takes for the same networks, and a predictor that was adapted to it by way of its base's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.operator_arrays import Batch
from slotool.predictors.base import FROM_OTHERS, NO_EXAMPLES, Document, Examples, Predictor, Progress, Tensors
from slotool.predictors.features.backend_prices import BACKEND_LOG_PRICES, NO_PRICES, Prices, prices_from
from slotool.predictors.features.type_costs import TERMS, OperatorRows, TypeCosts
from slotool.predictors.labels import Setting
from slotool.predictors.registry import from_nested_state, nested_state
from slotool.predictors.settings.predictor import SettingsPredictor
from slotool.predictors.trained.artifact import TrainedPredictor

# Where prices were learnt: another device is further away than another backend.
DEVICE, PRECISION = "cpu", "float32"


@dataclass(frozen=True)
class BackendChange:
    """From one backend to another: what work costs in each ÷ in torch, by type of operator, in log; nothing for torch
    itself (``backend_prices``)."""

    before: Mapping[str, Prices]
    after: Mapping[str, Prices]

    @classmethod
    def of(cls, known: Setting, wanted: Setting) -> Self:
        """One that changes nothing where both are the same, or nothing is known of what they differ by."""
        if known.backend == wanted.backend or not (_is_known(known) and _is_known(wanted)):
            return cls({}, {})
        return cls(prices_in(known), prices_in(wanted))

    def __bool__(self) -> bool:
        """Whether it changes anything."""
        return bool(self.before or self.after)

    def times(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """How many times as long networks take there, but for a factor of all, float64 > 0 [n]: Σ share × price after ÷
        Σ share × price before, where ``share`` is what calls, FLOPs or bytes of a type of operator have of the
        network's cost by a neutral roofline (``TypeCosts``)."""
        if not self or not graphs:
            return np.ones(len(graphs))
        costs = TypeCosts.of(graphs)
        return np.asarray(priced_s(costs, self.after) / priced_s(costs, self.before))

    def operator_times(self, graph: OperatorGraph) -> np.ndarray:
        """The same of each operator by itself, float64 > 0 [operators]."""
        rows = OperatorRows.of([graph])
        return np.asarray(_operators_priced_s(rows, self.after) / _operators_priced_s(rows, self.before))

    def there(self, predictor: Predictor[OperatorGraph]) -> Predictor[OperatorGraph]:
        """What a predictor of the one says of the other."""
        return OtherBackendPredictor(predictor, self) if self else predictor


def change_of(base: TrainedPredictor[OperatorGraph], setting: Setting) -> BackendChange:
    """What a setting's backend is known to differ by from a base's; of a base of many settings nothing, which weighs
    what it knows itself."""
    known = setting if isinstance(base.predictor, SettingsPredictor) else base.setting
    return BackendChange.of(known, setting)


class OtherBackendPredictor(Predictor[OperatorGraph]):
    """latency = base × ``BackendChange.times``: an answer for one backend taken to another.

    The base was fitted to labels taken the other way, so each of its parts knows what networks differ by there before
    it sees a label. ``fit`` is refused.
    """

    name = "other-backend"
    fitted_to = (FROM_OTHERS,)

    def __init__(self, base: Predictor[OperatorGraph] | None = None, change: BackendChange | None = None):
        self.base, self.change = base, change or BackendChange({}, {})

    def fit(
        self,
        train: Examples[OperatorGraph],
        dev: Examples[OperatorGraph] = NO_EXAMPLES,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        raise InputError("what backends differ by is known, not fitted: adapt-predictor makes such a predictor")

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        graphs = Batch.of(graphs)
        return np.asarray(self.source.predict(graphs) * self.change.times(graphs))

    def predict_and_spread(self, graphs: Sequence[OperatorGraph]) -> tuple[np.ndarray, np.ndarray]:
        graphs = Batch.of(graphs)
        latency_s, spread = self.source.predict_and_spread(graphs)
        return np.asarray(latency_s * self.change.times(graphs)), spread

    def operator_seconds(self, item: OperatorGraph) -> np.ndarray | None:
        """Those of the base, each taken there by its own prices."""
        found = self.source.operator_seconds(item)
        if found is None:
            return None
        there = found * self.change.operator_times(item)
        return np.asarray(there * (found.sum() / there.sum() * self.change.times([item])[0]))

    @property
    def source(self) -> Predictor[OperatorGraph]:
        """The base. Raises ``InputError`` where there is none."""
        if self.base is None:
            raise InputError("there is no predictor to ask for another backend")
        return self.base

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors, document = nested_state(self.source, "base.")
        return tensors, {"base": document, "before": dict(self.change.before), "after": dict(self.change.after)}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        change = BackendChange(prices_from(document["before"]), prices_from(document["after"]))
        return cls(from_nested_state(tensors, document["base"], "base."), change)


def prices_in(setting: Setting) -> Mapping[str, Prices]:
    """What work costs in a setting's backend ÷ in torch, by type of operator, in log: empty for torch, and where
    nothing is known of it."""
    return BACKEND_LOG_PRICES[setting.backend] if _is_known(setting) else NO_PRICES


def _is_known(setting: Setting) -> bool:
    here = setting.device == DEVICE and setting.precision == PRECISION
    return here and setting.backend in BACKEND_LOG_PRICES


def priced_s(costs: TypeCosts, prices: Mapping[str, Prices]) -> np.ndarray:
    """Cost of networks at prices of a backend, float64 > 0 [graphs]: those of torch where there are none."""
    return np.asarray(costs.priced_s(prices).sum(axis=1)) if prices else costs.total_s


def _operators_priced_s(rows: OperatorRows, prices: Mapping[str, Prices]) -> np.ndarray:
    """The same of each operator, float64 > 0 [operators]."""
    if not prices:
        return rows.cost_s
    times = np.exp(np.array([prices.get(kind, prices[""]) for kind in rows.types]))[rows.kinds]
    return np.asarray(sum(rows.terms_s[term] * own for term, own in zip(TERMS, times.T, strict=True)))
