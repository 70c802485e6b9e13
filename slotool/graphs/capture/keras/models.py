"""Keras models and layers that are other layers, as functional models, whichever way they were written."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.capture.batch_axis import batch_size
from slotool.graphs.capture.keras.operations import is_operation
from slotool.graphs.libraries import keras
from slotool.printable import reason

InputShape = tuple[int, ...] | Mapping[str, tuple[int, ...]]


def with_sizes(functional: Any, name: str, input_shape: InputShape) -> Any:
    """Return the functional model on inputs of these sizes, which Keras leaves free.

    Raises ``GraphError``, naming the model, for sizes of another input, or other than its own.
    """
    existing = {tensor.name: tensor for tensor in functional.inputs}
    stated = input_shape if isinstance(input_shape, Mapping) else {next(iter(existing)): tuple(input_shape)}
    if not isinstance(input_shape, Mapping) and len(existing) > 1:
        raise GraphError(
            f"{name} takes {len(existing)} inputs ({', '.join(existing)}): say the shape of each by its name"
        )
    for label, sizes in stated.items():
        if label not in existing:
            raise GraphError(f"{name} takes no input {label!r}, but {', '.join(existing)}")
        has = tuple(existing[label].shape)[1:]
        if len(has) != len(sizes) or any(a not in (None, b) for a, b in zip(has, sizes, strict=True)):
            raise GraphError(f"{name}: one example of its input {label!r} is {_otherwise(has, sizes)}")
    shapes = [tuple(stated.get(label, tuple(tensor.shape)[1:])) for label, tensor in existing.items()]
    if shapes == [tuple(tensor.shape)[1:] for tensor in existing.values()]:
        return functional
    inputs = [
        keras.Input(shape, name=label, dtype=tensor.dtype)
        for shape, (label, tensor) in zip(shapes, existing.items(), strict=True)
    ]
    try:
        return _called(functional, inputs)
    except Exception as error:
        # Errors of a layer for sizes that do not fit it.
        raise GraphError(f"{name} cannot run on inputs of {list(map(list, shapes))} ({reason(error)})") from error


def _called(functional: Any, inputs: Sequence[Any]) -> Any:
    """Call a functional model on these inputs and return another. Raises its layers' errors."""
    structured = keras.tree.pack_sequence_as(functional._inputs_struct, list(inputs))
    return keras.Model(list(inputs), keras.tree.flatten(functional.call(structured)))


def _otherwise(has: Sequence[int | None], sizes: Sequence[int]) -> str:
    """Return the text for a different shape, with a hint on Keras' order if channels come first."""
    shown = ", ".join("?" if size is None else str(size) for size in has)
    turned = (*sizes[1:], *sizes[:1])
    fits = len(has) == len(sizes) > 1 and all(a in (None, b) for a, b in zip(has, turned, strict=True))
    hint = f"; sizes are in the order that Keras has them, as {','.join(map(str, turned))}" if fits else ""
    return f"[{shown}], not {list(sizes)}{hint}"


def sized(functional: Any, sizes: Sequence[Any]) -> Any:
    """Return a model within another, with free axes in the sizes of its tensors there."""
    existing = [tuple(each.shape)[1:] for each in functional.inputs]
    shapes = [tuple(each.shape)[1:] for each in sizes]
    if len(existing) != len(shapes) or existing == shapes or not any(None in each for each in existing):
        return functional
    inputs = [keras.Input(batch_shape=tuple(each.shape), dtype=each.dtype) for each in sizes]
    # Where a layer does not take these sizes, it is walked as it is.
    return _called_if_fitting(functional, inputs) or functional


def _called_if_fitting(functional: Any, inputs: Sequence[Any]) -> Any:
    """Call a functional model on these inputs and return another; None where a layer raises for their sizes."""
    try:
        return _called(functional, inputs)
    except Exception:
        return None


def folds_batch(functional: Any) -> bool:
    """True if windows, heads or anything else lie in the first axis of a tensor with the batch, or no batch does."""
    return len(_leads(functional)) > 1


