"""How often any tier of certified rules exceeds its tolerance: ``python -m tests.perf rule_splits``.

Each recorded set is split at random, ``SLOTOOL_BENCH_SPLITS`` times (1,000): rules are made from one part, at most
``LEARNT`` examples, and every tier is replayed on all others by ``routing_judge``, which shares no code with the
product. A split counts when any tier's mean error there lies above the best version's by more than its tolerance. At
confidence 0.95 at most 5 % should. What is observed on a sample may exceed a tolerance that holds; so a split counts in
``clear`` only where it does by two standard errors of that sample. So does one in ``saved_less``: a tier saves less
than the share that its rule states as proven.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import numpy as np
import pandas as pd

from slotool.rules import generate_rules
from slotool.tables import OutcomeTable
from tests.perf.routing import _sets, _tree
from tests.perf.routing_judge import Requests, answered

SPLITS = int(os.environ.get("SLOTOOL_BENCH_SPLITS", "1000"))
LEARNT = 3_000
TOLERANCES = (0.0, 0.005, 0.01, 0.02, 0.05)
CONFIDENCE = 0.95


def main() -> None:
    found = {name: _counted(name, rows) for name, rows in _sets()}
    print(json.dumps({"benchmark": "rule_splits", "splits": SPLITS, "confidence": CONFIDENCE, "sets": found}))


def _counted(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    outcomes, started = OutcomeTable(rows.reset_index(drop=True)), time.perf_counter()
    requests, names = Requests(rows), outcomes.versions
    size = min(requests.examples // 2, LEARNT)
    exceeded, clear, saved = np.zeros(len(TOLERANCES), int), 0, []
    any_exceeded, saved_less = 0, 0
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(requests.examples)
        learn = outcomes.examples_at(np.sort(order[:size]))
        rules = generate_rules(learn, TOLERANCES, ("cost",), CONFIDENCE, tolerance_kind="absolute", seed=split)
        judge = order[size:]
        base_error, base_cost = (requests.of(column, rules.best_version, judge) for column in ("error", "cost"))
        replayed: dict[Any, tuple[np.ndarray, np.ndarray]] = {}
        tiers, less = [], False
        for rule in rules.rules:
            if rule.point not in replayed:
                replayed[rule.point] = answered(_tree(rule.point), requests, judge)
            error, cost = replayed[rule.point]
            excess = error - base_error
            doubt = excess.std() / np.sqrt(len(excess))
            # Above 0 where less is saved than stated: that is, a mean and no ratio, which has a standard error.
            short = cost - (1 - rule.saves_at_least) * base_cost
            less |= bool(short.mean() > 2 * short.std() / np.sqrt(len(short)) + 1e-9 * base_cost.mean())
            tiers.append((excess.mean() - rule.tolerance, doubt, 1 - cost.mean() / base_cost.mean()))
        above, doubts, kept = np.array(tiers).T
        exceeded += above > 1e-9
        any_exceeded += bool((above > 1e-9).any())
        clear += bool((above > 2 * doubts + 1e-9).any())
        saved_less += less
        saved.append(kept)
    seconds = time.perf_counter() - started
    by_tolerance = ", ".join(f"{count} at {t:.1%}" for count, t in zip(exceeded, TOLERANCES, strict=True))
    medians = " ".join(f"{share:.0%}" for share in np.median(saved, axis=0))
    print(f"{name}: {len(names)} versions, rules from {size:,} of {requests.examples:,} examples; of {SPLITS:,} splits "
          f"any tier exceeded in {any_exceeded} ({any_exceeded / SPLITS:.1%}; goal: at most {1 - CONFIDENCE:.0%}), by "
          f"two standard errors in {clear}; less saved than stated in {saved_less}; {by_tolerance}; saved, "
          f"medians: {medians}; {seconds:.0f} s",
          flush=True)  # fmt: skip
    return {
        "learnt": size,
        "examples": requests.examples,
        "any_exceeded": any_exceeded,
        "clear": clear,
        "saved_less": saved_less,
        "exceeded": exceeded.tolist(),
        "saved": np.median(saved, axis=0).tolist(),
        "seconds": seconds,
    }
