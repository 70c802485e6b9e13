"""ATen calls with weights, products and windows, and recurrent ones, as operators."""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from slotool.graphs.capture.batch_axis import axis_of
from slotool.graphs.capture.torch.nodes import arguments_of
from slotool.graphs.capture.torch.values import Call, Names, Translator, Untranslatable, Value
from slotool.graphs.operators import Shape
from slotool.graphs.operators.attributes import MAX_WINDOW_AXES


def recurrent(op: str) -> Translator:
    """Return a recurrent layer over (steps, features); its last state is the last step of its output."""

    def translate(call: Call) -> Names:
        value = call.data("input")
        directions = 1 + bool(call["bidirectional"])
        steps_axis, rank = value.at(1 if call["batch_first"] else 0), len(value.shape)
        if rank not in (2, 3):
            raise Untranslatable("no steps of features")
        answer = call.out.whole[-1] // directions
        attributes = {"layers": call["num_layers"], "bias": bool(call["has_biases"]), **_units(call, op, answer)}
        # Sequences that are folded with the batch come first.
        order = [*(axis for axis in range(rank - 1) if axis != steps_axis), steps_axis, rank - 1]
        source = call.emit.transpose(call.source(value), order)
        first = _first_states(call, directions * attributes["layers"] * answer) if rank == 2 else []
        name = call.emit.add(op, [source, *first], **attributes, bidirectional=directions == 2)
        trained = [each for each in call["params"] if isinstance(each, Value)]
        if trained and call.emit.weights != sum(math.prod(each.whole) for each in trained):
            raise Untranslatable("other weights than such a layer has")
        states = []
        for out in call.outs[1:]:
            last = call.emit.add("Slice", name, axis=rank - 2, start=value.shape[steps_axis] - 1, size=1)
            states.append(_state(call, last, out.shape))
        return [call.emit.transpose(name, [order.index(axis) for axis in range(rank)]), *states]

    return translate


def cell(op: str) -> Translator:
    """Return a cell: a recurrent layer over one step. The state of an LSTM besides its output is taken for that."""

    def translate(call: Call) -> Names:
        value, (units,) = call.data("input"), call["w_hh"].whole[-1:]
        if len(value.shape) != 1:
            raise Untranslatable("no features of one step")
        step = call.emit.reshape(call.source(value), (1, *value.shape))
        name = call.emit.add(op, [step, *_first_states(call, units)], units=units, bias=call["b_ih"] is not None)
        trained = [each for each in (call[key] for key in ("w_ih", "w_hh", "b_ih", "b_hh")) if each is not None]
        if call.emit.weights != sum(math.prod(each.whole) for each in trained):
            raise Untranslatable("other weights than such a cell has")
        return [call.emit.reshape(name, (units,))] * len(call.outs)

    return translate


def steps_over_examples(name: str, node: fx.Node, batch: int) -> bool:
    """True if a recurrent layer takes the batch's axis for steps: steps first, inputs with the batch first."""
    if name not in RECURRENT or name.endswith("_cell"):
        return False
    arguments = arguments_of(node)
    axis = axis_of(arguments.get("input") or (), batch)
    return axis is not None and axis[0] == int(bool(arguments.get("batch_first")))


def _first_states(call: Call, size: int) -> list[str]:
    """Return initial states that are computed, as a decoder's by an encoder."""
    attributes = call["hx"] if isinstance(call["hx"], list | tuple) else [call["hx"]]
    states = [each for each in attributes if isinstance(each, Value) and each.is_data and math.prod(each.shape) == size]
    return [call.source(each) for each in states]


