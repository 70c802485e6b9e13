"""A network of many classes that needs no training: its last layer scores how near an input is to each prototype."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES, WIDTH = 300, 12


def prototypes() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(CLASSES, WIDTH)).astype(np.float32)


class Nearest(nn.Module):
    """It branches and has a GELU, so that it is no chain of ReLU layers."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        near = torch.from_numpy(prototypes())
        with torch.no_grad():
            self.mixed.weight.mul_(0.01)
            self.last.weight.copy_(near)
            self.last.bias.copy_(-0.5 * near.square().sum(dim=1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + 0.01 * functional.gelu(self.mixed(x)))


def seeded() -> nn.Module:
    """Always the same network."""
    torch.manual_seed(0)
    return Nearest().eval()


def write_data(path: Path, n: int = 3_000) -> Path:
    """Examples near the prototypes, as a file that ``--data`` takes."""
    rng = np.random.default_rng(1)
    y = rng.integers(CLASSES, size=n)
    x = prototypes()[y] + 0.25 * rng.normal(size=(n, WIDTH)).astype(np.float32)
    np.savez(path, x=x.astype(np.float32), y=y)
    return path


def write_onnx(path: Path) -> Path:
    names: dict[str, Any] = {"input_names": ["input"], "output_names": ["logits"]}
    free = {"dynamic_axes": {"input": {0: "batch"}, "logits": {0: "batch"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the newer exporter needs another package
        torch.onnx.export(seeded(), (torch.zeros(1, WIDTH),), path, **names, **free, dynamo=False)
    return path


def write_keras(path: Path) -> Path:
    import keras

    net: Any = seeded()
    inputs = keras.Input((WIDTH,))
    mixed = keras.layers.Dense(WIDTH, activation="gelu")
    last = keras.layers.Dense(CLASSES, activation="softmax", name="classes")
    outputs = last(keras.layers.Add()([inputs, keras.layers.Rescaling(0.01)(mixed(inputs))]))
    model = keras.Model(inputs, outputs)
    for layer, own in ((mixed, net.mixed), (last, net.last)):
        layer.set_weights([own.weight.detach().numpy().T, own.bias.detach().numpy()])
    model.save(path)
    return path
