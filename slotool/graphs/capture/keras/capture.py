"""Keras models as operator graphs, layer by layer, nested models flattened, images turned to channels first."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.capture.drafts import Draft, Drafts, Operation, Step, agrees, in_a_row
from slotool.graphs.capture.keras.layers import ACTIVATION_LAYERS, ALONG_AN_AXIS, DROPPED, SINGLE, Attributes, steps_of
from slotool.graphs.capture.keras.models import (
    InputShape,
    InputType,
    folds_batch,
    folds_windows,
    functional_of,
    layers_inside,
    sized,
    unmasked,
    unrolled,
    with_sizes,
    written_as_functional,
)
from slotool.graphs.capture.keras.operation_walk import TO_IMAGE, OperationWalk
from slotool.graphs.capture.keras.operations import is_operation
from slotool.graphs.capture.keras.traced import Notes, add_traced, is_exportable, taken_since, whole_of
from slotool.graphs.graph import FLOAT32, OperatorGraph
from slotool.graphs.libraries import keras
from slotool.graphs.operators import Shape, channel_axis

# Types of inputs that are no plain numbers.
WHOLE = ("int64", "int32", "int16", "int8", "uint8", "bool")


def capture_keras(
    model: keras.Model, input_shape: InputShape = (), input_dtype: InputType | None = None
) -> OperatorGraph:
    """Return the graph of a model: Sequential, functional, or with a ``call`` of its own, in its built shapes.

    ``input_shape``: sizes of one example, in Keras' order, for free axes and for a model that is not built, which is
    built then; by name for several inputs. ``input_dtype``: element types of the inputs of a model with a ``call`` of
    its own, one or by name; by default integers if embeddings alone read them, else float32. Inputs are in the order of
    ``model.inputs``; Keras sorts those of a dictionary by name. Weights are counted as ``model.count_params()`` counts
    them, those of a layer called twice once (``OperatorGraph.shared_weights``). A layer that slotool does not know,
    also one of the user's own, becomes the contents of its ``call``: ``keras.ops`` and layers, or else, with torch as
    Keras' backend, torch's record. Windows folded into the batch's axis are found only that way. Any other layer, as
    one that calls ``tf.*`` itself, is kept as ``keras.<class>`` with its shape and weights and 0 FLOPs (see
    ``OperatorGraph.unknown``).

    Raises ``GraphError`` for a model of unknown shape, whose ``call`` does not run on it, that has a free axis besides
    the batch without a size, other sizes than stated, or windows in the axis of the batch on another backend.
    """
    functional = functional_of(model, input_shape, input_dtype)
    if input_shape:
        functional = with_sizes(functional, model.name, input_shape)
    with warnings.catch_warnings():
        # Errors of layers about masks and sizes when they are called again.
        warnings.simplefilter("ignore")
        graph = _best(model, functional)
    shared = max(0, graph.weights - model.count_params())
    return replace(graph, element_type=_element_type(_layers(functional)), shared_weights=shared)


def _best(model: keras.Model, functional: Any) -> OperatorGraph:
    """Capture layer by layer, or torch's record of the whole if layers hide the batch or more operators are unknown."""
    failed: GraphError | None = None
    try:
        graph = None if folds_batch(functional) else _by_layers(model, functional)
    except GraphError as error:
        graph, failed = None, error
    if graph is not None and not graph.unknown:
        return graph
    traced = _traced_whole(functional)
    if traced is not None and (graph is None or len(traced.unknown) < len(graph.unknown)):
        return traced
    sized = all(None not in tensor.shape[1:] for tensor in functional.inputs)
    if graph is None and sized and not is_exportable() and (failed is not None or folds_windows(functional)):
        why = failed or f"{model.name} folds windows or heads into the axis of the batch"
        raise GraphError(
            f"{why}; on torch such a model is exported: set KERAS_BACKEND=torch before keras is imported, or name a "
            "function that makes it, as --keras nets:make"
        )
    if failed is not None:
        raise failed
    return graph or _by_layers(model, functional)


