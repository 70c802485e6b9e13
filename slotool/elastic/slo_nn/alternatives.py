"""What answers for an output layer without choosing nodes per input: a list of popular nodes, all nodes as int8."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slotool.elastic.slo_nn.activator import Activator
from slotool.elastic.slo_nn.build import flat, right
from slotool.elastic.slo_nn.confidence import ConfidenceTables
from slotool.elastic.slo_nn.evidence import DiscordantPairs
from slotool.elastic.slo_nn.grid_evaluation import evaluate_grid
from slotool.elastic.slo_nn.importance import NodeLists
from slotool.elastic.slo_nn.mlp import DenseLayer
from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.rankers.random_order import RandomOrder


@dataclass(frozen=True)
class FixedList:
    """A network of which the output nodes ``names`` int64 [m] are computed for every input, and no others.

    ``model``: the network with these nodes alone, answered by the compiled call at ``point``, an index.
    """

    model: SloNN
    names: np.ndarray
    point: int

    @classmethod
    def of(cls, model: SloNN, names: np.ndarray, *, int8: bool) -> FixedList:
        """Of ``model``, by float32 weights or by int8 ones of which the best are scored again."""
        last = model.mlp.layers[-1]
        few = DenseLayer(last.name, last.weights[names], last.bias[names])
        mlp = replace(model.mlp, layers=(*model.mlp.layers[:-1], few))
        order = np.arange(len(names), dtype=np.min_scalar_type(len(names)))
        # One bucket with a list that is never read: all nodes are computed in their own order.
        lists = NodeLists(np.zeros((1, 1), dtype=np.uint16), order[None, :1], order)
        activators = {len(mlp.layers) - 1: Activator(RandomOrder(), lists)}
        none = ConfidenceTables(np.zeros((1, 1), dtype=np.float32))
        known: dict[str, Any] = {"int8": int8, "sparse": model.sparse}
        listed = SloNN(model.name, mlp, (1.0,), activators, none, model.calibration, {}, **known)
        return cls(listed, names, 0 if int8 else 1)

    def labels(self, x: Any) -> np.ndarray:
        """int64 [n]: the best node of each of ``x``, as ``SloNN.top`` takes them."""
        best: np.ndarray = self.names[self.model.top(x, point=self.model.points[self.point])[0][:, 0]]
        return best


def popular(activator: Activator) -> Activator:
    """Return the baseline that ignores the input: the most popular nodes of the layer of ``activator``."""
    lists = activator.lists
    return Activator(RandomOrder(), NodeLists(np.zeros((1, 1), np.uint16), lists.lists[:1], lists.overall))


def shortest_popularity_list(model: SloNN, validation: Any, allowed_loss: float) -> np.ndarray | None:
    """int64 [m]: the fewest of the most popular output nodes, of the k grid, which the split ``validation`` promises to
    lose at most ``allowed_loss`` with the confidence that ``model`` states; None where no k of the grid does."""
    last = len(model.mlp.layers) - 1
    static = popular(model.activators[last])
    correct = right(evaluate_grid(model.mlp, {last: static}, model.shares, flat(validation.x)).labels, validation.y)
    ways = [np.full(len(correct), at) for at in range(correct.shape[1])]
    enough = DiscordantPairs.count(correct, ways).bounds(model.calibration.stated) <= allowed_loss
    at = int(enough.argmax())
    if at == len(model.shares):
        return None
    return static.lists.overall[: static.count(model.mlp.layers[last], model.shares[at])].astype(np.int64)


def promised_loss(correct: np.ndarray, full: np.ndarray, confidence: float) -> float:
    """Upper bound on the share of answers that a way loses, from bool [n] of validation examples: whether it and the
    full network are right (see ``evidence``)."""
    both = np.stack([correct, full], axis=1)
    ways = [np.zeros(len(both), dtype=np.int64), np.ones(len(both), dtype=np.int64)]
    return float(DiscordantPairs.count(both, ways).bounds(confidence)[0])
