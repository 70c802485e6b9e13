"""A module as an exported program of ATen calls, and such a program as operators."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram

from slotool.errors import GraphError
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.capture.torch.forms import Forms
from slotool.graphs.capture.torch.network import NetworkWalk
from slotool.llvm import without_late_triton

PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d", "convolution")


def export(module: nn.Module, examples: Sequence[torch.Tensor]) -> ExportedProgram:
    """The module as ATen calls. Raises whatever torch.export raises."""
    with torch.no_grad(), without_late_triton():
        return torch.export.export(module, tuple(examples))


def add_program(
    drafts: Drafts, program: ExportedProgram, sources: Sequence[str], batch: int, forms: Forms, prefix: str = ""
) -> list[str]:
    """Append every call of an exported program that takes ``sources``; the names of its outputs.

    ``batch`` is the size of the batch it was exported on; ``forms`` notes the element types it computes in.
    """
    walk = _walked(NetworkWalk(drafts, batch, forms, prefix), program, sources)
    results = next(node for node in reversed(program.graph.nodes) if node.op == "output").all_input_nodes
    wanted = set(program.graph_signature.user_outputs)
    return [walk.names[node] for node in results if node in walk.names and node.name in wanted]


def add_part(
    drafts: Drafts, program: ExportedProgram, sources: Sequence[str], images: Collection[str], batch: int,
    forms: Forms, prefix: str,
) -> list[tuple[str, bool]]:  # fmt: skip
    """As ``add_program``, for a part of a network whose ``images`` among the sources have their channels last in the
    program, and first in the drafts. Of each output its name and whether it is such an image; what depends on no input
    is a ``Constant``. Raises ``GraphError`` where an output has lost its batch."""
    walk = NetworkWalk(drafts, batch, forms, prefix)
    _walked(walk, program, sources, images)
    (results,) = next(node for node in reversed(program.graph.nodes) if node.op == "output").args
    return [walk.result(node) for node in results]


def _walked(
    walk: NetworkWalk, program: ExportedProgram, sources: Sequence[str], images: Collection[str] = ()
) -> NetworkWalk:
    inputs = iter(sources)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if node.name in program.graph_signature.user_inputs:
                source = next(inputs)
                walk.place(node, source, last=source in images)
            elif node.name in program.graph_signature.inputs_to_parameters:
                walk.place_parameter(node, _identity(program, node.name))
            else:
                walk.place(node, None)
        elif node.op == "get_attr":
            walk.place(node, None)
        elif node.op == "call_function":
            walk.call(node)
    walk.keep_idle_weights()
    return walk


def require_products_of_one_kind(program: ExportedProgram, called: str) -> None:
    """Raises ``GraphError`` for a product of whole numbers with floats, which tracing lets pass and running refuses."""
    for node in program.graph.nodes:
        name = str(getattr(node.target, "__name__", "")).partition(".")[0]
        if name not in PRODUCTS:
            continue
        types = [
            value.meta["val"].dtype for value in node.all_input_nodes if isinstance(value.meta.get("val"), torch.Tensor)
        ]
        if len({dtype.is_floating_point or dtype.is_complex for dtype in types}) > 1:
            said = " and ".join(dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in types))
            raise GraphError(
                f"{called} multiplies {said} in {name}, which torch does not: say another element type of its input, "
                "as --input-dtype float32"
            )


def _identity(program: ExportedProgram, name: str) -> object:
    """What two names of one parameter have in common."""
    tensor = program.state_dict[program.graph_signature.inputs_to_parameters[name]]
    try:
        return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape))
    except (RuntimeError, NotImplementedError):
        return name


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """Zeros whose memory nobody has touched: tracing reads shapes only, and a large batch of them costs nothing."""
    if device is not None and device.type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    nothing = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(nothing).view(dtype).reshape(tuple(shape))
