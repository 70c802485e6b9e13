"""``keras.ops`` within a model's own ``call``, step by step as operators of ours.

A function below gets a ``Call``, with shapes and axes as Keras has them (channels last) but without the batch, and
returns its steps, or None where they are none of our operators. A new operation is an entry of ``OPERATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slotool.graphs.capture.drafts import OUTPUT, Step, Steps, contraction
from slotool.graphs.operators import OPERATORS, Shape
from slotool.graphs.operators.base import captured_as
from slotool.graphs.operators.elementwise import FUNCTIONS


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

    def axis(self, axis: int, rank: int | None = None) -> int | None:
        """Return an axis that Keras counts with the batch; None for that of the batch."""
        rank = len(self.inputs[0]) if rank is None else rank
        at = axis % (rank + 1) - 1
        return None if at < 0 else at

    def axes(self, axes_given: Any = None) -> tuple[int, ...] | None:
        """Return ``axes_given``, by default the operation's ``axis``; None if the batch is among them."""
        axis = self.operation.axis if axes_given is None else axes_given
        steps = [self.axis(each) for each in ((axis,) if isinstance(axis, int) else axis or (0,))]
        return None if None in steps else tuple(each for each in steps if each is not None)


def is_operation(operation: Any) -> bool:
    """True if it is one of ``keras.ops``, not a layer."""
    return type(operation).__module__.startswith(("keras.src.ops.", "keras.src.activations."))


def one(op: str, **attributes: Any) -> Step:
    """Return a call that is one operator of its first input."""
    return (OUTPUT, op, attributes, (0,))


def _patches(call: Call) -> Steps:
    """Return patches of an image, each as one row of features: adjacent ones as a view, else windows, each written."""
    operation = call.operation
    (height, width), stride = _pair(operation.size), _pair(operation.strides or operation.size)
    if len(call.inputs[0]) != 3 or operation.data_format != "channels_last" or len(call.shape) != 3:
        return None
    (rows, columns, _), channels = call.shape, call.inputs[0][2]
    if stride == (height, width) and (rows * height, columns * width) == call.inputs[0][:2]:
        return [
            ("parted", "Reshape", {"shape": (rows, height, columns, width, channels)}, (0,)),
            ("turned", "Transpose", {"axes": (0, 2, 1, 3, 4)}, ("parted",)),
            (OUTPUT, "Reshape", {"shape": call.shape}, ("turned",)),
        ]
    window = {"kernel": (height, width), "stride": stride, "padding": operation.padding}
    return [
        ("turned", "Transpose", {"axes": (2, 0, 1)}, (0,)),
        ("windows", "Unfold", {**window, "dilation": operation.dilation_rate}, ("turned",)),
        ("parted", "Reshape", {"shape": (channels, height * width, rows * columns)}, ("windows",)),
        ("ordered", "Transpose", {"axes": (2, 1, 0)}, ("parted",)),
        (OUTPUT, "Reshape", {"shape": call.shape}, ("ordered",)),
    ]


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _blocks(call: Call) -> Steps:
    """Return the channels as blocks of pixels (``depth_to_space``), or the other way."""
    size, apart = call.operation.block_size, type(call.operation).__name__ == "DepthToSpace"
    if call.operation.data_format != "channels_last":
        return None
    height, width, channels = call.inputs[0] if apart else call.shape
    depth = channels // size**2
    parted = (height, width, size, size, depth) if apart else (height, size, width, size, depth)
    return [
        ("parted", "Reshape", {"shape": parted}, (0,)),
        ("turned", "Transpose", {"axes": (0, 2, 1, 3, 4)}, ("parted",)),
        (OUTPUT, "Reshape", {"shape": call.shape}, ("turned",)),
    ]


