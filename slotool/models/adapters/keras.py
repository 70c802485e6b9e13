"""Keras models: ``.keras`` files, read in Keras' safe mode, and models in memory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool import devices, extras
from slotool.errors import InputError, RunError
from slotool.models.model import Model
from slotool.models.signature import DATATYPES_BY_NAME, FREE, Signature, TensorSpec
from slotool.printable import reason
from slotool.tables import FULL, OperatingPoint

if TYPE_CHECKING:
    import keras

_DATATYPES = {**DATATYPES_BY_NAME, "string": "BYTES"}


class KerasModel(Model):
    """A Keras model of any number of inputs and outputs; an output is called as its key, or as the layer that makes it.

    It computes on ``device``, where its weights are to be already; left alone, TensorFlow would take the first GPU.
    Raises ``InputError`` when it has not been built, so that its inputs are not known.
    """

    def __init__(self, model: keras.Model, *, name: str | None = None, device: str = devices.CPU):
        self.name, self.device = name or model.name, devices.parsed(device)
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
        """Load a ``.keras`` file. Raises ``InputError``, and ``MissingPackageError`` without Keras or TensorFlow."""
        from slotool.graphs.capture.loading import load_keras

        extras.require("tensorflow", "keras", needed_by="a Keras model")
        with placed_on(devices.CPU):
            return cls(load_keras(str(path)), name=Path(path).stem)

    def on(self, device: str, precision: str = devices.FLOAT32) -> Model:
        """Return a copy with weights of its own there, where that is another."""
        import keras

        if devices.parsed(device) == self.device or precision != devices.FLOAT32:
            return super().on(device, precision)
        require_gpu(self.name, device)
        try:
            with placed_on(device):
                model = keras.models.clone_model(self._model)
                model.set_weights(self._model.get_weights())
        except Exception as error:
            raise InputError(f"{self.name}: Keras cannot copy it to {device} ({reason(error)})") from error
        return KerasModel(model, name=self.name, device=device)

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        try:
            arrays = [inputs[spec.name] for spec in self.signature.inputs]
            # Keras warns of a list where it was built of one tensor.
            with placed_on(self.device):
                outputs = self._model.predict_on_batch(arrays if len(arrays) > 1 else arrays[0])
        except (Exception, SystemExit) as error:
            raise RunError(f"{self.name}: Keras failed ({reason(error)})") from error
        if isinstance(outputs, Mapping):
            outputs = [outputs[spec.name] for spec in self.signature.outputs]
        values = outputs if isinstance(outputs, list | tuple) else [outputs]
        return {spec.name: np.asarray(value) for spec, value in zip(self.signature.outputs, values, strict=True)}


def placed_on(device: str) -> AbstractContextManager[Any]:
    """Place operators and variables of the block on TensorFlow's ``device``."""
    import tensorflow as tf

    number = devices.parsed(device).removeprefix("cuda:")
    placed: AbstractContextManager[Any] = tf.device("/CPU:0" if number == devices.CPU else f"/GPU:{number}")
    return placed


def require_gpu(name: str, device: str) -> None:
    """Make TensorFlow take GPU memory only as needed, and compute nothing on the CPU that belongs on the GPU.

    Raises ``InputError`` naming the model ``name`` if TensorFlow cannot use ``device``.
    """
    import tensorflow as tf

    if not devices.is_cuda(devices.parsed(device)):
        return
    gpus = tf.config.list_physical_devices("GPU")
    if int(devices.parsed(device).removeprefix("cuda:")) >= len(gpus):
        gpu_text = f"{len(gpus)} GPU{'s' * (len(gpus) > 1)}" if gpus else "no GPU: pip install 'tensorflow[and-cuda]'"
        raise InputError(f"{name} cannot be on {device}: TensorFlow finds {gpu_text}")
    tf.config.set_soft_device_placement(False)
    for gpu in gpus:
        # Once TensorFlow has begun to use them it is too late.
        with suppress(RuntimeError):
            tf.config.experimental.set_memory_growth(gpu, True)


def _output_names(model: Any, outputs: list[Any], structure: Any) -> list[str]:
    """Return names that are equal in every process, unlike those of Keras' tensors, which are numbered by creation."""
    if isinstance(structure, Mapping):
        return [str(key) for key in structure]
    makers = [tensor._keras_history.operation.name for tensor in outputs]
    names = list(getattr(model, "output_names", None) or makers)
    return names if len(set(names)) == len(names) else [f"{name}_{at}" for at, name in enumerate(names)]


def _spec(name: str, tensor: Any) -> TensorSpec:
    shape = tuple(FREE if size is None else int(size) for size in tensor.shape)
    return TensorSpec(name, _DATATYPES.get(str(tensor.dtype), str(tensor.dtype)), shape)
