"""The operator graph: a network as typed operators with shapes and costs, joined by edges."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import networkx as nx

from slotool.errors import GraphError
from slotool.graphs.operators import BYTES_PER_VALUE, OPERATORS, Effect, Shape, infer


@dataclass(frozen=True)
class Operator:
    """One node. ``inputs`` are names of earlier operators; ``shape``, ``weights``, ``flops`` are per example."""

    name: str
    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    shape: Shape
    weights: int
    flops: int

    @property
    def known(self) -> bool:
        """Whether slotool knows how this operator behaves; an unknown one is kept by name."""
        return self.op in OPERATORS

    @property
    def output_bytes(self) -> int:
        return BYTES_PER_VALUE * math.prod(self.shape)

    @property
    def weight_bytes(self) -> int:
        return BYTES_PER_VALUE * self.weights


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in topological order. Immutable; made by ``GraphBuilder`` or ``from_document``.

    ``id`` is a hash of the structure alone (operators, attributes, edges, not names), so that equal networks have
    equal ids.
    """

    operators: tuple[Operator, ...]
    kind: str = field(default="graph", compare=False)

    @cached_property
    def id(self) -> str:
        at = {operator.name: i for i, operator in enumerate(self.operators)}
        structure = [
            [o.op, sorted(o.attributes.items()), list(o.shape), o.weights, [at[name] for name in o.inputs]]
            for o in self.operators
        ]
        return hashlib.sha256(json.dumps(structure, default=list).encode()).hexdigest()[:16]

    @property
    def input_shape(self) -> Shape:
        return self.operators[0].shape

    @property
    def output_shape(self) -> Shape:
        return self.operators[-1].shape

    @property
    def weights(self) -> int:
        return sum(operator.weights for operator in self.operators)

    @property
    def flops(self) -> int:
        """Floating-point operations for one example."""
        return sum(operator.flops for operator in self.operators)

    def memory_bytes(self, batch_size: int = 1) -> int:
        """Bytes of all weights and of all outputs of one batch: an upper estimate of what running it takes."""
        return sum(o.weight_bytes + batch_size * o.output_bytes for o in self.operators)

    @cached_property
    def network(self) -> nx.DiGraph:
        """The same as a networkx graph: node attribute ``operator``, edges in the direction of data."""
        network = nx.DiGraph()
        for operator in self.operators:
            network.add_node(operator.name, operator=operator)
            network.add_edges_from((source, operator.name) for source in operator.inputs)
        return network

    def document(self) -> dict[str, Any]:
        """JSON form: known operators by attributes alone, unknown ones with what is known of them."""
        return {"kind": self.kind, "operators": [_operator_document(o) for o in self.operators]}

    @classmethod
    def from_document(cls, document: Any) -> OperatorGraph:
        """Read the JSON form back, inferring shapes and costs again. Raises ``GraphError`` naming the operator."""
        if not isinstance(document, Mapping) or not isinstance(document.get("operators"), Sequence):
            raise GraphError("not an operator graph: expected an object with a list of operators")
        builder = GraphBuilder(str(document.get("kind", "graph")))
        for position, entry in enumerate(document["operators"]):
            if not isinstance(entry, Mapping) or not isinstance(entry.get("op"), str):
                raise GraphError(f"operator {position}: expected an object with an op")
            stated = (
                Effect(tuple(entry["shape"]), int(entry.get("weights", 0)), int(entry.get("flops", 0)))
                if "shape" in entry
                else None
            )
            name = str(entry.get("name", f"{entry['op'].lower()}_{position}"))
            builder.add(entry["op"], entry.get("inputs", ()), name=name, stated=stated, **entry.get("attributes", {}))
        return builder.graph()


class GraphBuilder:
    """Adds operators one after another; each must name inputs that exist already."""

    def __init__(self, kind: str = "graph"):
        self._kind = kind
        self._operators: dict[str, Operator] = {}

    def add(
        self,
        op: str,
        inputs: str | Sequence[str] = (),
        *,
        name: str | None = None,
        stated: Effect | None = None,
        **attributes: Any,
    ) -> str:
        """Append an operator and return its name.

        Known operators have their shape and cost inferred; for an unknown one ``stated`` must say them.
        Raises ``GraphError`` for a name taken, an input that is not there, or shapes that do not fit.
        """
        sources = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        name = name or f"{op.lower()}_{len(self._operators)}"
        if name in self._operators:
            raise GraphError(f"operator {name!r} appears twice")
        absent = [source for source in sources if source not in self._operators]
        if absent:
            raise GraphError(f"operator {name!r} takes its input from {absent[0]!r}, which does not come before it")
        if op not in OPERATORS and stated is None:
            raise GraphError(f"operator {name!r}: {op!r} is unknown, so its shape must be stated")
        shapes = [self._operators[source].shape for source in sources]
        effect = infer(op, attributes, shapes) if op in OPERATORS else stated
        assert effect is not None
        self._operators[name] = Operator(name, op, sources, attributes, effect.shape, effect.weights, effect.flops)
        return name

    def graph(self) -> OperatorGraph:
        """The finished graph. Raises ``GraphError`` when it is empty."""
        if not self._operators:
            raise GraphError("the graph has no operators")
        return OperatorGraph(tuple(self._operators.values()), self._kind)


def _operator_document(operator: Operator) -> dict[str, Any]:
    document: dict[str, Any] = {"name": operator.name, "op": operator.op}
    if operator.inputs:
        document["inputs"] = list(operator.inputs)
    if operator.attributes:
        document["attributes"] = dict(operator.attributes)
    if not operator.known:
        document |= {"shape": list(operator.shape), "weights": operator.weights, "flops": operator.flops}
    return document
