"""A Python function as a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from slotool.errors import InputError, RunError
from slotool.models.model import Model
from slotool.models.signature import Signature
from slotool.printable import reason
from slotool.tables import FULL, OperatingPoint


class FunctionModel(Model):
    """``function`` takes the inputs as keyword arguments and returns a mapping of outputs by name, or the one output.

    ``name``: by default the function's. Whatever it raises becomes a ``RunError``.
    """

    def __init__(self, function: Callable[..., Any], signature: Signature, *, name: str | None = None):
        if not callable(function):
            raise InputError(f"a function is expected, not something of type {type(function).__name__}")
        self._function, self.signature = function, signature
        self.name = name or str(getattr(function, "__name__", type(function).__name__))

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        self.require(point)
        try:
            made = self._function(**inputs)
        except (Exception, SystemExit) as error:
            raise RunError(f"{self.name} failed: {type(error).__name__}: {reason(error)}") from error
        outputs = self.signature.outputs
        if not isinstance(made, Mapping):
            if len(outputs) > 1:
                raise RunError(f"{self.name} returned no mapping of its outputs {', '.join(o.name for o in outputs)}")
            made = {outputs[0].name: made}
        try:
            return {spec.name: spec.conform(made[spec.name]) for spec in outputs}
        except KeyError as error:
            raise RunError(f"{self.name} returned no output {error.args[0]!r}") from None
        except InputError as error:
            raise RunError(f"{self.name} returned what its signature does not have: {error}") from error
