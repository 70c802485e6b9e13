"""Many graphs as one: arrays over all operators, and sparse matrices by which neighbours exchange messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

# States that an operator gathers in a round of messages: its own, its inputs', its users'.
GATHERED = 3


@dataclass(frozen=True)
class Ones:
    """Sparse matrix of zeros and ones, as int64: row i has ones in ``columns[starts[i]:starts[i + 1]]``."""

    columns: Tensor
    starts: Tensor

    @classmethod
    def of(cls, rows: np.ndarray, columns: np.ndarray, height: int) -> Ones:
        """Return ones at each pair of ``rows`` and ``columns``, int64 [m], in that order within a row."""
        starts = np.concatenate([[0], np.bincount(rows, minlength=height).cumsum()])
        return cls(torch.from_numpy(columns[np.argsort(rows, kind="stable")]), torch.from_numpy(starts))

    def times(self, dense: Tensor) -> Tensor:
        """Return the product with ``dense``, float32 [rows, width]."""
        total: Tensor = torch.nn.functional.embedding_bag(
            self.columns, dense, self.starts, mode="sum", include_last_offset=True
        )
        return total

    def sizes(self) -> Tensor:
        return self.starts[1:] - self.starts[:-1]

    def to(self, device: torch.device) -> Ones:
        return Ones(self.columns.to(device), self.starts.to(device))


@dataclass(frozen=True)
class Packed:
    """n operators of g graphs, those of a graph side by side; one of them may stand for several equal ones.

    Attributes:
        operators: Features, float32 [n, features].
        known: 0 for a type that training did not have, else 1, float32 [n].
        cost: Seconds of all operators that it stands for, float32 [n].
        graph: Graph of each operator, int64 [n].
        constant_s: Fixed seconds of each graph, float32 [g].
        gather: For each operator a row of itself, one of its inputs and one of its users, [3n, n].
        scatter: Transpose of ``gather``.
        counts: Number of states that each row of ``gather`` sums, at least 1, float32 [3n, 1].
    """

    operators: Tensor
    known: Tensor
    cost: Tensor
    graph: Tensor
    constant_s: Tensor
    gather: Ones
    scatter: Ones
    counts: Tensor

    def to(self, device: torch.device) -> Packed:
        return Packed(**{name: value.to(device) for name, value in vars(self).items()})

    def neighbourhoods(self, state: Tensor) -> Tensor:
        """Return each operator's state and the means of its inputs' and users', 0 for none, float32 [n, 3 × width]."""
        gathered: Tensor = _Neighbourhoods.apply(state, self)  # type: ignore[no-untyped-call]
        return gathered.view(len(state), -1)


class _Neighbourhoods(torch.autograd.Function):
    """Mean over neighbours; its gradient is a sum over neighbours too, by the same kernel."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, packed: Packed) -> Tensor:
        ctx.packed = packed
        return packed.gather.times(state).div_(packed.counts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.packed.scatter.times(gradient / ctx.packed.counts), None


class Picker:
    """Selector of some graphs among packed ones."""

    def __init__(self, packed: Packed):
        self._packed = packed
        device = packed.graph.device
        self._starts = torch.searchsorted(packed.graph, torch.arange(len(packed.constant_s) + 1, device=device))
        # A graph's ones stand side by side, and at the same places in both matrices.
        self._ones = packed.scatter.starts[self._starts]
        self._gathered = packed.gather.sizes().view(-1, GATHERED)
        self._scattered = packed.scatter.sizes()

    def __call__(self, rows: Tensor) -> Packed:
        packed = self._packed
        nodes, graph = _ranges(self._starts, rows)
        ones, owner = _ranges(self._ones, rows)
        first = self._starts[rows]
        sizes = self._starts[rows + 1] - first
        shift = (sizes.cumsum(0) - sizes - first)[owner]
        counts_of = (self._gathered, self._scattered)
        gathered, scattered = (pad(counts[nodes].view(-1).cumsum(0), (1, 0)) for counts in counts_of)
        return Packed(
            operators=packed.operators[nodes],
            known=packed.known[nodes],
            cost=packed.cost[nodes],
            graph=graph,
            constant_s=packed.constant_s[rows],
            gather=Ones(packed.gather.columns[ones] + shift, gathered),
            scatter=Ones(packed.scatter.columns[ones] + GATHERED * shift, scattered),
            counts=packed.counts.view(-1, GATHERED)[nodes].view(-1, 1),
        )


def _ranges(starts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return all numbers from ``starts[row]`` to ``starts[row + 1]`` for each row, and the row of each number."""
    counts = starts[rows + 1] - starts[rows]
    owner = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), counts)
    first = (starts[rows] - counts.cumsum(0) + counts)[owner]
    return first + torch.arange(len(owner), device=rows.device), owner


def exchange(source: np.ndarray, target: np.ndarray, first: np.ndarray, classes: np.ndarray) -> tuple[Ones, Ones]:
    """Return ``Packed.gather`` and ``.scatter`` of classes of operators (``group``); each gathers as its first does.

    Edges, int64 [e], go from operator ``source`` to operator ``target``.
    """
    stands = np.zeros(len(classes), dtype=bool)
    stands[first] = True
    into, out = stands[target], stands[source]
    numbers, (source, target) = np.arange(len(first)), (classes[source], classes[target])
    to = np.concatenate([GATHERED * numbers, GATHERED * target[into] + 1, GATHERED * source[out] + 2])
    gathered = np.concatenate([numbers, source[into], target[out]])
    return Ones.of(to, gathered, GATHERED * len(first)), Ones.of(gathered, to, len(first))


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
