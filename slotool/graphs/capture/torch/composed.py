"""Calls that are made of calls: blocks with a graph of their own, and calls that torch itself runs as others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from slotool.graphs.capture.drafts import costliest
from slotool.graphs.capture.torch.flops import CallFlops, calls_of, inner_graphs, is_choice, shapes_alone

# A graph, and what its placeholders stand for, in their order.
Inner = tuple[fx.Graph, Sequence[Any]]


def block_of(node: fx.Node, flops: CallFlops) -> Inner | None:
    """What a call of a block runs, as one under autocast or without gradients; of two branches that which has more
    FLOPs, as torch's counter has it. None of a call of anything else, and of loops."""
    if not isinstance(node.target, torch._ops.HigherOrderOperator):
        return None
    graphs = inner_graphs(node)
    if is_choice(node) and len(graphs) == 2:
        given = node.args[3] if len(node.args) > 3 else node.kwargs.get("operands", ())
        costly = costliest(
            graphs, lambda graph: sum(map(flops.of, calls_of(graph))), lambda graph: len(calls_of(graph))
        )
        return costly.graph, list(given)  # type: ignore[arg-type]
    arguments = list(node.args)
    at = next((i for i, each in enumerate(arguments) if isinstance(each, fx.Node) and each.op == "get_attr"), None)
    if at is None or len(graphs) != 1:
        return None
    given, places = arguments[at + 1 :], [each for each in graphs[0].graph.nodes if each.op == "placeholder"]
    # What goes along an axis takes lists of tensors, and a step of each.
    once = all(not isinstance(each, list | tuple) for each in given) and len(given) >= len(places)
    return (graphs[0].graph, given) if once else None


def parts_of(node: fx.Node) -> Inner | None:
    """A call that is made of others, traced on shapes alone; None where torch runs it as one or it cannot be traced."""
    target = node.target
    if not _is_composed(target) or isinstance(node.meta.get("val"), tuple | list):
        return None
    inputs = [value for value in node.all_input_nodes if isinstance(value.meta.get("val"), torch.Tensor)]

    def run(*tensors: torch.Tensor) -> Any:
        at = dict(zip(inputs, tensors, strict=True))
        known = lambda each: at.get(each, each.meta.get("val"))  # noqa: E731
        args, kwargs = fx.node.map_arg(node.args, known), fx.node.map_arg(node.kwargs, known)
        return target(*args, **kwargs)  # type: ignore[operator]

    try:
        with torch.no_grad():
            traced = make_fx(run)(*(shapes_alone(value.meta["val"]) for value in inputs))
    except Exception:
        # A call that cannot be traced is kept by name.
        return None
    calls = calls_of(traced)
    return None if len(calls) == 1 and calls[0].target is target else (traced.graph, inputs)


def _is_composed(target: Any) -> bool:
    """Whether torch itself runs a call as others."""
    try:
        return bool(target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))
    except (AttributeError, RuntimeError):
        return False
