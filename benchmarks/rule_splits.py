"""How often any tier of certified rules exceeds its tolerance: ``python -m benchmarks rule_splits``.

Each recorded set is split at random, ``SLOTOOL_BENCH_SPLITS`` times (1,000): rules are made from one part, at most
``LEARNT`` examples, and every tier is replayed on all others by ``certificates.judge``, which shares no code with the
product. A split counts when any tier's mean error there lies above the best version's by more than its tolerance. At
confidence 0.95 at most 5 % should. What is observed on a sample may exceed a tolerance that holds; so a split counts in
``clear`` only where it does by two standard errors of that sample. So does one in ``saved_less``: a tier saves less
than the share that its rule states as proven.

``SLOTOOL_BENCH_JOURNAL`` names a file that keeps every split: a stopped run goes on from there, as long as rules
are made by the same code.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.certificates import answer_sets
from benchmarks.certificates.judge import Requests, answered
from benchmarks.certificates.methods import tree_of
from slotool.rules import generate_rules
from slotool.tables import OutcomeTable

SPLITS = int(os.environ.get("SLOTOOL_BENCH_SPLITS", "1000"))
JOURNAL = Path(os.environ["SLOTOOL_BENCH_JOURNAL"]) if "SLOTOOL_BENCH_JOURNAL" in os.environ else None
LEARNT = 3_000
TOLERANCES = (0.0, 0.005, 0.01, 0.02, 0.05)
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Promise:
    """What rules are made for: absolute tolerances, objectives, and a column for whose groups each tolerance holds."""

    tolerances: tuple[float, ...] = TOLERANCES
    objectives: tuple[str, ...] = ("cost",)
    group: str | None = None
    max_error: float = 1.0


def main() -> None:
    figures = {name: counted(name, rows) for name, rows in answer_sets()}
    print(json.dumps({"benchmark": "rule_splits", "splits": SPLITS, "confidence": CONFIDENCE, "sets": figures}))


def counted(name: str, rows: pd.DataFrame, promise: Promise = Promise()) -> dict[str, Any]:
    """Figures of one set over all splits, printed too."""
    outcomes, known = OutcomeTable(rows.reset_index(drop=True)), _journaled(name)
    requests = {"cost": Requests(rows), "response-time": Requests(rows.assign(cost=rows["latency_s"]))}
    examples = requests["cost"].examples
    size = min(examples // 2, LEARNT)
    splits = [
        known.get(split) or _journal(name, _judged(outcomes, requests, size, split, promise)) for split in range(SPLITS)
    ]
    above, doubts, kept = np.array([split["tiers"] for split in splits]).transpose(2, 0, 1)
    exceeded, any_exceeded = (above > 1e-9).sum(axis=0), int((above > 1e-9).any(axis=1).sum())
    clear, saved_less = int((above > 2 * doubts + 1e-9).any(axis=1).sum()), sum(split["less"] for split in splits)
    seconds = sum(split["seconds"] for split in splits)
    tiers = promise.tolerances * len(promise.objectives)
    by_tolerance = ", ".join(f"{count} at {t:.1%}" for count, t in zip(exceeded, tiers, strict=True))
    medians = " ".join(f"{share:.0%}" for share in np.median(kept, axis=0))
    print(f"{name}: {len(outcomes.versions)} versions, rules from {size:,} of {examples:,} examples; of "
          f"{SPLITS:,} splits any tier exceeded in {any_exceeded} ({any_exceeded / SPLITS:.1%}; goal: at most "
          f"{1 - CONFIDENCE:.0%}), by two standard errors in {clear}; less saved than stated in {saved_less}; "
          f"{by_tolerance}; saved, medians: {medians}; {seconds:.0f} s of processor",
          flush=True)  # fmt: skip
    return {
        "learnt": size,
        "examples": examples,
        "any_exceeded": any_exceeded,
        "clear": clear,
        "saved_less": saved_less,
        "exceeded": exceeded.tolist(),
        "saved": np.median(kept, axis=0).tolist(),
        "seconds": seconds,
    }


def _judged(
    outcomes: OutcomeTable, requests: dict[str, Requests], size: int, split: int, promise: Promise
) -> dict[str, Any]:
    """Of one split: per tier its excess over the tolerance, of groups the worst one's, the standard error of that, and
    what it saves; whether any saves less than stated. ``requests``: by objective."""
    started = time.process_time()
    order = np.random.default_rng(split).permutation(len(outcomes.examples))
    learn, judge = outcomes.examples_at(np.sort(order[:size])), order[size:]
    rules = generate_rules(
        learn, promise.tolerances, promise.objectives, CONFIDENCE, tolerance_kind="absolute", seed=split,
        policies=("osfa", "seq", "cascade"), group=promise.group, max_error=promise.max_error,
    )  # fmt: skip
    parts = [np.arange(len(judge))]
    if promise.group is not None:
        of = outcomes.text(promise.group)[judge]
        parts = [np.flatnonzero(of == name) for name in np.unique(of)]
    replayed: dict[Any, tuple[np.ndarray, np.ndarray]] = {}
    tiers, less = [], False
    for rule in rules.rules:
        own = requests[rule.objective]
        base_error, base_cost = (own.of(column, rules.best_version, judge) for column in ("error", "cost"))
        if (rule.objective, rule.point) not in replayed:
            replayed[rule.objective, rule.point] = answered(tree_of(rule.point), own, judge)
        error, cost = replayed[rule.objective, rule.point]
        excess = max((error[part] - base_error[part] for part in parts), key=np.mean)
        doubt = excess.std() / np.sqrt(len(excess))
        # Above 0 where less is saved than stated: that is, a mean and no ratio, which has a standard error.
        short = cost - (1 - rule.saves_at_least) * base_cost
        less |= bool(short.mean() > 2 * short.std() / np.sqrt(len(short)) + 1e-9 * base_cost.mean())
        tiers.append([float(excess.mean() - rule.tolerance), float(doubt), float(1 - cost.mean() / base_cost.mean())])
    return {"split": split, "tiers": tiers, "less": less, "seconds": time.process_time() - started}


def _journaled(name: str) -> dict[int, dict[str, Any]]:
    """The splits of a set that the journal holds, by number."""
    lines = JOURNAL.read_text().splitlines() if JOURNAL and JOURNAL.exists() else []
    return {own["split"]: own for own in map(json.loads, lines) if own["set"] == name}


def _journal(name: str, split: dict[str, Any]) -> dict[str, Any]:
    """``split``, written down."""
    if JOURNAL:
        with JOURNAL.open("a") as file:
            file.write(json.dumps({"set": name, **split}) + "\n")
    return split
