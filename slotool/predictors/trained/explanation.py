"""Time of a predicted network by operator and type, and latencies at batch sizes that are scaled by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.graphs.operators import Operator
from slotool.predictors.base import Estimator
from slotool.predictors.features.type_costs import batch_cost_s
from slotool.predictors.trained.artifact import Predictions, TrainedPredictor
from slotool.profiling.operator_calls import OperatorCall

CALL = "calling the network"


@dataclass(frozen=True)
class Explanation:
    """Latency of ``graph`` as the sum of ``seconds`` of its ``parts``, float64 [parts], and of a call, ``call_s``.

    ``learnt``: the predictor itself adds up the parts; else its prediction is divided by a neutral roofline.
    """

    graph: OperatorGraph
    latency_s: float
    parts: Sequence[Operator | OperatorCall]
    seconds: np.ndarray
    call_s: float
    learnt: bool

    @classmethod
    def of(
        cls, predictor: Estimator[Any], graph: OperatorGraph, batch_size: int = 1, answer_s: float | None = None
    ) -> Explanation:
        """Explain the prediction for ``graph`` by a predictor of batches of ``batch_size``.

        ``answer_s``: the latency to explain, where it is of another batch size than the prediction.
        """
        predicted_s = float(predictor.predict([graph])[0])
        latency_s = predicted_s if answer_s is None else answer_s
        if (seconds := predictor.operator_seconds(graph)) is None:
            cost_s = batch_cost_s(graph, batch_size)
            return cls(graph, latency_s, graph.operators, latency_s * cost_s / cost_s.sum(), 0.0, False)
        seconds = seconds * (latency_s / predicted_s)
        call_s = max(0.0, round((latency_s - float(seconds.sum())) / latency_s, 9)) * latency_s  # errors of sums
        return cls(graph, latency_s, predictor.parts(graph), seconds, call_s, True)

    def by_type(self) -> Mapping[str, tuple[int, float]]:
        """Return number and seconds of parts by type, the most expensive first, and those of the call last."""
        counts: dict[str, tuple[int, float]] = {}
        for part, seconds in zip(self.parts, self.seconds.tolist(), strict=True):
            number, total = counts.get(part.op, (0, 0.0))
            counts[part.op] = number + 1, total + seconds
        by_type = dict(sorted(counts.items(), key=lambda item: -item[1][1]))
        return {**by_type, CALL: (1, self.call_s)} if self.call_s else by_type

    def document(self) -> dict[str, Any]:
        return {
            "learnt": self.learnt,
            "call_s": self.call_s,
            "by_type": {name: {"operators": n, "latency_s": s} for name, (n, s) in self.by_type().items()},
            "operators": [
                {"name": part.name, "op": part.op, "latency_s": seconds}
                for part, seconds in zip(self.parts, self.seconds.tolist(), strict=True)
            ],
        }


@dataclass(frozen=True)
class BatchScaledPredictor(TrainedPredictor[OperatorGraph]):
    """Predictor at a batch size other than ``learnt``, that of its labels; no prediction has an interval.

    Each operator's time grows as on a neutral roofline: FLOPs, inputs and outputs grow with the batch, weights and the
    call do not. Time beyond the roofline counts as computing, and grows. The cost of calling the network stays.
    """

    learnt: int = 1

    @classmethod
    def of(cls, trained: TrainedPredictor[OperatorGraph], batch_size: int) -> Self:
        """Return ``trained`` at this batch size."""
        setting = replace(trained.setting, batch_size=batch_size)
        return cls(**{**vars(trained), "setting": setting}, learnt=trained.setting.batch_size)

    def predict(self, graphs: Sequence[OperatorGraph], unsure: np.ndarray | float = 0.0) -> Predictions:
        predictions = super().predict(graphs, unsure)
        latency_s = []
        for graph in graphs:
            explanation = Explanation.of(self.predictor, graph, self.learnt)
            shares = batch_cost_s(graph, 0) / np.maximum(batch_cost_s(graph, self.learnt), explanation.seconds)
            factors = 1.0 + (1.0 - shares) * (self.setting.batch_size / self.learnt - 1.0)
            latency_s.append(float(explanation.seconds @ factors) + explanation.call_s)
        scaled = replace(predictions, latency_s=np.array(latency_s, dtype=np.float64))
        return scaled.without_interval(f"scaled from batch {self.learnt} by a roofline, which no label checked")
