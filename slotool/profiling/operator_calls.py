"""Calls of a library that operators of a network are, each of which can be timed alone."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.graph import FLOAT32
from slotool.graphs.operators import OPERATORS, Operator

# Kind of a graph whose operators are copies of one, none of which reads another.
ONE_OPERATOR = "operator"
# All weights of a network that are this small stay in a cache between two calls; copies of others take turns over as
# many bytes as the network has weights, up to the size of the largest usual cache.
CACHED_BYTES, ROTATED_BYTES = 4 << 20, 64 << 20
# Smaller weights are in a cache whatever the network.
SMALL_BYTES = 64 << 10
MAX_COPIES = 64
# Operators of one sample take about so long, by a rough price of FLOPs and bytes a second, and of a call.
SAMPLE_S, FLOPS_PER_S, BYTES_PER_S, CALL_S = 1e-4, 5e10, 1e10, 3e-6
# Reading weights is at most this share of an operator that is timed with its weights in a cache.
UNNOTICED = 0.02


@dataclass(frozen=True)
class OperatorCall:
    """Call of a library that is timed alone. ``key``: text that is equal for equal calls; ``op``: its type; ``flops``,
    ``bytes``, ``weight_bytes``: its costs for one batch; ``copies``: copies of it that take turns."""

    key: str
    op: str
    flops: int
    bytes: int
    weight_bytes: int
    batch_size: int
    copies: int = field(default=1, kw_only=True)

    def request(self) -> dict[str, Any] | None:
        """Return what the backend's ``open`` takes for ``copies``, each with weights of its own; None for one that it
        cannot run alone."""
        return None

    def rotated(self, weight_bytes: int) -> OperatorCall:
        """Return the call in a network of so many bytes of weights: as cold as they are there."""
        rough_s = CALL_S + self.flops / FLOPS_PER_S + self.bytes / BYTES_PER_S
        copies = max(2, math.ceil(SAMPLE_S / rough_s))
        if weight_bytes <= CACHED_BYTES or self.weight_bytes <= SMALL_BYTES:
            return replace(self, copies=min(copies, 16))
        if self.weight_bytes / BYTES_PER_S < UNNOTICED * rough_s:
            return replace(self, copies=min(copies, 16))
        rotated = min(ROTATED_BYTES, 1 << (weight_bytes - 1).bit_length())
        copies = min(MAX_COPIES, max(2, math.ceil(rotated / self.weight_bytes)))
        return replace(self, key=f"{self.key} cold {rotated >> 20} MB", copies=copies)


def operator_calls(graph: OperatorGraph, batch_size: int) -> list[OperatorCall | None]:
    """Return the call of each operator of ``graph``, one that the library runs alone; None for inputs, constants."""
    at = {operator.name: operator for operator in graph.operators}
    kinds: dict[str, str] = {}
    calls: list[OperatorCall | None] = []
    for operator in graph.operators:
        first = kinds.get(operator.inputs[0], FLOAT32) if operator.inputs else FLOAT32
        passes = operator.known and OPERATORS[operator.op].passes_numbers
        kinds[operator.name] = operator.attributes.get("dtype", first if passes else FLOAT32) or FLOAT32
        if operator.op in ("InputLayer", "Constant"):
            calls.append(None)
            continue
        inputs = [at[name] for name in operator.inputs]
        calls.append(_call(operator, inputs, [kinds[name] for name in operator.inputs], batch_size))
    return calls


def _call(operator: Operator, inputs: Sequence[Operator], kinds: Sequence[str], batch_size: int) -> GraphOperator:
    pairs = zip(inputs, kinds, strict=True)
    taken = [each.structure if each.op == "Constant" else f"{each.shape}{kind}" for each, kind in pairs]
    return GraphOperator(
        key=f"{operator.structure} of {' '.join(taken)} batch {batch_size}",
        op=operator.op,
        flops=batch_size * operator.flops,
        bytes=batch_size * operator.moved_bytes + operator.weight_bytes,
        weight_bytes=operator.weight_bytes,
        batch_size=batch_size,
        operator=operator,
        inputs=tuple(inputs),
        kinds=tuple(kinds),
    )


@dataclass(frozen=True)
class GraphOperator(OperatorCall):
    """Operator of a graph, built from it. ``inputs`` are of the element types ``kinds``. ``own_inputs``: each copy has
    inputs of its own."""

    operator: Operator
    inputs: tuple[Operator, ...]
    kinds: tuple[str, ...]
    own_inputs: bool = field(default=False, kw_only=True)

    def request(self) -> dict[str, Any] | None:
        return {"graph": json.dumps(self._repeated().document())} if self.operator.known else None

    def _repeated(self) -> OperatorGraph:
        """Return a graph of ``copies`` of the operator."""
        builder = GraphBuilder(ONE_OPERATOR)
        # A graph begins with an input, and a constant is none.
        if all(each.op == "Constant" for each in self.inputs):
            builder.add("InputLayer", name="unused", shape=(1,))
        sets = range(self.copies if self.own_inputs else 1)
        given = [(f"input_{place}", *pair) for place, pair in enumerate(zip(self.inputs, self.kinds, strict=True))]
        for copy, (name, each, kind) in itertools.product(sets, given):
            if each.op != "Constant":
                dtype = {} if kind == FLOAT32 else {"dtype": kind}
                builder.append(f"{name}_{copy}", "InputLayer", (), {"shape": each.shape, **dtype})
        for copy, (name, each, _) in itertools.product(sets, given):
            if each.op == "Constant":
                builder.append(f"{name}_{copy}", "Constant", (), each.attributes)
        for copy in range(self.copies):
            names = tuple(f"{name}_{copy if self.own_inputs else 0}" for name, _, _ in given)
            builder.append(f"copy_{copy}", self.operator.op, names, self.operator.attributes)
        return builder.graph()
