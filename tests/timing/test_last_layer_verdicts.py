"""Verdicts of ``build-tables`` on a last layer: one decision for plan and build, and none on disturbed times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotool.elastic.slo_nn.last_layer import build
from slotool.elastic.slo_nn.last_layer.build import LastLayerSource, LayerShare
from slotool.timing.interference import NOT_DECIDED
from slotool.timing.turns import Turns
from tests.elastic import last_layer_subjects as subjects

Slotool = Callable[..., Any]
SOURCE = "tests.elastic.last_layer_subjects:seeded"


def turns(*medians_us: float, disturbed: bool = False) -> Turns:
    samples_s = np.broadcast_to(1e-6 * np.array(medians_us)[:, None, None], (len(medians_us), 60, 1))
    return Turns(samples_s, np.full(samples_s.shape, disturbed))


def share(front_us: float, nodes: int = 300, *, disturbed: bool = False) -> LayerShare:
    return LayerShare.of(turns(100.0, front_us, disturbed=disturbed), nodes)


@pytest.fixture
def command(tmp_path: Path) -> list[Any]:
    data = subjects.write_data(tmp_path / "near.npz")
    return ["build-tables", SOURCE, "-o", tmp_path / "s", "--data", data, "--ranker", "clusters", "--bits", "4"]


def test_a_last_layer_of_a_small_share_cannot_pay(
    slotool: Slotool, command: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LastLayerSource, "share", lambda self: share(98.0))
    for more in ([], ["--dry-run"]):
        done = slotool(*command, *more, "--json")
        assert (done.exit_code, done.document["decided"]) == (1, True)
        assert done.document["verdict"].startswith(
            "choosing nodes of the last layer cannot pay: its 300 nodes take 2.0%"
        )
    assert not (tmp_path / "s").exists()
    monkeypatch.setattr(LastLayerSource, "share", lambda self: share(20.0))
    done = slotool(*command, "--dry-run")
    assert (done.exit_code, "takes 80.0% of the 100 µs" in done.stdout) == (0, True)
    assert "timing: stable" in done.stdout
    assert "fewer than 256" in (share(20.0, 10).verdict or "")


def test_a_share_on_a_disturbed_machine_is_not_decided(
    slotool: Slotool, command: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LastLayerSource, "share", lambda self: share(98.0, disturbed=True))
    done = slotool(*command, "--dry-run", "--json")
    assert (done.exit_code, done.document["decided"]) == (4, False)
    assert done.document["verdict"].startswith(NOT_DECIDED)
    assert done.document["timing"]["state"] == "disturbed"
    assert share(20.0, 10, disturbed=True).decided, "too few nodes are too few on any machine"


@pytest.mark.parametrize(
    ("tables_us", "disturbed", "code", "written"),
    [(50.0, False, 0, True), (98.0, False, 1, False), (3.0, True, 4, True)],
)
def test_the_build_ends_by_the_decision_of_the_plan(
    slotool: Slotool,
    command: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tables_us: float,
    disturbed: bool,
    code: int,
    written: bool,
) -> None:
    """However promising the share was: what was measured at the end decides, as little as 5 % as in a plan."""

    def timed(variants: list[Any], *_: object) -> Turns:
        # The network, its part before the last layer, all nodes, a fixed k, k per input, and what else answers.
        many = len(variants) - 5
        return turns(100.0, 2.0, 99.0, tables_us, tables_us, *[99.0] * many, disturbed=disturbed)

    monkeypatch.setattr(LastLayerSource, "share", lambda self: share(20.0))
    monkeypatch.setattr(build, "timed", timed)
    done = slotool(*command, "--allowed-loss", "0.5", "--json")
    assert done.exit_code == code, done.stderr
    assert (tmp_path / "s").exists() is written
    assert (done.document["artifact"] is not None) is written
    assert (done.document["verdict"] is None) == (code == 0)
    assert done.document["decided"] is (code != 4)
    if disturbed:
        assert done.document["verdict"].startswith(NOT_DECIDED)
        assert done.document["quickest"]["pays"] is None
