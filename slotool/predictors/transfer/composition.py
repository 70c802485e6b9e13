"""Few labels where kinds of networks differ: networks that spend their cost alike err alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.graphs.operator_arrays import once
from slotool.predictors.base import NO_EXAMPLES, Document, Examples, Predictor, Tensors
from slotool.predictors.registry import from_nested_state, nested_state
from slotool.predictors.solo.three_term import ThreeTermPredictor, left_out
from slotool.predictors.transfer.adapted import AdaptedPredictor
from slotool.predictors.transfer.from_base import FromBase, SameAnswers
from slotool.predictors.transfer.similarity import Correction, Priors

PRIORS = Priors(shifts=(0.05, 2.0), deviations=(0.1, 0.3, 0.6), slopes=(0.0, 0.1, 0.3, 1.0), noises=(0.03, 0.08, 0.2))
PARTS = ("adapted", "three_term")
# The adapted base counts less where its variance is more than so many times the mean square that three terms err by on
# labels left out, in log; one of these errors counts up to this.
MAX_TIMES_UNSURE, MAX_LOG_ERROR = 2.0, 1.0


class CompositionPredictor(FromBase):
    """latency = √(adapted × three-term) × e^r, where r is smooth in what share of its cost a network spends where.

    Two means that err differently: a base corrected by type, and three prices of the labels alone. r is the
    ``Correction`` by what both leave of the labels, averaged over ``PRIORS``. Where the adapted one is unsure, as of a
    network with types or sizes that no label has on a device unlike the base's, three terms stand in for it: by how
    much its spread exceeds what they err by on labels left out.
    """

    name = "composition"
    labels_taken = AdaptedPredictor.labels_taken

    def _learn(self, train: Examples[OperatorGraph]) -> None:
        graphs, latency_s = train
        self._parts: tuple[Predictor[OperatorGraph], ...] = (
            AdaptedPredictor(self.source, self.prices),
            ThreeTermPredictor(),
        )
        for part in self._parts:
            part.fit(train, NO_EXAMPLES, seed=0)
        errors = np.clip(left_out(train), -MAX_LOG_ERROR, MAX_LOG_ERROR)
        self._three_term_variance: float | None = float(np.mean(errors**2))
        self._correction = Correction.of(graphs, self.costs(graphs), np.log(latency_s) - self._mean(graphs), PRIORS)

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        return np.asarray(np.exp(self._mean(graphs) + self._correction(graphs, self.costs(graphs))))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The base is part of the adapted one, and not stored twice."""
        tensors, document = self._learnt()
        for name, part in zip(PARTS, self._parts, strict=True):
            own, document[name] = nested_state(part, f"{name}.")
            tensors |= own
        return tensors, document

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        adapted, three_term = (from_nested_state(tensors, document[name], f"{name}.") for name in PARTS)
        known = (adapted.source, adapted.prices) if isinstance(adapted, AdaptedPredictor) else (adapted,)
        restored = cls(*known)
        restored._parts = (adapted, three_term)
        restored._restore(tensors, document)
        return restored

    def share(self, same: SameAnswers) -> None:
        super().share(same)
        self._parts = tuple(map(same.first_like, self._parts))

    def _learnt(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors, document = self._correction.state()
        return tensors, {**document, "three_term_variance": self._three_term_variance}

    def _restore(self, tensors: Tensors, document: Document) -> None:
        self._correction = Correction.from_state(tensors, document)
        # One that was written before there was this weighs both parts alike everywhere.
        self._three_term_variance = document.get("three_term_variance")

    def _mean(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """float64 [n], log of seconds."""
        adapted, three_term = self._parts
        prices = np.log(once(graphs, three_term.predict))
        if self._three_term_variance is None or not isinstance(adapted, AdaptedPredictor):
            return np.asarray((np.log(once(graphs, adapted.predict)) + prices) / 2)
        predicted_s, spread = adapted.predict_and_spread(graphs)
        trust = np.minimum(1.0, MAX_TIMES_UNSURE * self._three_term_variance / spread**2)
        return np.asarray(prices + trust * (np.log(predicted_s) - prices) / 2)
