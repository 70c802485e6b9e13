"""How often a promised loss is exceeded when validation and test examples are split anew, and what it spares.

``python -m benchmarks promises``: networks, data and cached tables as for ``slo_nn``; ``$SLOTOOL_BENCH_SETS`` names
some of the sets, digits among them, ``$SLOTOOL_RESPLITS`` how many times to split (150). Lists are built once, by the
split of the data set itself; in each re-split, into halves, the measure of confidence, its tables and k are made anew
of the one half, and the loss is counted on the other. *Estimated*: the least k whose validation loss, counted and
expected, is no more than allowed, which is how k was chosen before losses were promised.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import fields
from typing import Any

import numpy as np

from benchmarks.slo_nn import FASHION, FASHION_SHARES, SETS, cached_tables, load_set

RESPLITS = 150
LOSSES = (0.002, 0.003, 0.005, 0.01)
DIGITS, DIGITS_LOSSES = "digits", (0.02, 0.04)


def main() -> None:
    import torch

    torch.set_num_threads(1)
    results = {}
    for name in os.environ.get("SLOTOOL_BENCH_SETS", ",".join((DIGITS, *SETS))).split(","):
        subject = load_set(name)
        if subject is not None:
            results[name] = _one_set(name, *subject)
    print(json.dumps({"benchmark": "promises", "sets": results}))


def _one_set(name: str, source: Any, data: Any) -> list[dict[str, Any]]:
    from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build, calibration_examples, many_levels

    subject = TableSubject(source.mlp, data)
    settings = TableSettings(FASHION_SHARES if name in (FASHION, DIGITS) else None)
    model = cached_tables(name, "clusters", lambda: build("clusters", subject, "clusters", settings))
    of = {
        split: calibration_examples(subject, model.activators, model.shares, split)
        for split in ("train", "validation", "test")
    }
    pool = _joined(of["validation"], of["test"])
    rows, levels = model.activators[model.first].lists.rows, many_levels(source.mlp)
    losses = DIGITS_LOSSES if name == DIGITS else LOSSES
    outcomes: dict[tuple[str, float], list[tuple[bool, float]]] = defaultdict(list)
    n = len(pool.buckets)
    for seed in range(int(os.environ.get("SLOTOOL_RESPLITS", RESPLITS))):
        order = np.random.default_rng(seed).permutation(n)
        halves = (pool.take(np.sort(order[: n // 2])), pool.take(np.sort(order[n // 2 :])))
        for way, loss, lost, k in _tried(of["train"], *halves, rows, model.shares, levels, losses):
            outcomes[way, loss].append((lost > loss + 1e-12, k))
    return _shown(name, n, outcomes)


def _tried(
    trained: Any, mine: Any, others: Any, rows: int, shares: Any, levels: int, losses: Any
) -> list[tuple[str, float, float, float]]:
    """Per way and allowed loss what the other half loses, and its mean k."""
    from slotool.elastic.slo_nn.calibration import min_share
    from slotool.elastic.slo_nn.confidence import select_measure

    selected = select_measure(trained, mine, rows, shares, levels, losses[0], 0)
    calibration, estimates = selected.calibration, selected.confidence.estimate(others.buckets)
    every, costs, halves = np.arange(len(others.buckets)), np.append(shares, 1.0), []
    for loss in losses:
        fixed = int((calibration.bounds_by_point() <= loss).argmax())
        level = int((calibration.bounds() <= loss).argmax())
        before = int((calibration.by_point >= calibration.by_point[-1] - loss).argmax())
        ways = {
            "fixed k, promised": np.full(len(every), fixed),
            "k per input, promised": min_share(estimates, calibration.thresholds[level]),
            "fixed k, estimated": np.full(len(every), before),
            "k per input, estimated": min_share(
                estimates, calibration.threshold(float(calibration.by_point[-1]) - loss) or 0.0
            ),
        }
        for way, chosen in ways.items():
            lost = others.correct[:, -1].astype(float) - others.correct[every, chosen]
            halves.append((way, loss, float(lost.mean()), float(costs[chosen].mean())))
    return halves


def _joined(one: Any, other: Any) -> Any:
    def both(kind: Any, a: Any, b: Any) -> Any:
        return kind(*(np.concatenate([getattr(a, of.name), getattr(b, of.name)]) for of in fields(kind)))

    results = both(type(one.results), one.results, other.results)
    return type(one)(
        np.concatenate([one.buckets, other.buckets]), results, np.concatenate([one.correct, other.correct])
    )


def _shown(name: str, n: int, outcomes: dict[tuple[str, float], list[tuple[bool, float]]]) -> list[dict[str, Any]]:
    print(f"\n{name}: {n // 2:,} examples choose, {n - n // 2:,} others are scored")
    rows = []
    for (way, loss), tries in sorted(outcomes.items(), key=lambda item: (item[0][1], item[0][0])):
        exceeded, k = float(np.mean([e for e, _ in tries])), [k for _, k in tries]
        rows.append(
            {"way": way, "loss": loss, "resplits": len(tries), "exceeded": exceeded, "mean_k": float(np.mean(k))}
        )
        print(
            f"{way:24} {100 * loss:4.1f} points allowed: exceeded in {100 * exceeded:5.1f} % of {len(tries)}; "
            f"mean k {np.mean(k):.4f}, median {np.median(k):.4f}"
        )
    return rows


if __name__ == "__main__":
    main()