def _by_layers(model: keras.Model, functional: Any) -> OperatorGraph:
    drafts = Drafts("keras")
    walk = _Walk(drafts, channels_last=not any(_channels_first(layer) for layer in _layers(functional)))
    outputs = walk.run(functional, [], "")
    starts = [name for name, draft in drafts.layers.items() if draft.op == "InputLayer"]
    if functional is not model:
        walk.idle_weights(model, "", functional.count_params() + walk.layout.weights)
    return _noted(drafts.graph(outputs, "keras", starts), walk.layout.notes)


def _noted(graph: OperatorGraph, notes: Notes) -> OperatorGraph:
    return replace(graph, uncosted=tuple(sorted(notes.uncosted)), examples_interact=notes.examples_interact)


def _traced_whole(functional: Any) -> OperatorGraph | None:
    """Return the graph of a model as torch records it, without its layers; None where it cannot be recorded."""
    part = whole_of(functional)
    if part is None:
        return None
    drafts, sources, values, images = Drafts("keras"), list[str](), list[str](), list[str]()
    last = not any(_channels_first(layer) for layer in _layers(functional))
    for tensor, shape in zip(functional.inputs, part.shapes, strict=True):
        image_shape = (shape[2], *shape[:2]) if len(shape) == 3 and last else shape
        kind = {"dtype": str(tensor.dtype)} if str(tensor.dtype) in WHOLE else {}
        source, value = drafts.add_input(tensor.name, image_shape, **kind)
        sources.append(source)
        values.append(value)
        images += values[-1:] if len(shape) == 3 and last else []
    try:
        notes = Notes()
        outputs = add_traced(drafts, part, values, images, "", notes)
        idle = functional.count_params() - sum(draft.weights or 0 for draft in drafts.layers.values())
        if idle > 0:
            drafts.idle_weights(idle)
        return _noted(drafts.graph([name for name, _ in outputs], "keras", sources), notes)
    except GraphError:
        return None


