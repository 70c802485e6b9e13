"""Standard ONNX nodes that are written in the place of one that is not standard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import onnx

# The domain of the operators that ONNX Runtime fuses.
MICROSOFT = "com.microsoft"
# Axes of images, channels last and channels first.
TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
# Attributes of fused operators that the plain ones do not have.
_OF_FUSIONS = ("activation", "activation_params", "channels_last", "channels")


class Writer:
    """What stands for ``node``: ``nodes``, whose constants become initialisers of the graph. ``shapes`` are those of
    its initialisers, ``channels`` how many others take of what it makes, where they say so."""

    def __init__(
        self, graph: onnx.GraphProto, node: onnx.NodeProto, shapes: Mapping[str, Sequence[int]], channels: int = 0
    ):
        import onnx

        self._graph, self._node, self._shapes = graph, node, shapes
        self._attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
        self._prefix = next(filter(None, (node.name, *node.output)))
        self.inputs, self.channels = list(node.input), channels
        self.nodes: list[onnx.NodeProto] = []
        self._made = 0

    def attribute(self, name: str, default: Any) -> Any:
        value = self._attributes.get(name, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def has(self, position: int) -> bool:
        return position < len(self.inputs) and self.inputs[position] != ""

    def gives(self, position: int) -> bool:
        return position < len(self._node.output) and self._node.output[position] != ""

    def shape(self, name: str) -> Sequence[int] | None:
        """That of an initialiser."""
        return self._shapes.get(name)

    def add(self, op: str, inputs: Iterable[str], **attributes: Any) -> str:
        """Append a node; the name of what it makes."""
        import onnx

        name = self._name()
        self.nodes.append(onnx.helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def keep(self, op: str, inputs: Iterable[str]) -> str:
        """Append a node with the attributes of the one in whose place it stands."""
        kept = {key: value for key, value in self._attributes.items() if key not in _OF_FUSIONS}
        return self.add(op, inputs, **kept)

    def finish(self, value: str) -> bool:
        """``value`` is what the node makes."""
        self.finish_as(value, 0)
        return True

    def finish_as(self, value: str, position: int) -> str:
        """``value`` is the node's output at this position; its name from now on."""
        import onnx

        name = str(self._node.output[position])
        last = self.nodes[-1] if self.nodes else None
        if last is not None and list(last.output) == [value]:
            last.output[0], last.name = name, self._prefix
        else:
            self.nodes.append(onnx.helper.make_node("Identity", [value], [name], name=name))
        return name

    def numbers(self, values: Sequence[int]) -> str:
        """A constant of whole numbers: axes, sizes."""
        import numpy as np

        return self._constant(np.array(values, np.int64))

    def floats(self, values: Sequence[float] | float) -> str:
        import numpy as np

        return self._constant(np.array(values, np.float32))

    def weights(self, shape: Sequence[int]) -> str:
        """Weights of a shape alone."""
        import onnx

        name = self._name()
        self._graph.initializer.add(name=name, dims=shape, data_type=onnx.TensorProto.FLOAT)
        return name

    def part(self, value: str, start: int, end: int, axis: int) -> str:
        return self.add("Slice", [value, *(self.numbers([number]) for number in (start, end, axis))])

    def heads(self, value: str, heads: int) -> str:
        """[batch, steps, heads x size] as [batch, heads, steps, size]."""
        apart = self.add("Reshape", [value, self.numbers([0, 0, heads, -1])])
        return self.add("Transpose", [apart], perm=[0, 2, 1, 3])

    def _constant(self, values: np.ndarray) -> str:
        import onnx

        name = self._name()
        self._graph.initializer.append(onnx.numpy_helper.from_array(values, name))
        return name

    def _name(self) -> str:
        self._made += 1
        return f"{self._prefix}/{self._made}"
