"""The engine that ``serve`` chooses: the event loop for short calls, worker processes for all others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slotool.serving.engines.choice import MAX_INLINE_US, chosen_engine
from slotool.tables import OperatingPoint
from tests.serving.live_server import POINTS, ThreeLinear, served, space


class Unmeasured(ThreeLinear):
    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        raise AssertionError("its latency is known")


@pytest.mark.parametrize(("longest_us", "engine"), [(MAX_INLINE_US, "inline"), (MAX_INLINE_US + 1, "local")])
def test_known_latencies_decide_by_the_longest_of_all_points_and_models(longest_us: float, engine: str) -> None:
    models = {
        name: replace(served(Unmeasured(name)), space=space(*latencies_us))
        for name, latencies_us in (("first", (10.0, 20.0, 30.0)), ("second", (10.0, longest_us, 20.0)))
    }
    assert chosen_engine("auto", models, 1) == engine
    assert chosen_engine("auto", models, 2) == "local", "several workers are processes"
    assert chosen_engine("inline", models, 1) == "inline"
    assert chosen_engine("ray", models, 1) == "ray"


def test_latencies_that_no_table_knows_are_measured() -> None:
    model = ThreeLinear()
    model.sleep_s[POINTS[1]] = 2e-6 * MAX_INLINE_US
    assert chosen_engine("auto", {"three": served(model)}, 1) == "local"
    assert {point for point, _ in model.calls} >= set(POINTS[:2])


def test_a_model_that_cannot_run_is_left_to_the_engine_that_says_why() -> None:
    assert chosen_engine("auto", {"three": served(Unmeasured())}, 1) == "inline"
