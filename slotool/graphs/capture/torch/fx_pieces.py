"""The fallback for modules that torch.export refuses: trace with torch.fx, then export layer by layer."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map_only

from slotool.errors import GraphError
from slotool.graphs.capture.batch_axis import MAX_TRACES, Share, batch_size, is_ambiguous, share_of, sizes_beside
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.capture.torch.flops import without_compiling
from slotool.graphs.capture.torch.forms import (
    Forms,
    count_weights,
    dense_attributes,
    quantised_flops,
    recurrent_layer,
)
from slotool.graphs.capture.torch.nodes import BY_VALUES, shape_of
from slotool.graphs.capture.torch.program import add_program, export, lazy_zeros


def add_pieces(
    drafts: Drafts, module: nn.Module, example: Tensor, source: str, why: Exception, forms: Forms
) -> list[str]:
    """Append the layers of ``module``; the names of its outputs. What cannot be exported is kept by name.

    Raises ``GraphError``, which also says ``why`` the whole could not be exported, when fx fails too.
    """
    run = f"{list(example.shape[1:])} (batch of 2)"
    try:
        with torch.no_grad(), without_compiling():
            module(torch.zeros_like(example[:2]))
    except Exception as error:
        # A module's own forward runs here, so anything may be raised.
        sentence = f"{type(module).__name__} cannot run on an input of {run}: {_first_line(error)}"
        raise GraphError(f"{sentence}{_other_type(module, example)}") from error
    try:
        traced = fx.symbolic_trace(module)
        batch = _record(traced, example)
    except Exception as error:
        raise GraphError(
            f"{type(module).__name__} cannot be traced on an input of {run}: {_why_not_traced(why, error)}"
        ) from error
    names: dict[fx.Node, str] = {}
    place = _Place(drafts, batch, forms, names, set())
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            names[node] = source
        elif node.op.startswith("call_") and any(value in names for value in node.all_input_nodes):
            names[node] = place.add(traced, node, example.device)
    results = next(node for node in reversed(traced.graph.nodes) if node.op == "output").all_input_nodes
    return [names[node] for node in results if node in names]


def _other_type(module: nn.Module, example: Tensor) -> str:
    """Which element type the module does run on, as the end of a sentence; empty where on neither."""
    other = torch.int64 if example.is_floating_point() else torch.float32
    try:
        with torch.no_grad(), without_compiling():
            module(torch.zeros(example[:2].shape, dtype=other, device=example.device))
    except Exception:
        # A module's own forward runs here, so anything may be raised.
        return ""
    return f"; it runs on {str(other).removeprefix('torch.')}: --input-dtype {str(other).removeprefix('torch.')}"


def _record(traced: fx.GraphModule, example: Tensor) -> int:
    """Note of every node what it was, and return on how large a batch: on shapes alone where that can be done."""
    with torch.no_grad(), without_compiling():
        try:
            return _record_clearly(traced, example)
        except Exception:
            # What needs numbers is run on them, and then a batch has its price.
            sizes = [tuple(tensor.shape) for tensor in [*traced.parameters(), *traced.buffers()]]
            example = torch.zeros_like(example[: batch_size([example.shape[1:], *sizes], small=True)])
            _Recorder(traced).run(example)
    return len(example)


def _record_clearly(traced: fx.GraphModule, example: Tensor) -> int:
    """Record on shapes alone, again with another batch where this one is found twice in a tensor."""
    sizes = [tuple(tensor.shape) for tensor in [example[0], *traced.parameters(), *traced.buffers()]]
    for _ in range(MAX_TRACES):
        with FakeTensorMode(allow_non_fake_inputs=True) as shapes:
            _Recorder(traced).run(shapes.from_tensor(example))
        found = [shape for node in traced.graph.nodes if (shape := shape_of(node))]
        batch = len(example)
        if not is_ambiguous(found, batch):
            break
        sizes += sizes_beside(found, batch)
        example = lazy_zeros((batch_size(sizes), *example.shape[1:]), example.dtype, example.device)
    return batch


class _Recorder(fx.Interpreter):
    """Runs a trace and notes of every node's value what it was, without keeping the numbers."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        n.meta["val"] = tree_map_only(Tensor, _without_numbers, value)
        return value


