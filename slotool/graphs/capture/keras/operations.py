"""``keras.ops`` within a model's own ``call``, step by step as operators of ours.

A function below gets a ``Call``, with shapes and axes as Keras has them (channels last) but without the batch, and
returns its steps, or None where they are none of our operators; one along the batch raises ``GraphError``. A new
operation is an entry of ``OPERATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.capture.drafts import OUTPUT, Operation, Step, Steps, contraction, in_a_row
from slotool.graphs.operators import OPERATORS, Shape, sides
from slotool.graphs.operators.base import captured_as
from slotool.graphs.operators.elementwise import ACTIVATIONS, FUNCTIONS
from slotool.graphs.operators.moving import PAD_MODES


@dataclass(frozen=True)
class Call:
    """Call of an operation.

    ``inputs``: shapes of its arrays, of which some are ``fixed``, equal for every example; its ``outputs``;
    ``operation`` with its settings, and all ``arguments`` in their order.
    """

    operation: Any
    inputs: tuple[Shape, ...]
    fixed: tuple[bool, ...]
    outputs: tuple[Shape, ...]
    arguments: tuple[Any, ...]

    @property
    def shape(self) -> Shape:
        return self.outputs[0]

    def axis(self, axis: int, rank: int | None = None) -> int:
        """Return an axis that Keras counts with the batch. Raises ``GraphError`` for that of the batch."""
        rank = len(self.inputs[0]) if rank is None else rank
        if axis % (rank + 1) == 0:
            raise GraphError("works along the batch")
        return axis % (rank + 1) - 1

    def axes(self, stated: Any = None) -> tuple[int, ...]:
        """Return the ``stated`` axes, by default the operation's ``axis``, as ``axis`` does; none are all."""
        axis = self.operation.axis if stated is None else stated
        return tuple(self.axis(each) for each in ((axis,) if isinstance(axis, int) else axis or (0,)))


def is_operation(operation: Any) -> bool:
    """True if it is one of ``keras.ops``, not a layer."""
    return type(operation).__module__.startswith(("keras.src.ops.", "keras.src.activations."))


def one(op: str, **attributes: Any) -> list[Step]:
    """Return a call that is one operator of its first input."""
    return [(OUTPUT, op, attributes, (0,))]


def of_all(call: Call, op: str, **attributes: Any) -> list[Step]:
    """Return a call that is one operator of all its inputs."""
    return [(OUTPUT, op, attributes, tuple(range(len(call.inputs))))]


def _patches(call: Call) -> Steps:
    """Return patches of an image, each as one row of features: adjacent ones as a view, else windows, each written."""
    operation = call.operation
    if len(call.inputs[0]) != 3 or operation.data_format != "channels_last" or len(call.shape) != 3:
        return None
    (height, width), stride = sides(operation.size, 2), sides(operation.strides or operation.size, 2)
    (rows, columns, _), channels = call.shape, call.inputs[0][2]
    if stride == (height, width) and (rows * height, columns * width) == call.inputs[0][:2]:
        return in_a_row(
            ("Reshape", {"shape": (rows, height, columns, width, channels)}),
            ("Transpose", {"axes": (0, 2, 1, 3, 4)}),
            ("Reshape", {"shape": call.shape}),
        )
    window = {"kernel": (height, width), "stride": stride, "padding": operation.padding}
    return in_a_row(
        ("Transpose", {"axes": (2, 0, 1)}),
        ("Unfold", {**window, "dilation": operation.dilation_rate}),
        ("Reshape", {"shape": (channels, height * width, rows * columns)}),
        ("Transpose", {"axes": (2, 1, 0)}),
        ("Reshape", {"shape": call.shape}),
    )


def _blocks(call: Call) -> Steps:
    """Return the channels as blocks of pixels (``depth_to_space``), or the other way."""
    size, apart = call.operation.block_size, type(call.operation).__name__ == "DepthToSpace"
    if call.operation.data_format != "channels_last":
        return None
    height, width, channels = call.inputs[0] if apart else call.shape
    depth = channels // size**2
    parted = (height, width, size, size, depth) if apart else (height, size, width, size, depth)
    turned = ("Transpose", {"axes": (0, 2, 1, 3, 4)})
    return in_a_row(("Reshape", {"shape": parted}), turned, ("Reshape", {"shape": call.shape}))


def product(call: Call) -> Steps:
    """Return ``matmul``; by a fixed matrix it is a dense layer without a bias."""
    if len(call.inputs) != 2:
        return None
    first, second = call.inputs
    if len(second) == 2 and call.fixed[1]:
        return one("Dense", units=second[1], bias=False)
    if len(second) == 1 and call.fixed[1] and call.shape:
        return in_a_row(("Dense", {"units": 1, "bias": False}), ("Reshape", {"shape": call.shape}))
    return of_all(call, "MatMul") if min(len(first), len(second)) > 1 else None


