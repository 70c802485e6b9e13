"""Functions of values one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

from slotool.errors import GraphError
from slotool.graphs.libraries import keras, nn, torch, torch_parts
from slotool.graphs.operators.attributes import (
    Attributes,
    Shape,
    broadcast,
    channel_axis,
    chosen_axis,
    settle_channel_axis,
)
from slotool.graphs.operators.base import REQUIRED, Effect, Operator, OperatorType, TensorFunction, cannot_be_built
from slotool.graphs.operators.keras_values import Initializer, Value, in_one_order, is_computed, layer_name
from slotool.graphs.operators.onnx_writer import BOOL, FLOAT, INT32, KINDS, RANKS, Writer, widest

if TYPE_CHECKING:
    from torch import Tensor


class Rescaling(OperatorType):
    """A product with a constant. A graph holds structure and cost, no constants, so any number stands for it."""

    flops_per_value = 1
    onnx_type = FLOAT

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return lambda x: x.mul(1.0 if x.is_floating_point() else 1)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        return rescaled(writer, values[0])

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        # A factor of one would be left out.
        return Value(keras.layers.Rescaling(1 / 255, name=layer_name(operator.name))(values[0].tensor), values[0].order)


def rescaled(writer: Writer, value: str) -> str:
    """Append a product with a constant; by one, onnxruntime would not multiply at all."""
    return writer.node("Mul", writer.cast(value, FLOAT), writer.number(1 / 255))


class ReLU(OperatorType):
    flops_per_value = 1

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return nn.ReLU()

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        return writer.node("Relu", values[0])

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        return Value(keras.layers.Activation("relu", name=layer_name(operator.name))(values[0].tensor), values[0].order)


class PReLU(OperatorType):
    """A trained share of what is below zero, one for each channel (axis 0) or one for all."""

    attributes = {"shared": False}
    captured = {
        **dict.fromkeys(
            ("torch.prelu", "torch._prelu_kernel"), lambda call: {"shared": math.prod(call.value("weight").whole) == 1}
        ),
        "onnx.PRelu": lambda call: {"shared": call.constants[1].single} if 1 in call.constants else None,
    }
    feature_axis = 0

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        return Effect(inputs[0], 1 if attributes["shared"] else inputs[0][0], math.prod(inputs[0]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return nn.PReLU(operator.weights, device=device)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        if operator["shared"]:
            return writer.node("PRelu", values[0], writer.weight(1))
        channels, *around = operator.shape
        slope = writer.node("Reshape", writer.weight(channels), writer.integers(channels, *[1] * len(around)))
        return writer.node("PRelu", values[0], slope)


class Softmax(OperatorType):
    attributes = {"axis": None}
    captured = {"keras.Softmax": lambda call: {"axis": call.axes()[0]}}
    flops_per_value = 1
    onnx_type = FLOAT
    settle = staticmethod(settle_channel_axis)

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return nn.Softmax(dim=1 + chosen_axis(operator.attributes, operator.shape))

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        return writer.node(
            "Softmax", writer.cast(values[0], FLOAT), axis=1 + chosen_axis(operator.attributes, operator.shape)
        )

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        at = values[0].at(chosen_axis(operator.attributes, operator.shape))
        return Value(keras.layers.Softmax(axis=at, name=layer_name(operator.name))(values[0].tensor), values[0].order)


@dataclass(frozen=True)
class ActivationNames:
    """Names of an activation in torch and ONNX, None where ONNX has none, and ONNX's attributes as torch computes."""

    torch: str
    onnx: str | None = None
    onnx_attributes: Mapping[str, float] = field(default_factory=dict)


