"""The depth search: the same predictor wherever its candidates are trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from slotool.errors import InputError, RunError
from slotool.predictors.base import Examples
from slotool.predictors.search import OnRay
from slotool.predictors.solo.dnn import DnnPredictor
from slotool.testing.predictors import random_networks, synthetic_latency_s

GRAPHS = random_networks(60, seed=4)
SECONDS = synthetic_latency_s(GRAPHS)


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnRay]:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'slotool[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", "/tmp")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        with OnRay("local") as search:
            yield search


def searched(**options: object) -> DnnPredictor:
    predictor = DnnPredictor([1, 2], **options)
    predictor.fit(Examples(GRAPHS[:40], SECONDS[:40]), Examples(GRAPHS[40:], SECONDS[40:]), seed=5)
    return predictor


# Before the cluster is there, for who is connected stays so.
def test_where_no_cluster_answers_that_is_said() -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'slotool[ray]'")
    with pytest.raises(InputError, match="no ray cluster answers at 127"):
        OnRay("127.0.0.1:1")


def test_a_cluster_finds_what_this_process_finds(on_ray: OnRay) -> None:
    here, there = searched(), searched(search=on_ray)
    assert [vars(candidate) for candidate in here.search] == [vars(candidate) for candidate in there.search]
    np.testing.assert_array_equal(here.predict(GRAPHS), there.predict(GRAPHS))


def refuse(_: object, depth: int) -> int:
    raise ValueError(f"no depth {depth}")


def test_a_training_that_fails_there_is_told_in_a_sentence(on_ray: OnRay) -> None:
    with pytest.raises(RunError, match="a training failed on the cluster: no depth 7"):
        list(on_ray(refuse, None, [7]))
