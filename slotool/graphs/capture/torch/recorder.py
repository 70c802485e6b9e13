"""Recorder of the ATen calls that a function makes on tensors of shapes alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher, no_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._python_dispatch import TorchDispatchMode

from slotool.graphs.capture.torch.nodes import leaves, signature

# Outputs of calls on the meta device by what they take: networks repeat their layers, and candidates those of others.
MAX_KNOWN = 16_384
_RESULTS: dict[Any, tuple[bool, list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]]] = {}


class _NeedsDevice(Exception):
    """A call whose result the meta device does not show, as under autocast."""


def record(
    function: Callable[..., Sequence[Any]], state: Mapping[str, Tensor], inputs: Sequence[Tensor]
) -> tuple[fx.Graph, Sequence[fx.Node]]:
    """Return the graph of ``function(state, *inputs)`` before autograd and decompositions, and its placeholders.

    The function runs on the meta device; where that refuses, on fake tensors of the inputs' own device, which takes
    three times as long. Raises what it raises there.
    """
    try:
        return _recorded(function, state, inputs, lambda tensor: tensor.to("meta"), nullcontext())
    except Exception:
        # Calls without a kernel for shapes alone, branches by device: a function's own code runs here.
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        return _recorded(function, state, inputs, fake.from_tensor, fake)


def record_parts(function: Callable[..., Tensor], examples: Sequence[Tensor]) -> fx.Graph:
    """Return the graph of what torch itself runs a call as, on examples of the meta device."""
    recorder = Recorder(lambda tensor: tensor.to("meta"), None)
    for at, example in enumerate(examples):
        recorder.place(f"input_{at}", example)
    with torch.no_grad(), recorder:
        result = function(*examples)
    recorder.graph.output(recorder.noted(result))
    return recorder.graph


def _recorded(
    function: Callable[..., Sequence[Any]],
    state: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    shaped: Callable[[Tensor], Tensor],
    mode: Any,
) -> tuple[fx.Graph, Sequence[fx.Node]]:
    recorder = Recorder(shaped)
    arguments = {name: shaped(tensor) for name, tensor in state.items()}
    examples = [shaped(tensor) for tensor in inputs]
    names = [*(name.replace(".", "_") for name in arguments), *(f"input_{at}" for at in range(len(inputs)))]
    places = [
        recorder.place(name, tensor) for name, tensor in zip(names, [*arguments.values(), *examples], strict=True)
    ]
    with mode, enable_python_dispatcher(), recorder:
        results = function(arguments, *examples)
    recorder.finish(results)
    return recorder.graph, places


class Recorder(ProxyTorchDispatchMode):
    """Dispatch mode that appends each call to a graph.

    ``shaped`` turns tensors of numbers into shapes when they meet such; results of numbers alone stay numbers. ``key``
    None: calls after autograd. Before autograd torch allows no mode of any other class, of which nothing else is used.
    """

    def __init__(
        self, shaped: Callable[[Tensor], Tensor], key: torch._C.DispatchKey | None = torch._C.DispatchKey.PreDispatch
    ):
        TorchDispatchMode.__init__(self, key)
        self.pre_dispatch = key is not None
        self.graph, self._root, self._shaped = fx.Graph(), nn.Module(), shaped
        self.graph.owning_module = self._root  # type: ignore[assignment]
        # Look up by identity and by storage, the only link of torch's copies to recorded tensors.
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Any] = []
        self._numbers = count()
        for op in torch._ops._higher_order_ops.values():
            op.python_key_table.setdefault(Recorder, partial(_record_block, op))

    def __enter__(self) -> Recorder:
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self, *error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            # Nodes keep the shape that was, which ``transpose_`` changes.
            for tensor in filter(_is_shaped, leaves(Tensor, (args, kwargs))):
                self._node_of(tensor).meta["val"] = tensor.detach()
        result = _computed(func, *self._of_one_kind(args, kwargs))
        if any(map(_is_shaped, leaves(Tensor, (args, kwargs)))) and not all(map(_is_shaped, leaves(Tensor, result))):
            # Keras moves what is on the meta device to memory, without values.
            raise _NeedsDevice
        if any(isinstance(each, Tensor) for each in (result if isinstance(result, list | tuple) else [result])):
            arguments = self.noted(args), self.noted(kwargs)
            self.append(func, *arguments, result, name=func.overloadpacket.__name__)
        return result

    def place(self, name: str, tensor: Tensor) -> fx.Node:
        return self._note(self.graph.placeholder(name), tensor)

    def append(self, target: Any, args: Any, kwargs: Any, result: Any, name: str) -> None:
        """Append a call with what it made."""
        node = self._note(self.graph.create_node("call_function", target, tuple(args), kwargs, name), result)
        for at, each in enumerate(result if isinstance(result, list | tuple) else ()):
            if isinstance(each, Tensor):
                self._note(self.graph.create_node("call_function", operator.getitem, (node, at)), each)

    def finish(self, results: Sequence[Any]) -> None:
        self.graph.output(tuple(self._node_of(each) if isinstance(each, Tensor) else each for each in results))

    def noted(self, value: Any) -> Any:
        """Return arguments with nodes in the place of tensors."""
        if isinstance(value, list | tuple):
            return [self.noted(each) for each in value]
        if isinstance(value, dict):
            return {name: self.noted(each) for name, each in value.items()}
        if isinstance(value, Tensor):
            return self._node_of(value)
        return self.attribute(value) if isinstance(value, torch.ScriptObject | fx.GraphModule) else value

    def attribute(self, value: Any) -> fx.Node:
        """Return a node for what is no result of a call: a tensor of numbers, packed weights, an inner graph."""
        name = f"_constant_{next(self._numbers)}"
        setattr(self._root, name, value)
        node = self.graph.create_node("get_attr", name)
        if isinstance(value, Tensor):
            self._note(node, value).meta["val"] = value if _is_shaped(value) else self._shaped(value)
        return node

    def inner(self, function: Callable[..., Any], examples: Sequence[Any]) -> tuple[fx.GraphModule, Sequence[Any]]:
        """Return the graph of a function of tensors, and what it makes."""
        recorder = Recorder(self._shaped)
        for at, example in enumerate(examples):
            recorder.place(f"input_{at}", example)
        with recorder:
            outputs = function(*examples)
        results = outputs if isinstance(outputs, list | tuple) else [outputs]
        recorder.finish(results)
        return fx.GraphModule(recorder._root, recorder.graph), results

    def _node_of(self, tensor: Tensor) -> fx.Node:
        node = self._nodes.get(id(tensor)) or (self._nodes.get(_storage(tensor)) if _is_shaped(tensor) else None)
        return self.attribute(tensor) if node is None else node

    def _note(self, node: fx.Node, value: Any) -> fx.Node:
        node.meta["val"] = value
        self._alive.append(value)
        if isinstance(value, Tensor):
            self._nodes[id(value)] = node
            if not node.all_input_nodes and _is_shaped(value):
                self._nodes[_storage(value)] = node
        return node

    def _of_one_kind(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return arguments with every tensor as a shape, where one is."""
        kinds = {_is_shaped(each) for each in leaves(Tensor, (args, kwargs))}
        if len(kinds) < 2:
            return args, kwargs
        shaped: tuple[Any, Any] = torch.utils._pytree.tree_map_only(
            Tensor, lambda tensor: tensor if _is_shaped(tensor) else self._shaped(tensor), (args, kwargs)
        )
        return shaped


