"""Interface of every model: named tensors in, named tensors out, at one of its operating points.

Versions of one service are wrapped: tensors get the service's names, and a call takes any number of examples.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import numpy as np

from slotool import devices
from slotool.errors import InputError
from slotool.models.signature import FREE, Signature, TensorSpec
from slotool.tables import FULL, OperatingPoint


class Model(ABC):
    """A model that somebody made, loaded by an adapter.

    ``name``: what tables call it. ``signature``: its tensors. ``points``: its operating points, cheapest first; most
    models have only ``full``. ``checks_inputs``: whether ``check_inputs`` has anything to look at. ``feature_names``:
    of the columns of its only input, in order; () where it does not know them. ``class_names``: of the
    classes that it tells apart, likewise. ``timeout_s``: of a model behind another server, the most a call may take.
    ``device``: that it computes on, in the number format ``precision``.

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
    precision: str = devices.FLOAT32
    # False if the adapter has given its only input a name.
    names_inputs = True

    @abstractmethod
    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        """Return the outputs by name for ``inputs`` by name, arrays that ``signature.conform`` returned.

        Raises ``InputError`` for a point the model does not have, ``RunError`` when the model itself fails.
        """

    def run_within(self, inputs: Mapping[str, np.ndarray], timeout_s: float) -> dict[str, np.ndarray]:
        """Run; a model behind another server ends within ``timeout_s`` and allows several threads."""
        return self.run(inputs)

    def __call__(
        self, inputs: Mapping[str, object] | np.ndarray, point: OperatingPoint = FULL
    ) -> dict[str, np.ndarray]:
        """Return ``run`` for anything that can be turned into its inputs; a model of one input takes a bare array too.

        Raises ``InputError`` naming the tensor that does not fit the signature.
        """
        if not isinstance(inputs, Mapping):
            if len(self.signature.inputs) > 1:
                names = ", ".join(tensor.name for tensor in self.signature.inputs)
                raise InputError(f"{self.name} has several inputs ({names}): give arrays by name")
            inputs = {self.signature.inputs[0].name: inputs}
        return self.run(self.signature.conform(inputs), point)

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Raise ``InputError`` naming tensors of the right signature that the model still rejects.

        Reasons are dimensions of one name that differ, and text in another encoding.
        """

    def require(self, point: OperatingPoint) -> None:
        """Raise ``InputError`` if ``points`` lacks ``point``."""
        if point not in self.points:
            raise InputError(f"{self.name} has no operating point {point}; it has {', '.join(map(str, self.points))}")

    def on(self, device: str, precision: str = devices.FLOAT32) -> Model:
        """Return the model on ``device``, ``cpu``, ``cuda`` or ``cuda:N``, with the same signature and points.

        Raises ``ArgumentError`` for an unusable device, ``InputError`` if the model cannot run there.
        """
        devices.require_at(self, device, precision)
        return self

    def close(self) -> None:
        """Release sessions and connections; the model is not run again. By default there is nothing to release."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


_Call = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


