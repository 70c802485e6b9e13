"""Scans of an ONNX model: a ``Scan`` over an axis of known size, as its body one step after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slotool.errors import GraphError
from slotool.graphs.capture.onnx.inlining import Inlining
from slotool.graphs.capture.onnx.loops import MAX_UNROLLED, stacked
from slotool.graphs.operators import Shape

if TYPE_CHECKING:
    import onnx

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
