"""One operator of a graph: its type, shape and costs, made from its inputs' shapes and kept to be shared by graphs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.operators import BYTES_PER_VALUE, OPERATORS, Effect, Shape, resolve

# Random networks repeat the same layers thousands of times; made once, their text and structure are kept too.
MAX_CACHED = 16_384
# Values, weights and FLOPs of one operator: thousands of the largest still add up within 64 bits.
MAX_OPERATOR_SIZE = 2**50
_MADE: dict[tuple[Any, ...], Operator] = {}


@dataclass(frozen=True)
class Operator:
    """One node, made by ``make_operator``. ``inputs`` are names of earlier operators; ``shape``, ``weights``, ``flops``
    are per example, as is ``moved``, the number of values that it reads and writes, weights apart: 0 for a view.
    ``calls``: kernels that run one after the other. ``input_shapes``: of what it was made on, in the order of
    ``inputs``. ``attributes`` of a known operator are in canonical form; graphs may share operators, so nobody changes
    them."""

    name: str
    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    shape: Shape
    weights: int
    flops: int
    moved: int = field(default=0, compare=False)
    calls: int = field(default=1, compare=False)
    input_shapes: tuple[Shape, ...] = field(default=(), compare=False, repr=False)
    # Of a type that was nobody's when its file was written, and that means something else here today.
    foreign: bool = False
    # Once ``encodings.measures_of`` was asked.
    measures: tuple[float, ...] | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def known(self) -> bool:
        """Whether slotool knows how this operator behaves; an unknown one is kept by name."""
        return self.op in OPERATORS and not self.foreign

    @property
    def output_bytes(self) -> int:
        return BYTES_PER_VALUE * math.prod(self.shape)

    @property
    def weight_bytes(self) -> int:
        return BYTES_PER_VALUE * self.weights

    @property
    def moved_bytes(self) -> int:
        """What it reads and writes for one example, weights apart, in bytes of float32."""
        return BYTES_PER_VALUE * self.moved

    @cached_property
    def structure(self) -> str:
        """All of it that makes two networks differ, but for names and edges, as text."""
        return json.dumps([self.op, sorted(self.attributes.items()), self.shape, self.weights])

    @cached_property
    def text(self) -> str:
        """Its JSON form as text: ``document()`` written compactly."""
        return json.dumps(self.document(), separators=(",", ":"))

    def document(self) -> dict[str, Any]:
        """JSON form: a known operator by its attributes alone, an unknown one with what is known of it."""
        document: dict[str, Any] = {"name": self.name, "op": self.op}
        if self.inputs:
            document["inputs"] = list(self.inputs)
        if self.attributes:
            attributes = self.attributes.items()
            document["attributes"] = {key: list(v) if isinstance(v, tuple) else v for key, v in attributes}
        if not self.known:
            document |= {"shape": list(self.shape), "weights": self.weights, "flops": self.flops}
        return document


def make_operator(
    name: str,
    op: str,
    inputs: tuple[str, ...],
    shapes: Sequence[Shape],
    attributes: Mapping[str, Any],
    stated: Effect | None = None,
) -> Operator:
    """An operator on inputs of these ``shapes``: inferred when it is known, else as ``stated``.

    Raises ``GraphError``, naming it, for shapes or attributes that do not fit, or an unknown one with nothing stated.
    """
    if op in OPERATORS:
        # repr, unlike equality, tells 1 from True and 1.0.
        shapes = tuple(shapes)
        key = (name, op, inputs, shapes, repr(attributes))
        if key not in _MADE:
            if len(_MADE) >= MAX_CACHED:
                _MADE.clear()
            _MADE[key] = _countable(_known_operator(name, op, inputs, shapes, attributes))
        return _MADE[key]
    if stated is None:
        raise GraphError(f"operator {name!r}: {op!r} is unknown, so its shape must be stated")
    return _countable(_operator(name, op, inputs, shapes, dict(attributes), stated))


def _operator(
    name: str, op: str, inputs: tuple[str, ...], shapes: Sequence[Shape], attributes: Mapping[str, Any], effect: Effect
) -> Operator:
    moved = effect.moved
    if moved is None:
        moved = sum(map(math.prod, shapes)) + math.prod(effect.shape)
    costs = (effect.weights, effect.flops, moved, effect.calls)
    return Operator(name, op, inputs, attributes, effect.shape, *costs, tuple(shapes))


def _countable(operator: Operator) -> Operator:
    """Itself. Raises ``GraphError`` for sizes that arrays of 64-bit numbers cannot add up."""
    sizes = {"output values": math.prod(operator.shape), "weights": operator.weights, "FLOPs": operator.flops}
    for what, size in sizes.items():
        if size > MAX_OPERATOR_SIZE:
            limit = f"at most {MAX_OPERATOR_SIZE:.3g} can be counted"
            # No float holds the largest that a file may state.
            said = f"{float(size):.3g}" if size < sys.float_info.max else "more than 1e308"
            raise GraphError(f"operator {operator.name!r}: {said} {what}, {limit}")
    return operator


def _known_operator(
    name: str, op: str, inputs: tuple[str, ...], shapes: Sequence[Shape], attributes: Mapping[str, Any]
) -> Operator:
    try:
        kept, effect = resolve(op, attributes, shapes)
    except GraphError as error:
        raise GraphError(f"operator {name!r}: {error}") from error
    return _operator(name, op, inputs, shapes, kept, effect)
