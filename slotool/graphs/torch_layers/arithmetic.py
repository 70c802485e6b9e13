"""Arithmetic value by value, and reductions along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from slotool.graphs.operator_node import Operator
from slotool.graphs.operators import Shape, channel_axis
from slotool.graphs.torch_layers.common import Builder, Function, aligned, per_axis, plain


def _folded(function: Callable[[Tensor, Tensor], Tensor]) -> Builder:
    """Of two inputs and more, one after the other, stretched to each other."""
    return lambda _, inputs, __: Function(_over(function, inputs))


def _over(function: Callable[[Tensor, Tensor], Tensor], inputs: Sequence[Shape]) -> Callable[..., Tensor]:
    if len(set(map(len, inputs))) > 1:
        return lambda *values: reduce(function, aligned(*values))
    return lambda first, *others: reduce(function, others, first)


def _inverted(x: Tensor) -> Tensor:
    return x.logical_not()


def _bits_inverted(x: Tensor) -> Tensor:
    return x.bitwise_not() if not x.is_floating_point() else x.logical_not()


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "negative": torch.neg,
    "reciprocal": torch.reciprocal,
    "clamp": lambda x: x.clamp(-1, 1),
    "is_finite": torch.isfinite,
    "is_nan": torch.isnan,
    "not": _inverted,
    "bitwise_not": _bits_inverted,
    **{
        name: getattr(torch, name)
        for name in (
            *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor", "log", "log1p"),
            *("log2", "round", "rsqrt", "sign", "sin", "sinh", "sqrt", "square", "tan", "trunc"),
        )
    },
}
# With the number that stands for a second input: a graph does not hold the one that was there.
BINARY: dict[str, tuple[Callable[[Tensor, Any], Tensor], float]] = {
    "subtract": (torch.sub, 1),
    "divide": (torch.div, 2),
    "floor_divide": (torch.floor_divide, 2),
    "remainder": (torch.remainder, 2),
    "power": (torch.pow, 2),
    "maximum": (torch.maximum, 0),
    "minimum": (torch.minimum, 0),
    "atan2": (torch.atan2, 1),
    "equal": (torch.eq, 0),
    "not_equal": (torch.ne, 0),
    "less": (torch.lt, 0),
    "less_equal": (torch.le, 0),
    "greater": (torch.gt, 0),
    "greater_equal": (torch.ge, 0),
    "and": (torch.logical_and, 1),
    "or": (torch.logical_or, 0),
    "xor": (torch.logical_xor, 0),
}
# They take a number only as a tensor.
_OF_TENSORS = ("maximum", "minimum", "atan2", "and", "or", "xor")


def _elementwise(operator: Operator, inputs: Sequence[Shape], _: str) -> nn.Module:
    name = operator.attributes["function"]
    if name in UNARY:
        return Function(UNARY[name])
    function, number = BINARY[name]
    if len(inputs) > 1:
        return Function(_over(function, inputs))
    if name in ("maximum", "minimum"):
        bound = {"min": number} if name == "maximum" else {"max": number}
        return Function(lambda x: x.clamp(**bound))
    if name in _OF_TENSORS:
        return Function(lambda x: function(x, x.new_tensor(number)))
    return Function(lambda x: function(x, number))


def _where(condition: Tensor, *values: Tensor) -> Tensor:
    """A number stands for each value that is missing: 1 for the first, 0 for the other."""
    condition = condition if condition.dtype == torch.bool else condition.bool()
    if not values:
        return torch.where(condition, 1.0, 0.0)
    condition, *values = aligned(condition, *values)  # type: ignore[assignment]
    return torch.where(condition, values[0], values[1] if len(values) > 1 else 0)


def _rescaled(x: Tensor) -> Tensor:
    """By one, in the type that it has: a graph holds structure and cost, no constants."""
    return torch.mul(x, 1.0 if x.is_floating_point() else 1)


def _cast(operator: Operator, *_: object) -> nn.Module:
    dtype = getattr(torch, operator.attributes["dtype"])
    return Function(lambda x: x.to(dtype))


def _reduction(function: Callable[..., Tensor]) -> Builder:
    def build(operator: Operator, inputs: Sequence[Shape], _: str) -> nn.Module:
        axes, keepdims = per_axis(operator.attributes, "axes"), operator.attributes.get("keepdims", False)
        return Function(partial(_reduced, function=function, axes=axes, keepdims=keepdims))

    return build


def _reduced(x: Tensor, function: Callable[..., Tensor], axes: list[int], keepdims: bool) -> Tensor:
    return function(x, axes, keepdims)


def _mean(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
    return (x if x.is_floating_point() else x.float()).mean(axes, keepdims)


def _norm(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
    answer: Tensor = torch.linalg.vector_norm(x, dim=axes, keepdim=keepdims)
    return answer


def _variance(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
    return x.var(axes, correction=0, keepdim=keepdims)


def _one_after_the_other(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """For reductions that torch has along one axis only."""

    def reduced(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
        for axis in sorted(axes, reverse=True):
            x = function(x, axis, keepdims)
        return x

    return reduced


def _arg(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Where the largest or smallest is, several axes as one."""

    def found(x: Tensor, axes: list[int], keepdims: bool) -> Tensor:
        if len(axes) == 1:
            return function(x, axes[0], keepdims)
        last = list(range(x.ndim - len(axes), x.ndim))
        at = function(x.movedim(axes, last).flatten(last[0]), -1)
        return at.reshape([1 if axis in axes else size for axis, size in enumerate(x.shape)]) if keepdims else at

    return found


