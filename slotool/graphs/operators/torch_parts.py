"""Torch modules and functions that several operators are made of.

A value is [batch, *shape]; one that is the same for every example, as a constant, is [1, *shape].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from slotool.graphs.operators.attributes import Shape


class Function(nn.Module):
    """A layer without weights."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self._function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._function(*inputs)


class Moved(nn.Module):
    """A layer that wants axes elsewhere: moved there before it and back after."""

    def __init__(self, layer: nn.Module, source: list[int], target: list[int]):
        super().__init__()
        self.layer, self._source, self._target = layer, source, target

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.layer(x.movedim(self._source, self._target)).movedim(self._target, self._source)
        return answer


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


class Normalization(nn.Module):
    """Fixed mean and variance per channel; like Keras it also keeps a counter."""

    def __init__(self, shape: Shape, device: str):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, device=device))
        self.register_buffer("variance", torch.ones(shape, device=device))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.get_buffer("mean")) / self.get_buffer("variance").sqrt()


class LayerScale(nn.Module):
    """A trained factor per channel."""

    def __init__(self, shape: Shape, device: str):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Recurrent(nn.Module):
    """Module of a recurrent layer: every step's output, with optional initial states."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, *states: Tensor) -> Tensor:
        # Several sequences of one example are as good as examples.
        answer: Tensor = self.layer(x.flatten(0, -3), *self._first(x, states))[0]
        return answer.reshape(*x.shape[:-1], answer.shape[-1])

    def _first(self, x: Tensor, states: Sequence[Tensor]) -> list[Any]:
        """Return states with an axis for layers and directions in front; an LSTM uses a single one for both."""
        layers = int(self.layer.num_layers) * (1 + bool(self.layer.bidirectional))  # type: ignore[arg-type]
        rows = [
            state.reshape(len(state), layers, -1).transpose(0, 1).expand(-1, len(x), -1).contiguous()
            for state in states
        ]
        if not rows or not isinstance(self.layer, nn.LSTM):
            return rows[:1]
        return [(rows[0], rows[-1])]


def aligned(*inputs: Tensor) -> list[Tensor]:
    """Return the inputs with as many axes as the largest, new ones of size one behind the batch."""
    rank = max(x.ndim for x in inputs)
    return [x if x.ndim == rank else x.reshape(len(x), *[1] * (rank - x.ndim), *x.shape[1:]) for x in inputs]


def of_one_batch(*inputs: Tensor) -> Sequence[Tensor]:
    """Return the inputs, those that are the same for every example stretched to the batch of the others."""
    batch = max(map(len, inputs))
    return [x if len(x) == batch else x.expand(batch, *x.shape[1:]) for x in inputs]


def over_last_axes(function: Callable[[Tensor], Tensor], axes: int) -> Callable[[Tensor], Tensor]:
    """Return a function of [batch, channels, *axes] as one that counts all axes between as channels."""

    def applied(x: Tensor) -> Tensor:
        if x.ndim == axes + 2:
            return function(x)
        answer = function(x.flatten(1, x.ndim - axes - 1))
        return answer.reshape(*x.shape[: x.ndim - axes], *answer.shape[2:])

    return applied