def product(call: Call) -> Steps:
    """Return ``matmul``; by a fixed matrix it is a dense layer without a bias."""
    if len(call.inputs) != 2:
        return None
    first, second = call.inputs
    if len(second) == 2 and call.fixed[1]:
        return [(OUTPUT, "Dense", {"units": second[1], "bias": False}, (0,))]
    if len(second) == 1 and call.fixed[1] and call.shape:
        return [
            ("product", "Dense", {"units": 1, "bias": False}, (0,)),
            (OUTPUT, "Reshape", {"shape": call.shape}, ("product",)),
        ]
    return [(OUTPUT, "MatMul", {}, (0, 1))] if min(len(first), len(second)) > 1 else None


def dot(call: Call) -> Steps:
    """Return a product of the last axis with the first of a fixed matrix."""
    axes = getattr(call.operation, "axes", 1)
    rank = len(call.inputs[0])
    by_last = axes == 1 or [list(_listed(each)) for each in _listed(axes)] in ([[rank], [0]], [[-1], [0]])
    fixed = len(call.inputs) == 2 and call.fixed[1] and len(call.inputs[1]) <= 2
    return product(call) if fixed and by_last else None


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def einsum(call: Call) -> Steps:
    return contraction(call.operation.subscripts, call.inputs, call.fixed)


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
    return None if steps is None else [one(steps[0], **steps[1])]


def _function(name: str) -> Callable[[Call], Steps]:
    return lambda call: [(OUTPUT, "Elementwise", {"function": name}, tuple(range(len(call.inputs))))]


def _activation(name: str) -> Callable[[Call], Steps]:
    return lambda call: [one("ReLU") if name == "relu" else one("Activation", activation=name)]


def _combined(op: str, function: str | None = None) -> Callable[[Call], Steps]:
    """Return the translator of sums and products; with a number, of one array. ``function``: of ``Elementwise``."""

    def steps(call: Call) -> Steps:
        if len(call.inputs) == 1:
            return [one("Rescaling")]
        attributes = {} if function is None else {"function": function}
        return [(OUTPUT, op, attributes, tuple(range(len(call.inputs))))]

    return steps


def _reduced(op: str) -> Callable[[Call], Steps]:
    def steps(call: Call) -> Steps:
        axes = call.axes()
        return None if axes is None else [one(op, axes=axes, keepdims=bool(call.operation.keepdims))]

    return steps


def _deviation(call: Call) -> Steps:
    axes = call.axes()
    if axes is None:
        return None
    spread = ("variance", "Variance", {"axes": axes, "keepdims": bool(call.operation.keepdims)}, (0,))
    return [spread, (OUTPUT, "Elementwise", {"function": "sqrt"}, ("variance",))]


def _along(op: str, **more: Any) -> Callable[[Call], Steps]:
    def steps(call: Call) -> Steps:
        axes = call.axes()
        return None if axes is None else [one(op, axis=axes[0], **more)]

    return steps


def _norm_of(op: str) -> Callable[[Call], Steps]:
    """Return a norm along axes; its trained scale and centre are inputs, which are applied by themselves."""

    def steps(call: Call) -> Steps:
        axes = call.axes()
        if axes is None:
            return None
        plain = {"scale": False, "axes": axes, **({} if op == "RMSNormalization" else {"center": False})}
        using = ("Multiply", "Add")[: len(call.inputs) - 1]
        names = [*(f"part{at}" for at in range(len(using))), OUTPUT]
        numbers: list[Step] = [(names[0], op, plain, (0,))]
        return numbers + [(names[at + 1], each, {}, (names[at], at + 1)) for at, each in enumerate(using)]

    return steps


def _normalised(call: Call) -> Steps:
    axes = call.axes()
    if axes is None or call.operation.order != 2:
        return None
    norm: Step = ("norm", "Norm", {"axes": axes, "keepdims": True}, (0,))
    return [norm, (OUTPUT, "Elementwise", {"function": "divide"}, (0, "norm"))]


