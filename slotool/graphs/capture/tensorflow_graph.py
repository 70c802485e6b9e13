"""What a Keras layer computes in TensorFlow, as a torch module that computes the same: what no symbol of Keras follows.

A ``call`` may do what Keras' symbols cannot: call TensorFlow, add a number to its weights, give back what depends on no
input, fold windows into the batch. TensorFlow traces all of that. Its operations are run one by one as calls of torch
(``tensorflow_operations.py``), which torch.export traces in turn, so that such a layer is captured as torch's are. Of
loops and branches whose course no input decides, the steps that are taken are run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slotool.errors import GraphError
from slotool.graphs.capture.tensorflow_control import CONTROL
from slotool.graphs.capture.tensorflow_operations import OPERATIONS

# What becomes a graph of its own when it is called.
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# What is known of shapes alone.
SIZES: dict[str, Callable[[tuple[int, ...]], Any]] = {"Shape": list, "ShapeN": list, "Size": math.prod, "Rank": len}
PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D", "Conv3D")
# Without a value that anything takes.
_SILENT = ("NoOp", "Assert", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


class TensorFlowModule(nn.Module):
    """What ``call`` makes of TensorFlow's tensors, on tensors of torch of these ``types``; the batch is their first
    axis. ``weights``, Keras variables, are its parameters, of which shapes alone matter."""

    def __init__(self, call: Callable[..., Any], types: Sequence[Any], weights: Sequence[Any]):
        super().__init__()
        from slotool.graphs.capture.torch_program import lazy_zeros

        self._call, self._types = call, list(types)
        # What was run so far costs, to compare branches by.
        self.cost = 0
        self.batch = 0
        self._names: dict[str, str] = {}
        for at, weight in enumerate(weights):
            if not str(weight.dtype).startswith(("float", "bfloat")):
                continue
            made = lazy_zeros(tuple(weight.shape), getattr(torch, str(weight.dtype)))
            self.register_parameter(f"weight_{at}", nn.Parameter(made, requires_grad=False))
            # A variable of Keras holds one of TensorFlow's.
            holder = weight.value if hasattr(weight.value, "handle") else weight
            self._names[_key(holder.handle)] = f"weight_{at}"

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        self.batch = len(tensors[0])
        graph = self._traced([tuple(each.shape) for each in tensors])
        run = GraphRun(self, graph)
        inputs = [each for each in graph.inputs if each.dtype != _resource() and not _is_captured(graph, each)]
        results = run(dict(zip(map(_name, inputs), tensors, strict=True)), graph.outputs)
        return tuple(each if isinstance(each, Tensor) else torch.from_numpy(np.array(each)) for each in results)

    def _traced(self, shapes: Sequence[tuple[int, ...]]) -> Any:
        import tensorflow as tf

        specs = [tf.TensorSpec(shape, kind) for shape, kind in zip(shapes, self._types, strict=True)]
        return tf.function(self._call, autograph=False).get_concrete_function(*specs).graph

    def weight(self, handle: Any) -> Tensor | None:
        """The parameter behind a variable; None where it is none of this module's, or no weight."""
        name = self._names.get(_key(handle))
        return None if name is None else self.get_parameter(name)


