"""Models that a person's own code makes: ``module:factory`` of torch, Keras, scikit-learn, or any Python callable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from slotool import factories
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
            value = self._function(**inputs)
        except (Exception, SystemExit) as error:
            raise RunError(f"{self.name} failed: {type(error).__name__}: {reason(error)}") from error
        outputs = self.signature.outputs
        if not isinstance(value, Mapping):
            if len(outputs) > 1:
                raise RunError(f"{self.name} returned no mapping of its outputs {', '.join(o.name for o in outputs)}")
            value = {outputs[0].name: value}
        try:
            return {spec.name: spec.conform(value[spec.name]) for spec in outputs}
        except KeyError as error:
            raise RunError(f"{self.name} returned no output {error.args[0]!r}") from None
        except InputError as error:
            raise RunError(f"{self.name} returned what its signature does not have: {error}") from error


def load_factory(location: str) -> Model:
    """Return the model that ``module:factory`` makes, by the adapter of its type.

    The factory returns a ``slotool.models.Model``, a Keras model, a fitted scikit-learn estimator, or a torch module or
    callable with its signature: as an attribute ``signature``, or as the second of a pair. A signature is a
    ``Signature`` or its text, such as ``"x=FP32[-1,4] -> logits=FP32[-1,3]"``. A module or callable that has the
    attribute may be named itself. Raises ``InputError`` when the code fails or makes no model.
    """
    value = factories.make(location, is_made=_is_model, what="a model")
    return model_of(value, name=location.rpartition(":")[2])


def model_of(value: Any, *, name: str) -> Model:
    """Return a factory's result as a model. Raises ``InputError`` naming another type."""
    outputs = None
    if isinstance(value, tuple) and len(value) == 2:
        value, outputs = value
    if isinstance(value, Model):
        return value
    signature = _signature(name, outputs if outputs is not None else getattr(value, "signature", None))
    if _is_a(value, "keras", "Model"):
        from slotool.models.adapters.keras import KerasModel

        return KerasModel(value, name=name)
    if _is_estimator(value):
        from slotool.models.adapters.sklearn import SklearnModel

        return SklearnModel(value, name=name)
    if not callable(value):
        raise InputError(f"{name} makes no model, but something of type {type(value).__name__}")
    if signature is None:
        raise InputError(
            f'{name} makes a {type(value).__name__} without a signature; return (model, "x=FP32[-1,4] -> y=FP32[-1,3]")'
        )
    if _is_a(value, "torch", "nn.Module"):
        from slotool.models.adapters.torch_program import TorchModuleModel

        return TorchModuleModel(value, signature, name=name)

    return FunctionModel(value, signature, name=name)


def _signature(name: str, outputs: Any) -> Signature | None:
    if isinstance(outputs, str):
        return Signature.parse(outputs)
    return outputs if isinstance(outputs, Signature) else None


def _is_model(value: Any) -> bool:
    """True if a named object is a model itself rather than what makes one."""
    has_signature = isinstance(getattr(value, "signature", None), Signature | str) and not isinstance(value, type)
    return isinstance(value, Model) or _is_a(value, "keras", "Model") or _is_estimator(value) or has_signature


def _is_estimator(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "predict") and hasattr(value, "get_params")


def _is_a(value: Any, package: str, name: str) -> bool:
    """True if ``value`` is of that class; a package that nobody has imported made nothing."""
    candidate: Any = sys.modules.get(package)
    for part in name.split("."):
        candidate = getattr(candidate, part, None)
    return isinstance(candidate, type) and isinstance(value, candidate)
