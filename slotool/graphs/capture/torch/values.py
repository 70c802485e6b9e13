"""The tensors of an exported call as one example sees them: without the batch, wherever that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from slotool.graphs.capture.batch_axis import axis_of, share_of
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.operators import OPERATORS, Shape, infer


class Untranslatable(Exception):
    """A call that no operators of ours are, or not on tensors such as these."""


@dataclass(frozen=True)
class Value:
    """A tensor: its ``node``, its shape with the batch, and whether it depends on the network's input (``is_data``).

    ``stride`` and ``dtype`` are torch's; ``batch`` is the size of the batch. ``is_computed``: a constant that is a
    product of others, which somebody must pay for. ``turned``: an image whose channels are last in the program, and
    second in ``whole``.
    """

    node: Any
    whole: Shape
    batch: int
    is_data: bool
    stride: tuple[int, ...] = ()
    dtype: str = "float32"
    is_computed: bool = False
    turned: bool = False

    @cached_property
    def batched(self) -> tuple[int, int] | None:
        """Axis of the batch, and the number of windows that it holds of each example."""
        return axis_of(self.whole, self.batch)

    @property
    def folded_axis(self) -> int | None:
        """Axis that is the batch alone; None without one, or if it also holds windows."""
        return self.batched[0] if self.batched is not None and self.batched[1] == 1 else None

    @cached_property
    def shape(self) -> Shape:
        """Shape of one example, or of a whole constant without a batch."""
        share = share_of(self.whole, self.batch)
        if share is None and self.is_data:
            raise Untranslatable("the batch is lost")
        return self.whole if share is None else share

    def at(self, axis: int) -> int:
        """Return an axis of the whole as one of one example's. Raises ``Untranslatable`` for that of the batch."""
        axis %= max(1, len(self.whole))
        if self.turned:
            axis = (0, 2, 3, 1)[axis]
        if self.batched is not None and axis == self.batched[0]:
            raise Untranslatable("works along the batch")
        return axis - (self.folded_axis is not None and axis > self.folded_axis)

    @property
    def is_image(self) -> bool:
        """True if it is an image of each example, with the batch first."""
        return self.folded_axis == 0 and len(self.whole) == 4

    def example_axes(self) -> list[int]:
        """Return the axes of the whole that are one example's, in order."""
        return [axis for axis in range(len(self.whole)) if axis != self.folded_axis]


class Emitter:
    """Appends operators to drafts, their shapes inferred; ``undo`` takes back what it appended."""

    def __init__(self, drafts: Drafts, label: str):
        self._drafts, self.label = drafts, label
        self.added: list[str] = []
        self.weights = self.product_flops = 0

    def add(self, op: str, inputs: str | Sequence[str], **attributes: Any) -> str:
        """Append an operator and return its name. Raises ``GraphError`` where it does not fit."""
        sources = [inputs] if isinstance(inputs, str) else list(inputs)
        present = {name: value for name, value in attributes.items() if value is not None}
        effect = infer(op, present, [self._drafts.shape(name) for name in sources])
        self.weights += effect.weights
        self.product_flops += effect.flops if OPERATORS[op].is_product else 0
        name = self._drafts.add(self.label, op, sources, present, effect.shape)
        self.added.append(name)
        return name

    def activation(self, source: str, activation: str) -> str:
        name = self._drafts.add_activation(self.label, activation, [source], self.shape(source))
        self.added.append(name)
        return name

    def reshape(self, source: str, shape: Sequence[int]) -> str:
        """Return the same values in another shape, as a view; nothing is appended where it is that already."""
        if tuple(shape) == self.shape(source):
            return source
        if len(shape) == 1:
            return self.add("Flatten", source)
        if not shape:
            # A number for each example: the axis of one goes.
            source = source if len(self.shape(source)) == 1 else self.add("Flatten", source)
            return self.add("Slice", source, axis=0, size=1, keepdims=False)
        return self.add("Reshape", source, shape=tuple(shape))

    def transpose(self, source: str, axes: Sequence[int]) -> str:
        return source if list(axes) == sorted(axes) else self.add("Transpose", source, axes=tuple(axes))

    def shape(self, name: str) -> Shape:
        return self._drafts.shape(name)

    def undo(self) -> None:
        for name in self.added:
            del self._drafts.layers[name]
        self.added.clear()


@dataclass(frozen=True)
class Call:
    """Call in a trace.

    ``name`` is without overload, ``arguments`` by schema name, tensors as ``Value``s, ``out`` the result (several
    values for several outputs), ``namer`` returns the operator behind a value. ``turned``: its images are stored
    channels last in the program; ``copies``: copies and casts are operators.
    """

    name: str
    arguments: Mapping[str, Any]
    outs: tuple[Value, ...]
    emit: Emitter
    namer: Callable[..., str]
    turned: bool = False
    copies: bool = True

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def out(self) -> Value:
        return self.outs[0]

    def value(self, name: str) -> Value:
        """Return a tensor among the arguments. Raises ``Untranslatable`` for anything else."""
        argument = self.arguments.get(name)
        if not isinstance(argument, Value):
            raise Untranslatable(f"{name} is no tensor")
        return argument

    def data(self, name: str = "self") -> Value:
        """Return a tensor that depends on the input."""
        argument = self.value(name)
        if not argument.is_data:
            raise Untranslatable(f"{name} is a constant")
        return argument

    def axes(self, name: str) -> list[int]:
        """Return axes of the first tensor, one or several or none, as those of one example."""
        axes = self[name]
        return [self.data().at(axis) for axis in ([axes] if isinstance(axes, int) else axes or ())]

    def source(self, value: Value) -> str:
        """Return the operator whose output a value is; a ``Constant`` where it depends on no input."""
        return self.namer(value)

    def constant(self, value: Value, shape: Shape) -> str:
        """Return a ``Constant`` of this shape for a value that depends on no input."""
        return self.namer(value, shape)

    @property
    def tensors(self) -> list[Value]:
        return [value for value in self.arguments.values() if isinstance(value, Value)]

    def stretched(self, value: Value, like: Value | None = None) -> str:
        """Return the source, in a shape that broadcasts to that of ``like``, by default the output's."""
        if self.turned and not value.is_data:
            raise Untranslatable("a constant meets an image with its channels last")
        like = like or self.out
        whole, pad = value.whole, len(like.whole) - len(value.whole)
        if like.batched is None or pad < 0:
            raise Untranslatable("the batch is lost")
        axis, windows = like.batched
        if value.batched is not None:
            place, own_windows = value.batched
            if place + pad != axis or own_windows != windows:
                raise Untranslatable("batches of different axes meet")
            return self.source(value)
        if value.is_data or (axis >= pad and whole[axis - pad] != 1):
            raise Untranslatable("a constant meets the batch")
        shape = list(whole)
        if windows == 1 and axis >= pad:
            del shape[axis - pad]
        while len(shape) > 1 and shape[0] == 1:
            del shape[0]
        return self.namer(value, tuple(shape) or (1,))


def is_view(stride: Sequence[int], before: Shape, after: Shape) -> bool:
    """True if torch can look at a tensor in another shape without a copy."""
    try:
        torch.empty_strided(before, stride, device="meta").view(after)
    except (RuntimeError, ValueError):
        return False
    return True


# Names of the outputs that a call is translated to.
Names = list[str]
Translator = Callable[[Call], Names]
