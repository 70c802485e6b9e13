"""The shipped MLP in plain PyTorch, as a user would serve it with another framework; weights: the artifact's own file.

It runs in the peers' environments: nothing of slotool is there.
"""

from __future__ import annotations

import os

import torch
from safetensors.torch import load_file

LAYERS = ("dense_2", "dense_3", "dense_4")


class Network(torch.nn.Module):
    """Scores float32 [n, 10] of digits float32 [n, 64]."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        weights = load_file(os.environ["PEER_WEIGHTS"])
        # The file's keys end in layer and parameter.
        of = {tuple(key.split(".")[-2:]): value for key, value in weights.items()}
        self.layers = torch.nn.ModuleList()
        for name in LAYERS:
            weight, bias = of[name, "weight"], of[name, "bias"]
            layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
            layer.load_state_dict({"weight": weight, "bias": bias})
            self.layers.append(layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


def label(network: Network, values: list[float]) -> int:
    """The class of one digit, a flat list of 64 numbers."""
    with torch.inference_mode():
        return int(network(torch.tensor([values], dtype=torch.float32)).argmax())