class _Walk:
    """Goes through a model's calls in the order in which Keras runs them."""

    def __init__(self, drafts: Drafts, channels_last: bool):
        self._drafts, self._channels_last = drafts, channels_last
        self.layout = OperationWalk(drafts, channels_last)

    def run(self, functional: Any, sources: Sequence[str], prefix: str) -> list[str]:
        """Append the layers of a model; the names of its outputs. The outermost has no ``sources``."""
        # Keras keeps a functional model's calls sorted by their distance from the output, farthest first.
        by_depth = functional._nodes_by_depth
        names: dict[int, str] = {}
        for at, tensor in enumerate(functional.inputs):
            if sources:
                names[id(tensor)] = sources[at]
            else:
                # Before all others, as by their distance from the output they would be in another order.
                self._call(tensor._keras_history.operation._inbound_nodes[0], names, prefix)
        for depth in sorted(by_depth, reverse=True):
            for node in by_depth[depth]:
                self._call(node, names, prefix)
        return [names[id(tensor)] for tensor in functional.outputs]

    def _call(self, node: Any, names: dict[int, str], prefix: str) -> None:
        """Append a call: a model's layers, known operators, or the contents of its own ``call``, else by name."""
        if all(id(tensor) in names for tensor in node.outputs):
            return
        layer, label = node.operation, prefix + node.operation.name
        inputs = [names[id(tensor)] for tensor in node.input_tensors]
        written = written_as_functional(layer)
        if written is not None:
            outputs = self.run(sized(written, node.input_tensors), inputs, f"{label}.")
        else:
            outputs = self._of_known_layer(node, label, names) or self._of_contents(node, label, inputs)
            outputs = outputs or self._by_name(node, label, names)
        names.update(zip(map(id, node.outputs), outputs, strict=True))

    def _of_known_layer(self, node: Any, label: str, names: Mapping[int, str]) -> list[str]:
        """Return the outputs of an operation or a layer of Keras that slotool knows; none of any other."""
        layer = node.operation
        if is_operation(layer):
            return self.layout.operation(node, label, names)
        if not type(layer).__module__.startswith("keras.") or _is_adapted(layer):
            return []
        inputs = self._images(node, names)
        return self._stepwise(node, layer, label, inputs) or self._added(node, layer, label, inputs)

    def _of_contents(self, node: Any, label: str, inputs: Sequence[str]) -> list[str]:
        """Return the outputs of a layer from the contents of its ``call``.

        Symbols come first; torch's record is next if these fail or leave unknown operators.
        """
        before = self.layout.mark()
        closed = is_operation(node.operation) or _is_adapted(node.operation)
        inner = None if closed else unrolled(node) or layers_inside(node)
        outputs = [] if inner is None else self._inside(inner, node, label, inputs)
        if outputs and not folds_batch(inner) and not self.layout.unknown_since(before):
            return outputs
        unknown = self.layout.unknown_since(before)
        self.layout.undo(before)
        traced = self.layout.traced(node, label, inputs)
        if traced and (not outputs or folds_batch(inner) or self.layout.unknown_since(before) < unknown):
            self.idle_weights(node.operation, f"{label}.", taken_since(self._drafts, before.layers))
            return traced
        self.layout.undo(before)
        return self._inside(inner, node, label, inputs) if outputs else []

    def _inside(self, inner: Any, node: Any, label: str, inputs: Sequence[str]) -> list[str]:
        """Return the outputs of a layer that is an ``inner`` functional model; none where that has free axes."""
        before = self.layout.weights
        try:
            states = [self.layout.state(tuple(tensor.shape)[1:], label) for tensor in inner.inputs[len(inputs) :]]
            outputs = self.run(inner, [*inputs, *states], f"{label}.")
        except GraphError:
            # Nothing reads what was appended.
            self.layout.weights = before
            return []
        used = inner.count_params() + self.layout.weights - before
        self.idle_weights(node.operation, f"{label}.", used)
        return outputs

    def _by_name(self, node: Any, label: str, names: Mapping[int, str]) -> list[str]:
        """Return each output as an operator that is kept by its name, the first with all weights."""
        layer, inputs = node.operation, self._images(node, names)
        weights = layer.count_params() if hasattr(layer, "count_params") else 0
        shapes = [self._shape(tensor, label) for tensor in node.outputs]
        return [
            self._drafts.add(label, type(layer).__name__, inputs, None, shape, 0 if at else weights)
            for at, shape in enumerate(shapes)
        ]

    def _images(self, node: Any, names: Mapping[int, str]) -> list[str]:
        """Return a layer's inputs, without masks."""
        return [self.layout.as_image(names[id(tensor)]) for tensor in unmasked(node)]

    def idle_weights(self, layer: Any, prefix: str, used: int) -> None:
        """Append the weights of a layer beyond those that operators inside it have."""
        count = layer.count_params() - used if hasattr(layer, "count_params") else 0
        if count > 0:
            self._drafts.idle_weights(count, prefix)

    def _added(self, node: Any, layer: Any, label: str, inputs: list[str]) -> list[str]:
        """Return the output of a layer that is one operator, if that has its shape and its weights."""
        shape = self._shape(node.outputs[0], label)
        shapes = tuple(self._drafts.shape(source) for source in inputs)
        op, attributes = self._translated(layer, shapes, shape)
        if op == "InputLayer" and attributes is not None:
            return [self._drafts.add_input(label, **attributes)[1]]
        if attributes is None or len(node.outputs) > 1:
            return []
        activation = attributes.get("activation") if op in ACTIVATION_LAYERS else None
        if activation:
            return [self._drafts.add_activation(label, activation, inputs, shape)]
        if op in DROPPED or (shapes == (shape,) and op in ("Activation", "Flatten", "Reshape")):
            return [self._drafts.drop(label, inputs[0])]
        draft = Draft(label, op, tuple(inputs), attributes, shape, layer.count_params())
        return [self._drafts.append(draft)] if agrees(draft, attributes, shapes) else []

    def _stepwise(self, node: Any, layer: Any, label: str, inputs: list[str]) -> list[str]:
        """Return the outputs of a layer that is several operators, if these have its shapes and its weights."""
        shapes = [self._drafts.shape(source) for source in inputs]
        expected = [self._shape(tensor, label) for tensor in node.outputs]
        if type(layer).__name__ == "Reshape" and self._channels_last:
            steps = _reshaped(shapes[0], expected[0])
        else:
            steps = steps_of(layer, shapes, expected[0], node.arguments.kwargs)
        if steps is None:
            return []
        return self._drafts.add_agreeing(label, steps, inputs, expected, layer.count_params())

    def _translated(self, layer: Any, inputs: Sequence[Shape], shape: Shape) -> tuple[str, Attributes | None]:
        """Return the operator and attributes; of a layer that we do not know its class and None."""
        op = type(layer).__name__
        if op in ("InputLayer", "Reshape"):
            typed = {"dtype": str(layer.dtype)} if op == "InputLayer" and str(layer.dtype) in WHOLE else {}
            return op, {"shape": shape, **typed}
        if op not in SINGLE:
            return op, None
        attributes = SINGLE[op](layer)
        if op in ALONG_AN_AXIS and attributes is not None:
            return op, self._along(layer, attributes, inputs[0])
        if op == "Dense" and attributes and len(inputs[0]) == 3 and self._channels_last:
            # A product along an image's channels is a convolution of one pixel.
            named = {name: value for name, value in attributes.items() if name != "units"}
            return "Conv2D", {**named, "filters": attributes["units"], "kernel": 1}
        return op, attributes

    def _along(self, layer: Any, attributes: Attributes, shape: Shape) -> Attributes | None:
        """Return the attributes of a layer along its axes; None along the batch, or where only channels can be."""
        # A LayerScale has no choice but the last.
        stated, rank = getattr(layer, "axis", -1), len(shape)
        axes = [axis % (rank + 1) - 1 for axis in (stated if isinstance(stated, list | tuple) else [stated])]
        if not axes or min(axes) < 0:
            return None
        if rank == 3 and self._channels_last:
            axes = [TO_IMAGE.index(axis) for axis in axes]
        if axes == [channel_axis(shape)]:
            return attributes
        if type(layer).__name__ == "LayerNormalization":
            return {**attributes, "axes": axes}
        return {**attributes, "axis": axes[0]} if type(layer).__name__ == "BatchNormalization" else None

    def _shape(self, tensor: Any, label: str) -> Shape:
        shape = tuple(tensor.shape)[1:]
        if any(size is None for size in shape):
            raise GraphError(
                f"layer {label!r} has a free axis in its shape {list(shape)}; say the sizes of one example, as "
                "--input-shape 128 of a text model or 224,224,3 of images"
            )
        return (shape[2], shape[0], shape[1]) if len(shape) == 3 and self._channels_last else shape


