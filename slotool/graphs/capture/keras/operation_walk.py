"""Calls of ``keras.ops`` as drafts: which axes an image has where, and the constants that they take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.capture.drafts import Drafts, Operation, Step, Steps, effects_of, in_a_row, outputs_of
from slotool.graphs.capture.keras.operations import Call, operation_steps
from slotool.graphs.capture.keras.traced import Notes, add_traced, part_of
from slotool.graphs.capture.keras.windows import around, has_channels_last, window_of
from slotool.graphs.libraries import keras
from slotool.graphs.operators import Shape

# An image's axes, channels first, as Keras has them, and the other way.
TO_KERAS, TO_IMAGE = (1, 2, 0), (2, 0, 1)
# Operators for which it is all the same where the channels are, but for the numbers of axes.
_ANYWHERE = (
    *("Rescaling", "ReLU", "Activation", "Add", "Multiply", "Elementwise", "Where", "Cast", "Softmax", "Concatenate"),
    *("CumulativeSum", "Roll", "Flip", "Mean", "Sum", "Max", "Min", "Any", "All", "Norm", "Variance", "Product"),
)


@dataclass(frozen=True)
class Mark:
    """A state of a walk: how many ``layers`` there were, the drafts' own mark, and what the walk knew of them."""

    layers: int
    drafts: tuple[int, dict[str, str], list[str]]
    plain: set[str]
    other: dict[str, str]
    weights: int