def dot(call: Call) -> Steps:
    """Return a product of the last axis with the first of a fixed matrix."""
    axes = getattr(call.operation, "axes", 1)
    rank = len(call.inputs[0])
    by_last = axes == 1 or [list(_listed(each)) for each in _listed(axes)] in ([[rank], [0]], [[-1], [0]])
    fixed = len(call.inputs) == 2 and call.fixed[1] and len(call.inputs[1]) <= 2
    return product(call) if fixed and by_last else None


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def attention(call: Call) -> Steps:
    """Return ``dot_product_attention`` of (steps, heads, features), without a mask of its own."""
    if len(call.inputs) != 3 or any(len(each) != 3 for each in call.inputs):
        return None
    turned: list[Step] = [(f"part{at}", "Transpose", {"axes": (1, 0, 2)}, (at,)) for at in range(3)]
    causal: dict[str, Any] = {"causal": True} if call.operation.is_causal else {}
    return [
        *turned,
        ("attention", "ScaledDotProductAttention", causal, ("part0", "part1", "part2")),
        (OUTPUT, "Transpose", {"axes": (1, 0, 2)}, ("attention",)),
    ]


def operation_steps(call: Call) -> Steps:
    """Return a call as steps; its outputs are the steps whose names begin with ``OUTPUT``, in order."""
    if not call.inputs or all(call.fixed):
        return None
    name = type(call.operation).__name__
    if (convert := OPERATIONS.get(name)) is not None:
        return convert(call)
    steps = captured_as("keras", name, call)
    return None if steps is None else one(steps[0], **steps[1])


def _function(name: str) -> Callable[[Call], Steps]:
    return lambda call: of_all(call, "Elementwise", function=name)


def _activation(name: str) -> Callable[[Call], Steps]:
    return lambda _: one("Activation", activation=name)


def _combined(op: str, **attributes: str) -> Callable[[Call], Steps]:
    """Return the translator of sums and products; with a number, of one array."""
    return lambda call: one("Rescaling") if len(call.inputs) == 1 else of_all(call, op, **attributes)


def _reduced(op: str) -> Callable[[Call], Steps]:
    return lambda call: one(op, axes=call.axes(), keepdims=bool(call.operation.keepdims))


def _deviation(call: Call) -> Steps:
    spread = {"axes": call.axes(), "keepdims": bool(call.operation.keepdims)}
    return in_a_row(("Variance", spread), ("Elementwise", {"function": "sqrt"}))


def _norm_of(op: str) -> Callable[[Call], Steps]:
    """Return a norm along axes; its trained scale and centre are inputs, which are applied by themselves."""

    def steps(call: Call) -> Steps:
        plain = {"scale": False, "axes": call.axes(), **({} if op == "RMSNormalization" else {"center": False})}
        using = ("Multiply", "Add")[: len(call.inputs) - 1]
        names = [*(f"part{at}" for at in range(len(using))), OUTPUT]
        numbers: list[Step] = [(names[0], op, plain, (0,))]
        return numbers + [(names[at + 1], each, {}, (names[at], at + 1)) for at, each in enumerate(using)]

    return steps


def _normalised(call: Call) -> Steps:
    if call.operation.order != 2:
        return None
    norm: Step = ("norm", "Norm", {"axes": call.axes(), "keepdims": True}, (0,))
    return [norm, (OUTPUT, "Elementwise", {"function": "divide"}, (0, "norm"))]


def _transposed(call: Call) -> Steps:
    """Whichever operation says the order."""
    operation, rank = call.operation, len(call.inputs[0]) + 1
    order = list(range(rank))
    if type(operation).__name__ == "Transpose":
        order = [each % rank for each in operation.axes or reversed(order)]
    elif type(operation).__name__ == "Swapaxes":
        first, second = operation.axis1 % rank, operation.axis2 % rank
        order[first], order[second] = second, first
    else:
        moved = {to % rank: from_ % rank for to, from_ in zip(operation.destination, operation.source, strict=True)}
        rest = iter(each for each in order if each not in moved.values())
        order = [moved[at] if at in moved else next(rest) for at in range(rank)]
    return None if order[0] else one("Transpose", axes=tuple(each - 1 for each in order[1:]))


def _joined(op: str) -> Callable[[Call], Steps]:
    return lambda call: of_all(call, op, axis=call.axis(call.operation.axis, len(call.shape)))