def _state(call: Call, last: str, shape: Shape) -> str:
    """Append a layer's last state as a view of ``last``, its last step, repeated by layer.

    Empty if it is of another size.
    """
    size, expected = math.prod(call.emit.shape(last)), math.prod(shape)
    if expected % size:
        return ""
    if expected == size:
        return call.emit.reshape(last, shape)
    row = call.emit.reshape(last, [1, size])
    return call.emit.reshape(call.emit.add("Expand", row, shape=(expected // size, size)), shape)


def _units(call: Call, op: str, answer: int) -> dict[str, int]:
    """Return units; an LSTM's state matrix [4 × units, answer] tells them from a projection's size."""
    matrix = call["params"][1]
    units = matrix.whole[0] // 4 if op == "LSTM" and isinstance(matrix, Value) else answer
    return {"units": units, **({"projection": answer} if units != answer else {})}


RECURRENT: dict[str, Translator] = {
    **dict.fromkeys(("lstm", "quantized_lstm"), recurrent("LSTM")),
    **dict.fromkeys(("gru", "quantized_gru"), recurrent("GRU")),
    "rnn_tanh": recurrent("SimpleRNN"),
    "rnn_relu": recurrent("SimpleRNN"),
    "lstm_cell": cell("LSTM"),
    "gru_cell": cell("GRU"),
    "rnn_tanh_cell": cell("SimpleRNN"),
    "rnn_relu_cell": cell("SimpleRNN"),
}


def linear(call: Call) -> Names:
    weight = call.value("weight")
    if call.turned and not weight.is_data and not weight.is_computed:
        # On the channels of an image it is a convolution of one pixel.
        filters, bias = weight.whole[0], call["bias"] is not None
        return [call.emit.add("Conv2D", call.source(call.data("input")), filters=filters, kernel=1, bias=bias)]
    if weight.is_data or weight.is_computed:
        if call["bias"] is not None:
            raise Untranslatable("a bias beside a matrix that is no weight")
        rank = len(weight.shape)
        transposed = call.emit.transpose(call.source(weight), [*range(rank - 2), rank - 1, rank - 2])
        return [call.emit.add("MatMul", [call.source(call.data("input")), transposed])]
    return [_dense(call, call.data("input"), weight.whole[0], call["bias"] is not None)]


def _dense(call: Call, value: Value, units: int, bias: bool) -> str:
    # Features must be no part of the batch.
    value.at(-1)
    return call.emit.add("Dense", call.source(value), units=units, bias=bias)


def quantised(call: Call) -> Names:
    """Append a layer with packed weight and bias."""
    weight, *bias = call["W_prepack"]
    name = _dense(call, call.data("X"), int(weight.shape[0]), bool(bias))
    return [call.emit.activation(name, "relu") if "relu" in call.name else name]


def product(first: str, second: str, shift: str = "") -> Translator:
    """Return a product of matrices, with what is added to it: of activations with weights, or with activations."""

    def translate(call: Call) -> Names:
        left, right = call.value(first), call.value(second)
        added = call[shift] if shift else None
        is_layer = left.is_data and not right.is_data and not right.is_computed
        if is_layer and len(right.whole) == 2 and len(left.whole) >= 2:
            is_bias = isinstance(added, Value) and not added.is_data and math.prod(added.whole) == right.whole[1]
            name = _dense(call, left, right.whole[1], is_bias)
            added = None if is_bias else added
        else:
            name = _product(call, left, right)
        if isinstance(added, Value) and call["beta"] != 0:
            name = call.emit.add("Add", [call.stretched(added), name])
        return [name]

    return translate


def _product(call: Call, left: Value, right: Value) -> str:
    if min(len(left.whole), len(right.whole)) < 2:
        return _with_vectors(call, left, right)
    rows_of_batch = left.is_data and left.batched is not None and left.batched[0] == len(left.whole) - 2
    if rows_of_batch and left.folded_axis is None and not right.is_data and right.batched is None:
        return call.emit.add("MatMul", [call.source(left), call.source(right)])
    if rows_of_batch and not right.is_data and right.batched is None:
        # A row of each example.
        row = call.emit.reshape(call.source(left), [*left.shape[:-1], 1, left.shape[-1]])
        return call.emit.reshape(call.emit.add("MatMul", [row, call.source(right)]), call.out.shape)
    for value in (left, right):
        if value.batched is not None and value.batched[0] >= len(value.whole) - 2 and value.is_data:
            raise Untranslatable("multiplies along the batch")
    names = []
    for value in (left, right):
        name = call.stretched(value) if call.out.batched is not None else call.source(value)
        shape = call.emit.shape(name)
        names.append(call.emit.reshape(name, [1] * (2 - len(shape)) + list(shape)) if len(shape) < 2 else name)
    return call.emit.add("MatMul", names)


def _with_vectors(call: Call, left: Value, right: Value) -> str:
    """Return a matrix by a vector as a product of matrices, one with an axis of one."""
    if not left.is_data or len(right.whole) != 1 or right.is_data:
        raise Untranslatable("a product of vectors")
    left.at(-1)
    name = call.emit.add("Dense", call.source(left), units=1, bias=False)
    return call.emit.reshape(name, call.out.shape)


def bilinear(call: Call) -> Names:
    """Return all products of two inputs' features, and of these a product with the weights."""
    left, weight, right = call.data("i1"), call.value("i2"), call.data("i3")
    if weight.is_data or (list(call["expand1"]), list(call["expand3"]), list(call["sumdim"])) != (
        [1, 3],
        [1, 2],
        [2, 3],
    ):
        raise Untranslatable("another product of three")
    column = call.emit.reshape(call.source(left), (*left.shape, 1))
    row = call.emit.reshape(call.source(right), (*right.shape[:-1], 1, right.shape[-1]))
    pairs = call.emit.reshape(call.emit.add("Multiply", [column, row]), (*left.shape[:-1], math.prod(weight.whole[1:])))
    return [call.emit.add("Dense", pairs, units=weight.whole[0], bias=False)]


def distances(call: Call) -> Names:
    """Append distances of all rows of two matrices: by a product if torch uses one, else by differences."""
    left, right = call.value("x1"), call.value("x2")
    first, second = call.source(left), call.source(right)
    if call.name == "_euclidean_dist":
        rank = len(right.shape)
        turned = call.emit.transpose(second, [*range(rank - 2), rank - 1, rank - 2])
        product = call.emit.add(
            "MatMul", [call.emit.reshape(first, (*[1] * (2 - len(left.shape)), *left.shape)), turned]
        )
        return [call.emit.reshape(call.emit.add("Elementwise", product, function="sqrt"), call.out.shape)]
    rows = call.emit.reshape(first, (*left.shape[:-1], 1, left.shape[-1]))
    columns = call.emit.reshape(second, (*right.shape[:-2], 1, *right.shape[-2:]))
    differences = call.emit.add("Elementwise", [rows, columns], function="subtract")
    return [call.emit.add("Norm", differences, axes=(len(call.out.shape),))]


def attention(call: Call) -> Names:
    values = [call.value(name) for name in ("query", "key", "value")]
    mask = call["attn_mask"]
    names = [call.source(value) for value in values]
    if isinstance(mask, Value):
        query, key, _ = values
        scores = Value(None, (*query.whole[:-1], key.whole[-2]), query.batch, True)
        names.append(call.stretched(mask, scores))
    name = call.emit.add("ScaledDotProductAttention", names, causal=bool(call["is_causal"]))
    return [name] * len(call.outs)


def embedding(call: Call) -> Names:
    weight, indices = call.value("weight"), call.value("indices")
    if weight.is_data or not indices.is_data:
        raise Untranslatable("a table that depends on the input")
    vocabulary, units = weight.whole
    return [call.emit.add("Embedding", call.source(indices), vocabulary=vocabulary, units=units)]


def embedding_bag(call: Call) -> Names:
    """Return the rows of a table, as many of each example, and what their bag makes of them."""
    weight, indices = call.value("weight"), call.data("indices")
    if weight.is_data or indices.batched is None or len(indices.whole) != 1 or call.out.batched is None:
        raise Untranslatable("a table that depends on the input")
    if call.value("offsets").is_data or call["per_sample_weights"] is not None or call.out.folded_axis != 0:
        raise Untranslatable("bags of sizes that depend on the input")
    vocabulary, units = weight.whole
    source = call.emit.reshape(call.source(indices), [math.prod(indices.shape)])
    rows = call.emit.add("Embedding", source, vocabulary=vocabulary, units=units)
    op = {0: "Sum", 1: "Mean", 2: "Max"}[call["mode"] or 0]
    return [call.emit.add(op, rows, axes=(0,))] + [""] * (len(call.outs) - 1)


def convolution(axes: int, transposed: bool = False) -> Translator:
    def translate(call: Call) -> Names:
        value, weight = call.data("input"), call.value("weight")
        if weight.is_data or len(value.whole) != axes + 2 or value.batched is None or value.batched[0] != 0:
            raise Untranslatable("weights that depend on the input")
        window = {"kernel": list(weight.whole[2:]), **_moved(call, axes)}
        groups, bias = call["groups"] or 1, call["bias"] is not None
        if transposed and value.folded_axis is not None:
            extra = {"filters": weight.whole[1] * groups, "output_padding": sized(call["output_padding"], axes, 0)}
            op = f"Conv{axes}DTranspose"
            return [call.emit.add(op, call.source(value), **window, bias=bias, groups=groups, **extra)]
        filters = weight.whole[0]

        def convolved(source: str, window: dict[str, Any]) -> str:
            rank = len(window["kernel"])
            if rank == 2 and 1 < groups == value.whole[1]:
                depthwise = {"bias": bias, "multiplier": filters // groups}
                return call.emit.add("DepthwiseConv2D", source, **window, **depthwise)
            return call.emit.add(f"Conv{rank}D", source, **window, bias=bias, filters=filters, groups=groups)

        if value.folded_axis is not None:
            return [convolved(call.source(value), window)]
        if transposed or isinstance(window["padding"], str):
            raise Untranslatable("windows of such a convolution")
        # Windows folded with the batch, behind the channels.
        order = [1, 0, *range(2, axes + 2)]
        source = call.emit.transpose(call.source(value), order)
        if axes < MAX_WINDOW_AXES:
            # Of one axis more, with a kernel of one along it.
            alone = {"kernel": 1, "stride": 1, "padding": 0, "dilation": 1}
            name = convolved(source, {key: [alone[key], *sizes] for key, sizes in window.items()})
        else:
            # One after the other along the first axis, whose size the padding must keep.
            windows, channels, first, *rest = value.shape
            name = convolved(call.emit.reshape(source, [channels, windows * first, *rest]), window)
            name = call.emit.reshape(name, [filters, windows, *call.out.shape[2:]])
        return [call.emit.transpose(name, order)]

    return translate


def any_convolution(call: Call) -> Names:
    """Return the call beneath all convolutions."""
    return convolution(len(call.value("weight").whole) - 2, bool(call["transposed"]))(call)


def _moved(call: Call, axes: int) -> dict[str, Any]:
    """Return how the window of a convolution moves."""
    padding = call["padding"]
    return {
        "stride": sized(call["stride"], axes, 1),
        "padding": padding if isinstance(padding, str) else sized(padding, axes, 0),
        "dilation": sized(call["dilation"], axes, 1),
    }


def sized(value: Any, axes: int, default: int) -> list[int]:
    """Return a number for each axis of a window."""
    sizes = [value] if isinstance(value, int) else list(value or [default])
    return sizes * axes if len(sizes) == 1 else sizes


def batch_norm(call: Call) -> Names:
    value = call.data("input")
    attributes = {"scale": call["weight"] is not None, "center": call["bias"] is not None}
    name = call.emit.add("BatchNormalization", call.source(value), **attributes, axis=value.at(1))
    return [name] * len(call.outs)


def layer_norm(call: Call) -> Names:
    value = call.data("input")
    axes = [value.at(-1 - i) for i in range(len(call["normalized_shape"]))]
    if call.turned and axes != [0]:
        raise Untranslatable("normalises more than the channels of an image")
    centre = {} if "rms" in call.name else {"center": call["bias"] is not None}
    op = "RMSNormalization" if "rms" in call.name else "LayerNormalization"
    name = call.emit.add(op, call.source(value), scale=call["weight"] is not None, axes=axes, **centre)
    return [name] * len(call.outs)


def group_norm(call: Call) -> Names:
    value = call.data("input")
    groups = call["num_groups"] or call["group"] or value.whole[1]
    attributes = {"scale": call["weight"] is not None, "center": call["bias"] is not None}
    batch_first = value.batched is not None and value.batched[0] == 0
    if batch_first and value.folded_axis is None and not any(attributes.values()):
        # Without weights, windows that are folded with the batch are as good as channels.
        windows, channels, *rest = value.shape
        source = call.emit.reshape(call.source(value), [windows * channels, *rest])
        name = call.emit.add("GroupNormalization", source, groups=windows * groups, **attributes)
        name = call.emit.reshape(name, value.shape)
    elif value.folded_axis == 0:
        name = call.emit.add("GroupNormalization", call.source(value), groups=groups, **attributes)
    else:
        raise Untranslatable("channels that are not second")
    return [name] * len(call.outs)


def pooling(op: str, axes: int) -> Translator:
    def translate(call: Call) -> Names:
        value = call.data()
        if value.batched is None or value.batched[0] != 0 or len(value.whole) != axes + 2:
            raise Untranslatable("pools along the batch")
        source = call.source(value)
        if value.folded_axis is None:
            # Windows that are folded with the batch are as good as channels.
            source = call.emit.reshape(source, [value.shape[0] * value.shape[1], *value.shape[2:]])
        kernel = sized(call["kernel_size"], axes, 1)
        attributes: dict[str, Any] = {
            "kernel": kernel,
            "stride": sized(call["stride"], axes, 1) if call["stride"] else kernel,
            "padding": sized(call["padding"], axes, 0),
            "ceil": bool(call["ceil_mode"]),
        }
        if op == "AveragePooling":
            attributes["count_padding"] = call["count_include_pad"] is not False
        else:
            attributes["dilation"] = sized(call["dilation"], axes, 1)
        name = call.emit.reshape(call.emit.add(f"{op}{axes}D", source, **attributes), call.out.shape)
        return [name] * len(call.outs)

    return translate


def adaptive_pooling(function: str) -> Translator:
    """Return the translator: to one place a mean or maximum, to as many as before nothing."""

    def translate(call: Call) -> Names:
        value = call.data()
        size = value.shape and call.out.shape[len(call.out.shape) - (int(call.name[-2])) :]
        places = len(size)
        source = call.source(value)
        if tuple(size) == value.shape[-places:]:
            return [source] * len(call.outs)
        if value.is_image and places == 2 and len(call.outs) == 1 and not call.name.startswith("_"):
            kind, (height, width) = "Average" if function == "mean" else "Max", value.shape[1:]
            if set(size) == {1}:
                return [call.emit.add(f"Global{kind}Pooling2D", source, keepdims=True)]
            if height % size[0] == 0 == width % size[1]:
                return [call.emit.add(f"{kind}Pooling2D", source, kernel=[height // size[0], width // size[1]])]
        if set(size) == {1}:
            axes = range(len(value.shape) - places, len(value.shape))
            name = call.emit.add("Mean" if function == "mean" else "Max", source, axes=list(axes), keepdims=True)
        else:
            name = call.emit.add("AdaptivePooling", source, size=list(size), function=function)
        return [name] * len(call.outs)

    return translate


def resize(mode: str, axes: int) -> Translator:
    def translate(call: Call) -> Names:
        value, size = call.data(), call.out.shape[-axes:]
        if value.batched is None or value.batched[0] != 0:
            raise Untranslatable("resizes along the batch")
        source = call.source(value)
        if tuple(size) == value.shape[-axes:]:
            return [source]
        # Windows that are folded with the batch are as good as channels.
        source = call.emit.reshape(source, [math.prod(value.shape[:-axes]), *value.shape[-axes:]])
        return [call.emit.reshape(call.emit.add("Resize", source, size=size, mode=mode), call.out.shape)]

    return translate


def grid_sample(call: Call) -> Names:
    mode = {0: "linear", 1: "nearest", 2: "cubic"}[call["interpolation_mode"] or 0]
    value, grid = call.data("input"), call.value("grid")
    if value.folded_axis is not None or value.batched is None or grid.batched != value.batched:
        return [call.emit.add("GridSample", [call.source(value), call.source(grid)], mode=mode)]
    # Windows that are folded with the batch, below one another.
    windows, channels, height, *rest = value.shape
    turned = call.emit.transpose(call.source(value), [1, 0, *range(2, len(value.shape))])
    image = call.emit.reshape(turned, [channels, windows * height, *rest])
    places = call.emit.reshape(call.source(grid), [windows * grid.shape[1], *grid.shape[2:]])
    name = call.emit.add("GridSample", [image, places], mode=mode)
    name = call.emit.reshape(name, [channels, windows, *grid.shape[1:-1]])
    return [call.emit.transpose(name, [1, 0, *range(2, len(value.shape))])]


# Calls of layers that were quantised dynamically.
QUANTISED = ("linear_dynamic", "linear_relu_dynamic", "quantized_lstm", "quantized_gru")
LAYERS: dict[str, Translator] = {
    "linear": linear,
    **dict.fromkeys(QUANTISED[:2], quantised),
    "matmul": product("self", "other"),
    "mm": product("self", "mat2"),
    "bmm": product("self", "mat2"),
    "mv": product("self", "vec"),
    "addmm": product("mat1", "mat2", "self"),
    "addmv": product("mat", "vec", "self"),
    "baddbmm": product("batch1", "batch2", "self"),
    "_trilinear": bilinear,
    **dict.fromkeys(("_cdist_forward", "_euclidean_dist"), distances),
    "scaled_dot_product_attention": attention,
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_attention_math": attention,
    "embedding": embedding,
    **dict.fromkeys(("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"), embedding_bag),
    "convolution": any_convolution,
    "_convolution": any_convolution,
    **{f"conv{n}d": convolution(n) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": convolution(n, transposed=True) for n in (1, 2, 3)},
    **dict.fromkeys(("batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training"), batch_norm),
    **dict.fromkeys(("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"), layer_norm),
    **dict.fromkeys(("group_norm", "native_group_norm", "instance_norm"), group_norm),
    **{f"max_pool{n}d{with_}": pooling("MaxPooling", n) for n in (1, 2, 3) for with_ in ("", "_with_indices")},
    **{f"avg_pool{n}d": pooling("AveragePooling", n) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": adaptive_pooling("mean") for n in (1, 2, 3)},
    **{f"_adaptive_avg_pool{n}d": adaptive_pooling("mean") for n in (2, 3)},
    **{f"adaptive_max_pool{n}d": adaptive_pooling("max") for n in (1, 2, 3)},
    **{f"upsample_{mode}": resize(kind, n) for mode, kind, n in (
        ("nearest1d", "nearest", 1), ("nearest2d", "nearest", 2), ("nearest3d", "nearest", 3),
        ("linear1d", "linear", 1), ("bilinear2d", "linear", 2), ("trilinear3d", "linear", 3),
        ("bicubic2d", "cubic", 2), ("nearest_exact2d", "nearest", 2),
    )},
    **{f"_upsample_{mode}": resize(kind, 2) for mode, kind in (
        ("bilinear2d_aa", "linear"), ("bicubic2d_aa", "cubic"), ("nearest_exact2d", "nearest"),
    )},
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), grid_sample),
    **RECURRENT,
}  # fmt: skip
