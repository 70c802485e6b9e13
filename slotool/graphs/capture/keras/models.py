"""Keras models and layers that are other layers, as functional models, whichever way they were written."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slotool.errors import GraphError
from slotool.graphs.capture.batch_axis import batch_size
from slotool.graphs.capture.keras.operations import is_operation
from slotool.names_on_demand import modules_on_demand
from slotool.printable import reason

if TYPE_CHECKING:
    import keras
else:
    (keras,) = modules_on_demand("keras")

InputShape = tuple[int, ...] | Mapping[str, tuple[int, ...]]


def with_sizes(functional: Any, name: str, input_shape: InputShape) -> Any:
    """The functional model on inputs of these sizes, which Keras leaves free. Raises ``GraphError``, naming the model,
    for sizes of another input, or other than those that it has."""
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
    try:
        return _called(functional, inputs)
    except Exception as error:
        # What a layer says of sizes that do not fit it.
        raise GraphError(f"{name} cannot run on inputs of {list(map(list, shapes))} ({reason(error)})") from error


def _called(functional: Any, inputs: Sequence[Any]) -> Any:
    """What a functional model makes of these inputs, as another. Raises what its layers raise."""
    structured = keras.tree.pack_sequence_as(functional._inputs_struct, list(inputs))
    return keras.Model(list(inputs), keras.tree.flatten(functional.call(structured)))


def _otherwise(has: Sequence[int | None], sizes: Sequence[int]) -> str:
    """That a shape is another; of an image whose channels are said first, how it is said in Keras' order."""
    shown = ", ".join("?" if size is None else str(size) for size in has)
    turned = (*sizes[1:], *sizes[:1])
    fits = len(has) == len(sizes) > 1 and all(a in (None, b) for a, b in zip(has, turned, strict=True))
    hint = f"; sizes are in the order that Keras has them, as {','.join(map(str, turned))}" if fits else ""
    return f"[{shown}], not {list(sizes)}{hint}"


def sized(functional: Any, given: Sequence[Any]) -> Any:
    """A model within another on the sizes of the tensors that it is given there, where its own leave axes free."""
    own = [tuple(each.shape)[1:] for each in functional.inputs]
    shapes = [tuple(each.shape)[1:] for each in given]
    if len(own) != len(shapes) or own == shapes or not any(None in each for each in own):
        return functional
    inputs = [keras.Input(batch_shape=tuple(each.shape), dtype=each.dtype) for each in given]
    try:
        return _called(functional, inputs)
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
    shapes = [tuple(each.shape)[1:] for each in functional.inputs]
    batch = batch_size([tuple(size for size in shape if size) for shape in shapes])
    inputs = [
        keras.Input(batch_shape=(batch, *shape), dtype=each.dtype)
        for shape, each in zip(shapes, functional.inputs, strict=True)
    ]
    try:
        return _called(functional, inputs)
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
    given = (value for name, value in node.arguments.kwargs.items() if name.endswith("mask"))
    masks = {id(tensor) for value in given for tensor in keras.tree.flatten(value)}
    return [tensor for tensor in node.input_tensors if id(tensor) not in masks]


def traced_call(layer: Any, args: Any, kwargs: Any, inputs: Any = None) -> Any:
    """What a ``call`` makes of symbolic ``inputs``, by default all that it is given."""
    parameters = inspect.signature(layer.call).parameters
    if "training" in parameters:
        kwargs = {**kwargs, "training": False}
    outputs = layer.call(*args, **kwargs)
    return keras.Model(keras.tree.flatten(args) if inputs is None else inputs, keras.tree.flatten(outputs))


InputType = str | Mapping[str, str]
# Arguments of a ``call`` that are no inputs.
_NO_INPUTS = ("training", "mask")


def functional_of(model: keras.Model, input_shape: InputShape = (), input_dtype: InputType | None = None) -> Any:
    """The functional model that computes what ``model`` does: itself, that of a Sequential, or what a ``call`` of its
    own makes of symbolic inputs of the shapes that it was built with, else of ``input_shape``, which builds it.

    Several inputs have the names of the arguments of ``call``, or of the keys of the dictionary that it takes.
    ``input_dtype``: their element types; by default whole numbers where embeddings alone take them, else float32.
    Raises ``GraphError`` for a model of which no shape is known, and for a ``call`` that runs on no such inputs.
    """
    found = written_as_functional(model)
    if found is not None and input_dtype is not None:
        raise GraphError(f"{model.name} says itself of what element type its inputs are: leave input_dtype out")
    if found is not None:
        return found
    if isinstance(input_shape, Mapping):
        shapes: Any = {name: (None, *one) for name, one in input_shape.items()}
    else:
        given = (None, *input_shape) if input_shape else None
        shapes = None if _takes_several(model) else _built_with(model) or given
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
    """The shape of its input, or of several; None where it is not built."""
    # By the name that the model's own ``build`` has for it.
    return next(iter((getattr(model, "_build_shapes_dict", None) or {}).values()), None)


def _takes_several(model: keras.Model) -> bool:
    """Whether its ``call`` has several inputs, of which Keras keeps the shape of the first alone."""
    return len(_inputs_of_call(model)) > 1


