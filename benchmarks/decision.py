"""What a tier's decisions take in a server beyond its models: ``python -m benchmarks decision``.

First the tier is found: what a request tolerates, and its deadline, against 101 tiers of two objectives. Then each
version asked has to be enough, or the next one is asked. A request of one example runs through that with answers that
are there already. The floor is the same loop without a decision: an array is made for each answer that a request would
get.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from slotool.elastic import ElasticModel
from slotool.elastic.model import LOGITS
from slotool.rules import Conc, Seq
from slotool.rules.policies.cascades import Cascade, Step
from slotool.rules.ruleset.rules import OBJECTIVES, Rule, RuleSet
from slotool.scheduling import ControlSpace, Query, by_demand
from slotool.serving.engines.ensemble import CascadeRun, EnsemblePlan
from slotool.serving.request import Outputs, combined
from slotool.serving.routing.calls import EnsembleCall
from slotool.tables import OperatingPoint
from slotool.testing.policies import queue_of

ROUNDS, CALLS = 60, 200
GOAL_US = 20.0
X = np.zeros((1, 64), np.float32)
NEVER = 2.0
TIERS = 101
POINTS = {name: OperatingPoint.of(version=name) for name in "abcd"}


def main() -> None:
    taken = {name: _taken_us(run, asked) for name, (run, asked) in _decisions().items()}
    for name, own in taken.items():
        print(f"{name:48} median {own['median_us']:5.1f} µs, 5th to 95th of rounds {own['p5_us']:.1f} to "
              f"{own['p95_us']:.1f}, floor {own['floor_us']:.2f} (goal: {GOAL_US:g})")  # fmt: skip
    print(json.dumps({"benchmark": "decision", "rounds": ROUNDS, "calls": CALLS, "cascades": taken}))


def _decisions() -> dict[str, tuple[Callable[[], object], int]]:
    """By name what is decided, and how many versions' answers are looked at."""
    cascades = _cascades()
    dearest = cascades["four, own confidence, the last"].point
    tiers: dict[str, tuple[Callable[[], object], int]] = {
        "the tier of 101: a pair": (_tier(Seq("a", "b", 0.8).point), 0),
        "the tier of 101: two at once": (_tier(Conc("a", "b", 0.8).point), 0),
        "the tier of 101: a cascade of four": (_tier(dearest), 0),
    }
    pairs: dict[str, tuple[Callable[[], object], int]] = {
        "two in sequence, the surer": (_in_sequence, 2),
        "two at once, the surer": (_at_once, 2),
    }
    runs = {name: (lambda own=own: _run(own), len(own.steps)) for name, own in cascades.items()}
    return {**tiers, **pairs, **runs}


def _cascades() -> dict[str, Cascade]:
    """The longest way through each: all versions are asked."""
    return {
        "two, own confidence, the last": _asking("ab"),
        "three, own confidence, the last": _asking("abc"),
        "four, own confidence, the last": _asking("abcd"),
    }


def _asking(names: str) -> Cascade:
    steps = [*(Step(name, NEVER) for name in names[:-1]), Step(names[-1])]
    return Cascade(tuple(steps))


def _tier(point: OperatingPoint) -> Callable[[], object]:
    """Finding the tier of a request in the middle of all, with a deadline that is met."""
    rules = tuple(
        Rule(f"{objective}-{at}", objective, at / 1e3, point, 0.0, at / 1e3, 1e-3, 1e-3)
        for objective in OBJECTIVES
        for at in range(TIERS)
    )
    made = RuleSet("certified", 0.95, "absolute", "d", 0.02, 1_000, "0" * 64, rules)
    space = ControlSpace(tuple(POINTS.values()), {(own, 1): 100.0 for own in POINTS.values()})
    policy, queue = by_demand(space, made), queue_of(Query("1", 0.0, 1e6, 0.0503, "cost"))
    return lambda: policy.decide(0.0, queue)


class _Answered(ElasticModel):
    """Model whose answers are there already."""

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        return np.repeat(SCORES[LOGITS], len(x), axis=0)


SCORES = {LOGITS: np.eye(10, dtype=np.float32)[[3]]}
ANSWERS = [Outputs(SCORES, _Answered(), np.array([0.9 + at / 100])) for at in range(4)]


def _run(cascade: Cascade) -> object:
    run = CascadeRun(cascade, len(X))
    while run.next_rows is not None:
        run.record(ANSWERS[run.step])
    return run.answers()


_PAIR = EnsemblePlan(POINTS["a"], POINTS["b"], 0.95)


def _in_sequence() -> object:
    unsure = _PAIR.consults(ANSWERS[0])
    return combined(ANSWERS[0], unsure, ANSWERS[1]) if unsure.any() else ANSWERS[0]


def _at_once() -> object:
    call = EnsembleCall(_PAIR, lambda *_: None, lambda: None)
    call.second(ANSWERS[1], 0.0)
    call.first(ANSWERS[0], 0.0)
    return call


def _taken_us(decide: Callable[[], object], asked: int) -> dict[str, Any]:
    decide()
    rounds, floors = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        for _ in range(CALLS):
            decide()
        ended = time.perf_counter_ns()
        for _ in range(CALLS):
            for own in ANSWERS[:asked]:
                np.asarray(own.tensors[LOGITS])
        floors.append((time.perf_counter_ns() - ended) / CALLS / 1e3)
        rounds.append((ended - started) / CALLS / 1e3)
    low, median, high = np.percentile(rounds, [5, 50, 95])
    return {"median_us": median, "p5_us": low, "p95_us": high, "floor_us": float(np.median(floors))}
