"""MLServer: a custom runtime that takes and gives numpy arrays. ``mlserver start FOLDER`` with its settings."""

from __future__ import annotations

import numpy as np
import torch
from mlserver import MLModel
from mlserver.codecs import decode_args
from network import Network


class Digits(MLModel):
    async def load(self) -> bool:
        self.network = Network().eval()
        return True

    @decode_args
    async def predict(self, input: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return self.network(torch.from_numpy(input).float()).argmax(dim=1, keepdim=True).numpy()