class _Wrapped(Model):
    """``model`` with another ``signature``: inputs are changed before a call, and outputs after it."""

    def __init__(self, model: Model, signature: Signature):
        self.model, self.signature = model, signature
        self.name, self.points, self.checks_inputs = model.name, model.points, model.checks_inputs
        self.feature_names, self.class_names, self.timeout_s = model.feature_names, model.class_names, model.timeout_s
        self.device, self.precision = model.device, model.precision

    def on(self, device: str, precision: str = devices.FLOAT32) -> Model:
        placed = self.model.on(device, precision)
        if placed is self.model:
            return self
        wrapped = copy(self)
        wrapped.model, wrapped.device, wrapped.precision = placed, placed.device, placed.precision
        return wrapped

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        return self._called(inputs, lambda native: self.model.run(native, point))

    def run_within(self, inputs: Mapping[str, np.ndarray], timeout_s: float) -> dict[str, np.ndarray]:
        end_s = time.monotonic() + timeout_s
        return self._called(inputs, lambda native: self.model.run_within(native, max(end_s - time.monotonic(), 0.0)))

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        self.model.check_inputs(self._native(inputs))

    def close(self) -> None:
        self.model.close()

    def _called(self, inputs: Mapping[str, np.ndarray], call: _Call) -> dict[str, np.ndarray]:
        """Return this model's outputs by ``call`` of ``model``."""
        return self._changed(call(self._native(inputs)))

    def _native(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return the inputs of ``model``."""
        return inputs

    def _changed(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return this model's outputs from those of ``model``."""
        return outputs


def unwrapped(model: Model) -> Model:
    """Return the model as its adapter made it."""
    while isinstance(model, _Wrapped):
        model = model.model
    return model


@dataclass(frozen=True)
class Renames:
    """A service's names for the tensors of a version, by their own; others keep their own."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    @classmethod
    def of(cls, native: Signature, names: Mapping[str, str]) -> Renames:
        """Return renames from service names by tensor, input or output.

        Raises ``InputError`` for a tensor that the model lacks.
        """
        sides = [{spec.name for spec in side} for side in (native.inputs, native.outputs)]
        for name in names:
            if not any(name in side for side in sides):
                raise InputError(f"no tensor is called {name!r}; there are {', '.join(sorted(set().union(*sides)))}")
        return cls(*({name: ours for name, ours in names.items() if name in side} for side in sides))

    def then(self, more: Renames) -> Renames:
        """Return these renames followed by ``more``."""
        sides = ((self.inputs, more.inputs), (self.outputs, more.outputs))
        return Renames(
            *({**new, **{native: new.get(ours, ours) for native, ours in old.items()}} for old, new in sides)
        )

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)

    def sentences(self) -> Iterator[str]:
        """Yield each as ``output 'dense_2' is 'probabilities'``."""
        for side, names in (("input", self.inputs), ("output", self.outputs)):
            yield from (f"{side} {native!r} is {ours!r}" for native, ours in names.items())


class RenamedModel(_Wrapped):
    """``model`` with the tensor names of ``renames``. Raises ``InputError`` where two tensors get one name."""

    def __init__(self, model: Model, renames: Renames):
        sides = ((model.signature.inputs, renames.inputs), (model.signature.outputs, renames.outputs))
        renamed = (tuple(replace(spec, name=new.get(spec.name, spec.name)) for spec in specs) for specs, new in sides)
        super().__init__(model, Signature(*renamed))
        # The model's own name with the service's, input by input and output by output.
        self._inputs, self._outputs = (
            [(spec.name, new.get(spec.name, spec.name)) for spec in specs] for specs, new in sides
        )

    def _native(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {native: inputs[ours] for native, ours in self._inputs}

    def _changed(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {ours: outputs[native] for native, ours in self._outputs}


class CastModel(_Wrapped):
    """``model`` with the datatypes of ``signature``, whose tensors are its own but for these."""

    def _native(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {spec.name: spec.conform(inputs[spec.name]) for spec in self.model.signature.inputs}

    def _changed(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {spec.name: spec.conform(outputs[spec.name]) for spec in self.signature.outputs}


def with_datatypes(model: Model, service: Signature) -> Model:
    """Return ``model`` with the datatypes that ``service`` has for its tensors, itself where they are its own.

    A model whose whole numbers are narrower checks its inputs, as they may not hold what was sent.
    """
    native = model.signature
    sides = (
        tuple(replace(spec, datatype=datatypes(spec.name).datatype) for spec in specs)
        for specs, datatypes in ((native.inputs, service.input), (native.outputs, service.output))
    )
    signature = Signature(*sides)
    if signature == native:
        return model
    cast = CastModel(model, signature)
    cast.checks_inputs = True
    return cast


class BatchedModel(_Wrapped):
    """A model that computes exactly ``size`` examples in a call, called as often as there are examples.

    A call for fewer is filled up with copies of the last example, whose answers are dropped.
    """

    def __init__(self, model: Model, size: int):
        free = (
            tuple(replace(spec, shape=(FREE, *spec.shape[1:])) for spec in specs)
            for specs in (model.signature.inputs, model.signature.outputs)
        )
        super().__init__(model, Signature(*free))
        self.size = size

    def _called(self, inputs: Mapping[str, np.ndarray], call: _Call) -> dict[str, np.ndarray]:
        count = len(next(iter(inputs.values())))
        if count == self.size:
            return call(inputs)
        if not count:
            shapes = {spec.name: [max(size, 0) for size in (0, *spec.shape[1:])] for spec in self.signature.outputs}
            return {spec.name: np.empty(shapes[spec.name], spec.dtype) for spec in self.signature.outputs}
        parts = []
        for start in range(0, count, self.size):
            rows = np.minimum(np.arange(start, start + self.size), count - 1)
            outputs = call({name: array[rows] for name, array in inputs.items()})
            parts.append({name: array[: count - start] for name, array in outputs.items()})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def batched(model: Model) -> Model:
    """Return ``model`` for any number of examples; one with a fixed first dimension is called in parts of that size.

    Raises ``InputError`` naming a tensor whose first dimension cannot count examples.
    """
    specs = (*model.signature.inputs, *model.signature.outputs)
    sizes = {spec.shape[0] for spec in specs if spec.shape} - {FREE}
    takes_any = any(spec.shape[:1] == (FREE,) for spec in model.signature.inputs)
    # A size of one may be that of an example in an export that takes any number; another one counts something else.
    if any(not spec.shape for spec in specs) or len(sizes) > 1 or 0 in sizes or (takes_any and sizes - {1}):
        fixed = model.signature.fixed
        assert fixed is not None
        raise InputError(
            f"{fixed.name} is {fixed}; its first dimension must be free, or fixed alike in all tensors, as it counts "
            "examples"
        )
    return BatchedModel(model, sizes.pop()) if sizes else model


def matching(service: Signature, native: Signature) -> Renames:
    """Return the service's name for a version's only input and only output, if datatype and shape agree."""
    return Renames(_only_other(service.inputs, native.inputs), _only_other(service.outputs, native.outputs))


def _only_other(service: tuple[TensorSpec, ...], native: tuple[TensorSpec, ...]) -> dict[str, str]:
    candidates = [spec for spec in service if spec.name not in {each.name for each in native}]
    other = [spec for spec in native if spec.name not in {each.name for each in service}]
    if len(candidates) != 1 or len(other) != 1 or not candidates[0].takes(other[0]):
        return {}
    return {other[0].name: candidates[0].name}