def folds_windows(functional: Any) -> bool:
    """True if some tensor has several times as many examples as another."""
    leads = _leads(functional)
    return any(more > one > 1 and more % one == 0 for more in leads for one in leads)


def _leads(functional: Any) -> set[int]:
    """Return the known sizes of the first axes of all tensors; on a batch of known size where operations may fold."""
    nodes = [node for nodes in functional._nodes_by_depth.values() for node in nodes]
    leads = {tensor.shape[0] if tensor.shape else 1 for node in nodes for tensor in node.outputs}
    if leads == {None} and any(is_operation(node.operation) for node in nodes):
        batched = _batched(functional)
        return set() if batched is None else _leads(batched)
    return leads - {None}


def _batched(functional: Any) -> Any:
    """Return the same on a batch of known size; None where it does not take one."""
    shapes = [tuple(each.shape)[1:] for each in functional.inputs]
    batch = batch_size(shapes)
    inputs = [
        keras.Input(batch_shape=(batch, *shape), dtype=each.dtype)
        for shape, each in zip(shapes, functional.inputs, strict=True)
    ]
    return _called_if_fitting(functional, inputs)


def written_as_functional(layer: Any) -> Any:
    """Return a functional model, or that of a Sequential that is built; None for anything else."""
    functional_model = getattr(layer, "_functional", None) or layer
    return functional_model if hasattr(functional_model, "_nodes_by_depth") else None


def layers_inside(node: Any) -> Any:
    """Return a call's functional model of layers and ``keras.ops``, or None if ``call`` rejects symbols.

    Its inputs are in the order of ``node.input_tensors``.
    """
    layer = node.operation
    batch = batch_size(each.shape[1:] for each in node.input_tensors)
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
        # It is kept as one operator, by name.
        return None


def unmasked(node: Any) -> list[Any]:
    """Return a call's tensors without masks, which hardly change the cost.

    An ``Embedding`` with ``mask_zero`` passes one to every later layer.
    """
    sizes = (value for name, value in node.arguments.kwargs.items() if name.endswith("mask"))
    masks = {id(tensor) for value in sizes for tensor in keras.tree.flatten(value)}
    return [tensor for tensor in node.input_tensors if id(tensor) not in masks]


def traced_call(layer: Any, args: Any, kwargs: Any, inputs: Any = None) -> Any:
    """Return the result of a ``call`` on symbolic ``inputs``, by default all of its arguments."""
    parameters = inspect.signature(layer.call).parameters
    if "training" in parameters:
        kwargs = {**kwargs, "training": False}
    outputs = layer.call(*args, **kwargs)
    return keras.Model(keras.tree.flatten(args) if inputs is None else inputs, keras.tree.flatten(outputs))


InputType = str | Mapping[str, str]
# Arguments of a ``call`` that are no inputs.
_NO_INPUTS = ("training", "mask")


def functional_of(model: keras.Model, input_shape: InputShape = (), input_dtype: InputType | None = None) -> Any:
    """Return the functional model of ``model``: itself, a Sequential's, or its ``call`` on symbolic inputs.

    These have the built shapes, else ``input_shape``, which builds it. Several inputs are named as the arguments of
    ``call``, or the keys of its dictionary. ``input_dtype``: their element types; by default integers if embeddings
    alone read them, else float32. Raises ``GraphError`` for a model of unknown shape, and for a ``call`` that runs on
    no such inputs.
    """
    functional_model = written_as_functional(model)
    if functional_model is not None and input_dtype is not None:
        raise GraphError(f"{model.name} says itself of what element type its inputs are: leave input_dtype out")
    if functional_model is not None:
        return functional_model
    if isinstance(input_shape, Mapping):
        shapes: Any = {name: (None, *one) for name, one in input_shape.items()}
    else:
        sizes = (None, *input_shape) if input_shape else None
        shapes = None if _takes_several(model) else _built_with(model) or sizes
    if shapes is None:
        raise GraphError(_unknown_shape(model))
    try:
        if isinstance(model, keras.Sequential):
            model.build(shapes)
            return written_as_functional(model)
        return _on_symbols(model, shapes, input_dtype)
    except Exception as error:
        # A call of a user's own raises what it likes.
        typed = "" if input_dtype else " and float32; of others say the type, as --input-dtype int32"
        raise GraphError(
            f"{model.name} does not run on inputs of {_shown(shapes)}{typed} ({_of_call(error)})"
        ) from error


