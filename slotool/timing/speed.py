"""Speed of the machine, checked in a third of a second, so that stored latencies can be compared with it later."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from slotool.machine import FACTS_VARIABLE, machine_facts
from slotool.timing.timer import StoppingRule, measure

_RULE = StoppingRule(runs=5, max_seconds=0.05)
_WIDTH, _COPIED = 256, 2**20


def facts_with_speed() -> dict[str, Any]:
    """Return ``machine_facts`` and ``speed``: median seconds of a product, a copy and a small call, on one core."""
    return {**machine_facts(), "speed": _measured(os.environ.get(FACTS_VARIABLE, "{}"))}


def speed_ratio(facts: Mapping[str, Any]) -> float | None:
    """Return the speed of this machine as a multiple of that of the machine with these facts.

    It is the geometric mean over the kinds of work; None where the facts state no speed.
    """
    if not isinstance(stated := facts.get("speed"), Mapping):
        return None
    seconds_here: dict[str, float] = facts_with_speed()["speed"]
    ratios = [float(stated[name]) / seconds for name, seconds in seconds_here.items() if name in stated]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else None


@cache
def _measured(stated: str) -> dict[str, float]:
    """Measure once per process; facts that stand for those of this machine state its speed too."""
    if "speed" in (facts := json.loads(stated)):
        return dict(facts["speed"])
    from threadpoolctl import threadpool_limits

    matrix, product = np.full((2, _WIDTH, _WIDTH), 0.5, np.float32), np.empty((_WIDTH, _WIDTH), np.float32)
    source, copy, small = np.ones(_COPIED, np.float32), np.empty(_COPIED, np.float32), np.ones(8, np.float32)
    calls = {
        "product_s": partial(np.matmul, matrix[0], matrix[1], out=product),
        "copy_s": partial(np.copyto, copy, source),
        "small_call_s": partial(np.add, small, small, out=small.copy()),
    }
    with threadpool_limits(1):
        return {name: float(np.median(measure(call, _RULE).samples_s)) for name, call in calls.items()}
