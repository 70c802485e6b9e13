"""Cut a network of any library before its last dense layer: what comes before stays as it is, run by its own library.

A ``Cut`` holds that front as a model file of the same library, which gives the features that the last layer receives,
and the last layer as arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slotool.elastic.slo_nn.mlp import DenseLayer
from slotool.errors import InputError
from slotool.models.loading import load
from slotool.models.model import Model
from slotool.models.signature import FREE

# Examples of a call of a model that takes any number.
BATCH = 256


class Features:
    """The front of a network: what its last layer receives of inputs float32 [n, *input_shape].

    ``model``: has one input of numbers and one output [n, features]. Inputs of another shape with the same values are
    reshaped; images that a model takes with their channels last are turned. Whole numbers, such as token ids, are exact
    up to 2²⁴ in float32. Raises ``InputError`` where the model takes neither.
    """

    def __init__(self, model: Model, input_shape: tuple[int, ...]):
        if len(model.signature.inputs) != 1:
            raise InputError(f"{model.name} takes {len(model.signature.inputs)} inputs; tables need a network of one")
        self.model, self.input_shape = model, input_shape
        spec = model.signature.inputs[0]
        if spec.dtype.kind not in "iuf":
            raise InputError(f"{model.name}: input {spec.name} is {spec}; tables need an input of numbers")
        self._spec, self._input, self._output = spec, spec.name, model.signature.outputs[0].name
        self._batch = BATCH if spec.shape[0] == FREE else spec.shape[0]
        self._fixed = spec.shape[0] != FREE
        self._arranged = _arrangement(model.name, input_shape, spec.shape[1:])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return float32 [n, features]. Raises ``InputError`` for values that the model's datatype does not hold."""
        x = self._cast(x)
        parts = [self._of_batch(x[at : at + self._batch]) for at in range(0, len(x), self._batch)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @property
    def whole(self) -> bool:
        """True if the model takes whole numbers only."""
        return self._spec.dtype.kind in "iu"

    def _cast(self, x: np.ndarray) -> np.ndarray:
        """Return ``x`` in the model's datatype."""
        dtype = self._spec.dtype
        if x.dtype == dtype:
            return x
        with np.errstate(over="ignore", invalid="ignore"):
            cast: np.ndarray = x.astype(dtype)
        # A number that does not fit comes out as another.
        lost = np.isfinite(cast) != np.isfinite(x) if dtype.kind == "f" else cast != x
        if lost.any():
            raise InputError(
                f"{self.model.name}: input {self._input} is {self._spec}, which {float(x[lost][0]):.9g} does not fit"
            )
        return cast

    def _of_batch(self, x: np.ndarray) -> np.ndarray:
        n = len(x)
        if self._fixed and n < self._batch:
            x = np.concatenate([x, np.repeat(x[:1], self._batch - n, axis=0)])
        output = self.model.run({self._input: self._arranged(x)})[self._output][:n]
        return output.astype(np.float32, copy=False)


def _arrangement(name: str, shape_in: tuple[int, ...], expected: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function that reshapes examples to the model's shape."""

    def fits(shape: tuple[int, ...]) -> bool:
        return len(shape) == len(expected) and all(w in (FREE, s) for s, w in zip(shape, expected, strict=True))

    if fits(shape_in):
        return lambda x: x
    channels_last = (*shape_in[1:], shape_in[0]) if len(shape_in) == 3 else ()
    if channels_last and shape_in[0] > 1 and fits(channels_last):
        return lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    squeezed = tuple(size for size in shape_in if size != 1)
    for shape in (squeezed, channels_last, (math.prod(shape_in),), (1, *shape_in)):
        if shape and fits(shape):
            return lambda x, shape=shape: x.reshape(len(x), *shape)  # type: ignore[misc]
    raise InputError(f"{name} takes inputs {list(expected)}, and the data have {list(shape_in)}")


@dataclass(frozen=True)
class Cut:
    """A network in two parts.

    ``front``: file of the part before ``layer``. ``whole``: the unmodified network, which answers by logits or by
    probabilities. ``runtime``: what runs both. ``positions``: of a network that scores every position of a sequence,
    how many there are (0: any number); ``front`` and ``whole`` answer for the last one, whose scores are of what comes
    next. ``whole_file``: the ONNX file that ``whole`` runs, None of other libraries.
    """

    front: Path
    layer: DenseLayer
    whole: Model
    runtime: str
    positions: int | None = None
    whole_file: Path | None = None

    def features(self, input_shape: tuple[int, ...], threads: int = 1) -> Features:
        return Features(load(self.front, threads=threads), input_shape)


def require_one_output(name: str, outputs: int) -> None:
    """Raise ``InputError`` for a network of another number of outputs."""
    if outputs != 1:
        raise InputError(f"{name} gives {outputs} outputs; tables need a network of one")


def dense_layer(name: str, weights: np.ndarray, bias: np.ndarray | None) -> DenseLayer:
    """Return ``weights`` [classes, features]; no bias counts as zeros."""
    rows = np.ascontiguousarray(weights, dtype=np.float32)
    shift = np.zeros(len(rows), dtype=np.float32) if bias is None else np.asarray(bias, dtype=np.float32).reshape(-1)
    return DenseLayer(name, rows, np.array(np.broadcast_to(shift, len(rows))))