def _inputs_of_call(model: keras.Model) -> list[str]:
    parameters = inspect.signature(model.call).parameters.values()
    named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return [each.name for each in named if each.default is each.empty and each.name not in _NO_INPUTS]


def _of_call(error: Exception) -> str:
    """What a layer's ``call`` raised, without what Keras writes around it."""
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
    """What its ``call`` makes of symbolic inputs; where that takes no symbols, one call of the whole model, to be
    exported."""
    batch = batch_size(_sizes(shapes))
    inputs = _inputs(shapes, "input", batch, input_dtype)
    opaque = _whole(model, inputs)
    try:
        walked = _walked(model, inputs)
        whole = () if input_dtype else _taken_by_embeddings(walked)
        typed = dict.fromkeys(whole, "int32")
        return _walked(model, _inputs(shapes, "input", batch, typed)) if whole else walked
    except Exception:
        # It calls what takes no symbols of Keras.
        return opaque


def _walked(model: keras.Model, inputs: Any) -> Any:
    """The layers and operations that its ``call`` is made of."""
    args, kwargs = _arguments(model, inputs)
    return traced_call(model, args, kwargs, keras.tree.flatten(inputs))


def _whole(model: keras.Model, inputs: Any) -> Any:
    """A model whose one layer is ``model``, which this builds."""
    args, kwargs = _arguments(model, inputs)
    outputs = model(*args, **kwargs)
    return keras.Model(keras.tree.flatten(inputs), keras.tree.flatten(outputs))


def _arguments(model: keras.Model, inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Inputs that have the names of arguments are these, any others are the first argument."""
    parameters = inspect.signature(model.call).parameters
    if isinstance(inputs, dict) and set(inputs) <= set(parameters):
        return [], inputs
    return [inputs], {}


def _inputs(shapes: Any, name: str, batch: int, types: InputType | None) -> Any:
    """Symbolic inputs of so many examples for shapes with the batch, one or lists or dictionaries of them, of these
    element types, one or by names. A batch whose size is known lets a ``call`` read it, as ``ops.shape(x)[0]``."""
    if isinstance(shapes, dict):
        return {key: _inputs(each, str(key), batch, types) for key, each in shapes.items()}
    if _is_shape(shapes):
        kind = types.get(name) if isinstance(types, Mapping) else types
        return keras.Input(tuple(shapes)[1:], batch_size=batch, name=name, dtype=kind)
    return [_inputs(each, f"{name}_{at}", batch, types) for at, each in enumerate(shapes)]


def _is_shape(shapes: Any) -> bool:
    return all(isinstance(size, int | None) for size in shapes)


def _sizes(shapes: Any) -> list[tuple[int, ...]]:
    """Of all inputs, without the batch."""
    if isinstance(shapes, dict):
        shapes = list(shapes.values())
    if _is_shape(shapes):
        return [tuple(size for size in tuple(shapes)[1:] if size)]
    return [sizes for each in shapes for sizes in _sizes(each)]


def _shown(shapes: Any) -> str:
    if isinstance(shapes, dict):
        return ", ".join(f"{name} {_shown(shape)}" for name, shape in shapes.items())
    return str(list(shapes)[1:]) if _is_shape(shapes) else ", ".join(map(_shown, shapes))


def _taken_by_embeddings(functional: Any) -> Collection[str]:
    """The inputs that embeddings alone take: of these Keras keeps no element type that says so."""
    takers: dict[int, set[bool]] = {}
    for nodes in functional._nodes_by_depth.values():
        for node in nodes:
            for tensor in node.input_tensors:
                takers.setdefault(id(tensor), set()).add(isinstance(node.operation, keras.layers.Embedding))
    return {tensor.name for tensor in functional.inputs if takers.get(id(tensor)) == {True}}


# Layers by name that make one of both directions.
_MERGED = {"concat": "Concatenate", "sum": "Add", "ave": "Average", "mul": "Multiply"}


def unrolled(node: Any) -> Any:
    """The functional model of a call of such a layer: its inputs are those of the call and, of a layer with a cell that
    is given none, the states that it starts with. None for any other layer, and where steps are not known."""
    layers, layer = keras.layers, node.operation
    kinds = ((layers.TimeDistributed, _distributed), (layers.Bidirectional, _both), (layers.RNN, _by_cell))
    made = next((each for kind, each in kinds if isinstance(layer, kind)), None)
    if made is None or any(size is None for size in node.input_tensors[0].shape[1:]):
        return None
    inputs = [keras.Input(batch_shape=each.shape, dtype=each.dtype) for each in node.input_tensors]
    try:
        return made(layer, inputs)
    except Exception:
        # A layer or cell of a user's own raises what it likes; then it is kept as one operator, by its name.
        return None


def _distributed(layer: Any, inputs: Sequence[Any]) -> Any:
    """Keras itself loops over the steps, where their number is fixed."""
    steps = keras.ops.unstack(inputs[0], axis=1)
    return keras.Model(inputs, keras.ops.stack([layer.layer(step) for step in steps], axis=1))


def _both(layer: Any, inputs: Sequence[Any]) -> Any:
    """In both directions, where these are not merged into one or states are taken or given."""
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
