"""TensorFlow's operations as calls of torch, one function each: of what a Keras layer computes, as torch traces it.

A function below gets the operation, for its attributes, and its inputs: tensors, or arrays of NumPy where they are the
same for every example and known. Images have their channels last in TensorFlow; turned around a window they are images
of torch's, which the walk over an exported program knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slotool.errors import GraphError
from slotool.graphs.capture.tensorflow_places import PLACES
from slotool.graphs.capture.tensorflow_values import axes_of, dtype_of, tensor
from slotool.graphs.capture.tensorflow_windows import WINDOWS

Function = Callable[..., Any]


def _each(function: Callable[..., Tensor]) -> Function:
    """A function of tensors alone."""
    return lambda op, *inputs: function(*map(tensor, inputs))


def _transposed(value: Tensor, turn: bool) -> Tensor:
    return value.transpose(-1, -2) if turn else value


def _matmul(op: Any, a: Any, b: Any) -> Tensor:
    return _transposed(tensor(a), op.get_attr("transpose_a")) @ _transposed(tensor(b), op.get_attr("transpose_b"))


def _batch_matmul(op: Any, a: Any, b: Any) -> Tensor:
    return _transposed(tensor(a), op.get_attr("adj_x")) @ _transposed(tensor(b), op.get_attr("adj_y"))


def _einsum(op: Any, *inputs: Any) -> Tensor:
    return torch.einsum(op.get_attr("equation").decode(), *map(tensor, inputs))


def _bias(op: Any, value: Any, bias: Any) -> Tensor:
    first = op.get_attr("data_format") == b"NCHW"
    return tensor(value) + (tensor(bias).reshape(-1, *(1,) * (value.ndim - 2)) if first else tensor(bias))


def _reduced(function: Callable[..., Tensor]) -> Function:
    def reduced(op: Any, value: Any, axes: Any) -> Tensor:
        dims, value = axes_of(axes), tensor(value)
        return function(value, dim=dims, keepdim=op.get_attr("keep_dims")) if dims else value

    return reduced


def _one_by_one(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A reduction that torch has along one axis alone."""

    def reduced(value: Tensor, dim: list[int], keepdim: bool) -> Tensor:
        for axis in sorted((each % value.ndim for each in dim), reverse=True):
            value = function(value, dim=axis, keepdim=keepdim)
        return value

    return reduced


def _mean(value: Tensor, dim: list[int], keepdim: bool) -> Tensor:
    return torch.mean(value if value.is_floating_point() else value.float(), dim=dim, keepdim=keepdim)


def _sum(value: Tensor, dim: list[int], keepdim: bool) -> Tensor:
    return torch.sum(value, dim=dim, keepdim=keepdim, dtype=value.dtype)


def _place(function: Callable[..., Tensor]) -> Function:
    """Of the largest or the smallest along an axis."""

    def placed(op: Any, value: Any, axis: Any) -> Tensor:
        return function(tensor(value), dim=int(axis)).to(dtype_of(op.outputs[0].dtype))

    return placed


def _cast(op: Any, value: Any) -> Tensor:
    return tensor(value).to(dtype_of(op.get_attr("DstT")))


def _reshape(op: Any, value: Any, shape: Any) -> Tensor:
    return tensor(value).reshape(axes_of(shape))


def _squeezed(op: Any, value: Any) -> Tensor:
    axes = tuple(op.get_attr("squeeze_dims"))
    return torch.squeeze(tensor(value), axes) if axes else torch.squeeze(tensor(value))


def _like(number: int) -> Function:
    return lambda op, value: torch.full_like(tensor(value), number)


def _drawn(op: Any, sizes: Any, *_: Any) -> Tensor:
    """Random numbers: drawing them costs hardly anything."""
    return torch.zeros(axes_of(sizes), dtype=dtype_of(op.outputs[0].dtype))


def _hashed(op: Any, value: Any, *_: Any) -> Tensor:
    """A number of its own for each value: what is read and written is what it costs."""
    return torch.remainder(tensor(value), op.get_attr("num_buckets")).long()


