"""The conformance suite of models: what every ``Model``, whatever runs it, keeps to.

A new adapter needs one class in a test file::

    class TestMine(ModelConformance):
        make = staticmethod(lambda: MyModel(path))

Plain asserts, and no pytest import here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from slotool.errors import InputError
from slotool.models import Model, Signature, TensorSpec
from slotool.models.signature import FREE
from slotool.tables import OperatingPoint
from slotool.testing.backends import error_message

BATCH = 4
# Size of a free dimension that counts no examples.
SIZE = 8


class ModelConformance:
    """``make``: a function without arguments that opens the model; it is called once for all tests of a class.

    Override ``inputs`` where values drawn at random are no fair input.
    """

    make: Callable[[], Model]
    _opened: ClassVar[dict[type, Model]] = {}

    def model(self) -> Model:
        """Return the model, opened once."""
        if type(self) not in self._opened:
            self._opened[type(self)] = type(self).make()
        return self._opened[type(self)]

    def inputs(self, n: int) -> dict[str, np.ndarray]:
        """Return a valid input of ``n`` examples by name, or of a fixed first dimension; all begin alike."""
        return {spec.name: values_of(spec, n) for spec in self.model().signature.inputs}

    def same(self, outputs: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> None:
        """Fail unless the outputs are equal up to rounding."""
        assert list(outputs) == list(others)
        for name, array in outputs.items():
            if array.dtype.kind == "f":
                np.testing.assert_allclose(array, others[name], rtol=1e-3, atol=1e-5)
            else:
                np.testing.assert_array_equal(array, others[name])

    def test_it_has_a_name_a_signature_and_operating_points(self) -> None:
        model = self.model()
        assert model.name.strip()
        assert isinstance(model.signature, Signature)
        assert Signature.of_document(model.signature.document()) == model.signature
        assert model.points
        assert len(set(model.points)) == len(model.points)

    def test_outputs_are_those_of_the_signature_at_every_point(self) -> None:
        model = self.model()
        for n in (1, BATCH):
            for point in model.points:
                outputs = model.run(model.signature.conform(self.inputs(n)), point)
                assert list(outputs) == [spec.name for spec in model.signature.outputs]
                for spec in model.signature.outputs:
                    # Exactly of this type: nothing has to be cast for whoever takes it.
                    assert outputs[spec.name].dtype == spec.dtype
                    assert spec.conform(outputs[spec.name]).shape == outputs[spec.name].shape
                    assert not model.signature.batched or len(outputs[spec.name]) == n

    def test_examples_of_a_batch_do_not_touch_each_other(self) -> None:
        model = self.model()
        if not model.signature.batched:
            return
        inputs = self.inputs(BATCH)
        for point in model.points:
            together = model(inputs, point)
            for i in range(BATCH):
                alone = model({name: array[i : i + 1] for name, array in inputs.items()}, point)
                self.same(alone, {name: array[i : i + 1] for name, array in together.items()})

    def test_the_same_inputs_give_the_same_outputs_and_stay_as_they_were(self) -> None:
        model, inputs = self.model(), self.inputs(BATCH)
        before = {name: array.copy() for name, array in inputs.items()}
        for point in model.points:
            first = {name: array.copy() for name, array in model(inputs, point).items()}
            model(self.inputs(1), point)
            self.same(model(inputs, point), first)
        for name, array in inputs.items():
            np.testing.assert_array_equal(array, before[name])

    def test_outputs_of_a_call_outlive_the_next(self) -> None:
        model = self.model()
        outputs = model(self.inputs(BATCH), model.points[-1])
        copies = {name: array.copy() for name, array in outputs.items()}
        model({name: array[::-1].copy() for name, array in self.inputs(BATCH).items()}, model.points[-1])
        for name, array in outputs.items():
            np.testing.assert_array_equal(array, copies[name])

    def test_it_is_where_it_computes(self) -> None:
        model = self.model()
        assert model.on(model.device) is model

    def test_a_wrong_tensor_is_named(self) -> None:
        model, inputs = self.model(), self.inputs(1)
        first = model.signature.inputs[0]
        assert "no_such_input" in error_message(lambda: model({**inputs, "no_such_input": np.zeros(1)}), InputError)
        without = {name: array for name, array in inputs.items() if name != first.name}
        assert first.name in error_message(lambda: model(without), InputError)
        nested = {**inputs, first.name: inputs[first.name][None]}
        assert first.name in error_message(lambda: model(nested), InputError)

    def test_an_unknown_point_is_refused(self) -> None:
        model, stranger = self.model(), OperatingPoint.of(no_such_setting="never")
        assert stranger.key in error_message(lambda: model(self.inputs(1), stranger), InputError)


def values_of(spec: TensorSpec, n: int) -> np.ndarray:
    """Return fixed values for an input: numbers around 0, small integers, short texts."""
    sizes = [SIZE if size == FREE else size for size in spec.shape]
    rng = np.random.default_rng(0)
    if spec.shape[:1] == (FREE,):
        return np.stack([_values(spec, rng, sizes[1:]) for _ in range(n)])
    return _values(spec, rng, sizes)


def _values(spec: TensorSpec, rng: np.random.Generator, sizes: list[int]) -> np.ndarray:
    drawn: Any
    if spec.datatype == "BYTES":
        drawn = np.array([b"%d" % number for number in rng.integers(100, size=int(np.prod(sizes)))], dtype=object)
        return np.reshape(drawn, sizes)
    if spec.datatype == "BOOL":
        drawn = rng.random(sizes) < 0.5
    else:
        drawn = rng.normal(size=sizes) if spec.dtype.kind == "f" else rng.integers(2, size=sizes)
    return np.asarray(drawn).astype(spec.dtype)
