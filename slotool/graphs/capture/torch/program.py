"""A module's forward as the ATen calls that it makes, and such calls as operators."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx

from slotool.graphs.capture.batch_axis import MAX_TRACES, batch_size, is_ambiguous, sizes_beside
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.capture.torch.flops import without_fast_paths
from slotool.graphs.capture.torch.forms import Forms
from slotool.graphs.capture.torch.network import NetworkWalk
from slotool.graphs.capture.torch.nodes import shape_of
from slotool.llvm import without_late_triton


def export(module: nn.Module, examples: Sequence[Tensor]) -> ExportedProgram:
    """Return the module as a program that runs on its weights. Raises whatever torch.export raises."""
    with torch.no_grad(), without_late_triton():
        return torch.export.export(module, tuple(examples))


@dataclass(frozen=True)
class Recording:
    """ATen calls of a forward on shapes alone.

    ``module``: their graph. ``parameters``: their names by placeholder, ``inputs``: placeholders in order, ``outputs``:
    nodes of the tensors that it gives. ``batch``: the number of examples.
    """

    module: fx.GraphModule
    parameters: Mapping[fx.Node, str]
    inputs: Sequence[fx.Node]
    batch: int

    @property
    def outputs(self) -> list[fx.Node]:
        (results,) = next(node for node in reversed(self.module.graph.nodes) if node.op == "output").args
        return [each for each in results if isinstance(each, fx.Node)]  # type: ignore[union-attr]

    @property
    def shapes(self) -> list[Sequence[int]]:
        return [shape for node in self.module.graph.nodes if (shape := shape_of(node))]


def recorded(module: nn.Module, examples: Sequence[Tensor]) -> Recording:
    """Record a forward in inference mode, with a batch that is found once in every tensor where a few tries find one.

    Raises what the module or torch raises.
    """
    recording = _recorded(module, examples)
    sizes = [tuple(each.shape[1:]) for each in examples]
    sizes += [tuple(each.shape) for each in [*module.parameters(), *module.buffers()]]
    for _ in range(MAX_TRACES - 1):
        if not is_ambiguous(recording.shapes, recording.batch):
            break
        sizes += sizes_beside(recording.shapes, recording.batch)
        batch = batch_size(sizes)
        try:
            recording = _recorded(
                module, [lazy_zeros((batch, *each.shape[1:]), each.dtype, each.device) for each in examples]
            )
        except Exception:
            # A module may refuse a batch; what is there is better than nothing.
            break
    return recording


def _recorded(module: nn.Module, examples: Sequence[Tensor]) -> Recording:
    parameters = dict(module.named_parameters())
    # A single number may say how a layer computes, as the scale of a quantised one: it stays one.
    state = parameters | {name: buffer for name, buffer in module.named_buffers() if buffer.numel() > 1}

    def forward(state: dict[str, Tensor], *inputs: Tensor) -> Any:
        return torch.func.functional_call(module, state, inputs)

    compiled: Any = torch._dynamo.config
    with torch.no_grad(), without_late_triton(), without_fast_paths(), compiled.patch(error_on_nested_fx_trace=False):
        # Tensors that are no part of the state come with their numbers.
        trace = make_fx(forward, tracing_mode="fake", pre_dispatch=True, _allow_non_fake_inputs=True)
        traced = trace(state, *examples)
    places = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node, name in zip(places, state, strict=False):
        node._rename(name.replace(".", "_"))
    names = dict(zip(places, parameters, strict=False))
    return Recording(traced, names, places[len(state) :], len(examples[0]))


def walked(
    drafts: Drafts, recording: Recording, sources: Sequence[str], forms: Forms, prefix: str = "",
    images: Collection[str] = (),
) -> NetworkWalk:  # fmt: skip
    """Append every call that takes ``sources``; ``forms`` notes the element types it computes in.

    ``images`` among the sources have their channels last in the recording, and first in the drafts.
    """
    walk = NetworkWalk(drafts, recording.batch, forms, prefix)
    given = dict(zip(recording.inputs, sources, strict=True))
    for node in recording.module.graph.nodes:
        if node in given:
            walk.place(node, given[node], last=given[node] in images)
        elif node in recording.parameters:
            walk.place_parameter(node, recording.parameters[node])
        elif node.op in ("placeholder", "get_attr"):
            walk.place(node, None)
        elif node.op == "call_function":
            walk.call(node)
    walk.keep_idle_weights()
    return walk


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Return zeros whose memory nobody has touched: tracing reads shapes only, and a large batch costs nothing."""
    if device is not None and device.type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    nothing = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(nothing).view(dtype).reshape(tuple(shape))