def _built_with(model: keras.Model) -> Any:
    """Return the shape of its input, or of several; None where it is not built."""
    # Named as in the model's own ``build``.
    return next(iter((getattr(model, "_build_shapes_dict", None) or {}).values()), None)


def _takes_several(model: keras.Model) -> bool:
    """True if its ``call`` has several inputs, of which Keras keeps the shape of the first alone."""
    return len(_inputs_of_call(model)) > 1


def _inputs_of_call(model: keras.Model) -> list[str]:
    parameters = inspect.signature(model.call).parameters.values()
    named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return [each.name for each in named if each.default is each.empty and each.name not in _NO_INPUTS]


def _of_call(error: Exception) -> str:
    """Return the error of a layer's ``call`` without Keras' text around it."""
    text = str(error)
    for before, after in (("Exception encountered: ''", "''"), ("\x1b[1m", "\x1b[0m")):
        if before in text:
            text = text.partition(before)[2].rpartition(after)[0] or text
    text = text.rpartition("Error encountered:")[2].strip() or text
    return reason(RuntimeError(text or type(error).__name__))


def _unknown_shape(model: keras.Model) -> str:
    if _takes_several(model):
        shapes = ";".join(f"{name}=28" for name in _inputs_of_call(model))
        return (
            f"{model.name} has a call of its own with several inputs, of which Keras does not keep the shapes: say "
            f"each by its name, as --input-shape '{shapes}'"
        )
    return (
        f"{model.name} is not built, so the shape of its input is not known: say that of one example, as --input-shape "
        "28,28,1"
    )


def _on_symbols(model: keras.Model, shapes: Any, input_dtype: InputType | None) -> Any:
    """Return the result of ``call`` on symbolic inputs, or of one call of the whole model, to be exported."""
    batch = batch_size(_sizes(shapes))
    inputs = _inputs(shapes, "input", batch, input_dtype)
    opaque = _whole(model, inputs)
    try:
        walked = _walked(model, inputs)
        whole = () if input_dtype else _taken_by_embeddings(walked)
        typed = dict.fromkeys(whole, "int32")
        return _walked(model, _inputs(shapes, "input", batch, typed)) if whole else walked
    except Exception:
        # It calls functions that reject Keras' symbols.
        return opaque


def _walked(model: keras.Model, inputs: Any) -> Any:
    """Return the layers and operations that its ``call`` is made of."""
    args, kwargs = _arguments(model, inputs)
    return traced_call(model, args, kwargs, keras.tree.flatten(inputs))


def _whole(model: keras.Model, inputs: Any) -> Any:
    """Return a model whose one layer is ``model``, which this builds."""
    args, kwargs = _arguments(model, inputs)
    outputs = model(*args, **kwargs)
    return keras.Model(keras.tree.flatten(inputs), keras.tree.flatten(outputs))


