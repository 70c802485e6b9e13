"""Reductions along axes, running sums and sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from slotool.errors import GraphError
from slotool.graphs.libraries import keras, torch
from slotool.graphs.operators.attributes import Attributes, Shape, settle_axes, settle_axis
from slotool.graphs.operators.base import REQUIRED, Effect, Operator, OperatorType, TensorFunction, cannot_be_built
from slotool.graphs.operators.keras_values import Initializer, Value, without
from slotool.graphs.operators.onnx_writer import BOOL, FLOAT, INT32, INT64, Writer

if TYPE_CHECKING:
    from torch import Tensor


class _Reduction(OperatorType, abstract=True):
    """Reduction to one number for all values along ``axes``.

    ``torch_name``: method of a tensor; ``keras_name``: in ``keras.ops``, "" for a reduction that Keras lacks.
    """

    attributes = {"axes": REQUIRED, "keepdims": False}
    settle = staticmethod(settle_axes)
    torch_name: ClassVar[str]
    onnx_op: ClassVar[str]
    keras_name: ClassVar[str] = ""

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        (shape,), axes = inputs, attributes["axes"]
        if attributes["keepdims"]:
            reduced = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        else:
            reduced = tuple(size for axis, size in enumerate(shape) if axis not in axes)
        return Effect(reduced, 0, math.prod(shape))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        axes = [axis + 1 for axis in operator["axes"]]
        return partial(self.reduced, axes=axes, keepdims=operator["keepdims"])

    def reduced(self, x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
        """Return the reduction of a tensor whose axes count the batch."""
        answer: Tensor = getattr(x, self.torch_name)(axes, keepdims)
        return answer

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        value = values[0]
        if self.onnx_type == FLOAT:
            value = writer.cast(value, FLOAT)
        elif writer.kind(value) == BOOL:
            value = writer.cast(value, INT64)
        return self.onnx_node(writer, operator, self.onnx_op, value)

    def onnx_node(self, writer: Writer, operator: Operator, op: str, value: str) -> str:
        """Append a node that reduces a value along the operator's axes."""
        axes = writer.integers(*(axis + 1 for axis in operator["axes"]))
        return writer.node(op, value, axes, keepdims=int(operator["keepdims"]))

    def onnx_kind(self, operator: Operator, kinds: Sequence[int]) -> int:
        kind = super().onnx_kind(operator, kinds)
        return INT64 if kind == BOOL != self.onnx_type else kind

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        if not self.keras_name:
            return super().keras(operator, values, weights)
        (value,), axes = values, operator["axes"]
        keepdims = operator["keepdims"]
        tensor = keras.ops.cast(value.tensor, "bool") if self.onnx_type == BOOL else value.tensor
        reduced = getattr(keras.ops, self.keras_name)(
            tensor, axis=tuple(value.at(axis) for axis in axes), keepdims=keepdims
        )
        return Value(reduced, value.order if keepdims else without(value.order, axes))


