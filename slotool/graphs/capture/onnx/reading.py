"""An ONNX model as plain nodes, constants and shapes: what of its protobuf a capture needs."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotool.errors import GraphError
from slotool.extras import import_failed
from slotool.graphs.capture.onnx.control import without_control_flow
from slotool.graphs.capture.onnx.folding import (
    MAX_VALUES,
    OWN_DOMAINS,
    empty_values,
    known_shapes,
    opset_of,
    with_shapes,
)
from slotool.graphs.capture.onnx.fused import without_fusions
from slotool.graphs.capture.onnx.quantised import in_floats, is_quantised
from slotool.graphs.graph import FLOAT32
from slotool.graphs.libraries import onnx
from slotool.graphs.operators import DTYPES, Shape
from slotool.regular_files import read_bytes, require_regular

# Protocol buffers hold no more.
MAX_MODEL_BYTES = 2**31

InputShape = Sequence[int] | Mapping[str, Sequence[int]]

QUANTISED = ("MatMulNBits",)
FLOATING = {"FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "DOUBLE": "float64"}


@dataclass(frozen=True)
class Constant:
    """Value independent of the network's input: its shape, its weights, and its numbers if few and known."""

    shape: Shape
    weights: int = 0
    values: tuple[float, ...] | None = None

    @property
    def single(self) -> bool:
        """True if it is one number, whatever its rank."""
        return math.prod(self.shape) == 1