def _crossed_columns(op: Any, *columns: Any) -> tuple[Any, ...]:
    """The numbers of the crosses of columns, as ``_hashed``; their places and how many there are, which are the same
    whatever the input."""
    crossed = tensor(columns[0]).long()
    for each in columns[1:]:
        crossed = (crossed.unsqueeze(-1) * tensor(each).long().unsqueeze(-2)).flatten(1)
    rows, count = crossed.shape
    places = np.stack(np.meshgrid(np.arange(rows), np.arange(count), indexing="ij"), -1).reshape(-1, 2)
    numbers = torch.remainder(crossed, max(op.get_attr("num_buckets"), 1))
    return torch.from_numpy(places), numbers.reshape(-1), np.array([rows, count])


def _in_places(op: Any, places: Any, shape: Any, values: Any, default: Any) -> Tensor:
    """A tensor of values that stand in it in order, with one at each place."""
    values, sizes = tensor(values), axes_of(shape)
    if values.numel() != math.prod(sizes):
        raise GraphError("a sparse tensor of which some places are empty")
    found: Tensor = values.reshape(sizes)
    return found


def _looked_up(op: Any, table: Any, keys: Any, default: Any) -> Tensor:
    """In a table by its keys, as ``_hashed``."""
    return torch.abs(tensor(keys)).to(dtype_of(op.outputs[0].dtype))


def _part(op: Any, value: Any, begin: Any, size: Any) -> Tensor:
    pairs = zip(axes_of(begin), axes_of(size), strict=True)
    where = (slice(start, None if length < 0 else start + length) for start, length in pairs)
    found: Tensor = tensor(value)[tuple(where)]
    return found