def _is_shaped(tensor: Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def _storage(tensor: Tensor) -> Any:
    return tensor.untyped_storage()._cdata, tuple(tensor.shape)


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what a call makes; on the meta device one that was made before is not made again."""
    tensors = [*leaves(Tensor, (args, kwargs))]
    on_meta = bool(tensors) and all(tensor.is_meta for tensor in tensors)
    if on_meta and (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
        raise _NeedsDevice
    key = (func, signature(args), signature(kwargs)) if on_meta and not func._schema.is_mutable else None
    if key in _RESULTS:
        single, outputs = _RESULTS[key]
        results = [torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in outputs]
        return results[0] if single else tuple(results)
    with no_python_dispatcher():
        result = func(*args, **kwargs)
    if on_meta and func.overloadpacket is torch.ops.aten.scaled_dot_product_attention:
        result = _as_on_cpus(result, args)
    results = [result] if isinstance(result, Tensor) else result
    if key is not None and results and all(isinstance(each, Tensor) and each.is_meta for each in results):
        if len(_RESULTS) >= MAX_KNOWN:
            _RESULTS.clear()
        _RESULTS[key] = isinstance(result, Tensor), [(tuple(o.shape), o.stride(), o.dtype) for o in results]
    return result


def _as_on_cpus(attended: Tensor, args: Sequence[Any]) -> Tensor:
    """Return the output of attention in the order of the query's axes, as CPUs make it."""
    query, *others = args[:3]
    if attended.ndim != len("bhld") or any(query.shape[-1] != each.shape[-1] for each in others):
        return attended
    order = sorted(range(attended.ndim), key=query.stride().__getitem__, reverse=True)
    return attended.permute(order).contiguous().permute([order.index(axis) for axis in range(attended.ndim)])


def _record_block(op: Any, recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
    """Append a call of functions, as ``torch.cond`` is, with a graph of each."""
    name = op.__name__
    examples = _EXAMPLES.get(name, _all_tensors)(args)
    inner = {at: recorder.inner(each, examples) for at, each in enumerate(args) if callable(each)}
    # A loop has a condition before its body; branches make the same.
    results = [*inner.values()][-1][1]
    result = tuple(_OUTPUTS[name](args, results) if name in _OUTPUTS else results)
    arguments = [inner[at][0] if at in inner else each for at, each in enumerate(args)]
    recorder.append(op, recorder.noted(arguments), recorder.noted(kwargs), result, name)
    return result


def _all_tensors(args: Sequence[Any]) -> list[Any]:
    return [each for each in args if isinstance(each, Tensor)]


def _first(rows: Sequence[Tensor]) -> list[Tensor]:
    return [each[0] for each in rows]


def _flexible(args: Sequence[Any]) -> list[Any]:
    places = [args[0].new_empty((), dtype=torch.int32) for _ in range(4)]
    return [args[0].new_empty(()), *places]


def _rows(outputs: Sequence[Tensor], count: int) -> list[Tensor]:
    return [each.new_empty((count, *each.shape)) for each in outputs]


# Tensors that the functions of a call take, by its arguments.
_EXAMPLES: dict[str, Callable[[Sequence[Any]], list[Any]]] = {
    "cond": lambda args: list(args[3]),
    "while_loop": lambda args: [*args[2], *args[3]],
    "map_impl": lambda args: [*_first(args[1]), *args[2]],
    "scan": lambda args: [*args[1], *_first(args[2]), *args[3]],
    "associative_scan": lambda args: [*_first(args[1]), *_first(args[1]), *args[2]],
    "flex_attention": _flexible,
}
# Results of a call, by its arguments and its function's results.
_OUTPUTS: dict[str, Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]] = {
    "map_impl": lambda args, results: _rows(results, len(args[1][0])),
    "scan": lambda args, results: [*results[: len(args[1])], *_rows(results[len(args[1]) :], len(args[2][0]))],
    "associative_scan": lambda args, results: _rows(results, len(args[1][0])),
    "flex_attention": lambda args, _: [
        args[0].new_empty((*args[0].shape[:-1], args[2].shape[-1])), *[args[0].new_empty(args[0].shape[:-1])] * 2
    ],
}  # fmt: skip
