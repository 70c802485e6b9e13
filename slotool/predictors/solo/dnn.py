"""The paper's predictor: a deep neural network on the flattened encoding, with a search of its depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slotool import devices
from slotool.errors import InputError, RunError
from slotool.llvm import without_late_triton
from slotool.predictors.base import Asked, Document, Predictor, Progress, Tensors
from slotool.predictors.features.flat import FlatRegressor, Rows
from slotool.predictors.solo.graph_network import one_thread

HIDDEN_UNITS = 100
DEPTHS = tuple(range(1, 21))
LEARNING_RATE = 5e-3
MAX_BATCH = 128
STEPS_PER_EPOCH = 8
MAX_EPOCHS = 300
PATIENCE_TO_SLOW = 12
PATIENCE_TO_STOP = 40

# Weight and bias of each layer.
Layers = list[tuple[Tensor, Tensor]]


class DnnPredictor(FlatRegressor[Asked]):
    """Fully connected ReLU network, ``depth`` hidden layers of 100 units, trained on the MAE in seconds.

    Every one of ``depths`` is trained by Adam, with learning rate and early stopping by the dev MAE, and the network of
    lowest dev MAE is kept. The seed of a depth depends on ``seed`` and the depth only. Predictions are at least the
    least training label. Training runs on ``device``, prediction on the CPU.

    Source: inference-latency-prediction, 4.1 and 4.2, which state neither the scaling of inputs nor a stopping rule.
    Raises ``InputError`` for a depth below 1 or an unusable device, ``RunError`` when every training diverged.
    """

    name = "dnn"

    def __init__(self, depths: Sequence[int] = DEPTHS, *, device: str = devices.CPU):
        if not depths or min(depths) < 1:
            raise InputError("the DNN needs at least one depth to try, each of at least 1 hidden layer")
        self.depths = tuple(sorted(set(depths)))
        self._device = devices.required(device)

    def surrogate(self) -> Predictor[Asked]:
        """Return a network of the depth that was chosen, without a search."""
        return type(self)([self.depth], device=self._device)

    @property
    def fit_steps(self) -> int:
        return len(self.depths)

    @property
    def depth(self) -> int:
        """Number of hidden layers of the chosen network."""
        return len(self._layers) - 1

    def _learn(self, train: Rows, dev: Rows, seed: int, progress: Progress) -> None:
        self._unit_s = float(np.mean(np.abs(train[1])))
        fitting, choosing = ((x, y_s / self._unit_s) for x, y_s in (train, dev))
        best = math.inf
        for depth in self.depths:
            layers, dev_mae = _trained(fitting, choosing, depth, seed, self._device)
            progress(f"dnn: depth {depth}, dev MAE {dev_mae * self._unit_s:.3g} s")
            if dev_mae < best:
                best, self._layers = dev_mae, layers
        if not math.isfinite(best):
            raise RunError("no DNN of the search learnt anything: every training diverged")

    def _answer(self, x: np.ndarray) -> np.ndarray:
        value = torch.from_numpy(x.astype(np.float32))
        with torch.inference_mode():
            for i, (weight, bias) in enumerate(self._layers):
                value = nn.functional.linear(torch.relu(value) if i else value, weight, bias)
        return value.squeeze(1).numpy().astype(np.float64) * self._unit_s

    def _learnt(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors: dict[str, np.ndarray] = {}
        for i, (weight, bias) in enumerate(self._layers):
            tensors |= {f"layers.{i}.weight": weight.numpy(), f"layers.{i}.bias": bias.numpy()}
        return tensors, {"unit_s": self._unit_s, "depth": self.depth}

    def _restore(self, tensors: Tensors, document: Document) -> None:
        self._unit_s = float(document["unit_s"])
        self._layers = [
            (torch.from_numpy(tensors[f"layers.{i}.weight"]), torch.from_numpy(tensors[f"layers.{i}.bias"]))
            for i in range(int(document["depth"]) + 1)
        ]


@without_late_triton()
def _trained(train: Rows, dev: Rows, depth: int, seed: int, device: str) -> tuple[Layers, float]:
    """Train one network of the search; return its layers at the lowest dev MAE, and that MAE."""
    (x, y), (dev_x, dev_y) = (
        [torch.from_numpy(array.astype(np.float32)).to(devices.torch_device(device)) for array in part]
        for part in (train, dev)
    )
    with one_thread():
        network = _network(x, depth, seed + depth)
        batch = min(MAX_BATCH, max(1, len(y) // STEPS_PER_EPOCH))
        optimiser = torch.optim.Adam(network.parameters(), LEARNING_RATE, fused=True)
        slower = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, factor=0.5, patience=PATIENCE_TO_SLOW)
        shuffle = torch.Generator().manual_seed(seed + depth)
        best, best_at = float("inf"), 0
        best_state: dict[str, Tensor] = network.state_dict()
        for epoch in range(MAX_EPOCHS):
            for rows in torch.randperm(len(y), generator=shuffle).to(y.device).split(batch):
                optimiser.zero_grad(set_to_none=True)
                (network(x[rows]).squeeze(1) - y[rows]).abs().mean().backward()
                optimiser.step()
            with torch.inference_mode():
                dev_mae = float((network(dev_x).squeeze(1) - dev_y).abs().mean())
            slower.step(dev_mae)
            if dev_mae < best:
                best, best_at = dev_mae, epoch
                best_state = {name: value.clone() for name, value in network.state_dict().items()}
            elif epoch - best_at >= PATIENCE_TO_STOP:
                break
        network.load_state_dict(best_state)
    linears = [layer for layer in network if isinstance(layer, nn.Linear)]
    return [(each.weight.detach().cpu(), each.bias.detach().cpu()) for each in linears], best


def _network(x: Tensor, depth: int, seed: int) -> nn.Sequential:
    """Build ``depth`` hidden layers, initialised for ReLU so that twenty of them still pass a signal."""
    generator, layers = torch.Generator().manual_seed(seed), list[nn.Module]()
    for before, after in pairwise([x.shape[1], *[HIDDEN_UNITS] * depth, 1]):
        layer: nn.Linear = nn.utils.skip_init(nn.Linear, before, after)
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(x.device)
