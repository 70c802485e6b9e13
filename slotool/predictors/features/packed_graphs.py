"""Graphs as one: arrays over all their operators, and the sparse matrices by which neighbours exchange messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

# What an operator gathers in a round of messages: its own state, its inputs', its users'.
GATHERED = 3
# oneDNN compiles its product anew for each number of rows, in a millisecond or more: picked operators are filled up to
# a multiple of the second, unless they are fewer than the first.
MIN_FILLED, MULTIPLE = 256, 128
# Below so many rows a call costs more than its product.
MIN_ROWS = 256


@dataclass(frozen=True)
class Ones:
    """A sparse matrix of zeros and ones: row i has ones in ``columns[starts[i]:starts[i + 1]]``. int64."""

    columns: Tensor
    starts: Tensor

    @classmethod
    def of(cls, rows: np.ndarray, columns: np.ndarray, height: int) -> Ones:
        """With a one at each pair of ``rows`` and ``columns``, int64 [m]; pairs of one row keep their order."""
        starts = np.concatenate([[0], np.bincount(rows, minlength=height).cumsum()])
        return cls(torch.from_numpy(columns[np.argsort(rows, kind="stable")]), torch.from_numpy(starts))

    def times(self, dense: Tensor) -> Tensor:
        """float32 [rows, width]: the sum of the rows of ``dense`` that each row has ones at."""
        total: Tensor = torch.nn.functional.embedding_bag(
            self.columns, dense, self.starts, mode="sum", include_last_offset=True
        )
        return total

    def sizes(self) -> Tensor:
        """int64 [rows]: how many ones each has."""
        return self.starts[1:] - self.starts[:-1]

    def to(self, device: torch.device) -> Ones:
        return Ones(self.columns.to(device), self.starts.to(device))


@dataclass(frozen=True)
class Packed:
    """n operators of g graphs, those of a graph side by side; where a graph has several alike, one stands for them.

    ``operators`` float32 [n, features]; ``known`` float32 [n] 0 for a type never seen, else 1; ``cost`` float32 [n] in
    seconds, of all that it stands for; ``graph`` int64 [n] the graph of each; ``constant_s`` float32 [g] of each graph.
    ``gather`` [3n, n]: for each operator a row of itself, one of its inputs and one of its users; ``scatter`` [n, 3n]
    its transpose; ``counts`` float32 [3n, 1] what to divide each row's sum by for a mean, at least 1.
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
        """float32 [n, 3 × width]: each operator's state, the mean of its inputs' and of its users', zero for none."""
        gathered: Tensor = _Neighbourhoods.apply(state, self)  # type: ignore[no-untyped-call]
        return gathered.view(len(state), -1)


class _Neighbourhoods(torch.autograd.Function):
    """The gradient of a sum over neighbours is a sum over those whose neighbour one is: one kernel does both."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, packed: Packed) -> Tensor:
        ctx.packed = packed
        return packed.gather.times(state).div_(packed.counts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.packed.scatter.times(gradient / ctx.packed.counts), None


class Picker:
    """Takes some of packed graphs out, as packed graphs."""

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
        # What fills up costs nothing and has no neighbours, not even itself.
        spare = -len(nodes) % MULTIPLE if len(nodes) >= MIN_FILLED else 0
        gathered, scattered = self._gathered[nodes].view(-1), self._scattered[nodes]
        return Packed(
            operators=pad(packed.operators[nodes], (0, 0, 0, spare)),
            known=pad(packed.known[nodes], (0, spare)),
            cost=pad(packed.cost[nodes], (0, spare)),
            graph=pad(graph, (0, spare)),
            constant_s=packed.constant_s[rows],
            gather=Ones(packed.gather.columns[ones] + shift, _bounds(gathered, GATHERED * spare)),
            scatter=Ones(packed.scatter.columns[ones] + GATHERED * shift, _bounds(scattered, spare)),
            counts=pad(packed.counts.view(-1, GATHERED)[nodes].view(-1, 1), (0, 0, 0, GATHERED * spare), value=1.0),
        )


def _bounds(sizes: Tensor, spare: int) -> Tensor:
    """int64 [rows + spare + 1]: where each row of these sizes starts, then as many empty ones, and the end."""
    return pad(pad(sizes, (0, spare)).cumsum(0), (1, 0))


def _ranges(starts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """All numbers from ``starts[row]`` to ``starts[row + 1]`` for each row, and which row each belongs to."""
    counts = starts[rows + 1] - starts[rows]
    owner = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), counts)
    first = (starts[rows] - counts.cumsum(0) + counts)[owner]
    return first + torch.arange(len(owner), device=rows.device), owner


def exchange(source: np.ndarray, target: np.ndarray, first: np.ndarray, classes: np.ndarray) -> tuple[Ones, Ones]:
    """``Packed.gather`` and ``.scatter`` of classes of operators (``alike``), of edges int64 [e] from operator
    ``source`` to operator ``target``: a class gathers what the first of it does."""
    stands = np.zeros(len(classes), dtype=bool)
    stands[first] = True
    into, out = stands[target], stands[source]
    own, (source, target) = np.arange(len(first)), (classes[source], classes[target])
    to = np.concatenate([GATHERED * own, GATHERED * target[into] + 1, GATHERED * source[out] + 2])
    taken = np.concatenate([own, source[into], target[out]])
    return Ones.of(to, taken, GATHERED * len(first)), Ones.of(taken, to, len(first))


def alike(features: np.ndarray, source: np.ndarray, target: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes of operators that ``rounds`` of messages cannot tell apart: the first operator of each class, int64 [c],
    and the class of each operator, int64 [n], in order of appearance.

    Operators are of one class when their rows of ``features``, float64 [n, width], are the same, and their inputs and
    their users are, as multisets, of the same classes of a round less. By hashes of 64 bits, so that two of a million
    operators are confused once in ten million trainings. Source: Weisfeiler and Leman's colour refinement.
    """
    colour = np.zeros(len(features), dtype=np.uint64)
    for column in np.ascontiguousarray(features.T).view(np.uint64):
        colour = _mixed(colour ^ column)
    for _ in range(rounds):
        sent, inputs, users = _mixed(colour), np.zeros_like(colour), np.zeros_like(colour)
        np.add.at(inputs, target, sent[source])
        np.add.at(users, source, sent[target])
        colour = _mixed(_mixed(_mixed(colour) ^ inputs) ^ users)
    _, first, found = np.unique(colour, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(first), dtype=np.int64)
    number[order] = np.arange(len(first))
    return first[order], number[found]


def _mixed(bits: np.ndarray) -> np.ndarray:
    """uint64 [n]: each hashed. Source: Steele, Lea and Flood, SplitMix64."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ (bits >> np.uint64(31)))


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x · weightᵀ + bias, float32 [n, out], with gradients: of x [n, in], weight [out, in] and bias [out].

    The operator is the one that torch's own compiler emits; where it is missing, as on a GPU, and for few rows, this
    is ``torch.nn.functional.linear``.
    """
    if len(x) < MIN_ROWS or x.is_cuda or not _there():
        return nn.functional.linear(x, weight, bias)
    product: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return product


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        of_x = _product(gradient, weight.t().contiguous()) if ctx.needs_input_grad[0] else None
        return of_x, _product(gradient.t(), x.t()), gradient.sum(dim=0)


def _there() -> bool:
    return bool(torch.backends.mkldnn.is_available()) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
