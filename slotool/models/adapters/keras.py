"""Keras models: ``.keras`` files, read in Keras' safe mode, and models in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.errors import InputError, RunError
from slotool.models.model import Model
from slotool.models.signature import DTYPES, FREE, Signature, TensorSpec
from slotool.printable import reason
from slotool.tables import FULL, OperatingPoint

if TYPE_CHECKING:
    import keras

_DATATYPES = {str(dtype): name for name, dtype in DTYPES.items() if name not in ("BF16", "BYTES")} | {
    "bfloat16": "BF16",
    "string": "BYTES",
}


class KerasModel(Model):
    """A Keras model of any number of inputs and outputs; an output is called as its key, or as the layer that makes it.

    Raises ``InputError`` when it has not been built, so that its inputs are not known.
    """

    def __init__(self, model: keras.Model, *, name: str | None = None):
        self.name = name or model.name
        self._model = model
        inputs, outputs = getattr(model, "inputs", None), getattr(model, "outputs", None)
        if not inputs or not outputs:
            raise InputError(f"{self.name}: its inputs are not known; call it on an example before saving it")
        names = _output_names(model, outputs, getattr(model, "_outputs_struct", None))
        self.signature = Signature(
            tuple(_spec(tensor.name, tensor) for tensor in inputs),
            tuple(_spec(name, tensor) for name, tensor in zip(names, outputs, strict=True)),
        )

    @classmethod
    def load(cls, path: str | Path) -> KerasModel:
        """Of a ``.keras`` file. Raises ``InputError``, and ``MissingPackageError`` without Keras or TensorFlow."""
        from slotool.graphs.capture.loading import load_keras

        return cls(load_keras(str(path)), name=Path(path).stem)

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        try:
            given = [inputs[spec.name] for spec in self.signature.inputs]
            # Keras warns of a list where it was built of one tensor.
            made = self._model.predict_on_batch(given if len(given) > 1 else given[0])
        except (Exception, SystemExit) as error:
            raise RunError(f"{self.name}: Keras failed ({reason(error)})") from error
        if isinstance(made, Mapping):
            made = [made[spec.name] for spec in self.signature.outputs]
        values = made if isinstance(made, list | tuple) else [made]
        return {spec.name: np.asarray(value) for spec, value in zip(self.signature.outputs, values, strict=True)}


def _output_names(model: Any, outputs: list[Any], structure: Any) -> list[str]:
    """Names that are the same whenever the model is loaded, which those of Keras' tensors are not: they are numbered
    as a process makes them."""
    if isinstance(structure, Mapping):
        return [str(key) for key in structure]
    makers = [tensor._keras_history.operation.name for tensor in outputs]
    names = list(getattr(model, "output_names", None) or makers)
    return names if len(set(names)) == len(names) else [f"{name}_{at}" for at, name in enumerate(names)]


def _spec(name: str, tensor: Any) -> TensorSpec:
    shape = tuple(FREE if size is None else int(size) for size in tensor.shape)
    return TensorSpec(name, _DATATYPES.get(str(tensor.dtype), str(tensor.dtype)), shape)
