"""What an operator is to slotool: the attributes it may have, and what it makes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, ...]
Attributes = Mapping[str, Any]
BYTES_PER_VALUE = 4
REQUIRED = object()


@dataclass(frozen=True)
class Effect:
    """What an operator makes of its inputs: output shape, weights (trained or kept statistics), FLOPs per example."""

    shape: Shape
    weights: int = 0
    flops: int = 0


Infer = Callable[[Attributes, Sequence[Shape]], Effect]


@dataclass(frozen=True)
class OperatorType:
    """How one operator behaves.

    ``attributes`` maps each attribute it may have to its default (``REQUIRED`` for none); ``inputs`` is how many
    inputs it takes, None for one or more.
    """

    infer: Infer
    attributes: Mapping[str, Any] = field(default_factory=dict)
    inputs: int | None = 1
