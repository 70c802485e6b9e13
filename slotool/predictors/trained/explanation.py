"""Where the time of a predicted network goes: by operator, and by type of operator; it adds up to the prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.base import Predictor
from slotool.predictors.features.type_costs import batch_cost_s

CALL = "calling the network"


@dataclass(frozen=True)
class Explanation:
    """``seconds``: float64 [operators] of ``graph``; ``call_s``: what a call takes whatever the network. Together they
    are ``latency_s``. ``learnt``: whether the predictor itself adds up operators; else its answer is shared out by a
    neutral roofline."""

    graph: OperatorGraph
    latency_s: float
    seconds: np.ndarray
    call_s: float
    learnt: bool

    @classmethod
    def of(
        cls,
        predictor: Predictor[OperatorGraph],
        graph: OperatorGraph,
        batch_size: int = 1,
        answer_s: float | None = None,
    ) -> Explanation:
        """Where ``predictor`` thinks the time of ``graph`` goes, whose latencies are of batches of ``batch_size``.
        ``answer_s``: what was answered, where that may be raised from what it predicts."""
        predicted_s = float(predictor.predict([graph])[0])
        latency_s = predicted_s if answer_s is None else answer_s
        found = predictor.operator_seconds(graph)
        if found is not None:
            found = found * (latency_s / predicted_s)
        else:
            cost_s = batch_cost_s(graph, batch_size)
            return cls(graph, latency_s, latency_s * cost_s / cost_s.sum(), 0.0, False)
        return cls(graph, latency_s, found, max(0.0, latency_s - float(found.sum())), True)

    def by_type(self) -> Mapping[str, tuple[int, float]]:
        """How many operators of each type there are, and their seconds; the most expensive type first, then the
        call."""
        counts: dict[str, tuple[int, float]] = {}
        for operator, seconds in zip(self.graph.operators, self.seconds.tolist(), strict=True):
            number, total = counts.get(operator.op, (0, 0.0))
            counts[operator.op] = number + 1, total + seconds
        found = dict(sorted(counts.items(), key=lambda each: -each[1][1]))
        return {**found, CALL: (1, self.call_s)} if self.call_s else found

    def document(self) -> dict[str, Any]:
        """JSON: by type and by operator, seconds."""
        return {
            "learnt": self.learnt,
            "call_s": self.call_s,
            "by_type": {name: {"operators": n, "latency_s": s} for name, (n, s) in self.by_type().items()},
            "operators": [
                {"name": operator.name, "op": operator.op, "latency_s": seconds}
                for operator, seconds in zip(self.graph.operators, self.seconds.tolist(), strict=True)
            ],
        }
