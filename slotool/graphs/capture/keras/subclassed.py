"""Keras models with a ``call`` of their own as functional models, on the shapes they were built with or are given."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from slotool.errors import GraphError
from slotool.graphs.capture.batch_axis import batch_size
from slotool.graphs.capture.keras.models import InputShape, traced_call, written_as_functional
from slotool.printable import reason

if TYPE_CHECKING:
    import keras

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
    import keras

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
    import keras

    args, kwargs = _arguments(model, inputs)
    return traced_call(model, args, kwargs, keras.tree.flatten(inputs))


def _whole(model: keras.Model, inputs: Any) -> Any:
    """A model whose one layer is ``model``, which this builds."""
    import keras

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
    import keras

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
    import keras

    takers: dict[int, set[bool]] = {}
    for nodes in functional._nodes_by_depth.values():
        for node in nodes:
            for tensor in node.input_tensors:
                takers.setdefault(id(tensor), set()).add(isinstance(node.operation, keras.layers.Embedding))
    return {tensor.name for tensor in functional.inputs if takers.get(id(tensor)) == {True}}
