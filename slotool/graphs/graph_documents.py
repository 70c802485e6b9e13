"""What the JSON form of a graph states, checked part by part before anything is built of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.operators import Effect

# What a graph is of unless it says otherwise.
FLOAT32 = "float32"
_ELEMENT_TYPE = re.compile(r"[a-z][a-z0-9_]*(\+[a-z][a-z0-9_]*)*", re.ASCII)
GRAPH_KEYS = (
    "kind",
    "name",
    "element_type",
    "compiled",
    "counted_flops",
    "examples_interact",
    "uncosted",
    "shared_weights",
    "id",
    "operators",
)
OPERATOR_KEYS = ("name", "op", "inputs", "attributes", "shape", "weights", "flops")
# The types that graph files of the first versions knew; every other of their types stated its shape and costs.
FIRST_OPERATORS = (
    *("InputLayer", "Dense", "Conv2D", "DepthwiseConv2D", "SeparableConv2D", "MaxPooling2D", "AveragePooling2D"),
    *("GlobalAveragePooling2D", "GlobalMaxPooling2D", "ZeroPadding2D", "Cropping2D", "Flatten", "Reshape"),
    *("BatchNormalization", "LayerNormalization", "Normalization", "LayerScale", "Rescaling", "ReLU", "Softmax"),
    *("Activation", "Add", "Multiply", "Concatenate"),
)


def refuse_unknown_keys(what: str, entry: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises ``GraphError`` for a key that would be ignored: most are misspelt."""
    unknown = [key for key in entry if key not in known]
    if unknown:
        raise GraphError(f"{what} has an unknown key {unknown[0]!r}; known are {', '.join(known)}")


def stated_form(document: Mapping[str, Any]) -> dict[str, Any]:
    """Element type, whether it is compiled, and counted FLOPs, as a document states them."""
    element_type, compiled = document.get("element_type", FLOAT32), document.get("compiled", False)
    counted = document.get("counted_flops")
    if not isinstance(element_type, str) or not _ELEMENT_TYPE.fullmatch(element_type):
        raise GraphError(f"the graph's element_type is neither a type such as {FLOAT32!r} nor several joined by '+'")
    if not isinstance(compiled, bool):
        raise GraphError("the graph's compiled is neither true nor false")
    if counted is not None and (type(counted) is not int or counted < 0):
        raise GraphError("the graph's counted_flops is no whole number of at least 0")
    interact = document.get("examples_interact", False)
    if not isinstance(interact, bool):
        raise GraphError("the graph's examples_interact is neither true nor false")
    uncosted = document.get("uncosted", [])
    if not isinstance(uncosted, list) or not all(isinstance(name, str) for name in uncosted):
        raise GraphError("the graph's uncosted is no list of names")
    shared = document.get("shared_weights", 0)
    if type(shared) is not int or shared < 0:
        raise GraphError("the graph's shared_weights is no whole number of at least 0")
    return {
        "element_type": element_type,
        "compiled": compiled,
        "counted_flops": counted,
        "examples_interact": interact,
        "uncosted": tuple(uncosted),
        "shared_weights": shared,
    }


def stated_effect(name: str, entry: Mapping[str, Any]) -> Effect:
    shape, weights, flops = entry["shape"], entry.get("weights", 0), entry.get("flops", 0)
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        raise GraphError(f"operator {name!r}: shape is not a list of sizes of at least 1")
    if not all(type(cost) is int and cost >= 0 for cost in (weights, flops)):
        raise GraphError(f"operator {name!r}: weights and flops are not whole numbers of at least 0")
    return Effect(tuple(shape), weights, flops)