class OperationWalk:
    """Conversion of a model's own operations.

    Images from layers are channels first, as everywhere here; results of products or reshapes keep Keras' axes until a
    layer reads them: nothing is transposed that Keras does not transpose. ``weights``: numbers in the trained arrays
    taken.
    """

    def __init__(self, drafts: Drafts, channels_last: bool):
        self._drafts, self._channels_last, self.weights = drafts, channels_last, 0
        self.notes = Notes()
        # Names whose three axes are in Keras' order, and of a name the same values in the other order.
        self._plain: set[str] = set()
        self._other: dict[str, str] = {}

    def as_image(self, name: str) -> str:
        """Return the values with their channels first, as layers take them."""
        return self._turned(name, TO_IMAGE) if name in self._plain else name

    def operation(self, node: Any, label: str, names: Mapping[int, str]) -> list[str]:
        """Append the operators of a call; return the names of its outputs, none for an unknown call."""
        operation = node.operation
        if type(operation).__name__ in ("StopGradient", "ConvertToTensor"):
            return [names[id(node.input_tensors[0])]]
        arguments = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
        arrays = [each for each in arguments if _is_array(each)]
        tensors = {id(each) for each in node.input_tensors}
        fixed = tuple(id(each) not in tensors for each in arrays)
        whole = max((tuple(each.shape) for each in node.input_tensors), key=len, default=())
        shapes = tuple(_shape(each, is_fixed, whole) for each, is_fixed in zip(arrays, fixed, strict=True))
        outputs = tuple(_shape(each, False, whole) for each in node.outputs)
        if any(size is None for shape in (*shapes, *outputs) for size in shape):
            return []
        call = Call(operation, shapes, fixed, outputs, tuple(node.arguments.args))
        sources = [None if is_fixed else names[id(each)] for each, is_fixed in zip(arrays, fixed, strict=True)]
        try:
            window = window_of(call) if sources and sources[0] is not None else None
            if window is not None:
                return self._window(window, call, arrays, str(sources[0]), label)
            return self._steps(operation_steps(call), call, arrays, sources, label)
        except GraphError:
            return []

    def traced(self, node: Any, label: str, inputs: Sequence[str]) -> list[str]:
        """Return the outputs of a call as torch records it; none where it cannot."""
        part = part_of(node)
        if part is None:
            return []
        sources = list(dict(zip(map(id, node.input_tensors), inputs, strict=True)).values())
        last = self._channels_last
        images = {name for name in sources if last and name not in self._plain and len(self._drafts.shape(name)) == 3}
        before = self.mark()
        try:
            results = add_traced(self._drafts, part, sources, images, label, self.notes)
            expected = [tuple(each.shape) for each in node.outputs]
            if len(results) != len(expected):
                raise GraphError(f"{label} has other outputs than Keras says")
        except GraphError:
            self.undo(before)
            return []
        self._plain |= {name for name, image in results if last and not image and len(self._drafts.shape(name)) == 3}
        return [name for name, _ in results]

    def mark(self) -> Mark:
        """Return a position for ``undo``."""
        return Mark(len(self._drafts.layers), self._drafts.mark(), set(self._plain), dict(self._other), self.weights)

    def unknown_since(self, mark: Mark) -> int:
        """Return the number of operators kept by name since ``mark``."""
        return sum(draft.attributes is None for draft in list(self._drafts.layers.values())[mark.layers :])

    def undo(self, mark: Mark) -> None:
        """Take back what was appended since."""
        self._drafts.undo(mark.drafts)
        self._plain, self._other, self.weights = set(mark.plain), dict(mark.other), mark.weights

    def state(self, shape: Shape, label: str) -> str:
        """Append a layer's initial state, equal for every example."""
        return self._constant(None, shape, f"{label}.state")

    def _window(
        self, operations: Sequence[Operation], call: Call, arrays: list[Any], source: str, label: str
    ) -> list[str]:
        """Append a window on an image in the layout of layers; sequences and volumes are transposed."""
        last, rank = has_channels_last(call.operation), len(call.shape)
        image = rank == 3 and last and self._channels_last
        steps = around(operations, rank) if last and not image else in_a_row(*operations)
        source = self.as_image(source) if image else self._as_keras(source)
        return self._added(steps, call, arrays, {0: source}, label, image)

    def _steps(
        self, steps: Steps, call: Call, arrays: list[Any], attributes: list[str | None], label: str
    ) -> list[str]:
        if steps is None:
            return []
        images_first = self._images_first(steps, call, attributes)
        sources = {at: name for at, name in enumerate(attributes) if name is not None}
        if images_first is None:
            sources = {at: self._as_keras(name) for at, name in sources.items()}
        return self._added(images_first or steps, call, arrays, sources, label, images_first is not None)

    def _images_first(self, steps: list[Step], call: Call, inputs_given: list[str | None]) -> list[Step] | None:
        """Return the one step of images that may stay channels first, or None."""
        if not self._channels_last or len(steps) > 1 or steps[0][1] not in _ANYWHERE:
            return None
        if any(call.fixed) or any(len(shape) != 3 for shape in call.inputs) or self._plain & set(inputs_given):
            return None
        name, op, attributes, sources = steps[0]
        if "axes" in attributes and not attributes.get("keepdims", op in ("Roll", "Flip")):
            remaining = [axis for axis in range(3) if axis not in attributes["axes"]]
            if 2 in remaining and len(remaining) == 2:
                return None
        moved = dict(attributes)
        if "axis" in moved:
            moved["axis"] = TO_IMAGE.index(moved["axis"])
        if "axes" in moved:
            moved["axes"] = tuple(TO_IMAGE.index(axis) for axis in moved["axes"])
        return [(name, op, moved, sources)]

    def _added(
        self, steps: list[Step], call: Call, arrays: list[Any], sources: dict[int, str], label: str, image: bool
    ) -> list[str]:
        """Raise ``GraphError``, before anything is added, if the steps do not have the shapes that Keras states."""
        shapes: dict[str | int, Shape] = {at: self._drafts.shape(name) for at, name in sources.items()}
        shapes |= {at: shape for at, shape in enumerate(call.inputs) if call.fixed[at]}
        effects = effects_of(steps, shapes)
        expected = [
            tuple(shape[axis] for axis in TO_IMAGE) if image and len(shape) == 3 else shape for shape in call.outputs
        ]
        if [effects[name].shape for name in outputs_of(steps)] != expected:
            raise GraphError(f"{label} has other shapes as operators than in Keras")
        used = {at for *_, inputs in steps for at in inputs if isinstance(at, int) and at not in sources}
        names: dict[str | int, str] = dict(sources.items())
        names |= {at: self._constant(arrays[at], call.inputs[at], label) for at in sorted(used)}
        self.weights += sum(effect.weights for effect in effects.values())
        outputs = self._drafts.add_steps(label, steps, effects, names)
        if not image and self._channels_last:
            self._plain |= {name for name in outputs if len(self._drafts.shape(name)) == 3}
        return outputs

    def _constant(self, array: Any, shape: Shape, label: str) -> str:
        """Trained or fixed numbers that an operation takes."""
        weights = math.prod(shape) if hasattr(array, "trainable") else 0
        self.weights += weights
        sources = {"shape": shape, **({"weights": weights} if weights else {})}
        name = self._drafts.add(f"{label}.constant", "Constant", [], sources, shape, weights)
        if len(shape) == 3 and self._channels_last:
            self._plain.add(name)
        return name

    def _as_keras(self, name: str) -> str:
        turns = self._channels_last and len(self._drafts.shape(name)) == 3 and name not in self._plain
        return self._turned(name, TO_KERAS) if turns else name

    def _turned(self, name: str, axes: tuple[int, int, int]) -> str:
        if name not in self._other:
            shape = self._drafts.shape(name)
            outputs = tuple(shape[axis] for axis in axes)
            other = self._drafts.add(f"{name}.turned", "Transpose", [name], {"axes": axes}, outputs)
            self._other |= {name: other, other: name}
            if axes == TO_KERAS:
                self._plain.add(other)
        return self._other[name]


def _is_array(value: Any) -> bool:
    """True if it is an array of one axis or more."""
    return hasattr(value, "shape") and hasattr(value, "dtype") and len(value.shape) > 0


def _shape(array: Any, fixed: bool, whole: Shape) -> Shape:
    """Return a shape without the batch.

    A fixed array has a batch only if it has as many axes as ``whole``, the largest of the others.
    """
    shape = tuple(array.shape)
    return shape if fixed and not (len(shape) == len(whole) and shape[0] in (1, whole[0])) else shape[1:]
