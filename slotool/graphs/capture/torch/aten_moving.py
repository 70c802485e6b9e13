"""ATen calls that move values or look at them in another way, as operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from slotool.graphs.capture.torch.values import Call, Names, Translator, Untranslatable, Value, is_view
from slotool.graphs.operators import broadcast
from slotool.graphs.operators.base import captured_as


def by_type(call: Call) -> Names:
    """Return a call that is in ``captured`` of an operator's type; of several outputs it is the first."""
    if (place := captured_as("torch", call.name, call)) is None:
        raise Untranslatable("is another call of that name")
    op, attributes = place
    return [call.emit.add(op, same(call), **attributes)] + [""] * (len(call.outs) - 1)


def view(call: Call) -> Names:
    """Return a view where torch can make one, else a copy seen in another shape."""
    value = call.data()
    source = call.source(value)
    if call.copies and not is_view(value.stride, value.whole, call.out.whole):
        source = call.emit.add("Copy", source)
    return [call.emit.reshape(source, call.out.shape)]


def same(call: Call) -> Names:
    return [call.source(call.data(next(iter(call.arguments))))]


def copy(call: Call) -> Names:
    return same(call) if not call.copies else [call.emit.add("Copy", call.source(call.data()))]


def written(call: Call) -> Names:
    """Append one tensor's values written into another's place."""
    value = call.value("src")
    source = call.stretched(value)
    if call.emit.shape(source) != call.out.shape:
        source = call.emit.add("Expand", source, shape=call.out.shape)
    if value.dtype != call.out.dtype:
        return [call.emit.add("Cast", source, dtype=call.out.dtype)]
    return [call.emit.add("Copy", source)]


def filled(call: Call) -> Names:
    """Append one number written into every place of a tensor."""
    return [call.emit.add("Copy", call.source(call.data()))]


def contiguous(call: Call) -> Names:
    value = call.data()
    return same(call) if value.stride == call.out.stride else copy(call)


def cast(call: Call) -> Names:
    value, dtype = call.data(), call.out.dtype
    if value.dtype == dtype or not call.copies:
        return same(call)
    return [call.emit.add("Cast", call.source(value), dtype=dtype)]


def permute(call: Call) -> Names:
    value = call.data()
    order = order_of(call.name, call.arguments, len(value.whole))
    place = {axis: i for i, axis in enumerate(value.example_axes())}
    return [call.emit.transpose(call.source(value), [place[axis] for axis in order if axis in place])]


def order_of(name: str, arguments: Any, rank: int) -> list[int]:
    """Return the input axis of each axis of a transposed tensor."""
    axes = list(range(rank))
    if name == "permute":
        return [axis % rank for axis in arguments["dims"]]
    if name in ("t", "numpy_T", "adjoint"):
        return axes[::-1]
    if name in ("movedim", "moveaxis"):
        source, target = (arguments.get(key) for key in ("source", "destination"))
        source, target = ([value] if isinstance(value, int) else list(value or ()) for value in (source, target))
        source, target = [axis % rank for axis in source], [axis % rank for axis in target]
        order = [axis for axis in axes if axis not in source]
        for place, axis in sorted(zip(target, source, strict=True)):
            order.insert(place, axis)
        return order
    first, second = (arguments.get(keys[0], arguments.get(keys[1])) for keys in (("dim0", "axis0"), ("dim1", "axis1")))
    if first is None or second is None:
        first, second = rank - 2, rank - 1
    axes[first % rank], axes[second % rank] = second % rank, first % rank
    return axes


def expand(call: Call) -> Names:
    value, shape = call.data(), call.out.shape
    source = call.source(value)
    return [source if call.emit.shape(source) == shape else call.emit.add("Expand", source, shape=shape)]


def select(call: Call) -> Names:
    value = call.data()
    return [_part(call, value, call["dim"] or 0, call["index"] or 0, 1, keepdims=False)]


def slice_(call: Call) -> Names:
    value, axis = call.data(), call["dim"] or 0
    if call.out.whole == value.whole:
        return same(call)
    whole = value.whole[axis]
    start = min(max((call["start"] or 0) + (whole if (call["start"] or 0) < 0 else 0), 0), whole)
    return [_part(call, value, axis, start, call.out.whole[axis], step=call["step"] or 1)]


