"""What a tier's cascade takes in a server beyond its models: ``python -m tests.perf decision``.

A request of one example runs through ``CascadeRun`` with answers that are there already. The floor is the same loop
without a decision: an array is made for each answer that the request would get.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from slotool.rules.cascades import Cascade, Step, Worth
from slotool.rules.conditions import Condition
from slotool.rules.conditions.score import Score, Term
from slotool.rules.conditions.sure import Sure
from slotool.rules.conditions.sure_by_label import SureByLabel
from slotool.serving.cascade_run import CascadeRun
from slotool.serving.outputs import Scores

ROUNDS, CALLS = 60, 200
GOAL_US = 20.0
X = np.zeros((1, 64), np.float32)
WORTH = tuple((name, Worth(tuple(np.linspace(0.1, 1, 16)), tuple(np.linspace(0.2, 1, 16)))) for name in "abcd")
NEVER = 2.0


def main() -> None:
    taken = {name: _taken_us(cascade) for name, cascade in _cascades().items()}
    for name, own in taken.items():
        print(f"{name:48} median {own['median_us']:5.1f} µs, 5th to 95th of rounds {own['p5_us']:.1f} to "
              f"{own['p95_us']:.1f}, floor {own['floor_us']:.2f} (goal: {GOAL_US:g})")  # fmt: skip
    print(json.dumps({"benchmark": "decision", "rounds": ROUNDS, "calls": CALLS, "cascades": taken}))


def _cascades() -> dict[str, Cascade]:
    """The longest way through each: all versions are asked."""
    labels = tuple((str(label), NEVER) for label in range(12))
    both = (Term("confidence", "a", 1.0), Term("confidence", "b", 1.0), Term("agreement", "b", 1.0, "a"))
    return {
        "two, own confidence, the last": _asking("ab", lambda v: Sure(v, NEVER), "last"),
        "three, own confidence, the surest": _asking("abc", lambda v: Sure(v, NEVER), "surer"),
        "three, by label, weighted": _asking("abc", lambda v: SureByLabel(v, labels, NEVER), "weighted"),
        "three, learnt score, majority": _asking("abc", lambda _: Score(both[:1], NEVER), "majority"),
        "four, by label, weighted": _asking("abcd", lambda v: SureByLabel(v, labels, NEVER), "weighted"),
    }


def _asking(names: str, accept: Callable[[str], Condition], answer: str) -> Cascade:
    steps = [*(Step(name, accept(name)) for name in names[:-1]), Step(names[-1])]
    return Cascade(tuple(steps), answer, WORTH if answer in ("surer", "weighted") else ())


def _taken_us(cascade: Cascade) -> dict[str, Any]:
    answers = [Scores(np.eye(10, dtype=np.float32)[[3]], np.array([0.9])) for _ in cascade.steps]
    rounds, floors = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        for _ in range(CALLS):
            run = CascadeRun(cascade, X)
            while run.next_rows is not None:
                run.given(answers[run.step])
            run.answers()
        ended = time.perf_counter_ns()
        for _ in range(CALLS):
            for own in answers:
                np.asarray(own.logits)
        floors.append((time.perf_counter_ns() - ended) / CALLS / 1e3)
        rounds.append((ended - started) / CALLS / 1e3)
    low, median, high = np.percentile(rounds, [5, 50, 95])
    return {"median_us": median, "p5_us": low, "p95_us": high, "floor_us": float(np.median(floors))}
