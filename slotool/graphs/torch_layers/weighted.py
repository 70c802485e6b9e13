"""Constants, products, attention, recurrent layers and norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from slotool.graphs.operator_node import Operator
from slotool.graphs.operators import Shape, channel_axis, per_channel
from slotool.graphs.torch_layers.common import Builder, Function, Moved, aligned, of_one_batch

_BATCH_NORMS: Mapping[int, Callable[..., nn.Module]] = {
    1: nn.BatchNorm1d,
    2: nn.BatchNorm1d,
    3: nn.BatchNorm2d,
    4: nn.BatchNorm3d,
}
_RECURRENT: Mapping[str, Callable[..., nn.Module]] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "SimpleRNN": nn.RNN}


class Constant(nn.Module):
    """Values that are the same for every example, [1, *shape]: a parameter where they are trained, else as given."""

    def __init__(self, shape: Shape, values: Tensor | None, device: str):
        super().__init__()
        if values is None:
            self.weight = nn.Parameter(torch.zeros(1, *shape, device=device))
        else:
            self.register_buffer("values", values)

    def forward(self) -> Tensor:
        return self.weight if "weight" in self._parameters else self.get_buffer("values")


class _Normalization(nn.Module):
    """Fixed mean and variance per channel; like Keras it also keeps a counter."""

    def __init__(self, shape: Shape, device: str):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, device=device))
        self.register_buffer("variance", torch.ones(shape, device=device))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.get_buffer("mean")) / self.get_buffer("variance").sqrt()


class _LayerScale(nn.Module):
    """A trained factor per channel."""

    def __init__(self, shape: Shape, device: str):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class _Recurrent(nn.Module):
    """Every step's output of a recurrent layer, which may be given the states that it begins with."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, *states: Tensor) -> Tensor:
        # Several sequences of one example are as good as examples.
        answer: Tensor = self.layer(x.flatten(0, -3), *self._first(x, states))[0]
        return answer.reshape(*x.shape[:-1], answer.shape[-1])

    def _first(self, x: Tensor, states: Sequence[Tensor]) -> list[Any]:
        """With an axis for layers and directions in front; an LSTM that is given one takes it for both."""
        layers = int(self.layer.num_layers) * (1 + bool(self.layer.bidirectional))  # type: ignore[arg-type]
        rows = [
            state.reshape(len(state), layers, -1).transpose(0, 1).expand(-1, len(x), -1).contiguous()
            for state in states
        ]
        if not rows or not isinstance(self.layer, nn.LSTM):
            return rows[:1]
        return [(rows[0], rows[-1])]


def _dense(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    attributes = operator.attributes
    return nn.Linear(inputs[0][-1], int(attributes["units"]), bias=attributes.get("bias", True), device=device)


def _embedding(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    return nn.Embedding(operator.attributes["vocabulary"], operator.attributes["units"], device=device)


def _mat_mul(_: Operator, inputs: Sequence[Shape], __: str) -> nn.Module:
    if len(inputs[0]) == len(inputs[1]):
        return Function(torch.matmul)
    return Function(lambda x, y: torch.matmul(*aligned(x, y)))


def _attention(operator: Operator, inputs: Sequence[Shape], _: str) -> nn.Module:
    grouped = len(inputs[0]) > 2 and inputs[0][-3] != inputs[1][-3]
    # torch takes a mask or hides what is to come, not both.
    causal = operator.attributes.get("causal", False) and len(inputs) == 3
    return Function(partial(_attended, causal=causal, grouped=grouped))


def _attended(query: Tensor, key: Tensor, value: Tensor, *mask: Tensor, causal: bool, grouped: bool) -> Tensor:
    """Attention over [batch, …, heads, length, dim]: windows between the batch and the heads count as examples."""
    query, key, value = of_one_batch(query, key, value)
    windows = query.shape[1:-3]
    if windows:
        hidden = [_stretched(each, query.ndim).expand(len(query), *windows, *[-1] * 3) for each in mask]
        query, key, value, *hidden = (x.flatten(0, len(windows)) for x in (query, key, value, *hidden))
    else:
        hidden = [_stretched(each, query.ndim) for each in mask]
    added = hidden[0] if hidden else None
    if added is not None and not (added.dtype == torch.bool or added.is_floating_point()):
        added = added.bool()
    answer = functional.scaled_dot_product_attention(query, key, value, added, is_causal=causal, enable_gqa=grouped)
    return answer.unflatten(0, (-1, *windows)) if windows else answer


def _stretched(mask: Tensor, rank: int) -> Tensor:
    """A mask with axes of size one where it has fewer than the scores."""
    return mask.reshape(len(mask), *[1] * (rank - mask.ndim), *mask.shape[1:])


def _recurrent(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    attributes = operator.attributes
    projection = attributes.get("projection", 0)
    layer = _RECURRENT[operator.op](
        inputs[0][-1],
        attributes["units"],
        attributes.get("layers", 1),
        bias=attributes.get("bias", True),
        batch_first=True,
        bidirectional=attributes.get("bidirectional", False),
        device=device,
        **({"proj_size": projection} if projection else {}),
    )
    return _Recurrent(layer)


def _batch_norm(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    shape = inputs[0]
    axis = operator.attributes.get("axis", channel_axis(shape))
    norm = _without_unused(_BATCH_NORMS[len(shape)](shape[axis], device=device), operator)
    return Moved(norm, [axis + 1], [1]) if axis else norm


def _layer_norm(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    sizes, move = _normalised(operator, inputs[0])
    return move(_without_unused(nn.LayerNorm(sizes, device=device), operator))


def _rms_norm(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    sizes, move = _normalised(operator, inputs[0])
    scale = operator.attributes.get("scale", True)
    return move(nn.RMSNorm(sizes, eps=EPSILON, elementwise_affine=scale, device=device))


# torch's own for other norms; that of its RMSNorm depends on the type.
EPSILON = 1e-5


def _normalised(operator: Operator, shape: Shape) -> tuple[list[int], Callable[[nn.Module], nn.Module]]:
    """The sizes of the axes that are normalised, and what moves them to the end where they are not there."""
    axes = operator.attributes.get("axes", (channel_axis(shape),))
    last = range(len(shape) - len(axes), len(shape))
    sizes = [shape[axis] for axis in axes]
    if list(axes) == list(last):
        return sizes, lambda norm: norm
    return sizes, lambda norm: Moved(norm, [axis + 1 for axis in axes], [axis + 1 for axis in last])


def _group_norm(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    norm = nn.GroupNorm(operator.attributes["groups"], inputs[0][0], device=device)
    return _without_unused(norm, operator)


def _without_unused(norm: nn.Module, operator: Operator) -> nn.Module:
    for part, name in (("scale", "weight"), ("center", "bias")):
        if not operator.attributes.get(part, True):
            setattr(norm, name, None)
    return norm


def _normalization(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    if operator.attributes.get("fixed"):
        return Function(partial(torch.mul, other=1.0))
    return _Normalization(per_channel(inputs[0]), device)


def _layer_scale(_: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    return _LayerScale(per_channel(inputs[0]), device)


WEIGHTED: dict[str, Builder] = {
    "Dense": _dense,
    "Embedding": _embedding,
    "MatMul": _mat_mul,
    "ScaledDotProductAttention": _attention,
    **dict.fromkeys(_RECURRENT, _recurrent),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "GroupNormalization": _group_norm,
    "LocalResponseNormalization": lambda operator, *_: nn.LocalResponseNorm(operator.attributes["size"]),
    "Normalization": _normalization,
    "LayerScale": _layer_scale,
}
