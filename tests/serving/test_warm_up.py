"""Before a server is ready every batch size has been computed once: a first call of more examples is a slow one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from slotool.artifacts.bundle import shipped_artifact
from slotool.elastic import ElasticModel, load_served
from slotool.scheduling import ControlSpace, FirstApplicable, FixedPoint, Policy
from slotool.scheduling.batching import ControlGrid, SlackFit
from slotool.serving.engines import InlineInferenceEngine, LocalInferenceEngine, ensemble
from slotool.serving.engines.ensemble import PointRunner
from slotool.serving.operations.sources import Sources
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint

SIZES = (1, 4, 16)
# Of every model, whatever its policy: one example, and two, by which outputs without a row for each are found.
ROWS_TRIED = {1, 2}


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> tuple[ElasticModel, list[tuple[str, int]]]:
    """The shipped family, and what it computes: version and number of examples of each call."""
    model, calls = load_served(str(shipped_artifact("family").path)), []
    run = model.run

    def counted(inputs: Mapping[str, np.ndarray], point: OperatingPoint) -> dict[str, np.ndarray]:
        calls.append((str(point.get("version")), len(next(iter(inputs.values())))))
        return run(inputs, point)

    monkeypatch.setattr(model, "run", counted)
    return model, calls


def slack_fit(model: ElasticModel) -> Policy:
    times = {(point, size): 1e3 * size for point in model.points for size in SIZES}
    accuracy = {point: 0.8 + 0.01 * at for at, point in enumerate(model.points)}
    return SlackFit(ControlGrid(ControlSpace(list(model.points), times, accuracy)))


def test_an_engine_warms_the_batches_of_its_policy(family: tuple[ElasticModel, list[tuple[str, int]]]) -> None:
    model, calls = family
    policy = FirstApplicable([slack_fit(model)])
    assert policy.batch_sizes == slack_fit(model).batch_sizes
    engine = InlineInferenceEngine()
    engine.open({"family": ServedModel("family", model, policy)}, lambda worker, alive: None)
    engine.close()
    versions = {str(point.get("version")) for point in model.points}
    assert set(calls) == {(version, size) for version in versions for size in {*policy.batch_sizes, *ROWS_TRIED}}
    assert max(policy.batch_sizes) > 1


def test_workers_of_a_server_warn_once_of_a_model_that_fails_as_it_is_warmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nets.py").write_text(
        'def ratio(x):\n    if not x.any():\n        raise ValueError("no zeros")\n    return x / x.sum()\n\n'
        'ratio.signature = "x=FP32[-1,-1] -> y=FP32[-1,-1]"\n'
    )
    monkeypatch.setenv("SLOTOOL_ALLOW_CODE", "1")
    models = Sources((Path(f"{tmp_path}/nets.py:ratio"),)).load(print)
    engine = LocalInferenceEngine(2)
    engine.open(models, lambda worker, alive: None)
    engine.close()
    assert capfd.readouterr().err.count("no zeros") == 1


def test_a_slow_model_is_not_kept_from_serving(
    family: tuple[ElasticModel, list[tuple[str, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = family
    monkeypatch.setattr(ensemble, "BATCHES_WARMED_S", -1.0)
    PointRunner(model, []).warm(batch_sizes=SIZES)
    assert {size for _, size in calls} == ROWS_TRIED
    space = ControlSpace(list(model.points), {}, {})
    assert FixedPoint(space).batch_sizes == ()
