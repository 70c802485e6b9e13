"""A module's forward as the ATen calls that it makes, and such calls as operators."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from slotool.errors import GraphError
from slotool.graphs.capture.batch_axis import MAX_TRACES, batch_size, is_ambiguous, sizes_beside
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.capture.torch.flops import without_fast_paths
from slotool.graphs.capture.torch.network import Forms, NetworkWalk
from slotool.graphs.capture.torch.nodes import dtype_of, leaves, plain_name, shape_of
from slotool.graphs.capture.torch.recorder import record
from slotool.llvm import without_late_triton

INPUT_DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool")


@dataclass(frozen=True)
class TorchInput:
    """Input of a module: ``shape`` without the batch, ``dtype`` (None: detected), parameter ``name`` of ``forward``.

    An empty name is the first parameter.
    """

    shape: tuple[int, ...]
    dtype: str | None = None
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or "input"


def inputs_of(shape: Any, dtype: Any) -> tuple[TorchInput, ...]:
    """Return one input of a ``shape``, or several from a mapping; ``dtype``: one for all, or a mapping too.

    Raises ``GraphError`` for a size below 1, a dtype that is none of ``INPUT_DTYPES``, or a name without a shape.
    """
    named = shape if isinstance(shape, Mapping) else {"": shape}
    types = dtype if isinstance(dtype, Mapping) else dict.fromkeys(named, dtype)
    strange = [name for name in types if name not in named]
    if strange:
        shaped = ", ".join(map(repr, named))
        raise GraphError(f"input {strange[0]!r} has a dtype and no shape; shapes are given of {shaped}")
    for name, sizes in named.items():
        if (not sizes and not name) or any(size < 1 for size in sizes):
            raise GraphError(f"input shape {list(sizes)} has a size below 1")
        if types.get(name) is not None and types[name] not in INPUT_DTYPES:
            raise GraphError(f"input dtype {types[name]!r} is none of {', '.join(INPUT_DTYPES)}")
    return tuple(TorchInput(tuple(sizes), types.get(name), name) for name, sizes in named.items())


class TensorsOnly(nn.Module):
    """Module for tracing: it takes tensors by position and returns tensors only, without their containers."""

    def __init__(self, module: nn.Module, names: Sequence[str]):
        super().__init__()
        self.module, self._names = module, tuple(names)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        named = {name: tensor for name, tensor in zip(self._names, tensors, strict=True) if name}
        plain = [tensor for name, tensor in zip(self._names, tensors, strict=True) if not name]
        return tuple(leaves(Tensor, self.module(*plain, **named)))


def zeros(inputs: Sequence[TorchInput], dtype: torch.dtype, batch: int, device: torch.device) -> list[Tensor]:
    """Return an example of each input, ``dtype`` where it has none of its own."""
    types = [dtype if each.dtype is None else getattr(torch, each.dtype) for each in inputs]
    return [lazy_zeros((batch, *each.shape), kind, device) for each, kind in zip(inputs, types, strict=True)]


PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d", "convolution")


def export(module: nn.Module, examples: Sequence[Tensor]) -> ExportedProgram:
    """Return the module as a program that runs on its weights. Raises whatever torch.export raises."""
    with torch.no_grad(), without_late_triton():
        return torch.export.export(module, tuple(examples))


def uncompiled(module: nn.Module) -> tuple[nn.Module, bool]:
    """Return the module as it was before ``torch.compile``, and whether it was compiled.

    Raises ``GraphError`` for a TorchScript module, which does not show what it was made from.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise GraphError("a TorchScript module cannot be traced; capture the torch.nn.Module that it was made from")
    inner = getattr(module, "_orig_mod", None)
    if isinstance(inner, nn.Module):
        return inner, True
    parts = list(module.modules())
    compiled = any(getattr(part, "_compiled_call_impl", None) is not None for part in parts)
    inside = any(isinstance(getattr(part, "_orig_mod", None), nn.Module) for part in parts)
    owned = any(_is_compiled(value) for part in parts for value in vars(part).values())
    return module, compiled or inside or owned or any(map(_has_compiled_functions, {type(part) for part in parts}))


def _has_compiled_functions(kind: type[nn.Module]) -> bool:
    """True if its members, or global functions that they call, went through ``torch.compile``."""
    members = [value for scope in kind.__mro__[: kind.__mro__.index(nn.Module)] for value in vars(scope).values()]
    functions = filter(inspect.isfunction, members)
    called = (function.__globals__.get(name) for function in functions for name in function.__code__.co_names)
    return any(map(_is_compiled, [*members, *called]))


def _is_compiled(value: Any) -> bool:
    value = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    if not callable(value) or isinstance(value, type):
        return False
    # Results of torch.compiler.disable have an original too.
    original = getattr(value, "_torchdynamo_orig_callable", None) is not None
    return original and not getattr(value, "_torchdynamo_disable", False)


