"""A version that gives no answer is never sure, and the request is answered no worse than the rules counted on."""

import numpy as np
import pandas as pd

from slotool.rules.policies.cascades import Cascade, Step
from slotool.serving.engines.ensemble import CascadeRun
from slotool.serving.request import Outputs
from slotool.tables import OutcomeTable
from tests.serving.live_server import ThreeLinear

NAMES = ("a", "b", "c")
EXAMPLES = 120


def _recorded() -> tuple[OutcomeTable, np.ndarray, np.ndarray, np.ndarray]:
    """A table as ``import-outcomes`` makes it, and labels, confidences and which are missing: [examples, versions]."""
    draw = np.random.default_rng(0)
    shape = (EXAMPLES, len(NAMES))
    labels, missing = draw.integers(0, 3, shape), draw.random(shape) < 0.25
    sure = draw.integers(1, 5, shape) / 4
    rows = [
        {"example": str(i), "version": name, "error": float(missing[i, v] or labels[i, v] != 0), "latency_s": 0.1,
         "confidence": -1.0 if missing[i, v] else sure[i, v], "answer": "" if missing[i, v] else str(labels[i, v])}
        for i in range(EXAMPLES) for v, name in enumerate(NAMES)
    ]  # fmt: skip
    return OutcomeTable(pd.DataFrame(rows)), labels, sure, missing


def _outputs(logits: np.ndarray, sure: np.ndarray) -> Outputs:
    return Outputs({"logits": logits}, ThreeLinear(), sure)


def _served(cascade: Cascade, labels: np.ndarray, sure: np.ndarray, missing: np.ndarray) -> float:
    run = CascadeRun(cascade, 1)
    while run.next_rows is not None:
        version = NAMES.index(cascade.versions[run.step])
        logits = np.eye(3, dtype=np.float32)[[labels[version]]]
        run.missing() if missing[version] else run.record(_outputs(logits, sure[[version]]))
    return 1.0 if run.unanswered else float(run.answers().answers[0] != 0)


def test_what_is_missing_is_answered_no_worse_than_counted() -> None:
    outcomes, labels, sure, missing = _recorded()
    cascade = Cascade((Step("a", 0.75), Step("b", 0.5), Step("c")))
    counted = cascade.replay(outcomes).error
    served = np.array([_served(cascade, labels[i], sure[i], missing[i]) for i in range(EXAMPLES)])
    assert (served <= counted).all()
    whole = ~missing.any(axis=1)
    assert 0 < whole.sum() < EXAMPLES
    np.testing.assert_array_equal(served[whole], counted[whole])


def test_an_answer_whose_confidence_is_no_number_is_not_sure() -> None:
    cascade = Cascade((Step("a", 0.0), Step("b")))
    run = CascadeRun(cascade, 2)
    run.record(_outputs(np.eye(3, dtype=np.float32)[[1, 1]], np.array([np.nan, 0.0])))
    assert run.next_rows is not None
    assert run.next_rows.tolist() == [0]
    run.record(_outputs(np.eye(3, dtype=np.float32)[[2]], np.array([-5.0])))
    assert run.answers().answers.tolist() == [2, 1]
