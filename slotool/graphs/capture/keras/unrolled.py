"""Keras layers that run another layer once for each step, as the functional models that they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Layers by name that make one of both directions.
_MERGED = {"concat": "Concatenate", "sum": "Add", "ave": "Average", "mul": "Multiply"}


def unrolled(node: Any) -> Any:
    """The functional model of a call of such a layer: its inputs are those of the call and, of a layer with a cell that
    is given none, the states that it starts with. None for any other layer, and where steps are not known."""
    import keras

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
    import keras

    steps = keras.ops.unstack(inputs[0], axis=1)
    return keras.Model(inputs, keras.ops.stack([layer.layer(step) for step in steps], axis=1))


def _both(layer: Any, inputs: Sequence[Any]) -> Any:
    """In both directions, where these are not merged into one or states are taken or given."""
    import keras

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
    import keras

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
