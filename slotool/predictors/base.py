"""Base class of latency predictors: networks or co-locations in, seconds out; its state is tensors and JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.operators import Operator
from slotool.predictors.colocations import Colocation
from slotool.profiling.operator_calls import OperatorCall

Tensors = Mapping[str, np.ndarray]
Document = Mapping[str, Any]
# A predictor's input: a network alone, or one with co-runners.
Asked = TypeVar("Asked", bound=OperatorGraph | Colocation)


Progress = Callable[[str], None]

# Training data of a predictor: latencies of networks alone, latencies of co-located ones, or other predictors.
SOLO, COLOCATED, FROM_OTHERS = "solo", "co-located", "from others"


class Examples(NamedTuple, Generic[Asked]):
    """Training data: networks or co-locations, and the measured latency of each, float64 seconds [n]."""

    items: Sequence[Asked]
    latency_s: np.ndarray

    def require(self, which: str) -> None:
        """Raise ``InputError`` unless the ``which`` set has items, and a positive number of seconds for each."""
        if not len(self.items) == len(self.latency_s) > 0:
            raise InputError(f"the {which} set has {len(self.items)} graphs and {len(self.latency_s)} latencies")
        if not np.all(np.isfinite(self.latency_s) & (self.latency_s > 0)):
            raise InputError(f"the {which} set has a latency that is not a positive number of seconds")


# Networks alone, with their latencies.
Labels = Examples[OperatorGraph]
NO_EXAMPLES: Examples[Any] = Examples((), np.empty(0))


class Estimator(ABC, Generic[Asked]):
    """Base class of what predicts latencies, solo (``[OperatorGraph]``) or co-located ones (``[Colocation]``).

    Attributes:
        name: Name on the command line and in artifacts.
    """

    name: ClassVar[str]

    @abstractmethod
    def predict(self, graphs: Sequence[Asked]) -> np.ndarray:
        """Predict float64 seconds [n], finite and > 0. Raises ``GraphError`` for an unsupported graph."""

    def is_labelled(self, graphs: Sequence[Asked]) -> np.ndarray:
        """Return True for each network whose prediction rests on its own label, bool [n]."""
        return np.zeros(len(graphs), dtype=bool)

    def operator_seconds(self, item: Asked) -> np.ndarray | None:
        """Return the time of each of the ``parts``, float64 seconds [parts], without a call's; None without sums."""
        return None

    def parts(self, item: OperatorGraph) -> Sequence[Operator | OperatorCall]:
        """Return the parts of a network that have a time each: its operators, or calls of a library."""
        return item.operators


class Predictor(Estimator[Asked]):
    """Base class of estimators that learn from labels.

    A predictor is made without arguments (options have defaults) and then fitted, or made by ``from_state``. Intervals,
    training bounds and files are not its task: ``TrainedPredictor`` adds them to any predictor.

    Attributes:
        fitted_to: Training data it takes: some of ``SOLO``, ``COLOCATED`` and ``FROM_OTHERS``.
        spread_is_calibrated: True if the spread grows with the distance from the training networks, so that one set of
            residuals holds for all networks.
        no_spread: Reason why a network whose spread is infinite has no interval.
    """

    fitted_to: ClassVar[tuple[str, ...]] = (SOLO,)
    spread_is_calibrated: ClassVar[bool] = False
    no_spread: ClassVar[str] = "what it is predicted from has no interval"

    @property
    def fit_steps(self) -> int:
        """Number of calls of ``progress`` by ``fit``."""
        return 1

    @abstractmethod
    def fit(self, train: Examples[Asked], dev: Examples[Asked], *, seed: int, progress: Progress | None = None) -> None:
        """Learn from ``train``; ``dev`` is for choices only, such as a depth.

        ``progress`` is called with the name of each finished step. The same data and seed give the same predictor on
        the same machine. Raises ``InputError`` for sets that ``Examples.require`` rejects.
        """

    def predict_and_spread(self, graphs: Sequence[Asked]) -> tuple[np.ndarray, np.ndarray]:
        """Predict latency and spread, the power of an interval's factor: float64 > 0 [n], 1 if unknown.

        The spread is infinite where no interval can be given.
        """
        latency_s = self.predict(graphs)
        return latency_s, np.ones(np.shape(latency_s))

    def surrogate(self) -> Predictor[Asked]:
        """Return an untrained, cheaper predictor for cross-validation, which errs as much as this one or more."""
        return type(self)()

    @abstractmethod
    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return named tensors and a JSON document that ``from_state`` restores the predictor from."""

    @classmethod
    @abstractmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        """Return the predictor of a ``state``; it predicts the same numbers."""
