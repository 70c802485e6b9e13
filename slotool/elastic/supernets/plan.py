"""Actuation of a subnet (superserve, §3): the steps that a query takes, and SubnetNorm, its batch statistics."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slotool.elastic.supernets.layers import Step, make_step
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.operators import Operator, Shape
from slotool.graphs.torch_module import GraphModule

# Step, places of its inputs, and place of its output.
Move = tuple[Step, tuple[int, ...], int]


class ExecutionPlan:
    """The steps of one subnet. Called with float [batch, *input_shape]; gives float [batch, classes]."""

    __slots__ = ("_moves", "_places")

    def __init__(self, moves: tuple[Move, ...], places: int):
        self._moves, self._places = moves, places

    def __call__(self, x: Tensor, check: Callable[[], None] | None = None) -> Tensor:
        """Run the steps; ``check`` is called before each, and its errors pass through."""
        values: list[Any] = [None] * self._places
        values[0] = out = x
        for step, sources, target in self._moves:
            if check is not None:
                check()
            one = len(sources) == 1
            out = step(values[sources[0]]) if one else step(*[values[source] for source in sources])
            values[target] = out
        return out


class Planner:
    """Makes plans of one network's subnets for answering; a step is made once for all subnets that share it."""

    def __init__(self, module: GraphModule, norm: SubnetNorm):
        self._module, self._norm = module, norm
        # Statistics are kept on the host, in float32.
        self._like = next(module.parameters())
        self._steps: dict[tuple[Any, ...], Step] = {}
        self._moves: dict[Move, Move] = {}

    def plan(self, graph: OperatorGraph) -> ExecutionPlan:
        """Return the plan of a narrowed graph. Raises ``InputError`` when its batch statistics are missing."""
        signature_of = signatures(graph)

        def step_of(operator: Operator, inputs: list[Shape]) -> Step:
            normalises = operator.op == "BatchNormalization"
            signature = signature_of[operator.name] if normalises else b""
            key = (operator.name, operator.structure, *inputs, signature)
            if key not in self._steps:
                fixed = self._fixed(self._norm.of(operator.name, signature)) if normalises else None
                self._steps[key] = make_step(operator, inputs, self._module.of[operator.name], fixed)
            return self._steps[key]

        with torch.inference_mode():
            moves, places = _arranged(graph, step_of, overwrite=True)
        return ExecutionPlan(tuple(self._moves.setdefault(move, move) for move in moves), places)

    def _fixed(self, pair: tuple[Tensor, Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        mean, variance = (each.to(self._like) for each in pair)
        return lambda _: (mean, variance)


def learning_plan(graph: OperatorGraph, module: GraphModule) -> ExecutionPlan:
    """Return a plan that gradients flow through: current weights, normalisation by the batch's statistics."""

    def step_of(operator: Operator, inputs: list[Shape]) -> Step:
        return make_step(operator, inputs, module.of[operator.name], None)

    return ExecutionPlan(*_arranged(graph, step_of, overwrite=False))


def calibrate(graph: OperatorGraph, module: GraphModule, norm: SubnetNorm, x: Tensor) -> None:
    """Measure the batch statistics that a subnet lacks: those of ``x``, float32 [n, *input_shape], in one pass.

    Every normalisation of the pass uses what is kept for it, so that later ones see what they will see.
    """
    signature_of = signatures(graph)
    normalised = [operator.name for operator in graph.operators if operator.op == "BatchNormalization"]
    if all(norm.known(name, signature_of[name]) for name in normalised):
        return

    def step_of(operator: Operator, inputs: list[Shape]) -> Step:
        measure = _measuring(norm, operator.name, signature_of[operator.name])
        return make_step(operator, inputs, module.of[operator.name], measure)

    with torch.no_grad():
        ExecutionPlan(*_arranged(graph, step_of, overwrite=True))(x)


def _measuring(norm: SubnetNorm, layer: str, signature: bytes) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def measure(x: Tensor) -> tuple[Tensor, Tensor]:
        if not norm.known(layer, signature):
            over = [axis for axis in range(x.ndim) if axis != 1]
            variance, mean = torch.var_mean(x, dim=over, correction=0)
            norm.add(layer, signature, mean, variance)
            return mean, variance
        mean, variance = norm.of(layer, signature)
        return mean.to(x.device), variance.to(x.device)

    return measure


def _arranged(
    graph: OperatorGraph, step_of: Callable[[Operator, list[Shape]], Step], *, overwrite: bool
) -> tuple[tuple[Move, ...], int]:
    """Return steps in order, and the number of places for values, each free again after its last reader."""
    shapes = {operator.name: operator.shape for operator in graph.operators}
    last_reader = {name: i for i, operator in enumerate(graph.operators) for name in operator.inputs}
    readers = Counter(name for operator in graph.operators for name in operator.inputs)
    place = {graph.operators[0].name: 0}
    free: list[int] = []
    moves: list[Move] = []
    owned: set[str] = set()
    for i, operator in enumerate(graph.operators[1:], start=1):
        source = operator.inputs[0]
        alone = overwrite and readers[source] == 1 and source in owned
        overwrites = alone and operator.op == "ReLU"
        step = torch.relu_ if overwrites else step_of(operator, [shapes[name] for name in operator.inputs])
        sources = tuple(place[name] for name in operator.inputs)
        free += sorted({place[name] for name in operator.inputs if last_reader[name] == i}, reverse=True)
        place[operator.name] = target = free.pop() if free else max(place.values()) + 1
        moves.append((step, sources, target))
        if operator.op in ("BatchNormalization", "Add", "Conv2D", "Dense"):
            owned.add(operator.name)
    return tuple(moves), max(place.values()) + 1


# Bytes of a signature: of a million subnets, two of one signature are not to be expected.
SIGNATURE_BYTES = 10


def signatures(graph: OperatorGraph) -> dict[str, bytes]:
    """Per operator a hash of all that its output depends on: two subnets that agree up to a layer share its signature.

    ``graph``: a subnet as ``Space.narrowed`` gives it, whose operators have the names of the whole network's.
    """
    unique: dict[str, bytes] = {}
    for operator in graph.operators:
        content = f"{operator.name}\n{operator.structure}\n".encode()
        content += b"".join(unique[name] for name in operator.inputs)
        unique[operator.name] = hashlib.blake2b(content, digest_size=SIGNATURE_BYTES).digest()
    return unique


class SubnetNorm:
    """Mean and variance of what each normalisation of each subnet is given.

    Rows of one layer lie one after another in one float32 array, so that a subnet costs its channels and an index.
    """

    def __init__(self) -> None:
        self._where: dict[str, dict[bytes, tuple[int, int]]] = {}
        self._values: dict[str, Tensor] = {}
        self._new: dict[str, list[Tensor]] = {}

    def known(self, layer: str, signature: bytes) -> bool:
        return signature in self._where.get(layer, {})

    def add(self, layer: str, signature: bytes, mean: Tensor, variance: Tensor) -> None:
        """Keep what was measured: ``mean``, ``variance`` float32 [channels]."""
        rows = self._where.setdefault(layer, {})
        rows[signature] = (sum(length for _, length in rows.values()), len(mean))
        self._new.setdefault(layer, []).append(torch.stack([mean, variance]).detach().cpu())

    def of(self, layer: str, signature: bytes) -> tuple[Tensor, Tensor]:
        """Return (mean, variance), views of what is kept. Raises ``InputError`` when they were never measured."""
        self._settle(layer)
        try:
            start, length = self._where[layer][signature]
        except KeyError:
            raise InputError(
                f"the batch statistics of {layer!r} are missing for this subnet: calibrate it first"
            ) from None
        mean, variance = self._values[layer][:, start : start + length]
        return mean, variance

    @property
    def bytes(self) -> int:
        """Bytes of all rows, without their index."""
        for layer in self._where:
            self._settle(layer)
        return sum(values.nbytes for values in self._values.values())

    @property
    def rows(self) -> int:
        return sum(map(len, self._where.values()))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Per layer float32 [2, channels of all rows]; and per layer its rows' signatures and lengths."""
        for layer in self._where:
            self._settle(layer)
        index = {
            layer: [[signature.hex(), length] for signature, (_, length) in rows.items()]
            for layer, rows in self._where.items()
        }
        return {layer: values.numpy() for layer, values in self._values.items()}, index

    @classmethod
    def from_state(cls, tensors: Mapping[str, np.ndarray], index: Mapping[str, Any]) -> SubnetNorm:
        """Read it back. Raises ``InputError`` when arrays and index do not belong together."""
        norm = cls()
        for layer, rows in index.items():
            at, where = 0, {}
            for signature, length in rows:
                where[bytes.fromhex(signature)] = (at, length)
                at += length
            if layer not in tensors or tensors[layer].shape != (2, at):
                raise InputError(f"the batch statistics of {layer!r} do not fit their index")
            norm._where[layer], norm._values[layer] = where, torch.from_numpy(tensors[layer])
        return norm

    def _settle(self, layer: str) -> None:
        if new := self._new.pop(layer, None):
            old = [self._values[layer]] if layer in self._values else []
            self._values[layer] = torch.cat([*old, *new], dim=1)
