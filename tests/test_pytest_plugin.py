"""The conformance suites as options of pytest: what they run, what they find, and that they cost nothing unasked."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]
# The option reads what nobody registered anywhere.
CODE = """
import numpy as np
from slotool.data import Dataset
from slotool.data.dataset import Split
from slotool.models import Signature, TensorSpec
from slotool.models.adapters.factory import FunctionModel
from slotool.scheduling import FixedPoint
from slotool.testing.policies import PolicyConformance


def late(space):
    policy = FixedPoint(space)
    policy.decide = lambda now_us, queue: type(policy).decide(policy, 0.0, queue)
    return policy


class TestFixed(PolicyConformance):
    make = staticmethod(FixedPoint)


def doubling():
    tensors = [TensorSpec(name, "FP32", (-1, 3)) for name in "xy"]
    return FunctionModel(lambda x: 2 * x, Signature((tensors[0],), (tensors[1],)))


def leaking():
    x, y = np.random.default_rng(0).random((30, 2), dtype=np.float32), np.arange(30) % 2
    return Dataset("leaking", *[Split(x[:20], y[:20])] * 3, classes=2, labels=("a", "b"))
"""


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Runs pytest with these options in a folder with a module ``mine`` and a test that fails."""
    pytester.makepyfile(mine=CODE, test_own="def test_own(): raise AssertionError")
    return lambda *options: pytester.runpytest_inprocess("-p", "slotool.testing.pytest_plugin", *options)


def test_options_run_suites_alone_and_find_what_is_wrong(run) -> None:
    finished = run(
        *("--slotool-policy", "mine:late", "--slotool-policy", "mine:TestFixed"),
        *("--slotool-model", "mine:doubling", "--slotool-dataset", "mine:leaking"),
    )
    finished.assert_outcomes(passed=7 + 8 + 8 + 6, failed=2)
    printed = finished.stdout.str()
    assert "PolicyConformance[mine:late]::test_a_decision_keeps_the_deadline" in printed
    assert "DatasetConformance[mine:leaking]::test_what_scores_was_not_trained_on" in printed
    assert "10 of 10" not in printed
    assert "test_own" not in printed


def test_paths_are_run_too_where_they_are_given(run) -> None:
    run("--slotool-model", "mine:doubling", "test_own.py").assert_outcomes(passed=8, failed=1)
    run("--slotool-model", "mine:doubling", "-k", "unknown_point").assert_outcomes(passed=1, deselected=7)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("mine:Missing", "--slotool-ranker: module mine has no Missing"),
        ("no_such:Mine", "--slotool-ranker: no module no_such in the current directory or installed"),
        ("mine:late", "--slotool-ranker: mine:late is no subclass of slotool.elastic.slo_nn.rankers.ranker.Ranker"),
    ],
)
def test_what_cannot_be_tested_is_one_sentence(run, place: str, sentence: str) -> None:
    finished = run("--slotool-ranker", place)
    finished.assert_outcomes(errors=1)
    assert sentence in finished.stdout.str()


def test_unasked_it_imports_nothing_but_itself() -> None:
    code = "import sys, slotool.testing.pytest_plugin; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith("slotool.testing.")] == ["slotool.testing.pytest_plugin"]
    assert not {"numpy", "torch", "slotool.scheduling"} & set(loaded)
