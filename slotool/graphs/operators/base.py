"""Operators of a graph, and the base class of their types: shapes, costs, implementations in torch, ONNX, Keras."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from slotool.errors import GraphError
from slotool.graphs.operators.attributes import FORMS, Attributes, Shape
from slotool.graphs.operators.keras_values import Initializer, Value
from slotool.graphs.operators.onnx_writer import Writer

if TYPE_CHECKING:
    from torch import Tensor

BYTES_PER_VALUE = 4
REQUIRED = object()
# Module or function of tensors [batch, *shape]; one that is the same for every example, as a constant, is [1, *shape].
TensorFunction = Callable[..., "Tensor"]


@dataclass(frozen=True)
class Effect:
    """Output shape of an operator, weights (trained or kept statistics), and FLOPs per example.

    ``moved``: values that it reads and writes per example, weights apart; 0 for a view; None: all of its inputs and
    its output. ``calls``: kernels that run one after the other.
    """

    shape: Shape
    weights: int = 0
    flops: int = 0
    moved: int | None = None
    calls: int = 1


@dataclass(frozen=True)
class Operator:
    """Operator of a graph, made by ``make_operator``.

    ``inputs`` are names of earlier operators; ``shape``, ``weights``, ``flops`` are per example, as is ``moved``, the
    number of values that it reads and writes, weights apart: 0 for a view. ``calls``: kernels that run one after the
    other. ``input_shapes``: in the order of ``inputs``. ``attributes`` of a known operator are in canonical form.
    Graphs share operators, so nobody changes them.
    """

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
    # Operator whose type was unknown when its file was written, and has another meaning today.
    foreign: bool = False
    # Once ``encodings.measures_of`` was asked.
    measures: tuple[float, ...] | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def known(self) -> bool:
        """True if slotool has its type; an operator of any other type is kept by name."""
        return self.op in OPERATORS and not self.foreign

    def __getitem__(self, name: str) -> Any:
        """Return an attribute of a known operator, its default where it is left out."""
        return self.attributes[name] if name in self.attributes else OPERATORS[self.op].attributes[name]

    @property
    def complete(self) -> dict[str, Any]:
        """Attributes of a known operator, with defaults for missing ones."""
        return {**OPERATORS[self.op].attributes, **self.attributes}

    @property
    def output_bytes(self) -> int:
        return BYTES_PER_VALUE * math.prod(self.shape)

    @property
    def weight_bytes(self) -> int:
        return BYTES_PER_VALUE * self.weights

    @property
    def moved_bytes(self) -> int:
        """Bytes of float32 that it reads and writes for one example, weights apart."""
        return BYTES_PER_VALUE * self.moved

    @cached_property
    def structure(self) -> str:
        """Text of everything that makes two networks differ, except names and edges."""
        return json.dumps([self.op, sorted(self.attributes.items()), self.shape, self.weights])

    @cached_property
    def text(self) -> str:
        """JSON form as text: ``document()`` written compactly."""
        return json.dumps(self.document(), separators=(",", ":"))

    def document(self) -> dict[str, Any]:
        """Return JSON form: a known operator by its attributes alone, an unknown one with what is known of it."""
        document: dict[str, Any] = {"name": self.name, "op": self.op}
        if self.inputs:
            document["inputs"] = list(self.inputs)
        if self.attributes:
            attributes = self.attributes.items()
            document["attributes"] = {key: list(v) if isinstance(v, tuple) else v for key, v in attributes}
        if not self.known:
            document |= {"shape": list(self.shape), "weights": self.weights, "flops": self.flops}
        return document


class OperatorType:
    """Type of operator; each subclass is registered in ``OPERATORS`` under the name of its class.

    A subclass made with ``abstract=True`` holds what several types share and is not registered. The methods ``torch``,
    ``onnx`` and ``keras`` raise ``GraphError`` unless a type overrides them; each imports its library
    itself, so that graphs are read without any of the three.
    """

    # Default of each attribute, ``REQUIRED`` for one without.
    attributes: ClassVar[Attributes] = {}
    # Canonical forms of attributes whose name is not in ``attributes.FORMS``.
    forms: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    # Calls that are this operator of their first input (in ONNX of all), such as ``torch.tril``, ``onnx.Trilu`` or
    # ``keras.Tril``, and functions that return its attributes from a capture's ``Call``, None where it is another.
    captured: ClassVar[Mapping[str, Callable[[Any], Attributes | None]]] = {}
    # Number of inputs; None: one or more.
    inputs: ClassVar[int | None] = 1
    # FLOPs for each value of its first input, for a type that leaves ``infer`` as it is.
    flops_per_value: ClassVar[int] = 0
    # True if its FLOPs are those of matrix products or convolutions.
    is_product: ClassVar[bool] = False
    # Axis of the features, 0 or -1; None: channels of an image, the last axis of all else (``channel_axis``).
    feature_axis: ClassVar[int | None] = None
    # False if its output is a view, which takes no memory.
    has_memory: ClassVar[bool] = True
    # True if whole numbers of its inputs are in its output as they are.
    passes_numbers: ClassVar[bool] = False
    # Input of a lookup that holds the places.
    places: ClassVar[int | None] = None
    # True if each step of a recurrent layer reads what no cache holds of its weights.
    reads_weights_again: ClassVar[bool] = False
    # ONNX type of its output; None: that of its first input.
    onnx_type: ClassVar[int | None] = None

    def __init_subclass__(cls, abstract: bool = False) -> None:
        super().__init_subclass__()
        if not abstract:
            OPERATORS[cls.__name__] = cls()
            CAPTURED.update({call: (cls.__name__, read) for call, read in vars(cls).get("captured", {}).items()})

    def canonical(self, attributes: Attributes) -> dict[str, Any]:
        """Return the attributes that differ from their default, each in its one form. Raises ``GraphError``."""
        op = type(self).__name__
        foreign = [name for name in attributes if name not in self.attributes]
        if foreign:
            raise GraphError(f"{op} has no attribute {foreign[0]!r}; it has {', '.join(self.attributes) or 'none'}")
        present = {}
        for name, default in self.attributes.items():
            if name not in attributes:
                if default is REQUIRED:
                    raise GraphError(f"{op} needs the attribute {name!r}")
                continue
            value = attributes[name]
            try:
                value = (self.forms.get(name) or FORMS[name])(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise GraphError(f"{op}: {name} cannot be {value!r}") from error
            if value != default:
                present[name] = value
        return present

    def settle(self, attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
        """Bring attributes whose form depends on the shapes of the inputs to their canonical form."""

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        """Return shape and costs for inputs of these shapes, without the batch. Raises ``GraphError``.

        ``attributes`` are complete. By default the shape is that of the first input.
        """
        return Effect(inputs[0], 0, self.flops_per_value * math.prod(inputs[0]))

    def statistics(self, operator: Operator) -> int:
        """Return how many of the operator's weights are running statistics, which are not trained."""
        return 0

    def place_count(self, operator: Operator) -> int:
        """Return how many places a lookup chooses from."""
        axis: int = operator["axis"]
        return operator.input_shapes[0][axis]

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        """Return a module or function of the inputs' tensors."""
        raise cannot_be_built(operator, "torch")

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        """Append nodes and return the name of their output."""
        raise cannot_be_built(operator, "ONNX")

    def onnx_kind(self, operator: Operator, kinds: Sequence[int]) -> int:
        """Return the ONNX type of the output for inputs of these types."""
        return kinds[0] if self.onnx_type is None else self.onnx_type

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        """Return the output as part of a functional model; ``weights`` fills kernels and biases."""
        raise cannot_be_built(operator, "Keras")


OPERATORS: dict[str, OperatorType] = {}
# Operator and reader of the attributes of each call in ``captured`` of a type.
CAPTURED: dict[str, tuple[str, Callable[[Any], Attributes | None]]] = {}


def captured_as(library: str, name: str, call: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the operator whose ``captured`` has a call of a library, with the call's attributes; None for no other."""
    op, read = CAPTURED.get(f"{library}.{name}", ("", lambda _: None))
    attributes = read(call)
    return None if attributes is None else (op, dict(attributes))


def cannot_be_built(operator: Operator, library: str, what: str = "") -> GraphError:
    """Return the error for an operator, or ``what`` of it, that a library has no equal of."""
    return GraphError(f"operator {operator.name!r}: {what or operator.op} cannot be built in {library}")