def _without_numbers(tensor: Tensor) -> Tensor:
    # Quantised tensors exist with their numbers only.
    dtype = torch.int8 if tensor.is_quantized else tensor.dtype
    return torch.empty(tuple(tensor.shape), dtype=dtype, device="meta")


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


@dataclass(frozen=True)
class _Place:
    """Where pieces go: the drafts so far, and which of them each node of the trace is."""

    drafts: Drafts
    batch: int
    forms: Forms
    names: dict[fx.Node, str]
    recurrent: set[str]

    def _state(self, node: fx.Node, layer: str, share: Share | None) -> str:
        """What a recurrent layer answers, at each step or after the last."""
        if node.args[1] == 0 or share is None:
            return layer
        answer = self.drafts.shape(layer)
        last = self.drafts.add(f"{node.name}.last", "Slice", [layer], {"axis": 0, "start": answer[0] - 1, "size": 1},
                               (1, *answer[1:]))  # fmt: skip
        return self.drafts.add(node.name, "Reshape", [last], {"shape": share.shape}, share.shape)

    def add(self, traced: fx.GraphModule, node: fx.Node, device: torch.device) -> str:
        """Append one node; the name of its output."""
        data = [value for value in node.all_input_nodes if value in self.names]
        sources = [self.names[value] for value in data]
        if node.target is operator.getitem and sources[0] in self.recurrent:
            return self._state(node, sources[0], share_of(shape_of(node) or (), self.batch))
        weights, flops, op = 0, 0, getattr(node.target, "__name__", str(node.target))
        attributes = None
        whole = shape_of(node) or ()
        share = share_of(whole, self.batch)
        shape = whole if share is None else share.shape
        try:
            piece = _Piece(traced, node, data)
            recurrent = None if piece.layer is None else recurrent_layer(piece.layer)
            if recurrent is not None and share is not None:
                made = self.drafts.add(node.name, recurrent[0], sources, recurrent[1], shape)
                self.recurrent.add(made)
                return made
            if piece.layer is not None:
                op, weights = type(piece.layer).__name__, count_weights(piece.layer)
                flops = quantised_flops(piece.layer, math.prod(shape))
                attributes = dense_attributes(piece.layer)
            program = export(piece, [_zeros_like(value.meta["val"], device) for value in data])
        except Exception:
            # Whatever export cannot take is what the caller wants to keep by name, if it is not a layer that we know.
            op = op if attributes is None else "Dense"
            return self.drafts.add(node.name, op, sources, attributes, shape, weights, flops)
        names = add_program(self.drafts, program, sources, self.batch, self.forms, f"{node.name}_")
        if not names:
            raise GraphError(f"{node.name} makes nothing that depends on its input")
        return names[0]


def _zeros_like(value: Tensor, device: torch.device) -> Tensor:
    return lazy_zeros(value.shape, value.dtype, device)


def _constant(traced: fx.GraphModule, node: fx.Node) -> Tensor:
    value: Any = traced
    for part in str(node.target).split("."):
        value = getattr(value, part)
    constant: Tensor = value
    return constant


def depends_on_values(error: BaseException | None) -> bool:
    """Whether a module could not be exported since it asks for numbers, by the error or what led to it."""
    while error is not None:
        if "data-dependent" in str(error) or "DataDependent" in type(error).__name__:
            return True
        error = error.__cause__ or error.__context__
    return False


def _why_not_traced(export_error: Exception, fx_error: Exception) -> str:
    if depends_on_values(export_error):
        return BY_VALUES
    return f"torch.export: {_first_line(export_error)}; torch.fx: {_first_line(fx_error)}"


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return " ".join(text.splitlines()[0].split())[:200]
