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
    """What an operator makes of its inputs: output shape, weights (trained or kept statistics), FLOPs per example.

    ``moved``: how many values it reads and writes per example, weights apart; 0 for a view, which only looks at its
    input in another way; None: all of its inputs and its output. ``calls``: how many kernels run one after the other.
    """

    shape: Shape
    weights: int = 0
    flops: int = 0
    moved: int | None = None
    calls: int = 1


Infer = Callable[[Attributes, Sequence[Shape]], Effect]
Settle = Callable[[dict[str, Any], Sequence[Shape]], None]


@dataclass(frozen=True)
class OperatorType:
    """How one operator behaves.

    ``attributes`` maps each attribute it may have to its default (``REQUIRED`` for none); ``inputs`` is how many
    inputs it takes, None for one or more. ``settle`` brings those attributes to their canonical form that depend on
    the shapes of the inputs. ``channels_first``: whether it takes axis 0 for channels whatever the rank; None: as
    ``axes.channel_axis`` has it. ``is_product``: whether its FLOPs are those of matrix products or convolutions.
    """

    infer: Infer
    attributes: Mapping[str, Any] = field(default_factory=dict)
    inputs: int | None = 1
    settle: Settle | None = None
    channels_first: bool | None = None
    is_product: bool = False
