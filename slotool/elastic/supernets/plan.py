"""What actuating a subnet means: the list of steps that a query takes through the network instead of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from slotool.elastic.supernets.statistics import SubnetNorm, signatures
from slotool.elastic.supernets.steps import Step, in_place, make_step, reuses_input
from slotool.graphs import OperatorGraph
from slotool.graphs.operators import Operator
from slotool.graphs.torch_module import GraphModule

# What a step does, where its inputs lie and where its output goes.
Move = tuple[Step, tuple[int, ...], int]


class ExecutionPlan:
    """The steps of one subnet. Called with float [batch, *input_shape]; gives float [batch, classes]."""

    __slots__ = ("_moves", "_places")

    def __init__(self, moves: tuple[Move, ...], places: int):
        self._moves, self._places = moves, places

    def __call__(self, x: Tensor, check: Callable[[], None] | None = None) -> Tensor:
        """``check`` is called before each step; what it raises goes through."""
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
        # Statistics are kept on the host.
        self._device = next(module.parameters()).device
        self._steps: dict[tuple[Any, ...], Step] = {}
        self._moves: dict[Move, Move] = {}

    def plan(self, graph: OperatorGraph) -> ExecutionPlan:
        """The plan of a narrowed graph. Raises ``InputError`` when its batch statistics are missing."""
        signature_of = signatures(graph)
        shapes = {operator.name: operator.shape for operator in graph.operators}

        def step_of(operator: Operator) -> Step:
            inputs = [shapes[name] for name in operator.inputs]
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
        mean, variance = (each.to(self._device) for each in pair)
        return lambda _: (mean, variance)


def learning_plan(graph: OperatorGraph, module: GraphModule) -> ExecutionPlan:
    """A plan through which gradients flow: normalisation by the batch's own statistics, weights as they are now."""
    shapes = {operator.name: operator.shape for operator in graph.operators}

    def step_of(operator: Operator) -> Step:
        return make_step(operator, [shapes[name] for name in operator.inputs], module.of[operator.name], None)

    return ExecutionPlan(*_arranged(graph, step_of, overwrite=False))


def calibrate(graph: OperatorGraph, module: GraphModule, norm: SubnetNorm, x: Tensor) -> None:
    """Measure the batch statistics that a subnet lacks: those of ``x``, float32 [n, *input_shape], in one pass.

    Every normalisation of the pass uses what is kept for it, so that later ones see what they will see.
    """
    signature_of = signatures(graph)
    shapes = {operator.name: operator.shape for operator in graph.operators}
    normalised = [operator.name for operator in graph.operators if operator.op == "BatchNormalization"]
    if all(norm.known(name, signature_of[name]) for name in normalised):
        return

    def step_of(operator: Operator) -> Step:
        inputs = [shapes[name] for name in operator.inputs]
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
    graph: OperatorGraph, step_of: Callable[[Operator], Step], *, overwrite: bool
) -> tuple[tuple[Move, ...], int]:
    """Steps in order, and how many places for values they need; a place is free again after its last reader."""
    last_reader = {name: i for i, operator in enumerate(graph.operators) for name in operator.inputs}
    readers: dict[str, int] = {}
    for operator in graph.operators:
        for name in operator.inputs:
            readers[name] = readers.get(name, 0) + 1
    place = {graph.operators[0].name: 0}
    free: list[int] = []
    moves: list[Move] = []
    owned: set[str] = set()
    for i, operator in enumerate(graph.operators[1:], start=1):
        source = operator.inputs[0]
        alone = overwrite and readers[source] == 1 and source in owned
        step = in_place(operator) if alone and reuses_input(operator) else step_of(operator)
        sources = tuple(place[name] for name in operator.inputs)
        free += sorted({place[name] for name in operator.inputs if last_reader[name] == i}, reverse=True)
        place[operator.name] = target = free.pop() if free else max(place.values()) + 1
        moves.append((step, sources, target))
        if operator.op in ("BatchNormalization", "Add", "Conv2D", "Dense"):
            owned.add(operator.name)
    return tuple(moves), max(place.values()) + 1