def _reshaped(before: Shape, shape: Shape) -> list[Step] | None:
    """Return a reshape of values whose channels are last, where that makes another order than with channels first."""
    turns_before = len(before) == 3 and before[1] * before[2] > 1 and before[0] > 1
    turns_after = len(shape) == 3 and shape[1] * shape[2] > 1 and shape[0] > 1
    if before == shape or not (turns_before or turns_after):
        return None
    operations: list[Operation] = [("Transpose", {"axes": (1, 2, 0)})] if turns_before else []
    if not turns_after:
        return in_a_row(*operations, ("Reshape", {"shape": shape}))
    last = (shape[1], shape[2], shape[0])
    return in_a_row(*operations, ("Reshape", {"shape": last}), ("Transpose", {"axes": (2, 0, 1)}))


def _layers(functional: Any) -> list[Any]:
    layers = []
    for layer in functional.layers:
        inner = written_as_functional(layer)
        layers += [layer, *getattr(layer, "_layers", ())] if inner is None else _layers(inner)
    return layers


def _is_adapted(layer: Any) -> bool:
    """True if a layer computes with low-rank matrices beside its own (LoRA), so that it is not the one operator."""
    return bool(getattr(layer, "lora_enabled", False))


def _element_type(layers: Sequence[Any]) -> str:
    """Return the element type in which layers with weights compute."""
    weighted = [layer for layer in layers if getattr(layer, "weights", None)]
    if any(getattr(getattr(layer, "dtype_policy", None), "quantization_mode", None) for layer in weighted):
        return "int8"
    return "+".join(sorted({str(layer.compute_dtype) for layer in weighted})) or FLOAT32


def _channels_first(layer: Any) -> bool:
    return getattr(layer, "data_format", None) == "channels_first"
