"""Loops of an ONNX model, whose body runs a number of times that is known: a ``Loop``, and a ``Scan`` along axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slotool.errors import GraphError
from slotool.graphs.capture.onnx.inlining import Inlining
from slotool.graphs.operators import Shape

if TYPE_CHECKING:
    import onnx

# Nodes that a loop may become: capture takes seconds for so many.
MAX_UNROLLED = 10_000
# Exporters write the largest number there is for a loop that ends by a condition.
MAX_TRIPS = 2**31 - 2
# From this version on the axes of ``Unsqueeze`` are an input.
_AXES_ARE_INPUT = 13
_PASS_ON = ("Identity", "Cast")


def body_of(node: onnx.NodeProto) -> onnx.GraphProto | None:
    """The body of a ``Loop``; None of any other node."""
    if node.op_type != "Loop" or node.domain not in ("", "ai.onnx"):
        return None
    return next((entry.g for entry in node.attribute if entry.name == "body"), None)


def trips_of(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> int:
    """How often a ``Loop`` runs its body, which ``constants`` of the graph around say.

    Raises ``GraphError`` with the end of a sentence that says why nobody knows, or that it is too often to unroll.
    """
    body = body_of(node)
    assert body is not None
    count, condition = (*node.input, "", "")[:2]
    trips = _value(constants.get(count))
    if not count or (trips or 0) > MAX_TRIPS:
        raise GraphError("ends by a condition on values, so the model does not say how often it runs")
    if trips is None:
        raise GraphError("takes its number of trips from values, so the model does not say how often it runs")
    if not _stays_true(body, body.output[0].name, condition, constants):
        raise GraphError(f"may end before its {trips:,.0f} trips by a condition on values")
    if not 0 < trips * len(body.node) <= MAX_UNROLLED:
        raise GraphError(f"runs its body of {len(body.node):,} nodes {trips:,.0f} times")
    return int(trips)


def unrolled(inlining: Inlining, loop: onnx.NodeProto, trips: int, prefix: str, opset: int) -> Iterator[onnx.NodeProto]:
    """The body, so many times; its weights are those of each trip."""
    import numpy as np
    import onnx

    body = body_of(loop)
    assert body is not None
    weights = inlining.add_weights(body, prefix)
    number, condition, *carried = [value.name for value in body.input]
    values = list(loop.input[2:])
    kept, scanned = list(loop.output[: len(values)]), list(loop.output[len(values) :])
    inlining.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), f"{prefix}on"))
    for trip in range(trips):
        here = f"{prefix}{trip}/"
        inlining.graph.initializer.append(onnx.numpy_helper.from_array(np.array(trip), f"{here}trip"))
        given = {number: f"{here}trip", condition: f"{prefix}on", **dict(zip(carried, values, strict=True))}
        after = [f"{here}carried_{at}" for at in range(len(values))] if trip < trips - 1 else kept
        parts = [f"{here}scanned_{at}" if name else "" for at, name in enumerate(scanned)]
        yield from inlining.nodes(body, {**weights, **given}, ["", *after, *parts], here)
        values = after
    for at, name in enumerate(scanned):
        if name:
            yield from stacked([f"{prefix}{trip}/scanned_{at}" for trip in range(trips)], name, inlining, opset)


def stacked(parts: list[str], name: str, inlining: Inlining, opset: int, along: int = 0) -> Iterator[onnx.NodeProto]:
    """What every trip made, along a new axis."""
    import numpy as np
    import onnx

    axis = f"{name}/axis"
    if opset >= _AXES_ARE_INPUT:
        inlining.graph.initializer.append(onnx.numpy_helper.from_array(np.array([along]), axis))
    for part in parts:
        if opset >= _AXES_ARE_INPUT:
            yield onnx.helper.make_node("Unsqueeze", [part, axis], [f"{part}/row"])
        else:
            yield onnx.helper.make_node("Unsqueeze", [part], [f"{part}/row"], axes=[along])
    yield onnx.helper.make_node("Concat", [f"{part}/row" for part in parts], [name], axis=along)


def _stays_true(body: onnx.GraphProto, name: str, condition: str, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether a value of the body is true on every trip."""
    if name == body.input[1].name:
        return not condition or bool(_value(constants.get(condition)))
    made_by = {output: node for node in body.node for output in node.output}
    node = made_by.get(name)
    if node is None:
        own = {tensor.name: tensor for tensor in body.initializer}
        return bool(_value(own.get(name, constants.get(name))))
    if node.op_type == "Constant":
        return bool(_value(next((entry.t for entry in node.attribute if entry.name == "value"), None)))
    return node.op_type in _PASS_ON and _stays_true(body, node.input[0], condition, constants)