def _indexed(op: Any, value: Any, begin: Any, end: Any, strides: Any) -> Tensor:
    """``x[1:, ..., None, ::-1]`` as TensorFlow has it, masks and all."""
    mask = {name: op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    given = list(zip(axes_of(begin), axes_of(end), axes_of(strides), strict=True))
    bits = [{name for name, bit in mask.items() if bit >> at & 1} for at in range(len(given))]
    open_ = value.ndim - sum(not kinds & {"ellipsis", "new_axis"} for kinds in bits)
    key: list[Any] = []
    value, axis, flipped = tensor(value), 0, list[int]()
    for (start, stop, step), kinds in zip(given, bits, strict=True):
        if "ellipsis" in kinds:
            key += [slice(None)] * open_
            axis += open_
        elif "new_axis" in kinds:
            key.append(None)
        elif "shrink_axis" in kinds:
            key.append(start % value.shape[axis])
            axis += 1
        else:
            size = value.shape[axis]
            whole = slice(None if "begin" in kinds else start, None if "end" in kinds else stop, step)
            first, last, by = whole.indices(size)
            if by < 0:
                flipped.append(axis)
                count = len(range(first, last, by))
                first, by = size - 1 - first, -by
                last = first + (count - 1) * by + 1 if count else first
            key.append(slice(first, last, by))
            axis += 1
    value = torch.flip(value, flipped) if flipped else value
    found: Tensor = value[tuple(key)]
    return found


def _one_hot(op: Any, rows: Any, depth: Any, on: Any, off: Any) -> Tensor:
    axis = op.get_attr("axis")
    hot = tensor(rows).unsqueeze(axis)
    places = torch.arange(int(depth)).reshape(-1, *(1,) * (0 if axis == -1 else hot.ndim - 1 - axis))
    return (hot == places).to(dtype_of(op.outputs[0].dtype))


def _banded(op: Any, value: Any, lower: Any, upper: Any) -> Tensor:
    """What is further from the diagonal becomes zero; a reach below 0 has no end."""
    rows, columns = (torch.arange(size) for size in value.shape[-2:])
    apart = rows[:, None] - columns[None, :]
    below, above = (max(value.shape[-2:]) if int(each) < 0 else int(each) for each in (lower, upper))
    return tensor(value) * ((apart <= below) & (-apart <= above)).to(tensor(value).dtype)


def _summed_up(op: Any, value: Any, axis: Any, function: Callable[..., Tensor] = torch.cumsum) -> Tensor:
    axis, value = int(axis), tensor(value)
    if op.get_attr("reverse"):
        return torch.flip(function(torch.flip(value, [axis]), dim=axis), [axis])
    return function(value, dim=axis)


def _largest(op: Any, value: Any, count: Any) -> tuple[Tensor, Tensor]:
    values, places = torch.topk(tensor(value), int(count))
    return values, places.to(dtype_of(op.outputs[1].dtype))


def _split(op: Any, axis: Any, value: Any) -> tuple[Tensor, ...]:
    size = value.shape[int(axis)] // op.get_attr("num_split")
    return torch.split(tensor(value), size, dim=int(axis))


def _split_in(op: Any, value: Any, sizes: Any, axis: Any) -> tuple[Tensor, ...]:
    value, parts = tensor(value), axes_of(sizes)
    rest = value.shape[int(axis)] - sum(size for size in parts if size >= 0)
    return torch.split(value, [rest if size < 0 else size for size in parts], int(axis))


def _padded(op: Any, value: Any, pads: Any, filling: Any = 0) -> Any:
    value = tensor(value)
    around = [int(each) for pair in reversed(np.array(pads).tolist()) for each in pair]
    if op.type != "MirrorPad":
        return functional.pad(value, around, value=float(np.array(filling)))
    for axis, (before, after) in enumerate(np.array(pads).tolist()):
        size, edge = value.shape[axis], op.get_attr("mode") == b"REFLECT"
        places = np.pad(np.arange(size), (before, after), mode="reflect" if edge else "symmetric")
        value = value.index_select(axis, torch.from_numpy(places)) if before or after else value
    return value


def _leaky_relu(op: Any, value: Any) -> Tensor:
    return functional.leaky_relu(tensor(value), op.get_attr("alpha"))


def _fourier(function: Callable[..., Tensor], axes: int, sized: bool = False) -> Function:
    def transformed(op: Any, value: Any, sizes: Any = None) -> Tensor:
        dims = tuple(range(-axes, 0))
        given = {"s": axes_of(sizes)} if sized else {}
        return function(tensor(value), dim=dims, **given)

    return transformed


def _among(op: Any, value: Any, bounds: Any, *, right: bool) -> Any:
    """How many of the ``bounds``, in order along their last axis, are before each value: by comparing all."""
    value, bounds = tensor(value).unsqueeze(-1), tensor(bounds).unsqueeze(-2)
    before = bounds <= value if right else bounds < value
    return before.to(dtype_of(op.outputs[0].dtype)).sum(-1, dtype=dtype_of(op.outputs[0].dtype))


def _bucket(op: Any, value: Any) -> Any:
    return _among(op, value, np.array(op.get_attr("boundaries"), dtype=np.float32), right=True)


def _crossed(op: Any, a: Any, b: Any) -> Tensor:
    a, b = tensor(a), tensor(b)
    return torch.roll(a, -1, -1) * torch.roll(b, 1, -1) - torch.roll(a, 1, -1) * torch.roll(b, -1, -1)


def _counted(op: Any, value: Any, size: Any, weights: Any) -> Tensor:
    """How often each number is there, of every row."""
    kind = dtype_of(op.outputs[0].dtype)
    found = (tensor(value).unsqueeze(-1) == torch.arange(int(size))).to(kind)
    return found.amax(-2) if op.get_attr("binary_output") else found.sum(-2, dtype=kind)


def _linear_algebra(function: Callable[..., Any]) -> Function:
    """Decompositions, whose cost torch does not count either."""
    return lambda op, *matrices: function(*map(tensor, matrices))


_SAME = (
    "Identity",
    "StopGradient",
    "PreventGradient",
    "CheckNumerics",
    "EnsureShape",
    "Snapshot",
    "PlaceholderWithDefault",
)
_ONE = {
    **{name.capitalize(): getattr(torch, name) for name in ("tanh", "sigmoid", "erf", "exp", "log", "log1p")},
    # It costs what ``erf`` does.
    "Erfc": torch.erf,
    **{
        name.capitalize(): getattr(torch, name) for name in ("expm1", "sqrt", "rsqrt", "square", "abs", "sign", "floor")
    },
    **{name.capitalize(): getattr(torch, name) for name in ("ceil", "sin", "cos", "tan", "sinh", "cosh", "atan")},
    **{name.capitalize(): getattr(torch, name) for name in ("acos", "asin", "asinh", "acosh", "atanh", "reciprocal")},
    **{name.capitalize(): getattr(functional, name) for name in ("relu", "relu6", "elu", "selu", "softplus")},
    **{"Neg": torch.neg, "Inv": torch.reciprocal, "Rint": torch.round, "Round": torch.round, "IsNan": torch.isnan},
    **{
        "IsFinite": torch.isfinite,
        "IsInf": torch.isinf,
        "LogicalNot": torch.logical_not,
        "Softsign": functional.softsign,
    },
    **{"Lgamma": torch.lgamma, "Digamma": torch.digamma, "Real": torch.real, "Imag": torch.imag, "Conj": torch.conj},
    **{"ComplexAbs": torch.abs, "Angle": torch.angle, "Ndtri": torch.special.ndtri, "Erfinv": torch.erfinv},
    "Invert": torch.bitwise_not,
}
_TWO: dict[str, Callable[..., Tensor]] = {
    **{"Add": torch.add, "AddV2": torch.add, "Sub": torch.sub, "Mul": torch.mul, "RealDiv": torch.div},
    **{"FloorDiv": torch.floor_divide, "FloorMod": torch.remainder, "Maximum": torch.maximum, "Div": torch.div},
    **{"Minimum": torch.minimum, "Pow": torch.pow, "Atan2": torch.atan2, "DivNoNan": torch.div, "Mod": torch.fmod},
    **{"Equal": torch.eq, "NotEqual": torch.ne, "Less": torch.lt, "LessEqual": torch.le, "Greater": torch.gt},
    **{"GreaterEqual": torch.ge, "LogicalAnd": torch.logical_and, "LogicalOr": torch.logical_or},
    **{"SquaredDifference": lambda a, b: torch.square(a - b), "Xlogy": torch.xlogy, "MulNoNan": torch.mul},
    **{"BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor},
    **{"Complex": torch.complex, "LeftShift": torch.bitwise_left_shift, "RightShift": torch.bitwise_right_shift},
    "TruncateDiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}
OPERATIONS: dict[str, Function] = {
    **PLACES,
    **WINDOWS,
    **{name: _each(function) for name, function in {**_ONE, **_TWO}.items()},
    **dict.fromkeys(_SAME, lambda op, value, *_: value),
    "IdentityN": lambda op, *values: values,
    "AddN": lambda op, *values: sum(map(tensor, values[1:]), tensor(values[0])),
    "MatMul": _matmul,
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _batch_matmul),
    "Einsum": _einsum,
    "BiasAdd": _bias,
    **{"Mean": _reduced(_mean), "Sum": _reduced(_sum), "Max": _reduced(torch.amax), "Min": _reduced(torch.amin)},
    "Prod": _reduced(_one_by_one(torch.prod)),
    **{"All": _reduced(_one_by_one(torch.all)), "Any": _reduced(_one_by_one(torch.any))},
    **{"ArgMax": _place(torch.argmax), "ArgMin": _place(torch.argmin)},
    "EuclideanNorm": _reduced(torch.linalg.vector_norm),
    "Cast": _cast,
    **{"Reshape": _reshape, "Squeeze": _squeezed},
    "ExpandDims": lambda op, value, axis: tensor(value).unsqueeze(int(axis)),
    "BroadcastTo": lambda op, value, sizes: tensor(value).expand(axes_of(sizes)),
    "Fill": lambda op, sizes, value: tensor(value).expand(axes_of(sizes)),
    **{"ZerosLike": _like(0), "OnesLike": _like(1)},
    **dict.fromkeys(("StatelessRandomNormalV2", "StatelessRandomUniformV2", "RandomStandardNormal"), _drawn),
    **dict.fromkeys(("RandomUniform", "StatelessTruncatedNormalV2", "StatelessRandomUniformIntV2"), _drawn),
    "Slice": _part,
    "StridedSlice": _indexed,
    "OneHot": _one_hot,
    "MatrixBandPart": _banded,
    "Cumsum": _summed_up,
    "Cumprod": lambda op, value, axis: _summed_up(op, value, axis, torch.cumprod),
    "TopKV2": _largest,
    "Transpose": lambda op, value, order: tensor(value).permute(axes_of(order)),
    "Tile": lambda op, value, times: tensor(value).repeat(axes_of(times)),
    "ConcatV2": lambda op, *values: torch.cat([*map(tensor, values[:-1])], dim=int(values[-1])),
    "Pack": lambda op, *values: torch.stack([*map(tensor, values)], dim=op.get_attr("axis")),
    "Unpack": lambda op, value: torch.unbind(tensor(value), dim=op.get_attr("axis")),
    "Split": _split,
    "SplitV": _split_in,
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _padded),
    **dict.fromkeys(("SelectV2", "Select"), lambda op, which, a, b: torch.where(tensor(which), tensor(a), tensor(b))),
    "ClipByValue": lambda op, value, low, high: torch.clamp(tensor(value), float(low), float(high)),
    "Softmax": lambda op, value: torch.softmax(tensor(value), dim=-1),
    "LogSoftmax": lambda op, value: torch.log_softmax(tensor(value), dim=-1),
    "LeakyRelu": _leaky_relu,
    "L2Loss": lambda op, value: torch.sum(tensor(value) ** 2) / 2,
    "Roll": lambda op, value, shift, axis: torch.roll(tensor(value), axes_of(shift), axes_of(axis)),
    "ReverseV2": lambda op, value, axis: torch.flip(tensor(value), axes_of(axis)),
    **{name: _fourier(getattr(torch.fft, f"{kind}n"), axes) for name, kind, axes in
       (("FFT", "fft", 1), ("FFT2D", "fft", 2), ("FFT3D", "fft", 3), ("IFFT", "ifft", 1), ("IFFT2D", "ifft", 2))},
    **{name: _fourier(getattr(torch.fft, f"{kind}n"), axes, sized=True) for name, kind, axes in
       (("RFFT", "rfft", 1), ("RFFT2D", "rfft", 2), ("IRFFT", "irfft", 1), ("IRFFT2D", "irfft", 2))},
    "Bucketize": _bucket,
    "LowerBound": lambda op, bounds, value: _among(op, value, bounds, right=False),
    "UpperBound": lambda op, bounds, value: _among(op, value, bounds, right=True),
    "AsString": lambda op, value: tensor(value),
    **dict.fromkeys(("StringToHashBucketFast", "StringToHashBucketStrong", "StringToHashBucket"), _hashed),
    **dict.fromkeys(("StringLower", "StringUpper", "StringStrip"), lambda op, value: torch.abs(tensor(value))),
    "LookupTableFindV2": _looked_up,
    "Cross": _crossed,
    **{"SparseCross": _crossed_columns, "SparseToDense": _in_places},
    "DenseBincount": _counted,
    **{"MatrixDeterminant": _linear_algebra(torch.linalg.det), "MatrixInverse": _linear_algebra(torch.linalg.inv)},
    **{"Cholesky": _linear_algebra(torch.linalg.cholesky), "MatrixSolve": _linear_algebra(torch.linalg.solve)},
    "Qr": _linear_algebra(torch.linalg.qr),
    "Diag": lambda op, value: torch.diag(tensor(value)),
    "MatrixDiagV3": lambda op, value, *_: torch.diag_embed(tensor(value)),
    "MatrixDiagPartV3": lambda op, value, *_: torch.diagonal(tensor(value), dim1=-2, dim2=-1),
}  # fmt: skip
