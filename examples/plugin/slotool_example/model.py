"""An adapter of models: linear classifiers as text, one line per class, its weights and last its bias."""

from pathlib import Path

import numpy as np

from slotool.errors import InputError
from slotool.models import Model, Signature, TensorSpec
from slotool.tables import FULL


class LinearModel(Model):
    """The classifier in the file ``location``: numbers with commas, [classes, features + 1]."""

    def __init__(self, location, threads=None):
        try:
            table = np.loadtxt(location, delimiter=",", ndmin=2, dtype=np.float32)
        except (OSError, ValueError) as error:
            raise InputError(f"{location}: no table of numbers with commas ({error})") from error
        self._weights, self._bias = table[:, :-1].T.copy(), table[:, -1]
        self.name = Path(location).stem
        features, classes = self._weights.shape
        self.signature = Signature(
            inputs=(TensorSpec("measures", "FP32", (-1, features)),),
            outputs=(TensorSpec("logits", "FP32", (-1, classes)),),
        )

    def run(self, inputs, point=FULL):
        self.require(point)
        return {"logits": inputs["measures"] @ self._weights + self._bias}