def narrow(call: Call) -> Names:
    return [_part(call, call.data(), call["dim"], call["start"], call["length"])]


def split(call: Call) -> Names:
    """Return the parts of a split, a chunk or an unbind, as slices."""
    value, axis = call.data(), call["dim"] or 0
    if call.name == "unbind":
        return [_part(call, value, axis, i, 1, keepdims=False) for i in range(len(call.outs))]
    sizes = [out.whole[axis] for out in call.outs]
    starts = [0, *accumulate(sizes)][:-1]
    if value.batched is not None and axis % len(value.whole) == value.batched[0]:
        return _parts_of_windows(call, value)
    return [_part(call, value, axis, start, size) for start, size in zip(starts, sizes, strict=True)]


def _part(call: Call, value: Value, axis: int, start: int, size: int, step: int = 1, keepdims: bool = True) -> str:
    if size == value.whole[axis] and step == 1 and keepdims:
        return call.source(value)
    start %= value.whole[axis]
    attributes: dict[str, Any] = {"axis": value.at(axis), "start": start, "size": size, "step": step}
    return call.emit.add("Slice", call.source(value), **attributes, keepdims=keepdims)


def _parts_of_windows(call: Call, value: Value) -> Names:
    """Return the parts of a batch of several inputs, one after the other: windows that are folded with the batch."""
    names, start = [], 0
    for out in call.outs:
        if out.batched is None or out.batched[0] != value.batched[0]:  # type: ignore[index]
            raise Untranslatable("parts the batch")
        axis, size = out.batched
        part = {"axis": axis, "start": start, "size": size, "keepdims": size > 1}
        names.append(call.emit.add("Slice", call.source(value), **part))
        start += size
    return names


def concatenate(call: Call) -> Names:
    tensors = [value for value in call["tensors"] if math.prod(value.whole)]
    if call.out.batched is not None and (call["dim"] or 0) % len(call.out.whole) == call.out.batched[0]:
        return [_batches_joined(call, tensors, call.out.batched[0])]
    axis = call.out.at(call["dim"] or 0)
    if call.turned and (axis != 0 or not all(value.is_data for value in tensors)):
        raise Untranslatable("joins images with their channels last at a side")
    sources = [call.source(value) for value in tensors]
    return [sources[0] if len(sources) == 1 else call.emit.add("Concatenate", sources, axis=axis)]


def _batches_joined(call: Call, tensors: Sequence[Value], axis: int) -> str:
    """Return a batch of several inputs, one after the other: windows that are folded with the batch."""
    if any(value.batched is None or value.batched[0] != axis for value in tensors):
        raise Untranslatable("a constant joins the batch")
    parts = []
    for value in tensors:
        shape = value.shape if value.folded_axis is None else (*value.shape[:axis], 1, *value.shape[axis:])
        parts.append(call.emit.reshape(call.source(value), shape))
    return call.emit.add("Concatenate", parts, axis=axis)


def stack(call: Call) -> Names:
    return [call.emit.add("Stack", [call.source(v) for v in call["tensors"]], axis=call.out.at(call["dim"] or 0))]


