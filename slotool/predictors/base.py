"""Base class of latency predictors: networks or co-locations in, seconds out; its state is tensors and JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.colocations import Colocation

Tensors = Mapping[str, np.ndarray]
Document = Mapping[str, Any]
# What a latency is predicted of: a network alone, or one with co-runners.
Asked = TypeVar("Asked", bound=OperatorGraph | Colocation)


Progress = Callable[[str], None]


# What a predictor is fitted to: latencies of networks alone, of co-located ones; or it is made from other predictors.
SOLO, COLOCATED, FROM_OTHERS = "solo", "co-located", "from others"


class Examples(NamedTuple, Generic[Asked]):
    """What a predictor learns from: networks or co-locations, and the measured latency of each, float64 seconds [n]."""

    items: Sequence[Asked]
    latency_s: np.ndarray

    def require(self, which: str) -> None:
        """Raises ``InputError`` unless the ``which`` set has an item, and one positive number of seconds for each."""
        if not len(self.items) == len(self.latency_s) > 0:
            raise InputError(f"the {which} set has {len(self.items)} graphs and {len(self.latency_s)} latencies")
        if not np.all(np.isfinite(self.latency_s) & (self.latency_s > 0)):
            raise InputError(f"the {which} set has a latency that is not a positive number of seconds")


NO_EXAMPLES: Examples[Any] = Examples((), np.empty(0))


class Predictor(ABC, Generic[Asked]):
    """Predicts the latency of what it has not seen from what it was fitted to.

    ``Predictor[OperatorGraph]`` predicts solo latencies, ``Predictor[Colocation]`` co-located latencies.

    Made without arguments (options have defaults), then either ``fit`` or built by ``from_state``. It knows nothing
    of intervals, training bounds or files: ``TrainedPredictor`` adds those to any predictor alike.

    ``name``: what the command line and artifacts call it. ``fitted_to``: some of ``SOLO``, ``COLOCATED`` and
    ``FROM_OTHERS``. ``spread_is_calibrated``: its spread grows with the distance from the training networks by itself,
    so that one set of residuals holds for all networks.
    """

    name: ClassVar[str]
    fitted_to: ClassVar[tuple[str, ...]] = (SOLO,)
    spread_is_calibrated: ClassVar[bool] = False

    @property
    def fit_steps(self) -> int:
        """How often ``fit`` calls ``progress``."""
        return 1

    @abstractmethod
    def fit(self, train: Examples[Asked], dev: Examples[Asked], *, seed: int, progress: Progress | None = None) -> None:
        """Learn from ``train``; ``dev`` is for choices only, such as a depth.

        Raises ``InputError`` for sets that ``Examples.require`` refuses. Same data and seed, same predictor on the same
        machine. ``progress`` is called with what was finished.
        """

    @abstractmethod
    def predict(self, graphs: Sequence[Asked]) -> np.ndarray:
        """float64 seconds [n], each finite and > 0. Raises ``GraphError`` for a graph it cannot take."""

    def predict_and_spread(self, graphs: Sequence[Asked]) -> tuple[np.ndarray, np.ndarray]:
        """``predict``, and how unsure each answer is against the others, float64 > 0 [n]: the factor of an interval is
        raised to it. All 1 where a predictor cannot tell."""
        latency_s = self.predict(graphs)
        return latency_s, np.ones(len(latency_s))

    def operator_seconds(self, item: Asked) -> np.ndarray | None:
        """What of ``predict`` each operator of a network takes, float64 seconds [operators]: they add up to it but for
        what a call costs whatever the network. None where a predictor does not add up operators."""
        return None

    def below_measured(self, graphs: Sequence[Asked]) -> list[str | None]:
        """Of each network: that it is too small for the labels to tell its latency, in words, where ``predict`` gives
        the least that they support; None for all others."""
        return [None] * len(graphs)

    def surrogate(self) -> Predictor[Asked]:
        """A new predictor to be trained in this one's stead where only the size of errors on kinds of networks held
        out is asked for, a dozen times over: of the same sort, or a cheaper one that errs as much or more."""
        return type(self)()

    @abstractmethod
    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """All that was learnt: named tensors and a JSON document."""

    @classmethod
    @abstractmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        """The predictor whose ``state`` this is: it predicts the very same numbers."""