@dataclass(frozen=True)
class Recording:
    """ATen calls of a forward on shapes alone.

    ``graph``: those calls. ``parameters``: their names by placeholder, ``inputs``: placeholders in order, ``outputs``:
    nodes of the tensors that it gives. ``batch``: the number of examples.
    """

    graph: fx.Graph
    parameters: Mapping[fx.Node, str]
    inputs: Sequence[fx.Node]
    batch: int

    @property
    def outputs(self) -> list[fx.Node]:
        (results,) = next(node for node in reversed(self.graph.nodes) if node.op == "output").args
        return [each for each in results if isinstance(each, fx.Node)]

    @property
    def shapes(self) -> list[Sequence[int]]:
        return [shape for node in self.graph.nodes if (shape := shape_of(node))]


def recorded(module: nn.Module, examples: Sequence[Tensor], compiled: bool = False) -> Recording:
    """Record a forward, with a batch that is found once in every tensor where a few tries find one.

    ``compiled``: whether parts of the module went through ``torch.compile``. Raises what the module or torch raises.
    """
    recording = _recorded(module, examples, compiled)
    sizes = [tuple(each.shape[1:]) for each in examples]
    sizes += [tuple(each.shape) for each in [*module.parameters(), *module.buffers()]]
    for _ in range(MAX_TRACES - 1):
        if not is_ambiguous(recording.shapes, recording.batch):
            break
        sizes += sizes_beside(recording.shapes, recording.batch)
        batch = batch_size(sizes)
        try:
            others = [lazy_zeros((batch, *each.shape[1:]), each.dtype, each.device) for each in examples]
            recording = _recorded(module, others, compiled)
        except Exception:
            # A module may refuse a batch; what is there is better than nothing.
            break
    return recording


def _recorded(module: nn.Module, examples: Sequence[Tensor], compiled: bool) -> Recording:
    parameters = dict(module.named_parameters())
    # A single number may say how a layer computes, as the scale of a quantised one: it stays one.
    state = parameters | {name: buffer for name, buffer in module.named_buffers() if buffer.numel() > 1}
    with torch.no_grad(), without_late_triton(), without_fast_paths(), _as_exporting(compiled):
        forward = partial(torch.func.functional_call, module)
        graph, places = record(lambda tensors, *inputs: forward(tensors, inputs), state, examples)
    return Recording(graph, dict(zip(places, parameters, strict=False)), places[len(state) :], len(examples[0]))


@contextmanager
def _as_exporting(compiled: bool) -> Iterator[None]:
    """Set torch's export state, as libraries then skip branches by values; compiled code runs as written."""
    flags: Any = torch.compiler
    before = flags._is_compiling_flag, flags._is_exporting_flag
    flags._is_compiling_flag = flags._is_exporting_flag = True
    try:
        # Without that a branch has the weights of both its sides.
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        flags._is_compiling_flag, flags._is_exporting_flag = before


def walked(
    drafts: Drafts, recording: Recording, sources: Sequence[str], forms: Forms, prefix: str = "",
    images: Collection[str] = (),
) -> NetworkWalk:  # fmt: skip
    """Append every call that takes ``sources``; ``forms`` notes the element types it computes in.

    ``images`` among the sources have their channels last in the recording, and first in the drafts.
    """
    walk = NetworkWalk(drafts, recording.batch, forms, prefix)
    sources_by_node = dict(zip(recording.inputs, sources, strict=True))
    for node in recording.graph.nodes:
        if node in sources_by_node:
            walk.place(node, sources_by_node[node], last=sources_by_node[node] in images)
        elif node in recording.parameters:
            walk.place_parameter(node, recording.parameters[node])
        elif node.op in ("placeholder", "get_attr"):
            walk.place(node, None)
        elif node.op == "call_function":
            walk.call(node)
    walk.keep_idle_weights()
    return walk


def require_products_of_one_kind(recording: Recording, called: str) -> None:
    """Raise ``GraphError`` for a product of whole numbers with floats, which tracing lets pass and running refuses."""
    for node in recording.graph.nodes:
        if plain_name(node) not in PRODUCTS:
            continue
        types = [dtype_of(value) for value in node.all_input_nodes]
        if len({dtype.is_floating_point or dtype.is_complex for dtype in types}) > 1:
            kinds = " and ".join(dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in types))
            raise GraphError(
                f"{called} multiplies {kinds} in {plain_name(node)}, which torch does not: say another element type of "
                "its input, as --input-dtype float32"
            )


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Return zeros whose memory nobody has touched: tracing reads shapes only, and a large batch costs nothing."""
    if device is not None and device.type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    nothing = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(nothing).view(dtype).reshape(tuple(shape))
