"""Messages between router and worker process, on a socket that keeps them apart.

The router sends the model's number, the bytes of the packed inputs and the point as JSON. The worker sends ``DONE``
with the bytes of the packed outputs, which lie behind the inputs; ``FAILED`` with the length of the sentence that it
left in the shared memory, ``MISCOUNTED`` likewise where outputs have other rows than there are examples, or
``CANCELLED`` where that memory holds so. A worker sends ``READY`` once it is warm, or ``FAILED``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from slotool.data.columns import Columns, Inputs
from slotool.elastic import ElasticModel
from slotool.serving.outputs import Outputs
from slotool.tables import OperatingPoint

CALL = struct.Struct("<HI")
REPLY = struct.Struct("<BI")
READY, DONE, FAILED, CANCELLED, MISCOUNTED = 1, 2, 3, 4, 5
MAX_MESSAGE_BYTES = 65_536
# No tensor has this name: a lone array of inputs, or the confidences among outputs.
_UNNAMED = ""


@lru_cache(maxsize=4_096)
def encode_point(point: OperatingPoint) -> bytes:
    """Every digit of its numbers, which ``key`` would round."""
    return json.dumps(dict(point.settings)).encode()


@lru_cache(maxsize=4_096)
def decode_point(text: bytes) -> OperatingPoint:
    return OperatingPoint.of(json.loads(text))


def tensors_of_inputs(x: Inputs) -> dict[str, np.ndarray]:
    """Inputs as tensors to pack."""
    return {_UNNAMED: x} if isinstance(x, np.ndarray) else x.arrays


def inputs_of_tensors(tensors: Mapping[str, np.ndarray]) -> Inputs:
    """The inputs that ``tensors_of_inputs`` made them of."""
    return tensors[_UNNAMED] if _UNNAMED in tensors else Columns(tensors)


def tensors_of_outputs(outputs: Outputs) -> dict[str, np.ndarray]:
    """Outputs as tensors to pack."""
    sure = {} if outputs.confidence is None else {_UNNAMED: outputs.confidence}
    return {**outputs.tensors, **sure}


def outputs_of_tensors(tensors: dict[str, np.ndarray], model: ElasticModel) -> Outputs:
    """The outputs of ``model`` that ``tensors_of_outputs`` made them of."""
    confidence = tensors.pop(_UNNAMED, None)
    return Outputs(tensors, model, confidence)
