"""What predictors have in common that take another one, their base, to a new setting by a few of its labels."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.operator_arrays import Batch, once
from slotool.predictors.base import FROM_OTHERS, NO_EXAMPLES, Document, Examples, Predictor, Progress, Tensors
from slotool.predictors.features.backend_prices import NO_PRICES, Prices, prices_from
from slotool.predictors.features.type_costs import TypeCosts
from slotool.predictors.registry import from_nested_state, nested_state


class SameAnswers:
    """Predictors that learnt the same give the same answers: the first of them can be asked for all."""

    def __init__(self) -> None:
        self._first: dict[object, Predictor[OperatorGraph]] = {}

    def first_like(self, predictor: Predictor[OperatorGraph]) -> Predictor[OperatorGraph]:
        """The first that learnt what ``predictor`` did, maybe itself; it then asks the first ones like those that it
        is made from."""
        tensors, document = nested_state(predictor, "")
        learnt = {name: (str(own.dtype), own.shape, own.tobytes()) for name, own in sorted(tensors.items())}
        first = self._first.setdefault((json.dumps(document, sort_keys=True), tuple(learnt.items())), predictor)
        if first is predictor and isinstance(predictor, FromBase):
            predictor.share(self)
        return first


class FromBase(Predictor[OperatorGraph]):
    """A base predictor, and what the labels of another setting say of it (``_learn``). Dev set and seed play no part.

    ``prices``: what is known of the setting's backend, by type of operator (``other_backend.prices_in``): what
    networks spend their cost on there, which corrections go by (``costs``). ``labels_taken``: how few and how many
    labels it is fitted to.
    """

    fitted_to = (FROM_OTHERS,)
    labels_taken: ClassVar[tuple[int, float]] = (1, float("inf"))

    def __init__(self, base: Predictor[OperatorGraph] | None = None, prices: Mapping[str, Prices] = NO_PRICES):
        self.base, self.prices = base, dict(prices)

    def fit(
        self,
        train: Examples[OperatorGraph],
        dev: Examples[OperatorGraph] = NO_EXAMPLES,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Raises ``InputError`` also for fewer or more labels than it takes, and without a base."""
        train.require("training")
        (least, most), found = self.labels_taken, len(train.items)
        if not least <= found <= most:
            raise InputError(f"a predictor is adapted by {least} to {most:g} labelled networks, not by {found}")
        self._learn(train)
        if progress:
            progress(f"{self.name}: {self.source.name} to {found} labels")

    @property
    def source(self) -> Predictor[OperatorGraph]:
        """The base. Raises ``InputError`` where there is none."""
        if self.base is None:
            raise InputError("there is no predictor to adapt")
        return self.base

    @abstractmethod
    def _learn(self, train: Examples[OperatorGraph]) -> None:
        """Take the labels in."""

    @abstractmethod
    def _learnt(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """All that they say: named tensors and a JSON document, without the base."""

    @abstractmethod
    def _restore(self, tensors: Tensors, document: Document) -> None:
        """Take in what ``_learnt`` gave."""

    def base_s(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """What the base says, float64 seconds [n]: asked once for all that have the same base."""
        return once(graphs, self.source.predict)

    def log_base(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """The logarithm of ``base_s``, float64 [n]."""
        return np.asarray(np.log(self.base_s(graphs)))

    def costs(self, graphs: Sequence[OperatorGraph]) -> TypeCosts:
        """What these networks spend their cost on in the setting."""
        return TypeCosts.of(graphs).shared_by(self.prices)

    def share(self, same: SameAnswers) -> None:
        """Have its base, and what else it asks, be the first like it: what several ask one for is computed once."""
        self.base = same.first_like(self.source)

    def operator_seconds(self, item: OperatorGraph) -> np.ndarray | None:
        """In the proportions that the base has."""
        found = self.source.operator_seconds(item)
        asked = Batch([item])
        return None if found is None else found * (self.predict(asked)[0] / self.base_s(asked)[0])

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors, document = nested_state(self.source, "base.")
        own, facts = self._learnt()
        return tensors | own, {"base": document, "prices": self.prices, **facts}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        # One that was written before there were prices has none.
        prices = prices_from(document.get("prices", {}))
        restored = cls(from_nested_state(tensors, document["base"], "base."), prices)
        restored._restore(tensors, document)
        return restored
