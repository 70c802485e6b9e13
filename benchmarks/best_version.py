"""Promises above the truly best version, where the table may show another: ``python -m benchmarks best_version``.

Versions are nearly as good as each other, so that the table often names the wrong one. ``SLOTOOL_BENCH_DRAWS`` tables
(300) of each case are drawn; a draw counts in ``broken`` if any tier that promises something truly lies further above
the truly best version than its tolerance, which is stated to happen in at most 5 % of draws. ``silent`` is the share of
draws in which no tier promises anything, ``saves`` the mean cost saved by the widest tier. ``named``: rules made with
the truly best version as ``best``. True errors are those of ``TRUTH`` further requests.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from benchmarks.rule_populations import population_outcomes
from slotool.rules import OSFA, from_point, generate_rules
from slotool.tables import OutcomeTable

DRAWS, TRUTH, CONFIDENCE = int(os.environ.get("SLOTOOL_BENCH_DRAWS", "300")), 200_000, 0.95


@dataclass(frozen=True)
class Case:
    """``errors``: of the versions, fastest first. ``partial``: errors are any number up to 1 and not 0 or 1."""

    examples: int
    errors: tuple[float, ...]
    tolerance: float
    kind: str = "absolute"
    partial: bool = False

    @property
    def name(self) -> str:
        """Examples, errors and tolerance in short."""
        errors = " and ".join(f"{error:g}" for error in self.errors)
        kind = f"{self.kind}{', errors in [0, 1]' if self.partial else ''}"
        return f"n = {self.examples:,}, errors {errors}, {self.tolerance:.1%} {kind}"


CASES = (
    Case(50, (0.12, 0.10), 0.01),
    Case(300, (0.12, 0.10), 0.01),
    Case(1_000, (0.12, 0.10), 0.01),
    Case(200, (0.14, 0.12, 0.12), 0.01),
    Case(2_000, (0.105, 0.10), 0.02, "relative"),
    Case(400, (0.22, 0.20, 0.21), 0.01, partial=True),
    Case(300, (0.12, 0.10), 0.01, "quantile"),
)


def main() -> None:
    rows = [measured(case, named, DRAWS) for case in CASES for named in (False, True)]
    print(json.dumps({"benchmark": "best_version", "draws": DRAWS, "confidence": CONFIDENCE, "cases": rows}))


def measured(case: Case, named: bool, draws: int) -> dict[str, Any]:
    """Shares of ``draws`` tables, printed too."""
    results = np.array([_drawn(case, named, seed) for seed in range(draws)])
    broken, silent, saves = results.mean(axis=0)
    print(f"{case.name:60} {'named' if named else 'any':5} broken {broken:.1%}, silent {silent:.1%}, saves {saves:.1%}")
    return {"case": case.name, "best": "named" if named else "any",
            "broken": float(broken), "silent": float(silent), "saves": float(saves)}  # fmt: skip


def _drawn(case: Case, named: bool, seed: int) -> tuple[bool, bool, float]:
    table, truth, best = requests(case, [1, seed], case.examples), _truth(case), best_of(case)
    rules = generate_rules(
        table, [0.0, case.tolerance], ["cost"], CONFIDENCE, tolerance_kind=case.kind,
        thresholds=20, seed=seed, best=best if named else None,
    )  # fmt: skip
    promised = [rule for rule in rules.rules if rule.promised]
    # Of the truth: the losses above the truly best version are those of rules that name it.
    losses = rules.losses(truth, best)
    best_loss = OSFA(best).replay(losses).error
    excesses = [rules.excess(rule.tolerance, from_point(rule.point).replay(losses).error, best_loss)[0]
                for rule in promised]  # fmt: skip
    broken = any(excess.mean() > 2 * excess.std() / TRUTH**0.5 for excess in excesses)
    return broken, not promised, 1.0 - rules.rules[-1].cost / rules.config["best_cost"]


def best_of(case: Case) -> str:
    """The truly best version."""
    return ("small", "medium", "large")[int(np.argmin(case.errors))]


def requests(case: Case, seed: Any, examples: int) -> OutcomeTable:
    """Requests of which some are harder: all versions are less sure of these and wrong more often."""
    draw = np.random.default_rng(seed)
    hard = draw.beta(0.5, 2.0, (examples, 1)) * 5
    wrong = (draw.random((examples, len(case.errors))) < np.minimum(1.0, hard * case.errors)).astype(float)
    if case.partial:
        wrong = wrong * draw.random(wrong.shape)
    return population_outcomes(wrong, np.round(1 - 0.15 * hard * draw.uniform(0.6, 1.0, wrong.shape), 3))


@cache
def _truth(case: Case) -> OutcomeTable:
    return requests(case, [0, 0], TRUTH)


if __name__ == "__main__":
    main()
