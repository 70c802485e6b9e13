"""Keras models and layers that are other layers, as functional models, whichever way they were written."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.capture.batch_axis import batch_size
from slotool.graphs.capture.keras.call import is_operation
from slotool.printable import reason

InputShape = tuple[int, ...] | Mapping[str, tuple[int, ...]]


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
            raise GraphError(f"{name}: one example of its input {label!r} is {_otherwise(has, sizes)}")
    shapes = [tuple(given.get(label, tuple(tensor.shape)[1:])) for label, tensor in own.items()]
    if shapes == [tuple(tensor.shape)[1:] for tensor in own.values()]:
        return functional
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


def _otherwise(has: Sequence[int | None], sizes: Sequence[int]) -> str:
    """That a shape is another; of an image whose channels are said first, how it is said in Keras' order."""
    shown = ", ".join("?" if size is None else str(size) for size in has)
    turned = (*sizes[1:], *sizes[:1])
    fits = len(has) == len(sizes) > 1 and all(a in (None, b) for a, b in zip(has, turned, strict=True))
    hint = f"; sizes are in the order that Keras has them, as {','.join(map(str, turned))}" if fits else ""
    return f"[{shown}], not {list(sizes)}{hint}"


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
    """True if windows, heads or anything else lie in the first axis of a tensor with the batch, or no batch does."""
    return len(_leads(functional)) > 1


def folds_windows(functional: Any) -> bool:
    """True if some tensor has several times as many examples as another."""
    leads = _leads(functional)
    return any(more > one > 1 and more % one == 0 for more in leads for one in leads)


def _leads(functional: Any) -> set[int]:
    """Return the known sizes of the first axes of all tensors; on a batch of known size where operations may fold."""
    leads = {tensor.shape[0] if tensor.shape else 1 for tensor in _tensors_of(functional)}
    if leads == {None} and any(map(is_operation, _operations_of(functional))):
        batched = _batched(functional)
        return set() if batched is None else _leads(batched)
    return leads - {None}


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
    batch = batch_size([_known(each.shape) for each in node.input_tensors])
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
        return traced_call(layer, args, kwargs, [inputs[id(each)] for each in node.input_tensors])
    except Exception:
        # Then it is kept as one operator, by its name.
        return None


def _known(shape: Sequence[int | None]) -> tuple[int, ...]:
    """Sizes of one example that are no free axes."""
    return tuple(size for size in shape[1:] if size)


def unmasked(node: Any) -> list[Any]:
    """The tensors that a call takes, without masks: which steps of a text count changes no shape and hardly a cost. An
    ``Embedding`` with ``mask_zero`` gives one to every layer after it."""
    import keras

    given = (value for name, value in node.arguments.kwargs.items() if name.endswith("mask"))
    masks = {id(tensor) for value in given for tensor in keras.tree.flatten(value)}
    return [tensor for tensor in node.input_tensors if id(tensor) not in masks]


def traced_call(layer: Any, args: Any, kwargs: Any, inputs: Any = None) -> Any:
    """What a ``call`` makes of symbolic ``inputs``, by default all that it is given."""
    import keras

    parameters = inspect.signature(layer.call).parameters
    if "training" in parameters:
        kwargs = {**kwargs, "training": False}
    outputs = layer.call(*args, **kwargs)
    return keras.Model(keras.tree.flatten(args) if inputs is None else inputs, keras.tree.flatten(outputs))