def _parted(call: Call) -> Steps:
    """Return ``split``, whose parts keep the axis, or ``unstack``, which takes it away."""
    axis, start, steps = call.axis(call.operation.axis), 0, list[Step]()
    keepdims = type(call.operation).__name__ == "Split"
    for at, shape in enumerate(call.outputs):
        size = shape[axis] if keepdims else 1
        part = {"axis": axis, "start": start, "size": size, "keepdims": keepdims}
        steps.append((f"{OUTPUT}{at}", "Slice", part, (0,)))
        start += size
    return steps


def _indexed(call: Call) -> Steps:
    """Return ``x[:, 0]``, ``x[..., 2:6]``: slices of axis after axis, and new axes of one."""
    key = call.arguments[1] if isinstance(call.arguments[1], tuple) else (call.arguments[1],)
    shape, parts = call.inputs[0], list[Operation]()
    if any(not isinstance(each, slice | int | None | type(...)) for each in key):
        return None
    named = sum(each is not None and each is not ... for each in key)
    open_ = (slice(None),) * (len(shape) + 1 - named)
    at = key.index(...) if ... in key else len(key)
    whole: tuple[Any, ...] = (*key[:at], *open_, *key[at + 1 :])
    first, *rest = whole
    if first != slice(None):
        return None
    axis = 0
    for each in rest:
        if each is None:
            continue
        if isinstance(each, int):
            part = {"axis": axis, "start": each % shape[axis], "size": 1, "keepdims": False}
            shape = (*shape[:axis], *shape[axis + 1 :])
        else:
            start, stop, step = each.indices(shape[axis])
            size = len(range(start, stop, step))
            if step < 1 or not size:
                return None
            part = {"axis": axis, "start": start, "size": size, "step": step}
            shape, before, axis = (*shape[:axis], size, *shape[axis + 1 :]), shape[axis], axis + 1
            if size == before:
                continue
        parts.append(("Slice", part))
    return in_a_row(*parts, ("Reshape", {"shape": call.shape}))


def _take(call: Call) -> Steps:
    """Return the rows of values, or of a fixed table, by their numbers."""
    axis = call.operation.axis
    if axis is None:
        return None
    if len(call.inputs) == 1:
        return _rows_taken(call, call.axis(axis), call.arguments[1])
    if len(call.inputs) != 2 or call.fixed[0] == call.fixed[1]:
        # Indices differ by example, or nothing does.
        return None
    return of_all(call, "Gather", axis=axis % len(call.inputs[0]) if call.fixed[0] else call.axis(axis))


def _rows_taken(call: Call, axis: int, rows: Any) -> Steps:
    if isinstance(rows, int):
        return one("Slice", axis=axis, start=rows % call.inputs[0][axis], size=1, keepdims=False)
    return [("rows", "Constant", {"shape": (len(rows),)}, ()), (OUTPUT, "Gather", {"axis": axis}, (0, "rows"))]


def _taken_along(call: Call) -> Steps:
    (axis,) = call.axes()
    if len(call.inputs) != 2 or call.fixed[0]:
        return None
    if not call.fixed[1]:
        return of_all(call, "GatherElements", axis=axis)
    return [("rows", "Constant", {"shape": call.shape}, ()), (OUTPUT, "GatherElements", {"axis": axis}, (0, "rows"))]


def _log_softmax(call: Call) -> Steps:
    return in_a_row(("Softmax", {"axis": call.axes()[0]}), ("Elementwise", {"function": "log"}))