def _softmax(operator: Operator, inputs: Sequence[Shape], _: str) -> nn.Module:
    return nn.Softmax(dim=1 + operator.attributes.get("axis", channel_axis(inputs[0])))


def _cumulative_sum(operator: Operator, *_: object) -> nn.Module:
    axis = operator.attributes["axis"] + 1
    return Function(lambda x: x.cumsum(axis))


def _sort(operator: Operator, *_: object) -> nn.Module:
    axis, part = operator.attributes["axis"] + 1, 1 if operator.attributes.get("indices") else 0
    return Function(lambda x: x.sort(axis)[part])


def _top_k(operator: Operator, *_: object) -> nn.Module:
    attributes = operator.attributes
    k, axis, part = attributes["k"], attributes["axis"] + 1, 1 if attributes.get("indices") else 0
    return Function(lambda x: x.topk(k, axis)[part])


def _prelu(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    return nn.PReLU(1 if operator.attributes.get("shared") else inputs[0][0], device=device)


ARITHMETIC: dict[str, Builder] = {
    "Rescaling": plain(_rescaled),
    "ReLU": lambda *_: nn.ReLU(),
    "PReLU": _prelu,
    "Softmax": _softmax,
    # Its activation is applied as every operator's is.
    "Activation": lambda *_: nn.Identity(),
    "Add": _folded(torch.add),
    "Multiply": _folded(torch.mul),
    "Elementwise": _elementwise,
    "Where": plain(_where),
    "Cast": _cast,
    "Mean": _reduction(_mean),
    "Sum": _reduction(torch.sum),
    "Max": _reduction(torch.amax),
    "Min": _reduction(torch.amin),
    "Product": _reduction(_one_after_the_other(torch.prod)),
    "Norm": _reduction(_norm),
    "LogSumExp": _reduction(torch.logsumexp),
    "Any": _reduction(torch.any),
    "All": _reduction(torch.all),
    "Variance": _reduction(_variance),
    "ArgMax": _reduction(_arg(torch.argmax)),
    "ArgMin": _reduction(_arg(torch.argmin)),
    "CumulativeSum": _cumulative_sum,
    "Sort": _sort,
    "TopK": _top_k,
}