def repeat(call: Call) -> Names:
    """Append repetitions; there are as many axes as in the tensor, or more before these."""
    value, out = call.data(), call.out
    shape = [1] * (len(out.whole) - len(value.whole)) + list(value.whole)
    repeats = [size // before for size, before in zip(out.whole, shape, strict=True)]
    if value.batched is None or out.batched is None or repeats[out.batched[0]] != 1:
        raise Untranslatable("repeats the batch")
    remaining = [axis for axis in range(len(shape)) if axis != out.folded_axis]
    source = call.emit.reshape(
        call.source(value), [size for axis, size in enumerate(_shares(call, shape)) if axis in remaining]
    )
    times = [repeats[axis] for axis in remaining]
    return [source if set(times) <= {1} else call.emit.add("Repeat", source, repeats=times)]


def _shares(call: Call, shape: Sequence[int]) -> list[int]:
    """Return the sizes without what the batch multiplies them by."""
    axis, windows = call.out.batched or (0, 1)
    return [windows if i == axis else size for i, size in enumerate(shape)]


def repeat_interleave(call: Call) -> Names:
    """Return each value so many times: a view stretched, and written out."""
    value, axis, times = call.data(), call["dim"], call["repeats"]
    if not isinstance(times, int) or axis is None:
        raise Untranslatable("repeats differ")
    at, source = value.at(axis), call.source(value)
    if times == 1:
        return [source]
    shape = list(value.shape)
    between = [*shape[: at + 1], 1, *shape[at + 1 :]]
    wide = [*shape[: at + 1], times, *shape[at + 1 :]]
    source = call.emit.add("Expand", call.emit.reshape(source, between), shape=wide)
    return [call.emit.reshape(call.emit.add("Copy", source), call.out.shape)]


def pad(call: Call) -> Names:
    value, pads = call.data(), list(call["pad"] or call["padding"])
    mode = {None: "constant", "constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[
        call["mode"] or _PAD_MODES.get(call.name)
    ]
    rank = len(value.shape)
    before, after = [0] * rank, [0] * rank
    for i, (left, right) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        if left or right:
            at = value.at(len(value.whole) - 1 - i)
            before[at], after[at] = left, right
    if not any(before + after):
        return same(call)
    if value.is_image and mode == "constant" and not call["value"] and len(pads) <= 4 and min(before + after) >= 0:
        around = [before[1], after[1], before[2], after[2]]
        return [call.emit.add("ZeroPadding2D", call.source(value), padding=around)]
    if max(before + after) <= 0:
        source = call.source(value)
        for at, (left, right) in enumerate(zip(before, after, strict=True)):
            if left or right:
                size = call.emit.shape(source)[at] + left + right
                source = call.emit.add("Slice", source, axis=at, start=-left, size=size)
        return [source]
    return [call.emit.add("Pad", call.source(value), pads=[*before, *after], mode=mode)]


_PAD_MODES = {
    f"{torch}_pad{n}d": mode
    for torch, mode in (("reflection", "reflect"), ("replication", "replicate"))
    for n in (1, 2, 3)
}


def index_select(call: Call) -> Names:
    value = call.value("self")
    axis = value.at(call["dim"]) if value.is_data else call["dim"] % len(value.whole)
    return [call.emit.add("Gather", [call.source(value), call.source(call.value("index"))], axis=axis)]


def gather(call: Call) -> Names:
    value, index = call.value("self"), call.value("index")
    axis = (value if value.is_data else call.out).at(call["dim"])
    return [call.emit.add("GatherElements", [call.stretched(value, call.out), call.source(index)], axis=axis)]


def index(call: Call) -> Names:
    """Append values by indices along one axis, or along several adjacent ones, taken for one."""
    value = call.value("self")
    chosen = {axis: each for axis, each in enumerate(call["indices"]) if each is not None}
    if any(each.dtype in ("bool", "uint8") for each in chosen.values()):
        raise Untranslatable("chooses by a mask")
    own_number = None
    if value.is_data and value.folded_axis in chosen and chosen[value.folded_axis].batched is not None:
        # Each example has its own index.
        own_number = chosen.pop(value.folded_axis)
    axes = [value.at(axis) if value.is_data else axis for axis in chosen]
    if not axes or axes != list(range(axes[0], axes[0] + len(axes))):
        raise Untranslatable("axes that are no neighbours")
    source, first = call.source(value), axes[0]
    shape = call.emit.shape(source)
    if len(axes) > 1:
        source = call.emit.reshape(
            source, [*shape[:first], math.prod(shape[first : first + len(axes)]), *shape[first + len(axes) :]]
        )
    widest = max(chosen.values(), key=lambda each: math.prod(each.whole))
    if own_number is not None and not any(each.is_data for each in chosen.values()):
        places = _places_without_batch(call, [own_number, *chosen.values()], widest)
    else:
        places = None if widest.is_data and widest.shape == () else call.source(widest)
    if places is None:
        return [call.emit.add("Slice", source, axis=first, size=1, keepdims=False)]
    return [call.emit.add("Gather", [source, places], axis=first)]


def _places_without_batch(call: Call, indices: Sequence[Value], widest: Value) -> str | None:
    """Return the constant places of one example from broadcast indices, the first by the example's number.

    None if that is a single place.
    """
    shape = list(broadcast([each.whole for each in indices]))
    place = indices[0].batched
    assert place is not None
    del shape[len(shape) - len(indices[0].whole) + place[0]]
    return call.constant(widest, tuple(shape)) if shape else None


def scatter(call: Call) -> Names:
    """Return the values written or added at places."""
    value = call.value("self")
    like = call.out
    indices = [each for each in (call["index"], *_list(call["indices"])) if isinstance(each, Value)]
    # Take the longest index of all axes: there are as many places, and positions do not differ by example.
    places = [max(indices, key=lambda each: math.prod(each.whole))] if indices else []
    values = [each for each in (call["src"], call["values"], call["source"]) if isinstance(each, Value)]
    names = [call.source(each) for each in (*places, *values)][:2]
    return [call.emit.add("Scatter", [call.stretched(value, like), *names])]


def unfold(call: Call) -> Names:
    """Return a view of overlapping windows, copied where it is used."""
    value = call.data()
    at, size, step = value.at(call["dimension"]), call["size"], call["step"]
    source, places = call.source(value), (value.shape[value.at(call["dimension"])] - size) // step + 1
    if size == step:
        shape = [*value.shape[:at], places, size, *value.shape[at + 1 :]]
        source = (
            call.emit.add("Slice", source, axis=at, size=places * size) if places * size < value.shape[at] else source
        )
        source = call.emit.reshape(source, shape)
        order = [*range(at + 1), *range(at + 2, len(shape)), at + 1]
        return [call.emit.transpose(source, order)]
    raise Untranslatable("windows that overlap")


def channel_shuffle(call: Call) -> Names:
    value, groups = call.data(), call["groups"]
    channels, *rest = value.shape
    source = call.emit.reshape(call.source(value), [groups, channels // groups, *rest])
    source = call.emit.transpose(source, [1, 0, *range(2, len(rest) + 2)])
    return [call.emit.reshape(call.emit.add("Copy", source), value.shape)]


def _list(value: Any) -> list[Any]:
    return [value] if isinstance(value, int) else list(value or ())


_CALLS: tuple[tuple[Translator, str], ...] = (
    (view, "view reshape _unsafe_view flatten unflatten squeeze unsqueeze view_as reshape_as ravel"),
    (permute, "permute transpose movedim swapaxes swapdims moveaxis t numpy_T mT adjoint"),
    (same, "detach alias lift_fresh lift_fresh_copy"),
    (same, "dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout"),
    (same, "conj resolve_conj resolve_neg positive requires_grad"),
    (cast, "to _to_copy type_as float half bfloat16 int long bool double"),
    (expand, "expand expand_as broadcast_to"),
    (split, "split split_with_sizes chunk unbind tensor_split unsafe_split unsafe_chunk"),
    (concatenate, "cat concat concatenate"),
    (repeat, "repeat tile"),
    (pad, " ".join(("pad constant_pad_nd", *_PAD_MODES))),
    (
        scatter,
        "scatter scatter_add scatter_reduce index_put index_add index_reduce index_copy index_fill masked_scatter",
    ),
    (scatter, "masked_scatter select_scatter slice_scatter"),
    (gather, "gather take_along_dim"),
    (channel_shuffle, "channel_shuffle native_channel_shuffle"),
    (copy, "clone"),
    (written, "copy"),
    (filled, "fill zero"),
    (contiguous, "contiguous"),
    (select, "select"),
    (slice_, "slice"),
    (narrow, "narrow"),
    (stack, "stack"),
    (repeat_interleave, "repeat_interleave"),
    (index_select, "index_select"),
    (index, "index"),
    (unfold, "unfold"),
)
MOVING = {name: translator for translator, names in _CALLS for name in names.split()}
