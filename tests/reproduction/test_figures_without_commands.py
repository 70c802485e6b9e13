"""Figures that are computed from tables alone: published ones, and a supernet's latencies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.reproduction.actuation_delay import served_after
from benchmarks.reproduction.image_services import ACCURACIES, LATENCIES, NETWORKS
from benchmarks.reproduction.reproduce import reproduce
from benchmarks.reproduction.supernets import Service


def test_published_networks_that_another_beats_are_named(tmp_path: Path) -> None:
    """Each network is slower and has less error than the one before, but the last two have the most error."""
    errors = [30.0, 28.0, 26.0, 24.0, 22.0, 40.0, 41.0]
    names = pd.Series(NETWORKS)
    accuracies = pd.DataFrame({"model": names + ".tv_in1k", "img_size": 224, "top1_err": errors})
    latencies = pd.DataFrame({"model": names, "infer_img_size": 224, "infer_step_time": np.arange(5.0, 12.0)})
    accuracies.to_csv(tmp_path / ACCURACIES, index=False)
    latencies.to_csv(tmp_path / LATENCIES, index=False)
    (row,) = reproduce("tolerance-tiers:1b", tmp_path / "out", data=tmp_path).papers[0]["figures"]
    assert "not on the Pareto front: vgg16, vgg19" in row["says"]
    assert "30.0 % to 22.0 %" in row["says"]
    assert not row["agrees"]  # 9 ms are not twice 5
    assert [cells[-1] for cells in row["rows"]] == ["yes"] * 5 + ["no"] * 2


def service() -> Service:
    """Two subnets, of 100 and 10 queries a second by one worker one at a time, within 100 ms."""
    return Service("", "", ["small", "large"], [0.5, 1.0], np.array([[0.01], [0.1]]), [1], 100.0, 1)


def test_a_delayed_switch_misses_what_rises_and_wastes_what_falls() -> None:
    calm, busy = np.arange(0.0, 10.0, 0.2), np.arange(10.0, 20.0, 0.0125)
    rises = np.concatenate([calm, busy])
    at_once, late = (served_after(service(), rises, delay) for delay in (0, 10))
    assert at_once.missed < late.missed < 0.2
    falls = np.concatenate([busy - 10, calm + 10])
    at_once, late = (served_after(service(), falls, delay) for delay in (0, 10))
    assert late.unused > at_once.unused


def test_choices_are_counted_by_latency(tmp_path: Path) -> None:
    (row,) = reproduce("superserve:12b", tmp_path).papers[0]["figures"]
    counts = [int(cells[1]) for cells in row["rows"]]
    assert f"of {sum(counts)} choices {sum(counts[:4])} lie in the lower half" in row["says"]