def _repeated(call: Call) -> Steps:
    shape = call.inputs[0]
    if len(shape) != len(call.shape) or any(b % a for a, b in zip(shape, call.shape, strict=True)):
        return None
    return one("Repeat", repeats=tuple(b // a for a, b in zip(shape, call.shape, strict=True)))


def _padded(call: Call) -> Steps:
    (batch, *around), mode = call.operation.pad_width, call.operation.mode
    if tuple(batch) != (0, 0) or mode not in PAD_MODES:
        return None
    return one("Pad", pads=(*(before for before, _ in around), *(after for _, after in around)), mode=mode)


def _largest(call: Call) -> Steps:
    largest = {"k": call.operation.k, "axis": len(call.inputs[0]) - 1}
    return [(f"{OUTPUT}0", "TopK", largest, (0,)), (f"{OUTPUT}1", "TopK", {**largest, "indices": True}, (0,))]


def _one_hot(call: Call) -> Steps:
    """Return each number's row of the unit matrix, for ``multi_hot`` the maximum of all rows."""
    operation, last = call.operation, len(call.shape) - 1
    if call.axis(operation.axis, len(call.shape)) != last:
        return None
    rows: Step = ("rows", "Constant", {"shape": (operation.num_classes,) * 2}, ())
    if type(operation).__name__ == "OneHot":
        return [rows, (OUTPUT, "Gather", {"axis": 0}, ("rows", 0))]
    return [rows, ("each", "Gather", {"axis": 0}, ("rows", 0)), (OUTPUT, "Max", {"axes": (last,)}, ("each",))]


def _gated(call: Call) -> Steps:
    axis = call.axis(call.operation.axis)
    half = call.shape[axis]
    return [
        ("value", "Slice", {"axis": axis, "size": half}, (0,)),
        ("gate", "Slice", {"axis": axis, "start": half, "size": half}, (0,)),
        ("share", "Activation", {"activation": "sigmoid"}, ("gate",)),
        (OUTPUT, "Multiply", {}, ("value", "share")),
    ]


def _clipped(call: Call) -> Steps:
    """Return ``relu`` with its own slope or limits."""
    operation = call.operation
    first = ("Activation", {"activation": "leaky_relu" if operation.negative_slope else "relu"})
    is_plain = operation.max_value is None and not operation.threshold
    return in_a_row(first) if is_plain else in_a_row(first, ("Elementwise", {"function": "clamp"}))


def _moments(call: Call) -> Steps:
    reduced = {"axes": call.axes(call.operation.axes), "keepdims": bool(call.operation.keepdims)}
    return [(f"{OUTPUT}0", "Mean", reduced, (0,)), (f"{OUTPUT}1", "Variance", reduced, (0,))]


def _batch_norm(call: Call) -> Steps:
    """Return a normalisation by fixed mean and variance, and perhaps centre and scale."""
    if not all(call.fixed[1:]):
        return None
    more = len(call.inputs) - 3
    return one("BatchNormalization", axis=call.axes()[0], center=more > 0, scale=more > 1)


def _class_name(name: str) -> str:
    """Return the class of an operation of ``keras.ops`` by its name: ``LessEqual`` of ``less_equal``."""
    return "".join(part.capitalize() for part in name.split("_"))


# Tables of the operators; then operations of other names.
_FUNCTIONS = {
    **{_class_name(names.keras): function for function, names in FUNCTIONS.items() if names.keras},
    **{f"Arc{name}": f"a{name}" for name in ("cos", "sin", "tan", "tan2")},
    **{"Absolute": "abs", "Fabs": "abs", "Clip": "clamp", "HardTanh": "clamp"},
}
_ACTIVATIONS = {_class_name(name): name for name in (*ACTIVATIONS, "softsign")}
_REDUCTIONS = {
    **{_class_name(getattr(kind, "keras_name", "")): op for op, kind in OPERATORS.items() if hasattr(kind, "reduced")},
    **{"Norm": "Norm", "Logsumexp": "LogSumExp", "Argmax": "ArgMax", "Argmin": "ArgMin", "Amax": "Max", "Amin": "Min"},
}
OPERATIONS: dict[str, Callable[[Call], Steps]] = {
    "ExtractPatches": _patches,
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
    **{name: _function(ours) for name, ours in _FUNCTIONS.items()},
    **{name: _activation(ours) for name, ours in _ACTIVATIONS.items()},
    **{name: _reduced(ours) for name, ours in _REDUCTIONS.items()},
    "Add": _combined("Add"),
    "Multiply": _combined("Multiply"),
    "Subtract": _combined("Elementwise", function="subtract"),
    **dict.fromkeys(("Divide", "TrueDivide"), _combined("Elementwise", function="divide")),
    "Std": _deviation,
    "LogSoftmax": _log_softmax,
    "LayerNorm": _norm_of("LayerNormalization"),
    "RMSNorm": _norm_of("RMSNormalization"),
    "Normalize": _normalised,
    **dict.fromkeys(("Reshape", "ExpandDims", "Squeeze"), lambda call: one("Reshape", shape=call.shape)),
    **dict.fromkeys(("Transpose", "Swapaxes", "Moveaxis"), _transposed),
    "Concatenate": _joined("Concatenate"),
    "Stack": _joined("Stack"),
    **dict.fromkeys(("OneHot", "MultiHot"), _one_hot),
    **dict.fromkeys(("Split", "Unstack"), _parted),
    "GetItem": _indexed,
    "Take": _take,
    "TakeAlongAxis": _taken_along,
    "Glu": _gated,
    "ReLU": _clipped,
    "Moments": _moments,
    "BatchNorm": _batch_norm,
    **dict.fromkeys(("Repeat", "Tile"), _repeated),
    "Pad": _padded,
    "TopK": _largest,
    "Where": lambda call: of_all(call, "Where"),
    "Matmul": product,
    **dict.fromkeys(("Dot", "Tensordot"), dot),
    "Einsum": lambda call: contraction(call.operation.subscripts, call.inputs, call.fixed),
    "DotProductAttention": attention,
}
