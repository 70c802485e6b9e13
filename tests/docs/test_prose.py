"""Figures that README and pages state in sentences are those of the records and of the code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from docs.generate.benchmarks import RESULTS
from slotool.serving.routing.model_queue import QUANTILE, REMEMBERED
from tests.docs.pages import ROOT


def figures(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())["figures"]


def saved() -> Iterator[float]:
    methods = figures("certificates")["sets"]["ferplus"]["methods"]
    yield from (100 * methods[name]["saved"][0] for name in ("slotool", "MAPIE"))
    yield 100 * methods["MAPIE"]["spread"][0]


def labels() -> Iterator[float]:
    rows = figures("slo_nn")["sets"]["tibkat-words-196k"]["rows"]
    for name in ("clusters, ACLO, int8", "FAISS IVF 1774, L2-augmented, nprobe 16", "PyTorch, embedding_bag + linear"):
        (row,) = [row for row in rows if row["what"] == name]
        yield from (row["median_us"], 100 * row["lost"]) if row["lost"] else (row["median_us"] / 1e3,)


def faster_than_torch() -> Iterator[float]:
    for name in ("tibkat-35k", "tibkat-words-196k"):
        rows = {row["what"]: row for row in figures("slo_nn")["sets"][name]["rows"]}
        yield rows["clusters, ACLO, int8"]["speedup_by_median"]["torch"]


def share_of_the_best() -> Iterator[float]:
    profiles = [figures("scheduling")[name]["sweep"] for name in ("fashion-mnist-supernet", "modelled")]
    rows = [(by["hindsight"], by["maxbatch"]) for sweep in profiles for by in sweep.values()]
    yield 100 * min(effective / (effective + regret) for (_, _, effective, regret), _ in rows)
    yield min(others[3] / own[3] for own, others in rows if own[3])


def switching_ahead() -> Iterator[float]:
    switching, *alone = figures("switching")["effective_accuracy"].values()
    ahead = [100 * (at - max(others)) for at, *others in zip(switching, *alone, strict=True)]
    yield from (min(ahead), max(ahead))


# Page, sentence with its figures in brackets, and what they are.
SENTENCES = [
    ("README.md", r"this saves (\d+) % of the cost, .* Thresholds by MAPIE save (\d+) % \(± (\d+) by split\)", saved),
    ("README.md", r"196,606 labels takes (\d+) µs on one core and loses ([\d.]+) points of accuracy\. "
     r"FAISS takes (\d+) µs and loses ([\d.]+), PyTorch takes (\d+) ms", labels),
    ("README.md", r"at least ([\d.]+) % of the best possible accuracy\. The largest batch that meets the deadline "
     r"loses at least ([\d.]+) times as much", share_of_the_best),
    ("docs/results/slo-nn.md", r"k per input is (\d+) and (\d+) times as fast as PyTorch", faster_than_torch),
    ("docs/results/serving.md", r"Switching is ([\d.]+) to ([\d.]+) points ahead", switching_ahead),
    ("docs/explanation/serving.md", r"the ([\d.]+) % quantile of the delay of the last ([\d,]+) answers",
     lambda: (100 * QUANTILE, REMEMBERED)),
]  # fmt: skip


@pytest.mark.parametrize(("page", "sentence", "actual"), SENTENCES)
def test_a_sentence_states_what_was_measured(page: str, sentence: str, actual: Callable[[], Iterator[float]]) -> None:
    found = re.search(sentence, " ".join((ROOT / page).read_text().split()))
    assert found, f"{page} has no sentence {sentence!r}"
    for shown, value in zip(found.groups(), actual(), strict=True):
        _, _, decimals = shown.partition(".")
        unit = 10.0 ** -len(decimals)
        assert abs(float(shown.replace(",", "")) - value) <= 0.51 * unit, f"{page}: {shown}, measured {value:.5g}"
