"""What all layers of a ``GraphModule`` are made of.

A value is [batch, *shape]; one that is the same for every example, as a constant, is [1, *shape].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from slotool.graphs.operator_node import Operator
from slotool.graphs.operators import Shape

Builder = Callable[[Operator, Sequence[Shape], str], nn.Module]


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


def plain(function: Callable[..., Tensor]) -> Builder:
    """Builds the same layer without weights whatever the operator says."""
    return lambda *_: Function(function)


def aligned(*inputs: Tensor) -> list[Tensor]:
    """The inputs with as many axes as the largest, new ones of size one behind the batch."""
    rank = max(x.ndim for x in inputs)
    return [x if x.ndim == rank else x.reshape(len(x), *[1] * (rank - x.ndim), *x.shape[1:]) for x in inputs]


def of_one_batch(*inputs: Tensor) -> Sequence[Tensor]:
    """The inputs, those that are the same for every example stretched to the batch of the others."""
    batch = max(map(len, inputs))
    return [x if len(x) == batch else x.expand(batch, *x.shape[1:]) for x in inputs]


def per_axis(attributes: Mapping[str, Any], name: str) -> list[int]:
    """``axes`` of an example as those of a batch."""
    return [axis + 1 for axis in attributes[name]]