@dataclass(frozen=True)
class Node:
    """Call of an operator. A missing optional input is ``""``; operators of other domains carry theirs."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Reading:
    """Model as read from ONNX.

    ``inputs`` are those that are no weights, ``dtypes`` their types, ``axes`` the axis of the examples in each, or
    None. ``shapes`` of values include the batch of ``batch`` examples; ``empty`` names values without elements.
    ``element_type`` is the type of its computation, as in ``OperatorGraph``. ``idle_weights``: number of weights in
    branches that are not among the nodes.
    """

    name: str
    opset: int
    inputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    axes: tuple[int | None, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: dict[str, Constant]
    shapes: dict[str, Shape]
    empty: frozenset[str]
    batch: int
    element_type: str
    idle_weights: int = 0


def read_model(source: str | Path | onnx.ModelProto, input_shape: InputShape = ()) -> Reading:
    """Read a file or a model that is loaded already; weights that lie in files next to it are not opened.

    ``input_shape``: sizes of one example for free axes, of one input, or by the inputs' names; 0 for one that is empty,
    as a cache before the first token. Raises ``GraphError`` for a file that is missing, torn or no ONNX model, for a
    model without inputs, with free axes other than the batch of which no size is said, or with other sizes than those
    said; ``MissingPackageError`` when the package onnx is not installed.
    """
    _require_onnx()
    is_file = isinstance(source, str | Path)
    model = _loaded(Path(source)) if isinstance(source, str | Path) else source
    name = str(source) if is_file else model.graph.name or "the model"
    light = _without_weights(model)
    axes = _batch_axes(light.graph, name)
    empty = _set_sizes(light.graph, name, input_shape, axes)
    batch = _fix_batch(light.graph, name, axes, empty)
    try:
        if light.functions:
            light = onnx.inliner.inline_local_functions(light)
        light, idle_weights = without_control_flow(light, name)
        element_type = _element_type(light.graph)
        in_floats(light)
        without_fusions(light.graph, name)
        light = with_shapes(light, empty)
    except GraphError:
        raise
    except Exception as error:
        # onnx raises several kinds for a model that contradicts itself; none is ours.
        raise GraphError(f"{name}: onnx cannot infer its shapes ({_words(error)})") from error
    graph = light.graph
    inputs = [value for value in _inputs(graph) if value.name not in empty]
    return Reading(
        name=name,
        opset=opset_of(light),
        inputs=tuple(value.name for value in inputs),
        dtypes=tuple(_dtype(value) for value in inputs),
        axes=tuple(axes[value.name] for value in inputs),
        outputs=tuple(value.name for value in graph.output),
        nodes=tuple(_node(position, node) for position, node in enumerate(graph.node)),
        constants=dict(_initialisers(graph, name)),
        shapes=dict(known_shapes(graph)),
        empty=empty_values(graph, empty),
        batch=batch,
        element_type=element_type,
        idle_weights=idle_weights,
    )


def constant_of(node: Node, name: str) -> Constant | None:
    """Return the value of a ``Constant`` node, in any of its attributes; None for no tensor of numbers."""
    value: Any = next(iter(node.attributes.values()), None)
    if hasattr(value, "data_type"):
        return _constant(value, name)
    if isinstance(value, int | float):
        return Constant((), 0, (value,))
    if isinstance(value, list) and len(value) <= MAX_VALUES:
        return Constant((len(value),), 0, tuple(value))
    return None


def _require_onnx() -> None:
    try:
        import onnx.inliner  # noqa: F401
    except ImportError as error:
        raise import_failed(error, "onnx", "an ONNX model") from error


def _loaded(path: Path) -> onnx.ModelProto:
    from google.protobuf.message import DecodeError

    require_regular(path, GraphError)
    try:
        model = onnx.load_model_from_string(read_bytes(path, MAX_MODEL_BYTES))
    except OSError as error:
        raise GraphError(f"{path}: cannot be read ({error.strerror})") from error
    except DecodeError as error:
        raise GraphError(f"{path}: not an ONNX model, or a torn one") from error
    # Many foreign files decode to an empty message.
    if not model.graph.node or not model.opset_import:
        raise GraphError(f"{path}: not an ONNX model, or one without operators")
    return model


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose large initialisers have no values: inference copies its model several times."""
    light = onnx.ModelProto()
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    for part in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, part).extend(getattr(model.graph, part))
    light.graph.name = model.graph.name
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= MAX_VALUES:
            light.graph.initializer.append(tensor)
        else:
            light.graph.initializer.add(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
    return light


def _inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Old files list weights among the inputs, too."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def _batch_axes(graph: onnx.GraphProto, name: str) -> dict[str, int | None]:
    """Return the batch axis of each input; None for an input without one, such as a sampling rate.

    That is the first axis, unless its size or name is not the batch's and those of a later axis are, as in states of
    recurrent layers. A model whose inputs have at most one axis computes one example.
    """
    inputs = {value.name: _axes(value, name) for value in _inputs(graph)}
    if not inputs:
        raise GraphError(f"{name}: the model has no inputs, so it computes nothing from data")
    rows = [axes for axes in inputs.values() if len(axes) > 1]
    if not rows:
        return dict.fromkeys(inputs)
    free = [axes[0].dim_param for axes in rows if _is_free(axes[0])]
    inner = {key: [at for at, axis in enumerate(axes) if at and free and _is_free(axis) and axis.dim_param == free[0]]
             for key, axes in inputs.items()}  # fmt: skip
    sizes = {axes[0].dim_value for key, axes in inputs.items() if axes in rows and not inner[key]} - {0}
    batch = rows[0][0].dim_value if not free else max(sizes) if len(sizes) == 1 else 1

    def place(key: str, axes: Sequence[Any]) -> int | None:
        first = axes[0] if axes else None
        if first is not None and _is_free(first) and not (inner[key] and free[0] and first.dim_param != free[0]):
            return 0
        if inner[key] or first is None:
            return next(iter(inner[key]), None)
        if first.dim_value == batch:
            return 0
        return 1 if len(axes) > 2 and axes[1].dim_value == batch else None

    return {key: place(key, axes) for key, axes in inputs.items()}


def _fix_batch(graph: onnx.GraphProto, name: str, places: Mapping[str, int | None], empty: Container[str]) -> int:
    """Return the number of examples; a free axis of them becomes one, so that every shape can be inferred."""
    inputs = {value.name: _axes(value, name) for value in _inputs(graph)}
    stated = {key: [axis.dim_param or axis.dim_value or "?" for axis in axes] for key, axes in inputs.items()}
    holding = [axes[at] for key, axes in inputs.items() if (at := places[key]) is not None]
    batch = max((axis.dim_value for axis in holding), default=0) or 1
    for axis in holding:
        axis.dim_value = batch
    missing = {key: axes for key, axes in inputs.items() if key not in empty and any(map(_is_free, axes))}
    if missing:
        free = " and ".join(
            f"{key!r} has a free axis in its shape [{', '.join(map(str, stated[key]))}]" for key in missing
        )
        expected = {key: _of_example(axes, places[key]) for key, axes in missing.items()}
        sizes = {key: ",".join(str(max(axis.dim_value, 0) or 32) for axis in axes) for key, axes in expected.items()}
        example = (
            next(iter(sizes.values()))
            if len(inputs) == 1
            else f"'{';'.join(f'{key}={text}' for key, text in sizes.items())}'"
        )
        raise GraphError(
            f"{name}: its input {free}; say the sizes of one example by --input-shape, as {example}, or export it with "
            "fixed ones"
        )
    return int(batch)


def _is_free(axis: Any) -> bool:
    return bool(axis.dim_value < 1)


def _of_example(axes: Sequence[Any], place: int | None) -> list[Any]:
    return [axis for at, axis in enumerate(axes) if at != place]


def _set_sizes(
    graph: onnx.GraphProto, name: str, shapes_in: InputShape, places: Mapping[str, int | None]
) -> frozenset[str]:
    """Set the sizes of the inputs' axes except the batch's; return the names of inputs without elements.

    Fixed axes must have these sizes already.
    """
    inputs = {value.name: _axes(value, name) for value in _inputs(graph)}
    if shapes_in and not isinstance(shapes_in, Mapping):
        if len(inputs) != 1:
            raise GraphError(
                f"{name}: it takes {len(inputs)} inputs ({', '.join(inputs)}): say the shape of each by its name"
            )
        shapes_in = {next(iter(inputs)): shapes_in}
    shapes: Mapping[str, Sequence[int]] = shapes_in or {}  # type: ignore[assignment]
    for label, sizes in shapes.items():
        if label not in inputs:
            raise GraphError(f"{name}: it takes no input {label!r}, but {', '.join(inputs)}")
        axes = _of_example(inputs[label], places[label])
        fits = len(axes) == len(sizes)
        if not fits or any(axis.dim_value not in (0, size) for axis, size in zip(axes, sizes, strict=True)):
            stated = ", ".join(str(axis.dim_value or axis.dim_param or "?") for axis in axes)
            raise GraphError(f"{name}: one example of its input {label!r} is [{stated}], not {list(sizes)}")
        for axis, size in zip(axes, sizes, strict=True):
            axis.dim_value = size
    return frozenset(label for label, sizes in shapes.items() if 0 in sizes)


def _axes(value: onnx.ValueInfoProto, name: str) -> Sequence[Any]:
    """Return the axes of an input. Raises ``GraphError`` for one that states none."""
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        raise GraphError(
            f"{name}: its input {value.name!r} is no tensor of a stated number of axes; export it with its axes, whose "
            "sizes may be free"
        )
    return value.type.tensor_type.shape.dim


def _dtype(value: onnx.ValueInfoProto) -> str:
    kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    name = {"float": "float32", "double": "float64"}.get(kind, kind)
    return name if name in DTYPES else FLOAT32


def _element_type(graph: onnx.GraphProto) -> str:
    """Return the type of weights of more than one number, or int8 if nodes quantise or compute on integers."""
    if any(is_quantised(node) or node.op_type.startswith(QUANTISED) for node in graph.node):
        return "int8"
    weights = [tensor for tensor in graph.initializer if math.prod(tensor.dims) > 1]
    weights += [
        entry.t for node in graph.node if node.op_type == "Constant" for entry in node.attribute if entry.t.dims
    ]
    names = {kind: name for name, kind in onnx.TensorProto.DataType.items()}
    types = {FLOATING.get(names.get(tensor.data_type, "")) for tensor in weights}
    return "+".join(sorted(name for name in types if name)) or FLOAT32


def _initialisers(graph: onnx.GraphProto, name: str) -> Iterator[tuple[str, Constant]]:
    for tensor in graph.initializer:
        yield tensor.name, _constant(tensor, name)
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, Constant(tuple(sparse.dims), math.prod(sparse.values.dims))


def _node(position: int, node: onnx.NodeProto) -> Node:
    is_own = node.domain in OWN_DOMAINS
    op = node.op_type if is_own else f"{node.domain}.{node.op_type}"
    attributes = {entry.name: _plain(onnx.helper.get_attribute_value(entry)) for entry in node.attribute}
    name = node.name or f"{node.op_type.lower()}_{position}"
    return Node(name, op, tuple(node.input), tuple(filter(None, node.output)), attributes)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return list(value) if not isinstance(value, str) and hasattr(value, "__iter__") else value


def _constant(tensor: onnx.TensorProto, name: str) -> Constant:
    """Return a constant; integers of 32 or 64 bits are settings (sizes, axes, indices), all others weights."""
    shape = tuple(tensor.dims)
    kinds = onnx.TensorProto
    count = math.prod(shape)
    weights = 0 if tensor.data_type in (kinds.INT64, kinds.INT32, kinds.BOOL, kinds.STRING) else count
    if count > MAX_VALUES or tensor.data_type == kinds.STRING or tensor.data_location == kinds.EXTERNAL:
        return Constant(shape, weights)
    try:
        values = onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()
    except (ValueError, TypeError) as error:
        raise GraphError(f"{name}: its constant {tensor.name!r} is torn ({_words(error)})") from error
    return Constant(shape, weights, tuple(values))


def _words(error: Exception) -> str:
    return " ".join((str(error).strip() or type(error).__name__).split())[:200]
