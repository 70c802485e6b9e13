"""Calibrations against scikit-learn and by what they promise on data that learnt nothing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.isotonic import IsotonicRegression

from slotool.errors import InputError
from slotool.models import Classification, Regression
from slotool.models.calibration import (
    Isotonic,
    Temperature,
    calibration_of_document,
    expected_calibration_error,
    held_back_errors,
    learn,
    rightness,
)

TASK = Classification("logits")


def overconfident(seed: int, n: int = 4_000) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Logits three times as large as those by which the classes were drawn."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(n, 3))
    truth = (softmax(logits, axis=1).cumsum(axis=1) > random.random((n, 1))).argmax(axis=1)
    return {"logits": 3 * logits}, truth


def test_a_temperature_is_found_again_and_calibrates_other_examples() -> None:
    found = learn("temperature", TASK, *overconfident(0))
    assert isinstance(found, Temperature)
    assert found.temperature == pytest.approx(3.0, rel=0.1)
    outputs, truth = overconfident(1)
    right = rightness(TASK.errors(outputs, truth))
    own = TASK.confidences(outputs)
    assert own is not None
    before, after = (expected_calibration_error(sure, right) for sure in (own, found.confidences(TASK, outputs)))
    assert before is not None
    assert after is not None
    assert after < 0.03
    assert before > 0.15


def test_an_isotonic_calibration_is_scikit_learns() -> None:
    outputs, truth = overconfident(0)
    found = learn("isotonic", TASK, outputs, truth)
    own = TASK.confidences(outputs)
    assert own is not None
    expected = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(own, 1 - TASK.errors(outputs, truth))
    other, _ = overconfident(1)
    theirs = TASK.confidences(other)
    np.testing.assert_allclose(found.confidences(TASK, other), expected.predict(theirs), atol=1e-9)


def test_probabilities_are_calibrated_as_their_logits_are() -> None:
    outputs, truth = overconfident(0)
    probabilities = Classification("p", scores="probabilities")
    found = learn("temperature", probabilities, {"p": softmax(outputs["logits"], axis=1)}, truth)
    assert isinstance(found, Temperature)
    assert found.temperature == pytest.approx(3.0, rel=0.1)


def test_the_calibration_error_of_what_is_calibrated_and_what_is_not() -> None:
    sure = np.full(1_000, 0.75)
    right = (np.arange(1_000) % 4 > 0).astype(float)
    assert expected_calibration_error(sure, right) == pytest.approx(0.0)
    assert expected_calibration_error(np.ones(1_000), right) == pytest.approx(0.25)
    assert expected_calibration_error(np.full(1_000, 3.0), right) is None


@pytest.mark.parametrize("made", [Temperature(1.5), Isotonic([0.1, 0.9], [0.2, 0.8])])
def test_a_calibration_is_read_back(made: Temperature | Isotonic) -> None:
    again = calibration_of_document(made.document())
    assert again.document() == made.document()


def test_what_cannot_be_calibrated_is_said() -> None:
    outputs, truth = overconfident(0, 20)
    with pytest.raises(InputError, match="20 examples are too few to learn a calibration; temperature needs 30"):
        learn("temperature", TASK, outputs, truth)
    many, classes = overconfident(0, 200)
    with pytest.raises(InputError, match="classification without a confidence has nothing to calibrate"):
        learn("isotonic", Classification("y", scores="labels"), {"y": classes}, classes)
    with pytest.raises(InputError, match="from the scores of classes; use --calibration isotonic"):
        learn("temperature", Regression("y"), many, classes)
    with pytest.raises(InputError, match="no calibration is called 'platt'"):
        calibration_of_document({"calibration": "platt"})
    with pytest.raises(InputError, match="a temperature of -1"):
        calibration_of_document({"calibration": "temperature", "temperature": -1})
    with pytest.raises(InputError, match="ascending scores"):
        Isotonic([0.9, 0.1], [0.1, 0.2])


def test_a_calibration_that_does_harm_shows_on_examples_held_back() -> None:
    outputs, truth = overconfident(0, 500)
    before, after = held_back_errors("temperature", TASK, outputs, truth)
    assert before is not None
    assert after is not None
    assert after < before
    # Shares of ten votes, as of a forest: one right class without any vote asks for a temperature that spoils all else.
    votes = np.random.default_rng(1).multinomial(10, softmax(outputs["logits"] / 3, axis=1)) / 10
    before, after = held_back_errors("temperature", Classification("p", scores="probabilities"), {"p": votes}, truth)
    assert before is not None
    assert after is not None
    assert after > before
