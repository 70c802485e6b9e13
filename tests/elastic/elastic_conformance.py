"""The conformance suite of elastic models: what every model with several operating points keeps to.

A new model needs one class in a test file::

    class TestMine(ElasticModelConformance):
        @pytest.fixture
        def model(self) -> ElasticModel:
            return my_model()

The methods take that fixture; plain asserts, and no pytest import here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from slotool.artifacts import open_artifact
from slotool.data.columns import Columns
from slotool.elastic import ElasticModel, load_model
from slotool.errors import InputError
from slotool.tables import OperatingPoint

BATCH = 5


class ElasticModelConformance:
    """Tests of the fixture ``model``; override the three methods below them where a model needs it."""

    def plain(self, model: Any, x: np.ndarray) -> np.ndarray | None:
        """Logits of the network underneath, computed some other way; None where there is no other way."""
        return None

    def reload(self, model: Any, folder: Path) -> ElasticModel:
        """The model saved under ``folder`` and loaded again."""
        model.save(folder / model.name, config={}, seed=0)
        return load_model(open_artifact(folder / model.name))

    def inputs(self, model: Any, n: int) -> np.ndarray:
        """float32 [n, *input_shape]: whatever is a fair input."""
        return np.random.default_rng(0).random((n, *model.input_shape), dtype=np.float32)

    def test_points_are_unique_and_the_last_is_full(self, model: ElasticModel) -> None:
        assert model.points
        assert len(set(model.points)) == len(model.points)
        assert model.full == model.points[-1]
        assert [OperatingPoint.parse(point.key) for point in model.points] == list(model.points)

    def test_every_point_gives_logits_of_the_right_shape_and_type(self, model: ElasticModel) -> None:
        for n in (1, BATCH):
            x = self.inputs(model, n)
            for point in model.points:
                logits = model.forward(x, point)
                assert logits.shape == (n, model.classes)
                assert logits.dtype == np.float32
                assert not np.isnan(logits).any()
                assert np.isfinite(logits.max(axis=1)).all(), "at least one class must have been computed"

    def test_named_tensors_are_answered_as_arrays_are(self, model: ElasticModel) -> None:
        x, signature = self.inputs(model, BATCH), model.signature
        columns = Columns({signature.inputs[0].name: x})
        model.check_inputs(model.inputs(columns))
        outputs = model.respond(columns, model.full)
        assert list(outputs) == [spec.name for spec in signature.outputs]
        np.testing.assert_allclose(outputs[signature.outputs[0].name], model.forward(x, model.full), atol=1e-5)
        spoilt = x.copy()
        spoilt[0] = np.nan
        try:
            model.check_inputs({signature.inputs[0].name: spoilt})
        except InputError:
            return
        raise AssertionError("NaN is no input")

    def test_a_pass_ends_where_it_is_cancelled_and_the_next_is_whole(self, model: ElasticModel) -> None:
        class Enough(Exception):
            pass

        def now() -> None:
            raise Enough

        x = self.inputs(model, 1)
        expected, looked = model.forward(x, model.full), [0]
        model.set_cancellation_check(lambda: looked.__setitem__(0, looked[0] + 1))
        try:
            model.forward(x, model.full)
            model.set_cancellation_check(now)
            ended = False
            try:
                model.forward(x, model.full)
            except Enough:
                ended = True
            assert ended == (looked[0] > 0)
        finally:
            model.set_cancellation_check(lambda: None)
        np.testing.assert_array_equal(model.forward(x, model.full), expected)

    def test_the_full_point_equals_the_plain_network(self, model: ElasticModel) -> None:
        x = self.inputs(model, BATCH)
        plain = self.plain(model, x)
        if plain is not None:
            np.testing.assert_allclose(model.forward(x, model.full), plain, rtol=1e-4, atol=1e-4)

    def test_it_is_where_it_computes(self, model: ElasticModel) -> None:
        assert model.on(model.device) is model

    def test_an_unknown_point_is_refused(self, model: ElasticModel) -> None:
        stranger = OperatingPoint.of(no_such_dial="never")
        error_message = ""
        try:
            model.forward(self.inputs(model, 1), stranger)
        except InputError as error:
            error_message = str(error)
        assert stranger.key in error_message, "a point the model does not have must be refused by name"

    def test_rows_of_a_batch_do_not_touch_each_other(self, model: ElasticModel) -> None:
        x = self.inputs(model, BATCH)
        for point in model.points:
            alone = np.concatenate([model.forward(x[i : i + 1], point) for i in range(BATCH)])
            np.testing.assert_allclose(model.forward(x, point), alone, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(model.forward(x[::-1].copy(), point), alone[::-1], rtol=1e-4, atol=1e-4)

    def test_the_input_is_left_as_it_was(self, model: ElasticModel) -> None:
        x = self.inputs(model, BATCH)
        before = x.copy()
        for point in model.points:
            model.forward(x, point)
        np.testing.assert_array_equal(x, before)

    def test_the_same_question_gets_the_same_answer(self, model: ElasticModel) -> None:
        x = self.inputs(model, BATCH)
        for point in model.points:
            first = model.forward(x, point).copy()
            model.forward(self.inputs(model, 1), model.full)
            np.testing.assert_array_equal(model.forward(x, point), first)

    def test_saved_and_loaded_it_is_the_same(self, model: ElasticModel, tmp_path: Path) -> None:
        again = self.reload(model, tmp_path)
        assert again.points == model.points
        assert (again.input_shape, again.classes) == (model.input_shape, model.classes)
        x = self.inputs(model, BATCH)
        for point in model.points:
            np.testing.assert_array_equal(again.forward(x, point), model.forward(x, point))
        assert again.expected_accuracy(x[:1]) == model.expected_accuracy(x[:1])

    def test_expected_accuracies_are_accuracies_of_its_points(self, model: ElasticModel) -> None:
        for x in self.inputs(model, BATCH)[:, None]:
            expected = model.expected_accuracy(x)
            if expected is not None:
                assert set(expected) == set(model.points)
                assert all(0.0 <= accuracy <= 1.0 for accuracy in expected.values())
