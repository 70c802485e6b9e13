"""Figures of a captured graph, and sentences on what it leaves out of its network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slotool.graphs.graph import OperatorGraph

# Share of counted FLOPs that a graph may lack without a word.
UNCOUNTED_WARNED = 0.01


def _turned_steps(graph: OperatorGraph) -> str:
    """Return what to do about recurrent layers whose steps come first; "" where there are none."""
    names = {operator.op.removeprefix("torch.") for operator in graph.unknown}
    if not names & {"lstm", "gru", "rnn_tanh", "rnn_relu"}:
        return ""
    return (
        "; a recurrent layer takes the first axis, the batch, for steps: give it batch_first=True, or turn its input "
        "in a module around it"
    )


def omissions(graph: OperatorGraph, *, named: bool) -> Iterator[str]:
    """Yield what a graph leaves out of its network, and how much that is; with its name where ``named``."""
    prefix = f"{graph.name}: " if named else ""
    if graph.unknown:
        ops = ", ".join(sorted({operator.op for operator in graph.unknown}))
        operators = len(graph.operators) - len(graph.inputs)
        yield (
            f"{prefix}slotool does not know {len(graph.unknown)} of {operators} operators ({ops}): "
            f"they are priced by what they read and write, {graph.unknown_bytes_share:.0%} of the network's bytes, and "
            f"{graph.unknown_flops_share:.0%} of the counted FLOPs are theirs; no backend can run the graph, so "
            "profile cannot measure it"
        )
    if graph.uncounted_flops_share > UNCOUNTED_WARNED:
        yield (
            f"{prefix}{graph.uncounted_flops_share:.0%} of the FLOPs that the framework's own counter finds "
            f"({graph.counted_flops:,}) are missing from the graph: what is predicted from it is too little"
        )
    if graph.flops_mismatch > UNCOUNTED_WARNED:
        yield (
            f"{prefix}the graph counts {1 + graph.flops_mismatch:.3g} times the FLOPs of the framework's "
            f"own counter ({graph.counted_flops:,}): what is predicted from it is too much"
        )
    if graph.examples_interact:
        yield (
            f"{prefix}the examples of a batch interact, or the code loops over them: the FLOPs are not those of one "
            f"example, and what is predicted from them holds for no other batch{_turned_steps(graph)}"
        )
    if graph.uncosted:
        what = ", ".join(graph.uncosted)
        yield f"{prefix}nothing counts the FLOPs of {what}: at most the bytes that it moves are priced"
    if not graph.plain:
        yield (f"{prefix}the network is {graph.form}; predictions and profiles of graphs are of float32 ones")


def facts_of(graph: OperatorGraph) -> dict[str, Any]:
    """Return figures of a graph, as JSON."""
    return {
        "graph_id": graph.id,
        "operators": len(graph.operators),
        "weights": graph.weights,
        "flops": graph.flops,
        "unknown": [operator.name for operator in graph.unknown],
        "unknown_share": graph.unknown_share,
        "unknown_flops_share": graph.unknown_flops_share,
        "unknown_bytes_share": graph.unknown_bytes_share,
        "moved_bytes": graph.moved_bytes,
        "counted_flops": graph.counted_flops,
        "flops_mismatch": graph.flops_mismatch,
        "examples_interact": graph.examples_interact,
        "uncosted": list(graph.uncosted),
        "element_type": graph.element_type,
        "compiled": graph.compiled,
    }
