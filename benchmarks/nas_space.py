"""Candidates as of NAS-Bench-201: fifteen cells of one kind in three stages, six edges of five operations a cell."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from torch import Tensor, nn

EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
OPERATIONS = ("none", "skip", "conv1", "conv3", "pool")


def convolution(before: int, after: int, kernel: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(nn.ReLU(), layer, nn.BatchNorm2d(after))


def operation(name: str, channels: int) -> nn.Module:
    if name.startswith("conv"):
        return convolution(channels, channels, int(name[-1]))
    return nn.Identity() if name == "skip" else nn.AvgPool2d(3, 1, 1)


class Cell(nn.Module):
    def __init__(self, names: tuple[str, ...], channels: int):
        super().__init__()
        chosen = [(edge, name) for edge, name in zip(EDGES, names, strict=True) if name != "none"]
        self.edges = nn.ModuleDict({f"{i}{j}": operation(name, channels) for (i, j), name in chosen})

    def forward(self, x: Tensor) -> Tensor:
        nodes = [x]
        for j in (1, 2, 3):
            terms = [self.edges[f"{i}{j}"](nodes[i]) for i in range(j) if f"{i}{j}" in self.edges]
            nodes.append(sum(terms[1:], terms[0]) if terms else x * 0)
        return nodes[3]


class Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.first = convolution(channels, 2 * channels, 3, 2)
        self.second = convolution(2 * channels, 2 * channels, 3)
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(channels, 2 * channels, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        shortcut: Tensor = self.shortcut(x)
        return shortcut + self.second(self.first(x))


def network(names: tuple[str, ...]) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)]
    for stage, channels in enumerate((16, 32, 64)):
        layers += [Residual(channels // 2)] if stage else []
        layers += [Cell(names, channels) for _ in range(5)]
    head = (nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return nn.Sequential(*layers, *head)


def candidates(count: int = 300) -> Iterator[tuple[str, nn.Module]]:
    space = sorted(itertools.product(OPERATIONS, repeat=len(EDGES)))
    random.Random(0).shuffle(space)
    for names in space[:count]:
        yield "-".join(names), network(names)