ACTIVATIONS = {
    "relu": ActivationNames("relu", "Relu"),
    "relu6": ActivationNames("relu6"),
    "leaky_relu": ActivationNames("leaky_relu", "LeakyRelu", {"alpha": 0.01}),
    "elu": ActivationNames("elu", "Elu"),
    "selu": ActivationNames("selu", "Selu"),
    "gelu": ActivationNames("gelu", "Gelu"),
    "silu": ActivationNames("silu", "Swish"),
    "mish": ActivationNames("mish", "Mish"),
    "softplus": ActivationNames("softplus", "Softplus"),
    "sigmoid": ActivationNames("sigmoid", "Sigmoid"),
    "tanh": ActivationNames("tanh", "Tanh"),
    "hard_sigmoid": ActivationNames("hardsigmoid", "HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "hard_silu": ActivationNames("hardswish", "HardSwish"),
}


class Activation(OperatorType):
    """The function that its attribute names; torch and ONNX models apply it behind every operator that has one."""

    attributes = {"activation": REQUIRED}
    flops_per_value = 1

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return nn.Identity()

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        return values[0]

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        (value,), name, called = values, operator["activation"], layer_name(operator.name)
        if name == "softmax":
            layer = keras.layers.Softmax(axis=value.at(channel_axis(operator.shape)), name=called)
        else:
            layer = keras.layers.Activation(name, name=called)
        return Value(layer(value.tensor), value.order)


class _Combination(OperatorType, abstract=True):
    """Combination of two inputs or more, with axes of size one broadcast."""

    inputs = None
    torch_name: ClassVar[str]
    keras_name: ClassVar[str]

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        shape = broadcast(inputs)
        return Effect(shape, 0, math.prod(shape) * (len(inputs) - 1))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return _stretched(getattr(torch, self.torch_name), operator.input_shapes)

    def onnx_kind(self, operator: Operator, kinds: Sequence[int]) -> int:
        return widest(kinds)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        tensors, order = in_one_order(values, operator.input_shapes)
        if len(values) > 1 and all(map(is_computed, values)):
            return Value(getattr(keras.layers, operator.op)(name=layer_name(operator.name))(tensors), order)
        return Value(reduce(getattr(keras.ops, self.keras_name), tensors), order)


def _stretched(function: TensorFunction, inputs: Sequence[Shape]) -> TensorFunction:
    """Return a function of two tensors as one of two and more, stretched to each other."""
    if len(set(map(len, inputs))) > 1:
        return lambda *values: reduce(function, torch_parts.aligned(*values))
    return lambda first, *others: reduce(function, others, first)


class Add(_Combination):
    torch_name = keras_name = "add"

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        aligned = writer.aligned(writer.of_one_type(values), operator.input_shapes)
        return writer.node("Add" if len(values) == 2 else "Sum", *aligned)


class Multiply(_Combination):
    torch_name, keras_name = "mul", "multiply"

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        aligned = writer.aligned(writer.of_one_type(values), operator.input_shapes)
        return reduce(lambda product, other: writer.node("Mul", product, other), aligned)


@dataclass(frozen=True)
class FunctionNames:
    """Names of a function of values in torch, ONNX and ``keras.ops``; None where one cannot build it by a name.

    ``number`` stands for the second input of a function of two: a graph does not hold the one that was there.
    ``kind``: ONNX type of its values, None for that of its inputs. ``floating``: True if ONNX takes floats alone.
    ``only_tensors``: True if torch takes a number only as a tensor.
    """

    torch: str
    onnx: str | None = None
    keras: str | None = None
    number: float | None = None
    kind: int | None = None
    floating: bool = False
    only_tensors: bool = False


def _floating(torch: str, onnx: str, keras: str | None = None, number: float | None = None) -> FunctionNames:
    return FunctionNames(torch, onnx, keras, number, FLOAT, floating=True)


def _truth(torch: str, onnx: str | None = None, keras: str | None = None, number: float | None = None) -> FunctionNames:
    return FunctionNames(torch, onnx, keras, number, BOOL)


FUNCTIONS = {
    "abs": FunctionNames("abs", "Abs", "abs"),
    "acos": _floating("acos", "Acos", "arccos"),
    "asin": _floating("asin", "Asin", "arcsin"),
    "atan": _floating("atan", "Atan", "arctan"),
    "ceil": FunctionNames("ceil", "Ceil", "ceil"),
    "cos": _floating("cos", "Cos", "cos"),
    "cosh": _floating("cosh", "Cosh", "cosh"),
    "erf": _floating("erf", "Erf", "erf"),
    "exp": _floating("exp", "Exp", "exp"),
    "expm1": FunctionNames("expm1", None, "expm1"),
    "floor": FunctionNames("floor", "Floor", "floor"),
    "log": _floating("log", "Log", "log"),
    "log1p": FunctionNames("log1p", None, "log1p"),
    "log2": FunctionNames("log2", None, "log2"),
    "negative": FunctionNames("neg", "Neg", "negative"),
    "reciprocal": _floating("reciprocal", "Reciprocal", "reciprocal"),
    "round": FunctionNames("round", "Round", "round"),
    "rsqrt": FunctionNames("rsqrt", None, "rsqrt"),
    "sign": FunctionNames("sign", "Sign", "sign"),
    "sin": _floating("sin", "Sin", "sin"),
    "sinh": _floating("sinh", "Sinh", "sinh"),
    "sqrt": _floating("sqrt", "Sqrt", "sqrt"),
    "square": FunctionNames("square", None, "square"),
    "tan": _floating("tan", "Tan", "tan"),
    "trunc": FunctionNames("trunc", None, "trunc"),
    "clamp": FunctionNames("clamp"),
    "is_finite": FunctionNames("isfinite", None, "isfinite"),
    "is_nan": _truth("isnan", "IsNaN", "isnan"),
    "not": _truth("logical_not", None, "logical_not"),
    "bitwise_not": FunctionNames("bitwise_not", None, "bitwise_not"),
    "subtract": FunctionNames("sub", "Sub", "subtract", 1),
    "divide": _floating("div", "Div", "divide", 2),
    "floor_divide": FunctionNames("floor_divide", None, "floor_divide", 2),
    "remainder": FunctionNames("remainder", "Mod", "mod", 2),
    "power": FunctionNames("pow", "Pow", "power", 2),
    "maximum": FunctionNames("maximum", "Max", "maximum", 0, only_tensors=True),
    "minimum": FunctionNames("minimum", "Min", "minimum", 0, only_tensors=True),
    "atan2": FunctionNames("atan2", None, "arctan2", 1, only_tensors=True),
    "equal": _truth("eq", "Equal", "equal", 0),
    "not_equal": _truth("ne", "Equal", "not_equal", 0),
    "less": _truth("lt", "Less", "less", 0),
    "less_equal": _truth("le", "LessOrEqual", "less_equal", 0),
    "greater": _truth("gt", "Greater", "greater", 0),
    "greater_equal": _truth("ge", "GreaterOrEqual", "greater_equal", 0),
    "and": FunctionNames("logical_and", "And", "logical_and", 1, BOOL, only_tensors=True),
    "or": FunctionNames("logical_or", "Or", "logical_or", 0, BOOL, only_tensors=True),
    "xor": FunctionNames("logical_xor", "Xor", "logical_xor", 0, BOOL, only_tensors=True),
}
_LOGICAL = ("and", "or", "xor")


class Elementwise(OperatorType):
    """Operator for one of ``FUNCTIONS`` of one input, of one and a number, or of two."""

    attributes = {"function": REQUIRED}
    inputs = None

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        if attributes["function"] not in FUNCTIONS:
            raise GraphError(f"unknown function {attributes['function']!r}; known are {', '.join(FUNCTIONS)}")
        shape = broadcast(inputs)
        return Effect(shape, 0, math.prod(shape))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        name, function = self._function(operator)
        called = getattr(torch, function.torch)
        if name == "clamp":
            return lambda x: x.clamp(-1, 1)
        if name == "bitwise_not":
            return lambda x: x.logical_not() if x.is_floating_point() else x.bitwise_not()
        if function.number is None:
            return called
        if len(operator.input_shapes) > 1:
            return _stretched(called, operator.input_shapes)
        return _with_number(name, function, called)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        (name, function), value = self._function(operator), values[0]
        if name == "square":
            return writer.node("Mul", value, value)
        if name == "rsqrt":
            return writer.node("Reciprocal", writer.node("Sqrt", value))
        if name == "not":
            return writer.node("Not", writer.cast(value, BOOL))
        if name == "clamp":
            kind = writer.kind(value)
            return writer.node("Clip", value, writer.number(-1, kind), writer.number(1, kind))
        if function.onnx is None:
            raise cannot_be_built(operator, "ONNX", f"the function {name}")
        if function.number is None:
            return writer.node(function.onnx, writer.cast(value, FLOAT) if function.floating else value)
        if name in _LOGICAL:
            values = [writer.cast(each, BOOL) for each in values]
        elif function.floating:
            values = [writer.cast(each, FLOAT) for each in values]
        operands = writer.aligned(writer.of_one_type(values), operator.input_shapes)
        if writer.kind(operands[0]) == BOOL and name not in _LOGICAL:
            operands = [writer.cast(each, INT32) for each in operands]
        if len(operands) == 1:
            operands.append(writer.number(function.number, writer.kind(operands[0])))
        options = {"fmod": 1} if name == "remainder" and writer.kind(operands[0]) == FLOAT else {}
        answer = writer.node(function.onnx, *operands, **options)
        return writer.node("Not", answer) if name == "not_equal" else answer

    def onnx_kind(self, operator: Operator, kinds: Sequence[int]) -> int:
        _, function = self._function(operator)
        kind = widest(kinds) if function.kind is None else function.kind
        return INT32 if kind == BOOL != function.kind else kind

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        name, function = self._function(operator)
        if name == "clamp":
            return Value(keras.ops.clip(values[0].tensor, -1, 1), values[0].order)
        if function.keras is None:
            raise cannot_be_built(operator, "Keras", name)
        called = getattr(keras.ops, function.keras)
        if function.number is None:
            return Value(called(values[0].tensor), values[0].order)
        tensors, order = in_one_order(values, operator.input_shapes)
        return Value(called(*tensors, *[function.number] * (2 - len(tensors))), order)

    def _function(self, operator: Operator) -> tuple[str, FunctionNames]:
        name = operator["function"]
        return name, FUNCTIONS[name]


def _with_number(name: str, function: FunctionNames, called: TensorFunction) -> TensorFunction:
    """Return a torch function of two tensors as one of the first, a number in place of the second."""
    number = function.number
    if name in ("maximum", "minimum"):
        bound = {"min": number} if name == "maximum" else {"max": number}
        return lambda x: x.clamp(**bound)
    if function.only_tensors:
        return lambda x: called(x, x.new_tensor(number))
    return lambda x: called(x, number)


class Where(OperatorType):
    """Choice of one of two values by a condition.

    Numbers among the three are no inputs; 1 stands for a missing first value, 0 for a missing second.
    """

    captured = {"onnx.Where": lambda _: {}}
    inputs = None
    passes_numbers = True

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        shape = broadcast(inputs)
        return Effect(shape, 0, math.prod(shape))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        def where(condition: Tensor, *values: Tensor) -> Tensor:
            condition = condition if condition.dtype == torch.bool else condition.bool()
            if not values:
                return torch.where(condition, 1.0, 0.0)
            condition, *values = torch_parts.aligned(condition, *values)  # type: ignore[assignment]
            return torch.where(condition, values[0], values[1] if len(values) > 1 else 0)

        return where

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        condition, *chosen = writer.aligned(values, operator.input_shapes)
        chosen = writer.of_one_type(chosen) if chosen else []
        kind = writer.kind(chosen[0]) if chosen else FLOAT
        numbers = [writer.number(1, kind), writer.number(0, kind)]
        return writer.node("Where", writer.cast(condition, BOOL), *chosen, *numbers[len(chosen) :])

    def onnx_kind(self, operator: Operator, kinds: Sequence[int]) -> int:
        return max(kinds[1:], key=RANKS.index, default=FLOAT)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        (condition, *others), order = in_one_order(values, operator.input_shapes)
        numbers: list[Any] = [1.0, 0.0]
        return Value(keras.ops.where(keras.ops.cast(condition, "bool"), *others, *numbers[len(others) :]), order)


_ONNX_DTYPES = {16: "bfloat16", **{number: dtype for dtype, number in KINDS.items()}}


class Cast(OperatorType):
    attributes = {"dtype": REQUIRED}
    captured = {
        "onnx.Cast": lambda call: {"dtype": _ONNX_DTYPES.get(call.attribute("to", 0))},
        "keras.Cast": lambda call: {"dtype": str(call.operation.dtype)},
    }
    passes_numbers = True

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        dtype = getattr(torch, operator["dtype"])
        return lambda x: x.to(dtype)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        dtype = operator["dtype"]
        if dtype not in KINDS:
            raise cannot_be_built(operator, "ONNX", dtype)
        return writer.node("Cast", values[0], to=KINDS[dtype])

    def onnx_kind(self, operator: Operator, kinds: Sequence[int]) -> int:
        return KINDS.get(operator["dtype"], FLOAT)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        return Value(keras.ops.cast(values[0].tensor, operator["dtype"]), values[0].order)
