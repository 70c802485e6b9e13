"""The fallback for modules that torch.export refuses: trace with torch.fx, then export layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map_only

from slotool.errors import GraphError
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.capture.torch import add_program, export, shape_of


def add_pieces(drafts: Drafts, module: nn.Module, example: Tensor, source: str, why: Exception) -> list[str]:
    """Append the layers of ``module``; the names of its outputs. What cannot be exported is kept by name.

    Raises ``GraphError``, which also says ``why`` the whole could not be exported, when fx fails too.
    """
    run = f"{list(example.shape[1:])} (batch of {len(example)})"
    try:
        with torch.no_grad():
            module(example)
    except Exception as error:
        # A module's own forward runs here, so anything may be raised.
        raise GraphError(f"{type(module).__name__} cannot run on an input of {run}: {_first_line(error)}") from error
    try:
        traced = fx.symbolic_trace(module)
        with torch.no_grad():
            _Recorder(traced).run(example)
    except Exception as error:
        raise GraphError(
            f"{type(module).__name__} cannot be traced on an input of {run}: "
            f"torch.export: {_first_line(why)}; torch.fx: {_first_line(error)}"
        ) from error
    names: dict[fx.Node, str] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            names[node] = source
        elif node.op.startswith("call_") and any(value in names for value in node.all_input_nodes):
            names[node] = _add_piece(drafts, traced, node, names, example.device)
    results = next(node for node in reversed(traced.graph.nodes) if node.op == "output").all_input_nodes
    return [names[node] for node in results if node in names]


class _Recorder(fx.Interpreter):
    """Runs a trace and notes of every node's value what it was, without keeping the numbers."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        n.meta["val"] = tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, device="meta"), value)
        return value


class _Piece(nn.Module):
    """One node of a trace as a module of its data inputs; its other arguments are fixed."""

    def __init__(self, traced: fx.GraphModule, node: fx.Node, data: list[fx.Node]):
        super().__init__()
        self._node, self._data = node, data
        self.layer = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        fixed = [value for value in node.all_input_nodes if value not in data]
        self._fixed = {value: f"constant_{i}" for i, value in enumerate(fixed)}
        for value, name in self._fixed.items():
            self.register_buffer(name, _constant(traced, value))

    def forward(self, *tensors: Tensor) -> Any:
        at = dict(zip(self._data, tensors, strict=True)) | {n: getattr(self, key) for n, key in self._fixed.items()}
        args = fx.node.map_arg(self._node.args, at.__getitem__)
        kwargs = fx.node.map_arg(self._node.kwargs, at.__getitem__)
        return self._call()(*args, **kwargs)

    def _call(self) -> Callable[..., Any]:
        if self.layer is not None:
            return self.layer
        target = self._node.target
        return target if callable(target) else lambda tensor, *args, **kwargs: getattr(tensor, target)(*args, **kwargs)


def _add_piece(
    drafts: Drafts, traced: fx.GraphModule, node: fx.Node, names: dict[fx.Node, str], device: torch.device
) -> str:
    data = [value for value in node.all_input_nodes if value in names]
    sources = [names[value] for value in data]
    weights, op = 0, getattr(node.target, "__name__", str(node.target))
    try:
        piece = _Piece(traced, node, data)
        if piece.layer is not None:
            op, weights = type(piece.layer).__name__, sum(p.numel() for p in piece.layer.parameters())
        program = export(piece, [torch.zeros_like(value.meta["val"], device=device) for value in data])
    except Exception:
        # Whatever export cannot take is what the caller wants to keep by name.
        return drafts.add(node.name, op, sources, None, (shape_of(node) or ())[1:], weights)
    return add_program(drafts, program, sources, prefix=f"{node.name}_")[0]


def _constant(traced: fx.GraphModule, node: fx.Node) -> Tensor:
    value: Any = traced
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return " ".join(text.splitlines()[0].split())[:200]
