"""Calls of a library that the operators of a network are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.graphs.graph import FLOAT32
from slotool.graphs.operators import OPERATORS, Operator

# Code and values of an inference that touches up to the first size stay in the nearest caches; its weights stay in any
# up to the second size, and weights of an operator up to the third always.
NEAR_BYTES, CACHED_BYTES, SMALL_BYTES = 1 << 20, 4 << 20, 64 << 10
# Rough rates by which operators share a time that is known for all of them only.
FLOPS_PER_S, BYTES_PER_S, CALL_S = 5e10, 1e10, 3e-6


@dataclass(frozen=True)
class OperatorCall:
    """Call of a library for one operator or several fused ones.

    Attributes:
        key: Text that is equal for calls that take equally long.
        op: Its type.
        flops: Floating point operations for one batch.
        bytes: Bytes that it reads and writes for one batch, weights included.
        name: Name in its network.
    """

    key: str
    op: str
    flops: int
    bytes: int
    name: str = ""

    @property
    def rough_s(self) -> float:
        """Rough latency, seconds."""
        return CALL_S + self.flops / FLOPS_PER_S + self.bytes / BYTES_PER_S


def touched_bytes(graph: OperatorGraph, batch_size: int) -> int:
    """Return the bytes that an inference reads and writes, weights included."""
    return batch_size * graph.moved_bytes + graph.weight_bytes


def heat(weight_bytes: int, network_bytes: int) -> str:
    """Return the end of the key of a call with such weights, which states in which caches it runs.

    Args:
        weight_bytes: Size of its weights.
        network_bytes: ``touched_bytes`` of its network.
    """
    if network_bytes <= NEAR_BYTES:
        return " hot"
    return " cold" if network_bytes > CACHED_BYTES and weight_bytes > SMALL_BYTES else ""


def network_call(graph: OperatorGraph, batch_size: int) -> OperatorCall:
    """Return the call of a network beyond its operators; it takes equally long for networks in the same caches."""
    return OperatorCall("network" + heat(0, touched_bytes(graph, batch_size)), "", 0, 0)


def with_the_rest(calls_s: np.ndarray, total_s: np.ndarray) -> np.ndarray:
    """Distribute the time of an inference beyond its calls equally over them and the inference itself.

    Args:
        calls_s: Seconds of each call in the library's profile, float64 [inferences, calls].
        total_s: Seconds of inferences without the profile, float64 [inferences].

    Returns:
        Float64 seconds [inferences, 1 + calls].
    """
    # The fastest ones, since other processes only add time.
    whole_s, inside_s = float(np.min(total_s)), float(np.min(calls_s.sum(axis=1)))
    rest_s = max(0.0, whole_s - inside_s) / (calls_s.shape[1] + 1)
    scale = min(1.0, whole_s / inside_s) if inside_s else 1.0
    return np.column_stack([np.full(len(calls_s), rest_s), scale * calls_s + rest_s])


def operator_calls(graph: OperatorGraph, batch_size: int) -> list[OperatorCall | None]:
    """Return a call for each operator of ``graph``; None for inputs and constants."""
    by_name = {operator.name: operator for operator in graph.operators}
    network_bytes = touched_bytes(graph, batch_size)
    kinds: dict[str, str] = {}
    calls: list[OperatorCall | None] = []
    for operator in graph.operators:
        first = kinds.get(operator.inputs[0], FLOAT32) if operator.inputs else FLOAT32
        passes = operator.known and OPERATORS[operator.op].passes_numbers
        kinds[operator.name] = operator.attributes.get("dtype", first if passes else FLOAT32) or FLOAT32
        if operator.op in ("InputLayer", "Constant"):
            calls.append(None)
            continue
        inputs = [by_name[name] for name in operator.inputs]
        calls.append(_call(operator, inputs, [kinds[name] for name in operator.inputs], batch_size, network_bytes))
    return calls


def _call(
    operator: Operator, inputs: Sequence[Operator], kinds: Sequence[str], batch_size: int, network_bytes: int
) -> OperatorCall:
    pairs = zip(inputs, kinds, strict=True)
    sources = [source.structure if source.op == "Constant" else f"{source.shape}{kind}" for source, kind in pairs]
    end = heat(operator.weight_bytes, network_bytes)
    return OperatorCall(
        key=f"{operator.structure} of {' '.join(sources)} batch {batch_size}{end}",
        op=operator.op,
        flops=batch_size * operator.flops,
        bytes=batch_size * operator.moved_bytes + operator.weight_bytes,
        name=operator.name,
    )