class Mean(_Reduction):
    onnx_op, keras_name, onnx_type = "ReduceMean", "mean", FLOAT

    def reduced(self, x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
        return (x if x.is_floating_point() else x.float()).mean(axes, keepdims)


class Sum(_Reduction):
    torch_name, onnx_op, keras_name = "sum", "ReduceSum", "sum"


class Max(_Reduction):
    torch_name, onnx_op, keras_name = "amax", "ReduceMax", "max"


class Min(_Reduction):
    torch_name, onnx_op, keras_name = "amin", "ReduceMin", "min"


class Product(_Reduction):
    onnx_op, keras_name = "ReduceProd", "prod"

    def reduced(self, x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
        # torch multiplies along one axis only.
        for axis in sorted(axes, reverse=True):
            x = x.prod(axis, keepdims)
        return x


class Norm(_Reduction):
    onnx_op, onnx_type = "ReduceL2", FLOAT

    def reduced(self, x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(x, dim=axes, keepdim=keepdims)
        return norm


class LogSumExp(_Reduction):
    torch_name, onnx_op, onnx_type = "logsumexp", "ReduceLogSumExp", FLOAT


class _Truths(_Reduction, abstract=True):
    onnx_type = BOOL

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        reduced = self.onnx_node(writer, operator, self.onnx_op, writer.cast(values[0], INT32))
        return writer.node("Cast", reduced, to=BOOL)


class Any(_Truths):
    torch_name, onnx_op, keras_name = "any", "ReduceMax", "any"


class All(_Truths):
    torch_name, onnx_op, keras_name = "all", "ReduceMin", "all"


class Variance(_Reduction):
    """Per value one FLOP to subtract the mean, one to square, two to add up."""

    onnx_type, keras_name = FLOAT, "var"

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        return Effect(super().infer(attributes, inputs).shape, 0, 4 * math.prod(inputs[0]))

    def reduced(self, x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
        return x.var(axes, correction=0, keepdim=keepdims)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        axes = writer.integers(*(axis + 1 for axis in operator["axes"]))
        apart = writer.node("Sub", values[0], writer.node("ReduceMean", values[0], axes, keepdims=1))
        return self.onnx_node(writer, operator, "ReduceMean", writer.node("Mul", apart, apart))


class _Position(_Reduction, abstract=True):
    """Position of the largest or smallest value, several axes counted as one."""

    onnx_type = INT64

    def reduced(self, x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
        if len(axes) == 1:
            position: Tensor = getattr(x, self.torch_name)(axes[0], keepdims)
            return position
        last = list(range(x.ndim - len(axes), x.ndim))
        at: Tensor = getattr(x.movedim(axes, last).flatten(last[0]), self.torch_name)(-1)
        return at.reshape([1 if axis in axes else size for axis, size in enumerate(x.shape)]) if keepdims else at

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        axis, *others = operator["axes"]
        if others:
            raise cannot_be_built(operator, "ONNX", f"{operator.op} along several axes")
        keepdims = int(operator["keepdims"])
        return writer.node(operator.op, values[0], axis=axis + 1, keepdims=keepdims)


class ArgMax(_Position):
    captured = {
        "onnx.ArgMax": lambda call: {
            "axes": [call.inner(call.attribute("axis", 0))],
            "keepdims": bool(call.attribute("keepdims", 1)),
        }
    }
    torch_name = "argmax"


class ArgMin(_Position):
    captured = {"onnx.ArgMin": ArgMax.captured["onnx.ArgMax"]}
    torch_name = "argmin"


class CumulativeSum(OperatorType):
    attributes = {"axis": REQUIRED}
    flops_per_value = 1
    captured = {
        **dict.fromkeys(
            ("torch.cumsum", "torch.cumprod", "torch.logcumsumexp"), lambda call: {"axis": call.data().at(call["dim"])}
        ),
        "onnx.CumSum": lambda call: {"axis": call.inner((call.numbers(1) or [0])[0])},
        "keras.Cumsum": lambda call: {"axis": call.axes()[0]},
    }
    settle = staticmethod(settle_axis)

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        axis = operator["axis"] + 1
        return lambda x: x.cumsum(axis)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        value = writer.cast(values[0], INT64) if writer.kind(values[0]) == BOOL else values[0]
        return writer.node("CumSum", value, writer.number(operator["axis"] + 1, INT64))

    def onnx_kind(self, operator: Operator, kinds: Sequence[int]) -> int:
        return INT64 if kinds[0] == BOOL else kinds[0]


class _Ordered(OperatorType, abstract=True):
    """Values in order along an axis, or with ``indices`` where they were."""

    passes_numbers = True
    settle = staticmethod(settle_axis)
    largest: ClassVar[int]

    def onnx_kind(self, operator: Operator, kinds: Sequence[int]) -> int:
        return INT64 if operator["indices"] else kinds[0]

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        axis = operator["axis"]
        count = writer.integers(operator.shape[axis])
        parts = writer.nodes_of("TopK", 2, values[0], count, axis=axis + 1, largest=self.largest)
        return parts[int(operator["indices"])]


class Sort(_Ordered):
    attributes = {"axis": REQUIRED, "indices": False}
    captured = {
        "keras.Sort": lambda call: {"axis": call.axes()[0]},
        "keras.Argsort": lambda call: {"axis": call.axes()[0], "indices": True},
    }
    largest = 0

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        comparisons = max(1, math.ceil(math.log2(inputs[0][attributes["axis"]])))
        return Effect(inputs[0], 0, comparisons * math.prod(inputs[0]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        axis, part = operator["axis"] + 1, int(operator["indices"])
        return lambda x: x.sort(axis)[part]


class TopK(_Ordered):
    """The ``k`` largest values along an axis."""

    attributes = {"k": REQUIRED, "axis": REQUIRED, "indices": False}
    captured = {
        "onnx.TopK": lambda call: (
            {"k": k[0], "axis": call.inner(call.attribute("axis", -1))} if (k := call.numbers(1, "k")) else None
        )
    }
    largest = 1

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        shape, axis = list(inputs[0]), attributes["axis"]
        if attributes["k"] > shape[axis]:
            raise GraphError(f"there are no {attributes['k']} values along axis {axis} of {shape}")
        shape[axis] = attributes["k"]
        return Effect(tuple(shape), 0, math.prod(inputs[0]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        k, axis, part = operator["k"], operator["axis"] + 1, int(operator["indices"])
        return lambda x: x.topk(k, axis)[part]
