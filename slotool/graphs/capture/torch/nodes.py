"""Properties of a node in an exported torch program: its values, its name, and the tensor it is a view of."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import fx

from slotool.errors import GraphError
from slotool.graphs.operators import Shape

Leaf = TypeVar("Leaf")
BY_VALUES = (
    "what its forward computes depends on the values of its input (a branch, a loop or a selection by them), and so "
    "does its cost; capture the part that does not, or one branch as a module of its own"
)


def base_of(node: Any) -> Any:
    """Return the tensor that a value is a view of, or itself."""
    while isinstance(node, fx.Node) and node.op == "call_function" and node.all_input_nodes:
        whole = node.all_input_nodes[0]
        if not getattr((whole if node.target is operator.getitem else node).target, "is_view", False):
            return node
        node = whole
    return node


def leaves(kind: type[Leaf], value: Any) -> Iterator[Leaf]:
    """Yield everything of a kind in nested lists, tuples and mappings, in order."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from leaves(kind, each)


def values_of(node: fx.Node) -> list[Any]:
    value = node.meta.get("val")
    return list(value) if isinstance(value, list | tuple) else [value]


def largest_shape(node: fx.Node) -> Shape:
    """Return a node's largest output shape with its batch, or ()."""
    shapes = [tuple(map(int, each.shape)) for each in values_of(node) if isinstance(each, torch.Tensor)]
    return max(shapes, key=math.prod, default=())


def position_of(node: fx.Node) -> int:
    """Return the number of the output that a node takes."""
    position = node.args[1]
    assert isinstance(position, int)
    return position


def dtype_of(node: fx.Node) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)


def called(node: Any) -> str:
    """Return the name of a call without its overload."""
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0]


def plain_name(node: Any) -> str:
    """Return the name of a call without its overload, the same in place or not."""
    name = called(node)
    return name.removesuffix("_") if name.endswith("_") and not name.endswith("__") else name


def first_value(node: Any) -> Any:
    """Return the first tensor of a node's output, or what it is else."""
    value = node.meta.get("val")
    while isinstance(value, tuple | list) and value:
        value = value[0]
    return value


def shape_of(node: Any) -> Shape | None:
    """Return the shape of a node's (first) output with its batch; None for no tensor.

    Raises ``GraphError`` for a size that depends on input values, as of a selection by a mask.
    """
    shape = getattr(first_value(node), "shape", None)
    try:
        return tuple(int(size) for size in shape) if shape is not None else None
    except RuntimeError as error:
        raise GraphError(f"the module cannot be captured: {BY_VALUES}") from error


def given_arguments(node: Any) -> dict[str, Any]:
    """Return the arguments of a call by name, in the order of its schema, defaults filled in; none without a schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    arguments = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | dict(node.kwargs)
    return {
        argument.name: arguments.get(argument.name, argument.default_value)
        for argument in schema.arguments
        if argument.name in arguments or argument.has_default_value()
    }


def arguments_of(node: Any) -> Mapping[str, Any]:
    """Return the arguments of a call by name, tensors as their shapes."""
    arguments = given_arguments(node)
    return {name: shape_of(value) if hasattr(value, "meta") else value for name, value in arguments.items()}


def count_of(node: Any) -> int:
    """Return how many weights a constant is; counters, such as a batch normalisation's, are none."""
    value, packed = node.meta.get("val"), packed_weights(node)
    if packed is not None:
        return sum(tensor.numel() for tensor in packed)
    return value.numel() if hasattr(value, "numel") and value.is_floating_point() else 0


def packed_weights(node: Any) -> list[torch.Tensor] | None:
    """Return weight and bias of a quantised linear layer, of a node that is both packed; None of any other node."""
    packed = getattr(node.graph.owning_module, str(node.target), None) if node.op == "get_attr" else None
    if not isinstance(packed, torch.ScriptObject) or "LinearPackedParams" not in str(packed._type()):
        return None
    return [tensor for tensor in torch.ops.quantized.linear_unpack(packed) if tensor is not None]


def signature(value: Any) -> Any:
    """Return what a call's result depends on of its arguments, hashable: of tensors shape, order and type alone."""
    if isinstance(value, fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride() if value.layout is torch.strided else (), value.dtype
    if isinstance(value, list | tuple):
        return tuple(map(signature, value))
    if isinstance(value, Mapping):
        return tuple((name, signature(each)) for name, each in value.items())
    return type(value), value


def depends_on_values(error: BaseException | None) -> bool:
    """True if a module could not be recorded since it needs numbers, by the error or what led to it."""
    while error is not None:
        if "data-dependent" in str(error) or type(error).__name__.startswith(("DataDependent", "DynamicOutput")):
            return True
        error = error.__cause__ or error.__context__
    return False
