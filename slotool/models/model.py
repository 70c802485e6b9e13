"""One interface for every model: named tensors in, named tensors out, at one of its operating points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import numpy as np

from slotool import devices
from slotool.errors import InputError
from slotool.models.signature import Signature
from slotool.tables import FULL, OperatingPoint


class Model(ABC):
    """A model that somebody made, loaded by an adapter.

    ``name``: what tables call it. ``signature``: its tensors. ``points``: its operating points, cheapest first; most
    models have only ``full``. ``checks_inputs``: whether ``check_inputs`` has anything to look at. ``feature_names``:
    of the columns of its only input, in order; () where it does not know them. ``class_names``: of the
    classes that it tells apart, likewise. ``timeout_s``: of a model behind another server, the most a call may take.
    ``device``: that it computes on.

    A model is a context manager that closes itself.
    """

    name: str
    signature: Signature
    points: tuple[OperatingPoint, ...] = (FULL,)
    checks_inputs = False
    feature_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    timeout_s: float | None = None
    device: str = devices.CPU

    @abstractmethod
    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        """Outputs by name for ``inputs`` by name, arrays that ``signature.conform`` returned.

        Raises ``InputError`` for a point the model does not have, ``RunError`` when the model itself fails.
        """

    def run_within(self, inputs: Mapping[str, np.ndarray], timeout_s: float) -> dict[str, np.ndarray]:
        """``run``, which of a model behind another server ends within ``timeout_s``; several threads may call it at the
        same time there."""
        return self.run(inputs)

    def __call__(
        self, inputs: Mapping[str, object] | np.ndarray, point: OperatingPoint = FULL
    ) -> dict[str, np.ndarray]:
        """``run`` for anything that can be turned into its inputs; a model of one input takes a bare array too.

        Raises ``InputError`` naming the tensor that does not fit the signature.
        """
        if not isinstance(inputs, Mapping):
            if len(self.signature.inputs) > 1:
                names = ", ".join(tensor.name for tensor in self.signature.inputs)
                raise InputError(f"{self.name} has several inputs ({names}): give arrays by name")
            inputs = {self.signature.inputs[0].name: inputs}
        return self.run(self.signature.conform(inputs), point)

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Raises ``InputError`` naming tensors of the right signature that the model still cannot take: dimensions of
        one name that differ, text in another encoding than its own."""

    def require(self, point: OperatingPoint) -> None:
        """Raises ``InputError`` when ``point`` is none of ``points``."""
        if point not in self.points:
            raise InputError(f"{self.name} has no operating point {point}; it has {', '.join(map(str, self.points))}")

    def on(self, device: str) -> Model:
        """The model that answers on ``device``, ``cpu``, ``cuda`` or ``cuda:N``, of the same signature and points;
        itself where it computes there already.

        Raises ``ArgumentError`` for a device that cannot be used, ``InputError`` where the model cannot be there.
        """
        if devices.required(device) == self.device:
            return self
        raise InputError(f"{self.name} computes on {self.device} only, not on {device}")

    def close(self) -> None:
        """Release sessions and connections; the model is not run again. By default there is nothing to release."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
