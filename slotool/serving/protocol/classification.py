"""The classification extension of the Open Inference Protocol: the highest scores of an output, as texts.

Source: Triton's classification extension; ``"classification": k`` among an output's parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slotool.elastic.best_labels import TOP
from slotool.models.signature import FREE, TensorSpec
from slotool.serving.interface import Interface
from slotool.serving.rejections import bad_request, shown

PARAMETER = "classification"
# Texts in one output: of 50,000 classes and a thousand examples all would be a body of a gigabyte.
MAX_TEXTS = 65_536


def wanted_classes(document: Mapping[str, Any], interface: Interface) -> dict[str, int]:
    """By name of an output, how many of its highest scores are asked for; ``document``: a request whose outputs have
    been checked otherwise. Raises ``Rejection`` (400), also where the outputs are the best labels and their scores: the
    place among these is no class."""
    found = {}
    for entry in document.get("outputs") or ():
        parameters = entry.get("parameters") or {}
        count = parameters.get(PARAMETER)
        if count is None:
            continue
        name = entry["name"]
        if type(count) is not int or count < 1:
            raise bad_request(f"output {name}: classification {shown(count)}, expected a whole number from 1")
        if TOP in interface.parameters:
            raise bad_request(
                f"output {name}: classification is of scores of all classes, and this model gives the best labels "
                f"and their scores: the request's parameter {TOP} says how many"
            )
        spec = interface.output_by_name[name]
        if len(spec.shape) < 2 or spec.datatype in ("BYTES", "BOOL"):
            raise bad_request(
                f"output {name}: classification is of an output with a number for each class; it is {spec}"
            )
        found[name] = count
    return found


def classified(name: str, scores: np.ndarray, count: int, labels: Sequence[str]) -> tuple[TensorSpec, np.ndarray]:
    """The ``count`` highest of ``scores`` [n, ...] of each example, or all when there are fewer: texts
    ``score:index``, with ``:label`` where the classes have names, BYTES [n, count], highest first.

    Raises ``Rejection`` (400) when they are too many.
    """
    rows = scores.reshape(len(scores), -1)
    count = min(count, rows.shape[1])
    if len(rows) * count > MAX_TEXTS:
        raise bad_request(
            f"output {name}: {count} classes of each of {len(rows)} examples; at most {MAX_TEXTS} texts are sent"
        )
    # As floats, so that unsigned numbers can be negated; NaN comes last, and of equal scores the lower class first.
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    named = labels if len(labels) == rows.shape[1] else ()
    texts = np.empty(order.shape, dtype=np.object_)
    for row, chosen in enumerate(order.tolist()):
        for place, index in enumerate(chosen):
            label = f":{named[index]}" if named else ""
            texts[row, place] = f"{rows[row, index]:f}:{index}{label}".encode()
    return TensorSpec(name, "BYTES", (FREE, FREE)), texts
