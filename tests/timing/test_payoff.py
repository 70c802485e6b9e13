"""What is said before tables are built: whether choosing nodes can pay on this machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import slotool
from slotool.elastic.slo_nn.payoff import Payoff
from slotool.timing.interference import NOT_DECIDED
from slotool.timing.turns import Turns


def payoff(*latency_us: float, disturbed: bool = False) -> Payoff:
    """Of k = 0.1, 0.2 and 0.5, all nodes, PyTorch, and all nodes as int8."""
    samples_s = np.broadcast_to(1e-6 * np.array([*latency_us, 2.0, 20.0, 1.5])[:, None, None], (6, 50, 3))
    return Payoff((0.1, 0.2, 0.5), Turns(samples_s, np.full(samples_s.shape, disturbed)))


@pytest.mark.parametrize(
    ("latency_us", "largest", "words"),
    [
        (
            (1.0, 2.0, 4.0),
            0.1,
            "pays up to k = 0.1, at most 2.0 × over all nodes (2.00 µs), where so few",
        ),
        ((0.5, 1.0, 1.5), 0.5, "pays up to k = 0.5, at most 4.0 ×"),
        ((1.95, 2.5, 3.0), None, "cannot pay: all nodes take 2.00 µs, the fewest (0.1) 1.95 µs"),
    ],
)
def test_choosing_pays_as_far_as_it_is_faster(latency_us: tuple[float, ...], largest: float, words: str) -> None:
    found = payoff(*latency_us)
    assert found.largest_paying_k == largest
    assert words in found.sentence
    assert found.sentence.endswith("; all nodes as int8 take 1.50 µs; PyTorch takes 20.00 µs")
    assert (found.verdict is None) == (largest is not None)
    assert found.decided


def test_a_disturbed_machine_decides_nothing() -> None:
    found = payoff(0.1, 0.2, 0.3, disturbed=True)
    assert (found.decided, found.largest_paying_k) == (False, None)
    assert found.verdict is not None
    assert found.verdict.startswith(NOT_DECIDED)
    assert found.document["timing"]["state"] == "disturbed"


def test_a_plan_has_what_was_measured() -> None:
    network = Path(slotool.__file__).parents[1] / "models" / "mlp"
    planned = slotool.build_tables(network, ranker="freehash", dry_run=True)
    found = planned.document["payoff"]
    assert found["k"] == planned.document["k"]
    assert len(found["latency_us"]) == len(found["k"])
    assert all(us > 0 for us in (*found["latency_us"], found["full_us"], found["torch_us"]))
    assert found["int8_us"] is None
    assert planned.payoff.sentence in repr(planned)
