"""An SLO-NN in plain NumPy, layer by layer: the reference that compiled calls are held against."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slotool.elastic.slo_nn.activator import layer_input, logits
from slotool.elastic.slo_nn.calibration import min_share
from slotool.elastic.slo_nn.inputs import check_rows
from slotool.elastic.slo_nn.kernels.layout import MIN_RESCORED
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer, Int8Weights, quantized_inputs
from slotool.elastic.slo_nn.model import SloNN
from slotool.tables import FULL, OperatingPoint


@dataclass(frozen=True)
class QuantizedLayer(DenseLayer):
    """A layer of which all nodes but ``exact`` int64 [h] are computed from ``rows`` and quantized inputs."""

    rows: Int8Weights
    exact: np.ndarray

    def pre_activations(self, inputs: Any, nodes: np.ndarray | None = None) -> np.ndarray:
        """As of a ``DenseLayer``; of ``nodes``, where they are given, exactly."""
        if nodes is not None:
            return super().pre_activations(inputs, nodes)
        steps, step, least = quantized_inputs(inputs)
        rows = self.rows.rows.astype(np.float32)
        values: np.ndarray = (steps @ rows.T * step + least * self.rows.sums) * self.rows.scale + self.bias
        values[:, self.exact] = super().pre_activations(inputs, self.exact)
        return values


def forward(model: SloNN, x: Any, point: OperatingPoint) -> np.ndarray:
    """Return the logits of ``model.forward``."""
    model.require(point)
    flat = _checked(model, x)
    if point == FULL:
        return logits(model.mlp, {}, flat, 1.0)
    mlp, share = model.mlp, model.shares[model.points.index(point)]
    return logits(_quantized(model) if model.int8 else mlp, model.activators, flat, share)


def top(
    model: SloNN, x: Any, p: int = 1, *, point: OperatingPoint | None = None, accuracy: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels and scores of ``model.top``, from all logits."""
    flat, threshold = _checked(model, x), model.threshold(accuracy)
    labels = np.full((flat.shape[0], p), -1, dtype=np.int32)
    scores = np.full((flat.shape[0], p), -np.inf, dtype=np.float32)
    for row in range(len(labels)):
        one = (x if isinstance(x, np.ndarray) else flat)[row : row + 1]
        chosen = point or model.full
        if threshold is not None:
            chosen = model.points[min_share(model.estimates(one), threshold)[0]]
        values = forward(model, one, chosen)[0]
        best = np.argsort(-values, kind="stable")[: max(p, MIN_RESCORED)]
        if model.int8 and chosen != model.full:
            share, last = model.shares[model.points.index(chosen)], len(model.mlp.layers) - 1
            hidden = layer_input(model.mlp, model.activators, flat[row : row + 1], share, last)
            exact = model.mlp.layers[-1].pre_activations(hidden)[0]
            values = np.where(np.isfinite(values), exact, values)
            best = best[np.argsort(-values[best], kind="stable")]
        best = best[np.isfinite(values[best])][:p]
        labels[row, : len(best)], scores[row, : len(best)] = best, values[best]
    return labels, scores


def _quantized(model: SloNN) -> MLP:
    last, exact = model.mlp.layers[-1], model.activators[len(model.mlp.layers) - 1].ranker.computed_nodes
    layer = QuantizedLayer(last.name, last.weights, last.bias, Int8Weights.of(last), exact)
    return replace(model.mlp, layers=(*model.mlp.layers[:-1], layer))


def _checked(model: SloNN, x: Any) -> Any:
    flat = model.flat(x)
    check_rows(flat)
    return flat
