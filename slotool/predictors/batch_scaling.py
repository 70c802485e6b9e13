"""Latencies at batch sizes that no label had: those learnt, scaled operator by operator by a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import operator_measures
from slotool.predictors.explanation import Explanation
from slotool.predictors.trained import Predictions, TrainedPredictor
from slotool.predictors.typecosts import BYTES_PER_SECOND, FLOPS_PER_SECOND, SECONDS_PER_CALL


def scaled_to_batch(
    trained: TrainedPredictor[OperatorGraph], graphs: Sequence[OperatorGraph], batch_size: int
) -> Predictions:
    """What ``trained`` predicts, at another batch size than that of its labels; no answer has an interval.

    Each operator's share of the latency grows as its cost on a neutral roofline: FLOPs and what it reads and writes
    with the batch, its weights and the call not. Where the operator takes longer than there, the rest is computing
    too, and grows. What a call of the network costs stays.
    """
    learnt = trained.setting.batch_size
    latency_s = []
    for graph in graphs:
        found = Explanation.of(trained.predictor, graph)
        shares = batch_cost_s(graph, 0) / np.maximum(batch_cost_s(graph, learnt), found.seconds)
        factors = 1.0 + (1.0 - shares) * (batch_size / learnt - 1.0)
        latency_s.append(float(found.seconds @ factors) + found.call_s)
    predictions = replace(trained.predict(graphs), latency_s=np.array(latency_s, dtype=np.float64))
    return predictions.without_interval(f"scaled from batch {learnt} by a roofline, which no label checked")


def batch_cost_s(graph: OperatorGraph, batch_size: int) -> np.ndarray:
    """Of each operator on the neutral roofline for one batch, float64 seconds > 0 [operators]."""
    measures = operator_measures(graph)
    weights, moved = measures[:, 2], measures[:, 3] + measures[:, 4]
    per_example = measures[:, 0] / FLOPS_PER_SECOND + moved / BYTES_PER_SECOND
    calls = np.array([operator.calls for operator in graph.operators])
    return np.asarray(SECONDS_PER_CALL * calls + weights / BYTES_PER_SECOND + batch_size * per_example)
