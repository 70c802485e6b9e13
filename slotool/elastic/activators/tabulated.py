"""What an SLO-NN is to the code that runs it or writes it: a network, its tables, and how it chooses k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from slotool.elastic.activators.activator import Activator
from slotool.elastic.activators.confidence import ConfidenceTables
from slotool.elastic.activators.mlp import MLP
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.elastic.activators.kernels.compiled import Compiled


class TabulatedNetwork(Protocol):
    """The part of ``SloNN`` that inference sessions, other devices and artifacts use; see there."""

    name: str
    input_shape: tuple[int, ...]
    classes: int
    points: tuple[OperatingPoint, ...]
    shares: tuple[float, ...]
    mlp: MLP
    activators: dict[int, Activator]
    confidence: ConfidenceTables
    first: int
    entropy: dict[int, float]
    measure: str
    mean_k: dict[str, float]
    int8: bool
    sparse: bool

    @property
    def full(self) -> OperatingPoint: ...

    @property
    def ranker(self) -> str: ...

    @property
    def compiled(self) -> Compiled:
        """Network and tables as the compiled calls read them."""

    def at_int8(self, int8: bool = True) -> Self: ...

    def require(self, point: OperatingPoint) -> None: ...

    def flat(self, x: Any) -> Any: ...

    def threshold(self, accuracy: float | None) -> float | None: ...

    def expected_accuracy(self, x: np.ndarray) -> Mapping[OperatingPoint, float] | None: ...

    def expected_accuracies(self, x: Any) -> np.ndarray | None: ...