def _value(tensor: onnx.TensorProto | None) -> float | None:
    """The one number of a constant."""
    import onnx

    if tensor is None or math.prod(tensor.dims) != 1 or tensor.data_location == tensor.EXTERNAL:
        return None
    return float(onnx.numpy_helper.to_array(tensor).reshape(-1)[0])


# Before this version a Scan took the batch and the lengths of its sequences too.
_WITHOUT_BATCH = 9


def scan_body(node: onnx.NodeProto) -> onnx.GraphProto | None:
    """The body of a ``Scan``; None of any other node."""
    if node.op_type != "Scan" or node.domain not in ("", "ai.onnx"):
        return None
    return next((entry.g for entry in node.attribute if entry.name == "body"), None)


def steps_of(node: onnx.NodeProto, shapes: Mapping[str, Shape], opset: int = _WITHOUT_BATCH) -> int:
    """How often a ``Scan`` runs its body: the size of the axis that it goes along.

    Raises ``GraphError`` with the end of a sentence that says why nobody knows, or that it is too often to unroll.
    """
    body = scan_body(node)
    assert body is not None
    if opset < _WITHOUT_BATCH:
        raise GraphError(f"is of version {opset}, which takes the lengths of its sequences as values")
    _, scanned = _inputs(node)
    shape = shapes.get(scanned[0], ())
    axis = _numbers(node, "scan_input_axes", len(scanned))[0]
    if not -len(shape) <= axis < len(shape):
        raise GraphError("goes along an axis whose size the model does not say, so nobody knows how often it runs")
    steps = shape[axis]
    if not 0 < steps * len(body.node) <= MAX_UNROLLED:
        raise GraphError(f"runs its body of {len(body.node):,} nodes {steps:,} times")
    return steps


def unrolled_scan(
    inlining: Inlining, node: onnx.NodeProto, steps: int, prefix: str, opset: int
) -> Iterator[onnx.NodeProto]:
    """The body, so many times, each with its own part of what is scanned; its weights are those of each step."""
    import numpy as np
    import onnx

    body = scan_body(node)
    assert body is not None
    weights = inlining.add_weights(body, prefix)
    values, scanned = _inputs(node)
    names = [value.name for value in body.input]
    along, backwards = (_numbers(node, f"scan_input_{what}", len(scanned)) for what in ("axes", "directions"))
    kept, made = list(node.output[: len(values)]), list(node.output[len(values) :])
    for step in range(steps):
        here, given = f"{prefix}{step}/", dict(weights)
        for at, source in enumerate(scanned):
            row, part = f"{here}row_{at}", f"{here}part_{at}"
            number = steps - 1 - step if backwards[at] else step
            inlining.graph.initializer.append(onnx.numpy_helper.from_array(np.array(number), row))
            yield onnx.helper.make_node("Gather", [source, row], [part], axis=along[at])
            given[names[len(values) + at]] = part
        given |= dict(zip(names, values, strict=False))
        after = [f"{here}carried_{at}" for at in range(len(values))] if step < steps - 1 else kept
        parts = [f"{here}made_{at}" if name else "" for at, name in enumerate(made)]
        yield from inlining.nodes(body, given, [*after, *parts], here)
        values = after
    axes, turned = (_numbers(node, f"scan_output_{what}", len(made)) for what in ("axes", "directions"))
    for at, name in enumerate(made):
        if name:
            order = range(steps)[::-1] if turned[at] else range(steps)
            yield from stacked([f"{prefix}{step}/made_{at}" for step in order], name, inlining, opset, axes[at])


def _inputs(node: onnx.NodeProto) -> tuple[list[str], list[str]]:
    """What is carried from step to step, and what is scanned."""
    count = next(entry.i for entry in node.attribute if entry.name == "num_scan_inputs")
    return list(node.input[: len(node.input) - count]), list(node.input[len(node.input) - count :])


def _numbers(node: onnx.NodeProto, name: str, count: int) -> Sequence[int]:
    found: Any = next((entry.ints for entry in node.attribute if entry.name == name), None)
    return [0] * count if found is None else list(found)