class GraphRun:
    """One run through a graph of TensorFlow's, its operations as calls of torch.

    ``handles``: variables and tables that it takes, by their names in it.
    """

    def __init__(self, module: TensorFlowModule, graph: Any, handles: dict[str, Any] | None = None):
        self.module, self.graph = module, graph
        self._values: dict[str, Any] = {}
        self._handles = dict(handles or {})
        for outer, inner in getattr(graph, "captures", []):
            self._capture(outer, _name(inner))

    def _capture(self, outer: Any, name: str) -> None:
        if outer.dtype == _resource():
            self._handles[name] = outer
        elif hasattr(outer, "numpy"):
            self._values[name] = outer.numpy()

    def __call__(self, given: dict[str, Any], results: Sequence[Any]) -> list[Any]:
        """The values of ``results``, TensorFlow's tensors of this graph."""
        self._values |= given
        for op in _needed(results, self._values, self._handles):
            self._run(op)
        return [self.value(each) for each in results]

    def value(self, tensor: Any) -> Any:
        """Of a tensor of the graph; of a variable what it is read from."""
        name = _name(tensor)
        return self._values[name] if name in self._values else self._handles[name]

    def _run(self, op: Any) -> None:
        if op.type in _SILENT:
            return
        inputs = [self.value(each) for each in op.inputs]
        made = self._made(op, inputs)
        for output, value in zip(op.outputs, made, strict=True):
            if output.dtype == _resource():
                self._handles[_name(output)] = value
            else:
                self._values[_name(output)] = value

    def _made(self, op: Any, inputs: list[Any]) -> Sequence[Any]:
        if op.type in CALLS:
            return self.inner(op.get_attr("f").name, inputs)
        if op.type in CONTROL:
            return CONTROL[op.type](self, op, inputs)
        if any(isinstance(each, list) for each in inputs):
            # A list of tensors, which no more than passes.
            return [inputs[0]]
        known = self._known(op, inputs)
        return known if known is not None else self._computed(op, inputs)

    def _known(self, op: Any, inputs: list[Any]) -> Sequence[Any] | None:
        """What does not depend on the values of the input; None for anything else."""
        import tensorflow as tf

        if op.type == "Const":
            return [tf.make_ndarray(op.get_attr("value"))]
        if op.type == "ReadVariableOp":
            return [self._read(inputs[0])]
        if op.type in SIZES:
            kind = op.outputs[0].dtype.as_numpy_dtype
            return [np.array(SIZES[op.type](tuple(map(int, each.shape))), dtype=kind) for each in inputs]
        return None if any(isinstance(each, Tensor) for each in inputs) or _has_handles(op) else _folded(op, inputs)

    def _computed(self, op: Any, inputs: list[Any]) -> Sequence[Any]:
        if op.type == "ResourceGather":
            inputs = [self._read(inputs[0]), inputs[1]]
        known = OPERATIONS.get(op.type)
        if known is None:
            raise GraphError(f"TensorFlow's {op.type} is not known")
        found = known(op, *inputs)
        self.module.cost += _cost(op, inputs, found)
        return found if isinstance(found, tuple | list) else [found]

    def inner(self, name: str, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a function that the graph calls."""
        function = self.graph._get_function(name) or self._outermost()._get_function(name)
        graph = function.graph if hasattr(function, "graph") else _graph_of(function)
        run = GraphRun(self.module, graph, {})
        given: dict[str, Any] = {}
        for tensor, value in zip(graph.inputs, inputs, strict=True):
            (run._handles if tensor.dtype == _resource() else given)[_name(tensor)] = value
        return run(given, graph.outputs)

    def _outermost(self) -> Any:
        graph = self.graph
        while getattr(graph, "outer_graph", None) is not None and hasattr(graph.outer_graph, "outer_graph"):
            graph = graph.outer_graph
        return graph

    def _read(self, handle: Any) -> Any:
        found = self.module.weight(handle)
        if found is not None:
            return found
        import tensorflow as tf

        data = tf.raw_ops.ReadVariableOp(resource=handle, dtype=_variable_dtype(handle))
        return data.numpy()


def _cost(op: Any, inputs: Sequence[Any], found: Any) -> int:
    """By which branches are compared: of a product the multiplications, of anything else the values it makes."""
    made = found[0] if isinstance(found, tuple | list) else found
    inner = inputs[0].shape[-1] if op.type in PRODUCTS and len(inputs[0].shape) else 1
    return int(made.numel()) * int(inner)


def _graph_of(function: Any) -> Any:
    from tensorflow.python.framework import function_def_to_graph

    return function_def_to_graph.function_def_to_graph(getattr(function, "cached_definition", function))


def _variable_dtype(handle: Any) -> Any:
    data = handle._handle_data.shape_and_type[0]
    return data.dtype


def _name(tensor: Any) -> str:
    return str(tensor.name)


def _key(handle: Any) -> str:
    """What one variable's handles have in common."""
    return str(id(handle))


def _resource() -> Any:
    import tensorflow as tf

    return tf.resource


def _is_captured(graph: Any, tensor: Any) -> bool:
    return any(inner is tensor for _, inner in graph.captures)


def _has_handles(op: Any) -> bool:
    return any(each.dtype == _resource() for each in (*op.inputs, *op.outputs))


def _needed(results: Sequence[Any], values: dict[str, Any], handles: dict[str, Any]) -> Iterator[Any]:
    """The operations behind ``results``, each after those that it takes from."""
    done: set[str] = set()
    stack = [(each.op, False) for each in reversed(list(results))]
    while stack:
        op, ready = stack.pop()
        if op.name in done:
            continue
        if ready:
            done.add(op.name)
            yield op
            continue
        if all(_name(each) in values or _name(each) in handles for each in op.outputs) and op.outputs:
            done.add(op.name)
            continue
        stack.append((op, True))
        stack += [(each.op, False) for each in reversed(list(op.inputs))]


def _folded(op: Any, inputs: Sequence[Any]) -> list[Any]:
    """What an operation of known numbers gives."""
    import tensorflow as tf
    from tensorflow.python.eager import context, execute

    attributes: list[Any] = []
    for name in op.node_def.attr:
        if not name.startswith("_"):
            value = op.get_attr(name)
            attributes += [name, value.as_datatype_enum if isinstance(value, tf.DType) else value]
    with tf.device("CPU:0"):
        found = execute.execute(
            op.type.encode(), len(op.outputs),
            inputs=[tf.constant(value, dtype=each.dtype) for value, each in zip(inputs, op.inputs, strict=True)],
            attrs=tuple(_plain(each) for each in attributes), ctx=_initialised(context),
        )  # fmt: skip
    return [each.numpy() for each in found]


def _initialised(context: Any) -> Any:
    found = context.context()
    found.ensure_initialized()
    return found


def _plain(value: Any) -> Any:
    import tensorflow as tf

    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.as_datatype_enum if isinstance(value, tf.DType) else value
