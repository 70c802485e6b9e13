"""Values of a Keras model in any order of axes: a transposition costs nothing until a reader needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from slotool.graphs.libraries import keras
from slotool.graphs.operators.attributes import Shape

Order = tuple[int, ...]
Initializer = Callable[..., Any]
# The one layout of images that TensorFlow has on CPUs.
CHANNELS_LAST: Order = (1, 2, 0)


@dataclass(frozen=True)
class Value:
    """Value in a Keras model: after the batch, axis i of ``tensor`` is axis ``order[i]`` of the graph's value.

    One that is equal for every example, as a constant, is no ``KerasTensor`` and has a batch of 1.
    """

    tensor: Any
    order: Order

    @classmethod
    def as_stated(cls, tensor: Any, rank: int) -> Value:
        return cls(tensor, tuple(range(rank)))

    def at(self, axis: int) -> int:
        """Return the axis of the tensor, the batch counted, that is this axis of the graph's value."""
        return 1 + self.order.index(axis)

    def in_order(self, order: Order) -> Any:
        """Return the tensor with its axes in this order."""
        if order == self.order:
            return self.tensor
        return keras.ops.transpose(self.tensor, (0, *(self.at(axis) for axis in order)))

    def stated(self) -> Any:
        """Return the tensor with its axes as the graph states them."""
        return self.in_order(tuple(range(len(self.order))))

    def for_layer(self) -> Any:
        """Return the tensor as Keras layers take it: an image channels last, all else as stated."""
        return self.in_order(usual_order(len(self.order)))


def layer_name(name: str) -> str:
    """Return the ends as no name does that Keras gives by itself (``multiply_36``), of which there may be one."""
    return f"{name.replace('/', '_')}_"


def usual_order(rank: int) -> Order:
    return CHANNELS_LAST if rank == 3 else tuple(range(rank))


def by_layer(layer: Callable[[Any], Any], shape: Shape, values: Sequence[Value]) -> Value:
    """Return the output, of this shape, of a Keras layer, which takes and makes images channels last."""
    tensors = [value.for_layer() for value in values]
    return Value(layer(tensors[0] if len(tensors) == 1 else tensors), usual_order(len(shape)))


def without(order: Order, axes: Sequence[int]) -> Order:
    """Return the order of what is left once these axes are gone."""
    rest = sorted(set(order) - set(axes))
    return tuple(rest.index(axis) for axis in order if axis in rest)


def in_one_order(values: Sequence[Value], shapes: Sequence[Shape]) -> tuple[list[Any], Order]:
    """Return the tensors in the order of the first that is no constant, with as many axes as the largest.

    New axes have size one, after the batch.
    """
    rank = max(map(len, shapes))
    if all(len(shape) == rank for shape in shapes):
        order = next((value.order for value in values if is_computed(value)), values[0].order)
        return [value.in_order(order) for value in values], order
    tensors = [value.stated() for value in values]
    for at, shape in enumerate(shapes):
        if len(shape) < rank:
            tensors[at] = keras.ops.reshape(tensors[at], (-1, *[1] * (rank - len(shape)), *shape))
    return tensors, tuple(range(rank))


def is_computed(value: Value) -> bool:
    """True if it depends on the input, so has a batch."""
    return isinstance(value.tensor, keras.KerasTensor)


def for_each_example(values: Sequence[Value]) -> list[Value]:
    """Return the constants among other values repeated for every example."""
    computed = next((value for value in values if is_computed(value)), None)
    if computed is None:
        return list(values)
    return [value if is_computed(value) else _repeated(value, computed) for value in values]


def _repeated(value: Value, like: Value) -> Value:
    import tensorflow as tf

    class ForEachExample(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
        """The constant, as often as its input has examples."""

        def call(self, x: Any) -> Any:
            return tf.broadcast_to(value.tensor, (tf.shape(x)[0], *value.tensor.shape[1:]))

        def compute_output_shape(self, shape: Shape) -> tuple[int | None, ...]:
            return (shape[0], *value.tensor.shape[1:])

    return Value(ForEachExample()(like.tensor), value.order)


def reshaped(value: Value, before: Shape, after: Shape) -> Value:
    """Merge or split axes in place if those of each merger are adjacent, else write the values as stated first."""
    groups = _groups(before, after)
    place = {axis: number for number, (axes, _) in enumerate(groups) for axis in axes}
    runs = [(number, list(axes)) for number, axes in groupby(value.order, lambda axis: place.get(axis, -1))]
    numbers = [number for number, _ in runs]
    adjacent = len(set(numbers)) == len(groups) == len(runs) and all(axes == sorted(axes) for _, axes in runs)
    if not adjacent:
        return Value.as_stated(keras.ops.reshape(value.stated(), (-1, *after)), len(after))
    order = tuple(axis for number in numbers for axis in groups[number][1])
    return Value(keras.ops.reshape(value.tensor, (-1, *(after[axis] for axis in order))), order)


def _groups(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """Return the axes before and after that hold the same values, in the fewest axes each."""
    groups: list[tuple[list[int], list[int]]] = []
    first = second = 0
    while first < len(before) and second < len(after):
        old, new = [first], [second]
        sizes = [before[first], after[second]]
        first, second = first + 1, second + 1
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                sizes[0] *= before[first]
                old.append(first)
                first += 1
            else:
                sizes[1] *= after[second]
                new.append(second)
                second += 1
        groups.append((old, new))
    if groups:
        groups[-1][0].extend(range(first, len(before)))
        groups[-1][1].extend(range(second, len(after)))
    return groups