def _reshaped(call: Call) -> Steps:
    return [one("Reshape", shape=call.shape)]


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
    return None if order[0] else [one("Transpose", axes=tuple(each - 1 for each in order[1:]))]


def _joined(op: str) -> Callable[[Call], Steps]:
    def steps(call: Call) -> Steps:
        axis = call.axis(call.operation.axis, len(call.shape))
        return None if axis is None else [(OUTPUT, op, {"axis": axis}, tuple(range(len(call.inputs))))]

    return steps


def _parted(call: Call) -> Steps:
    """Return ``split``, whose parts keep the axis, or ``unstack``, which takes it away."""
    axis, start, steps = call.axis(call.operation.axis), 0, list[Step]()
    if axis is None:
        return None
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
    shape, steps = call.inputs[0], list[Step]()
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
        steps.append((f"part{len(steps)}", "Slice", part, (steps[-1][0] if steps else 0,)))
    return [*steps, (OUTPUT, "Reshape", {"shape": call.shape}, (steps[-1][0] if steps else 0,))]


def _take(call: Call) -> Steps:
    """Return the rows of values, or of a fixed table, by their numbers."""
    axis = call.operation.axis
    if len(call.inputs) == 1 and axis is not None:
        return _rows_taken(call, call.axis(axis), call.arguments[1])
    if len(call.inputs) != 2 or axis is None or (call.fixed[0] and call.fixed[1]):
        return None
    if not call.fixed[0] and not call.fixed[1]:
        # Indices differ by example.
        return None
    at = axis % len(call.inputs[0]) if call.fixed[0] else call.axis(axis)
    return None if at is None else [(OUTPUT, "Gather", {"axis": at}, (0, 1))]


def _rows_taken(call: Call, axis: int | None, rows: Any) -> Steps:
    if axis is None:
        return None
    if isinstance(rows, int):
        return [one("Slice", axis=axis, start=rows % call.inputs[0][axis], size=1, keepdims=False)]
    return [("rows", "Constant", {"shape": (len(rows),)}, ()), (OUTPUT, "Gather", {"axis": axis}, (0, "rows"))]


def _taken_along(call: Call) -> Steps:
    axis = None if call.operation.axis is None else call.axis(call.operation.axis)
    if axis is None or len(call.inputs) != 2 or call.fixed[0]:
        return None
    if not call.fixed[1]:
        return [(OUTPUT, "GatherElements", {"axis": axis}, (0, 1))]
    return [("rows", "Constant", {"shape": call.shape}, ()), (OUTPUT, "GatherElements", {"axis": axis}, (0, "rows"))]


def _log_softmax(call: Call) -> Steps:
    axes = call.axes()
    if axes is None:
        return None
    return [("softmax", "Softmax", {"axis": axes[0]}, (0,)), (OUTPUT, "Elementwise", {"function": "log"}, ("softmax",))]


