"""What a node of an exported torch program says of itself: its values, its name, the tensor that it is a view of."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from slotool.graphs.operators import Shape


def base_of(node: Any) -> Any:
    """The tensor that a value is a view of; itself where it is none."""
    while isinstance(node, fx.Node) and node.op == "call_function" and node.all_input_nodes:
        whole = node.all_input_nodes[0]
        if not getattr((whole if node.target is operator.getitem else node).target, "is_view", False):
            return node
        node = whole
    return node


def values_of(node: fx.Node) -> list[Any]:
    value = node.meta.get("val")
    return list(value) if isinstance(value, list | tuple) else [value]


def largest_shape(node: fx.Node) -> Shape:
    """Of a node's output with its batch; of several the one of most values, of nothing else ()."""
    shapes = [tuple(map(int, each.shape)) for each in values_of(node) if isinstance(each, torch.Tensor)]
    return max(shapes, key=math.prod, default=())


def position_of(node: fx.Node) -> int:
    """Which of several outputs a node takes."""
    position = node.args[1]
    assert isinstance(position, int)
    return position


def dtype_of(node: fx.Node) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)


def plain_name(node: fx.Node) -> str:
    """What a call calls, without its overload; in place or not is all one."""
    name = str(getattr(node.target, "__name__", node.target)).partition(".")[0]
    return name.removesuffix("_") if name.endswith("_") and not name.endswith("__") else name
