"""Many graphs as one: arrays over all operators, and the neighbours with which each exchanges messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

# States that an operator gathers in a round of messages: its own, its inputs', its users'.
GATHERED = 3


@dataclass(frozen=True)
class Packed:
    """n operators of g graphs, those of a graph side by side; one of them may stand for several equal ones.

    Attributes:
        operators: Features, float32 [n, features].
        known: 0 for a type that training did not have, else 1, float32 [n].
        cost: Seconds of all operators that it stands for, float32 [n].
        graph: Graph of each operator, int64 [n].
        constant_s: Fixed seconds of each graph, float32 [g].
        neighbours: Operators whose states are gathered: for each itself, its inputs, its users, int64 [e].
        starts: Where each of these 3n groups begins in ``neighbours``, and the end of the last, int64 [3n + 1].
    """

    operators: Tensor
    known: Tensor
    cost: Tensor
    graph: Tensor
    constant_s: Tensor
    neighbours: Tensor
    starts: Tensor

    def to(self, device: torch.device) -> Packed:
        return Packed(**{name: value.to(device) for name, value in vars(self).items()})

    def neighbourhoods(self, state: Tensor) -> Tensor:
        """Return each operator's state and the means of its inputs' and users', 0 for none, float32 [n, 3 × width]."""
        means: Tensor = embedding_bag(self.neighbours, state, self.starts, mode="mean", include_last_offset=True)
        return means.view(len(state), -1)


class Picker:
    """Selector of some graphs among packed ones."""

    def __init__(self, packed: Packed):
        self._packed = packed
        device = packed.graph.device
        self._starts = torch.searchsorted(packed.graph, torch.arange(len(packed.constant_s) + 1, device=device))
        self._neighbours = packed.starts[GATHERED * self._starts]
        self._sizes = packed.starts.diff().view(-1, GATHERED)

    def __call__(self, rows: Tensor) -> Packed:
        packed = self._packed
        nodes, graph = _ranges(self._starts, rows)
        neighbours, owner = _ranges(self._neighbours, rows)
        first = self._starts[rows]
        sizes = self._starts[rows + 1] - first
        return Packed(
            operators=packed.operators[nodes],
            known=packed.known[nodes],
            cost=packed.cost[nodes],
            graph=graph,
            constant_s=packed.constant_s[rows],
            neighbours=packed.neighbours[neighbours] + (sizes.cumsum(0) - sizes - first)[owner],
            starts=pad(self._sizes[nodes].view(-1).cumsum(0), (1, 0)),
        )


def _ranges(starts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return all numbers from ``starts[row]`` to ``starts[row + 1]`` for each row, and the row of each number."""
    counts = starts[rows + 1] - starts[rows]
    owner = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), counts)
    first = (starts[rows] - counts.cumsum(0) + counts)[owner]
    return first + torch.arange(len(owner), device=rows.device), owner


def exchange(source: np.ndarray, target: np.ndarray, first: np.ndarray, classes: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return ``Packed.neighbours`` and ``.starts`` of classes of operators (``group``); each gathers as its first does.

    Edges, int64 [e], go from operator ``source`` to operator ``target``.
    """
    stands = np.zeros(len(classes), dtype=bool)
    stands[first] = True
    into, out = stands[target], stands[source]
    numbers, (source, target) = np.arange(len(first)), (classes[source], classes[target])
    groups = np.concatenate([GATHERED * numbers, GATHERED * target[into] + 1, GATHERED * source[out] + 2])
    neighbours = np.concatenate([numbers, source[into], target[out]])[np.argsort(groups, kind="stable")]
    starts = np.concatenate([[0], np.bincount(groups, minlength=GATHERED * len(first)).cumsum()])
    return torch.from_numpy(neighbours), torch.from_numpy(starts)


def group(features: np.ndarray, source: np.ndarray, target: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Group operators that ``rounds`` of messages cannot tell apart.

    Operators are of one class if their ``features``, float64 [n, width], are equal, and the inputs and users are, as
    multisets, of the same classes after one round less. By hashes of 64 bits, two of a million operators are confused
    once in ten million trainings. Source: Weisfeiler and Leman's colour refinement.

    Returns:
        The first operator of each class, int64 [c], and the class of each, int64 [n], in order of appearance.
    """
    colour = np.zeros(len(features), dtype=np.uint64)
    for column in np.ascontiguousarray(features.T).view(np.uint64):
        colour = _mixed(colour ^ column)
    for _ in range(rounds):
        sent, inputs, users = _mixed(colour), np.zeros_like(colour), np.zeros_like(colour)
        np.add.at(inputs, target, sent[source])
        np.add.at(users, source, sent[target])
        colour = _mixed(_mixed(_mixed(colour) ^ inputs) ^ users)
    _, first, classes = np.unique(colour, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(first), dtype=np.int64)
    number[order] = np.arange(len(first))
    return first[order], number[classes]


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Hash each of uint64 [n]. Source: Steele, Lea and Flood, SplitMix64."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ (bits >> np.uint64(31)))