def _repeated(call: Call) -> Steps:
    shape = call.inputs[0]
    if len(shape) != len(call.shape) or any(b % a for a, b in zip(shape, call.shape, strict=True)):
        return None
    return [one("Repeat", repeats=tuple(b // a for a, b in zip(shape, call.shape, strict=True)))]


def _padded(call: Call) -> Steps:
    (batch, *around), mode = call.operation.pad_width, call.operation.mode
    named = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}.get(mode)
    if tuple(batch) != (0, 0) or named is None:
        return None
    pads = (*(before for before, _ in around), *(after for _, after in around))
    return [one("Pad", pads=pads, mode=named)]


def _rolled(call: Call) -> Steps:
    axes, shift = (None if call.operation.axis is None else call.axes()), call.operation.shift
    if axes is None:
        return None
    shifts = (shift,) if isinstance(shift, int) else tuple(shift)
    return [one("Roll", shifts=shifts, axes=axes)]


def _flipped(call: Call) -> Steps:
    axes = None if call.operation.axis is None else call.axes()
    return None if axes is None else [one("Flip", axes=axes)]


def _largest(call: Call) -> Steps:
    axes_given = {"k": call.operation.k, "axis": len(call.inputs[0]) - 1}
    return [
        (f"{OUTPUT}0", "TopK", axes_given, (0,)),
        (f"{OUTPUT}1", "TopK", {**axes_given, "indices": True}, (0,)),
    ]


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
    if axis is None:
        return None
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
    slope, limit = operation.negative_slope, operation.max_value
    first = one("Activation", activation="leaky_relu") if slope else one("ReLU")
    if limit is None and not operation.threshold:
        return [first]
    return [("positive", *first[1:]), (OUTPUT, "Elementwise", {"function": "clamp"}, ("positive",))]


def _moments(call: Call) -> Steps:
    axes = call.axes(call.operation.axes)
    if axes is None:
        return None
    axes_given = {"axes": axes, "keepdims": bool(call.operation.keepdims)}
    return [(f"{OUTPUT}0", "Mean", axes_given, (0,)), (f"{OUTPUT}1", "Variance", axes_given, (0,))]


def _batch_norm(call: Call) -> Steps:
    """Return a normalisation by fixed mean and variance, and perhaps centre and scale."""
    axes = call.axes()
    if axes is None or not all(call.fixed[1:]):
        return None
    more = len(call.inputs) - 3
    return [one("BatchNormalization", axis=axes[0], center=more > 0, scale=more > 1)]


def _one_of_two(call: Call) -> Steps:
    return [(OUTPUT, "Where", {}, tuple(range(len(call.inputs))))]


def _cast(call: Call) -> Steps:
    return [one("Cast", dtype=str(call.operation.dtype))]


def _class_name(name: str) -> str:
    """Return the class of an operation of ``keras.ops`` by its name: ``LessEqual`` of ``less_equal``."""
    return "".join(part.capitalize() for part in name.split("_"))


# Tables of the operators; then operations of other names.
_FUNCTIONS = {
    **{_class_name(names.keras): function for function, names in FUNCTIONS.items() if names.keras},
    **{f"Arc{name}": f"a{name}" for name in ("cos", "sin", "tan", "tan2")},
    **{"Absolute": "abs", "Fabs": "abs", "Clip": "clamp", "HardTanh": "clamp"},
}
_ACTIVATIONS = {
    _class_name(name): name
    for name in (
        *("relu", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "mish", "softplus", "softsign", "sigmoid"),
        *("tanh", "hard_sigmoid", "hard_silu"),
    )
}
_REDUCTIONS = {
    **{_class_name(getattr(kind, "keras_name", op)): op for op, kind in OPERATORS.items() if "axes" in kind.attributes},
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
    "Subtract": _combined("Elementwise", "subtract"),
    "Divide": _combined("Elementwise", "divide"),
    "TrueDivide": _combined("Elementwise", "divide"),
    "Std": _deviation,
    "Softmax": _along("Softmax"),
    "LogSoftmax": _log_softmax,
    "Cumsum": _along("CumulativeSum"),
    "Sort": _along("Sort"),
    "Argsort": _along("Sort", indices=True),
    "LayerNorm": _norm_of("LayerNormalization"),
    "RMSNorm": _norm_of("RMSNormalization"),
    "Normalize": _normalised,
    **dict.fromkeys(("Reshape", "ExpandDims", "Squeeze"), _reshaped),
    **dict.fromkeys(("Transpose", "Swapaxes", "Moveaxis"), _transposed),
    "BroadcastTo": lambda call: [one("Expand", shape=call.shape)],
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
    "Roll": _rolled,
    "Flip": _flipped,
    "TopK": _largest,
    "Where": _one_of_two,
    "Cast": _cast,
    "Matmul": product,
    **dict.fromkeys(("Dot", "Tensordot"), dot),
    "Einsum": einsum,
    "DotProductAttention": attention,
}