def _arguments(model: keras.Model, inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return inputs as arguments of their names, any others as the first argument."""
    parameters = inspect.signature(model.call).parameters
    if isinstance(inputs, dict) and set(inputs) <= set(parameters):
        return [], inputs
    return [inputs], {}


def _inputs(shapes: Any, name: str, batch: int, types: InputType | None) -> Any:
    """Return symbolic inputs of shapes with the batch, one or nested, in these element types.

    A batch of known size lets a ``call`` read it, as ``ops.shape(x)[0]``.
    """
    if isinstance(shapes, dict):
        return {key: _inputs(each, str(key), batch, types) for key, each in shapes.items()}
    if _is_shape(shapes):
        kind = types.get(name) if isinstance(types, Mapping) else types
        return keras.Input(tuple(shapes)[1:], batch_size=batch, name=name, dtype=kind)
    return [_inputs(each, f"{name}_{at}", batch, types) for at, each in enumerate(shapes)]


def _is_shape(shapes: Any) -> bool:
    return all(isinstance(size, int | None) for size in shapes)


def _sizes(shapes: Any) -> list[tuple[int, ...]]:
    """Return the sizes of all inputs, without the batch."""
    if isinstance(shapes, dict):
        shapes = list(shapes.values())
    if _is_shape(shapes):
        return [tuple(shapes)[1:]]
    return [sizes for each in shapes for sizes in _sizes(each)]


def _shown(shapes: Any) -> str:
    if isinstance(shapes, dict):
        return ", ".join(f"{name} {_shown(shape)}" for name, shape in shapes.items())
    return str(list(shapes)[1:]) if _is_shape(shapes) else ", ".join(map(_shown, shapes))


def _taken_by_embeddings(functional: Any) -> Collection[str]:
    """Return the inputs that embeddings alone take: of these Keras keeps no element type that says so."""
    takers: dict[int, set[bool]] = {}
    for nodes in functional._nodes_by_depth.values():
        for node in nodes:
            for tensor in node.input_tensors:
                takers.setdefault(id(tensor), set()).add(isinstance(node.operation, keras.layers.Embedding))
    return {tensor.name for tensor in functional.inputs if takers.get(id(tensor)) == {True}}


# Layers by name that make one of both directions.
_MERGED = {"concat": "Concatenate", "sum": "Add", "ave": "Average", "mul": "Multiply"}


def unrolled(node: Any) -> Any:
    """Return the functional model of a recurrent layer's call, or None for others and unknown steps.

    Its inputs are the call's and, for a layer with a cell and no states, the initial states.
    """
    layers, layer = keras.layers, node.operation
    kinds = ((layers.TimeDistributed, _distributed), (layers.Bidirectional, _both), (layers.RNN, _by_cell))
    replacement = next((each for kind, each in kinds if isinstance(layer, kind)), None)
    if replacement is None or any(size is None for size in node.input_tensors[0].shape[1:]):
        return None
    inputs = [keras.Input(batch_shape=each.shape, dtype=each.dtype) for each in node.input_tensors]
    try:
        return replacement(layer, inputs)
    except Exception:
        # A layer or cell of a user's own raises what it likes; then it is kept as one operator, by its name.
        return None


def _distributed(layer: Any, inputs: Sequence[Any]) -> Any:
    """Have Keras itself loop over a fixed number of steps."""
    steps = keras.ops.unstack(inputs[0], axis=1)
    return keras.Model(inputs, keras.ops.stack([layer.layer(step) for step in steps], axis=1))


def _both(layer: Any, inputs: Sequence[Any]) -> Any:
    """Return both directions, if they are not merged into one or states are read or returned."""
    half = len(inputs) // 2
    parts = [
        keras.tree.flatten(each(inputs[0], initial_state=states or None))
        for each, states in ((layer.forward_layer, inputs[1 : half + 1]), (layer.backward_layer, inputs[half + 1 :]))
    ]
    (first, *states), (second, *others) = parts
    answers = [first, keras.ops.flip(second, axis=1) if layer.return_sequences else second]
    if layer.merge_mode is not None:
        answers = [getattr(keras.layers, _MERGED[layer.merge_mode])()(answers)]
    return keras.Model(inputs, [*answers, *states, *others])


def _by_cell(layer: Any, inputs: Sequence[Any]) -> Any:
    tree, ops = keras.tree, keras.ops
    zeros = layer.get_initial_state(batch_size=1)
    first = [*inputs[1:]] or [keras.Input(tuple(each.shape)[1:]) for each in tree.flatten(zeros)]
    states, outputs = tree.pack_sequence_as(zeros, first), []
    steps = ops.unstack(inputs[0], axis=1)
    for step in reversed(steps) if layer.go_backwards else steps:
        output, states = layer.cell(step, states)
        states = states if tree.is_nested(states) else [states]
        outputs.append(output)
    answer = ops.stack(outputs, axis=1) if layer.return_sequences else outputs[-1]
    return keras.Model([inputs[0], *first], [answer, *(tree.flatten(states) if layer.return_state else ())])
