"""Keras models and layers that are other layers, as functional models, whichever way they were written."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slotool.errors import GraphError
from slotool.graphs.capture.batch_axis import batch_size
from slotool.graphs.capture.keras_call import is_operation
from slotool.printable import reason

if TYPE_CHECKING:
    import keras

InputShape = tuple[int, ...] | Mapping[str, tuple[int, ...]]
# Arguments of a ``call`` that are no inputs.
_NO_INPUTS = ("training", "mask")


def functional_of(model: keras.Model) -> Any:
    """The functional model that computes what ``model`` does: itself, that of a Sequential, or what a ``call`` of its
    own makes of symbolic inputs of the shapes that it was built with.

    Raises ``GraphError`` for a model that is not built, and for a ``call`` that takes no symbolic inputs.
    """
    import keras

    found = written_as_functional(model)
    if found is not None:
        return found
    if isinstance(model, keras.Sequential):
        raise GraphError(
            f"{model.name} is a Sequential that is not built: say the shape of its input, as "
            "model.build((None, 28, 28, 1))"
        )
    by_hand = "capture keras.Model({x}, model.call({x})), where {are} keras.Input(shape of one example)"
    parameters = inspect.signature(model.call).parameters.values()
    if len([each for each in parameters if each.default is each.empty and each.name not in _NO_INPUTS]) > 1:
        raise GraphError(
            f"{model.name} has a call of its own with several inputs, and Keras keeps the shape of the first only: "
            + by_hand.format(x="[x, y]", are="x and y are").replace("call([x, y])", "call(x, y)")
        )
    # By the name that the model's own ``build`` has for it.
    shapes = next(iter((getattr(model, "_build_shapes_dict", None) or {}).values()), None)
    if shapes is None:
        raise GraphError(
            f"{model.name} has a call of its own and is not built: call it once on a batch of its input, then capture "
            f"it; or {by_hand.format(x='x', are='x =')}"
        )
    try:
        batch = batch_size(_sizes(shapes))
        traced = _traced(model, [_inputs(shapes, "input", batch)], {})
        whole = _taken_by_embeddings(traced)
        return _traced(model, [_inputs(shapes, "input", batch, whole)], {}) if whole else traced
    except Exception as error:
        # A call of a user's own raises what it likes.
        raise GraphError(
            f"{model.name} has a call of its own that takes no symbolic input ({reason(error)}): write it with Keras "
            "layers and keras.ops, or capture the network from torch or ONNX"
        ) from error


def with_sizes(functional: Any, name: str, input_shape: InputShape) -> Any:
    """The functional model on inputs of these sizes, which Keras leaves free. Raises ``GraphError``, naming the model,
    for sizes of another input, or other than those that it has."""
    import keras

    own = {tensor.name: tensor for tensor in functional.inputs}
    given = input_shape if isinstance(input_shape, Mapping) else {next(iter(own)): tuple(input_shape)}
    if not isinstance(input_shape, Mapping) and len(own) > 1:
        raise GraphError(f"{name} takes {len(own)} inputs ({', '.join(own)}): say the shape of each by its name")
    for label, sizes in given.items():
        if label not in own:
            raise GraphError(f"{name} takes no input {label!r}, but {', '.join(own)}")
        has = tuple(own[label].shape)[1:]
        if len(has) != len(sizes) or any(a not in (None, b) for a, b in zip(has, sizes, strict=True)):
            shape = ", ".join("?" if size is None else str(size) for size in has)
            raise GraphError(f"{name}: one example of its input {label!r} is [{shape}], not {list(sizes)}")
    shapes = [tuple(given.get(label, tuple(tensor.shape)[1:])) for label, tensor in own.items()]
    inputs = [
        keras.Input(shape, name=label, dtype=tensor.dtype)
        for shape, (label, tensor) in zip(shapes, own.items(), strict=True)
    ]
    structured = keras.tree.pack_sequence_as(functional._inputs_struct, inputs)
    try:
        return keras.Model(inputs, keras.tree.flatten(functional.call(structured)))
    except Exception as error:
        # What a layer says of sizes that do not fit it.
        raise GraphError(f"{name} cannot run on inputs of {list(map(list, shapes))} ({reason(error)})") from error


def sized(functional: Any, given: Sequence[Any]) -> Any:
    """A model within another on the sizes of the tensors that it is given there, where its own leave axes free."""
    import keras

    own = [tuple(each.shape)[1:] for each in functional.inputs]
    shapes = [tuple(each.shape)[1:] for each in given]
    if len(own) != len(shapes) or own == shapes or not any(None in each for each in own):
        return functional
    inputs = [keras.Input(batch_shape=tuple(each.shape), dtype=each.dtype) for each in given]
    structured = keras.tree.pack_sequence_as(functional._inputs_struct, inputs)
    try:
        return keras.Model(inputs, keras.tree.flatten(functional.call(structured)))
    except Exception:
        # What a layer says of sizes that do not fit it; then it is walked as it is.
        return functional


def folds_batch(functional: Any) -> bool:
    """Whether windows, heads or anything else lie in the first axis of a tensor with the batch, or no batch does."""
    leads = {tensor.shape[0] if tensor.shape else 1 for tensor in _tensors_of(functional)}
    if leads == {None} and any(map(is_operation, _operations_of(functional))):
        batched = _batched(functional)
        return batched is not None and folds_batch(batched)
    return len(leads - {None}) > 1


def _batched(functional: Any) -> Any:
    """The same on a batch of known size; None where it does not take one."""
    import keras

    shapes = [tuple(each.shape)[1:] for each in functional.inputs]
    batch = batch_size([tuple(size for size in shape if size) for shape in shapes])
    inputs = [
        keras.Input(batch_shape=(batch, *shape), dtype=each.dtype)
        for shape, each in zip(shapes, functional.inputs, strict=True)
    ]
    structured = keras.tree.pack_sequence_as(functional._inputs_struct, inputs)
    try:
        return keras.Model(inputs, keras.tree.flatten(functional.call(structured)))
    except Exception:
        return None


def _operations_of(functional: Any) -> list[Any]:
    return [node.operation for nodes in functional._nodes_by_depth.values() for node in nodes]


def _tensors_of(functional: Any) -> list[Any]:
    return [each for nodes in functional._nodes_by_depth.values() for node in nodes for each in node.outputs]


def written_as_functional(layer: Any) -> Any:
    """A functional model, or that of a Sequential that is built; None for anything else."""
    found = getattr(layer, "_functional", None) or layer
    return found if hasattr(found, "_nodes_by_depth") else None


def layers_inside(node: Any) -> Any:
    """The functional model of a call of a layer or model, made of layers and ``keras.ops``, with its inputs in the
    order of ``node.input_tensors``; None where its ``call`` takes no symbols."""
    import keras

    layer = node.operation
    batch = batch_size(_sizes([each.shape for each in node.input_tensors]))
    sizes = {id(each): tuple(each.shape) for each in node.input_tensors}
    if () in sizes.values():
        # A number that is the same for every example has no batch.
        return None
    inputs = {
        id(each): keras.Input(batch_shape=(each.shape[0] or batch, *each.shape[1:]), dtype=each.dtype)
        for each in node.input_tensors
    }
    try:
        args, kwargs = node.arguments.fill_in(inputs)
        return _traced(layer, args, kwargs, [inputs[id(each)] for each in node.input_tensors])
    except Exception:
        # Then it is kept as one operator, by its name.
        return None


def unmasked(node: Any) -> list[Any]:
    """The tensors that a call takes, without masks: which steps of a text count changes no shape and hardly a cost. An
    ``Embedding`` with ``mask_zero`` gives one to every layer after it."""
    import keras

    given = (value for name, value in node.arguments.kwargs.items() if name.endswith("mask"))
    masks = {id(tensor) for value in given for tensor in keras.tree.flatten(value)}
    return [tensor for tensor in node.input_tensors if id(tensor) not in masks]


def _traced(layer: Any, args: Any, kwargs: Any, inputs: Any = None) -> Any:
    """What a ``call`` makes of symbolic ``inputs``, by default all that it is given."""
    import keras

    parameters = inspect.signature(layer.call).parameters
    if "training" in parameters:
        kwargs = {**kwargs, "training": False}
    outputs = layer.call(*args, **kwargs)
    return keras.Model(keras.tree.flatten(args) if inputs is None else inputs, keras.tree.flatten(outputs))


def _inputs(shapes: Any, name: str, batch: int, whole: Collection[str] = ()) -> Any:
    """Symbolic inputs of so many examples for shapes with the batch, one or lists or dictionaries of them; those named
    in ``whole`` are whole numbers. A batch whose size is known lets a ``call`` read it, as ``ops.shape(x)[0]``."""
    import keras

    if isinstance(shapes, dict):
        return {key: _inputs(each, str(key), batch, whole) for key, each in shapes.items()}
    if _is_shape(shapes):
        given = {"dtype": "int32"} if name in whole else {}
        return keras.Input(tuple(shapes)[1:], batch_size=batch, name=name, **given)
    return [_inputs(each, f"{name}_{at}", batch, whole) for at, each in enumerate(shapes)]


def _is_shape(shapes: Any) -> bool:
    return all(isinstance(size, int | None) for size in shapes)


def _sizes(shapes: Any) -> list[tuple[int, ...]]:
    """Of all inputs, without the batch."""
    if isinstance(shapes, dict):
        shapes = list(shapes.values())
    if _is_shape(shapes):
        return [tuple(size for size in tuple(shapes)[1:] if size)]
    return [sizes for each in shapes for sizes in _sizes(each)]


def _taken_by_embeddings(functional: Any) -> set[str]:
    """The inputs that embeddings alone take: of these Keras keeps no element type that says so."""
    import keras

    takers: dict[int, set[bool]] = {}
    for nodes in functional._nodes_by_depth.values():
        for node in nodes:
            for tensor in node.input_tensors:
                takers.setdefault(id(tensor), set()).add(isinstance(node.operation, keras.layers.Embedding))
    return {tensor.name for tensor in functional.inputs if takers.get(id(tensor)) == {True}}
