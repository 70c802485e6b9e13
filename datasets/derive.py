"""Derive what the latency tables beside this file say of their samples again: rounds and ``stable``. Samples stay.

``python datasets/derive.py`` rewrites tables whose derived columns are not what this slotool derives; ``--check`` only
says so, and exits 1. Both print, per table, how the rounds differ and what the intervals hold of another round.

Campaigns of before did not write down where a round's samples end. A round stops by a rule that can be replayed: it
looks at the samples at fixed counts, and stops when their median is sure or the time is spent.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slotool.profiling.rows import judged
from slotool.tables import LatencyTable
from slotool.tables.rounds import median_interval, repetition_interval, round_medians, rounds_of
from slotool.timing.timer import StoppingRule, check_counts, is_stable

HERE = Path(__file__).parent
# The clock that ended a round ran a little longer than the samples that it ended.
SPENT = 0.98


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something would change")
    check = parser.parse_args().check
    changed = [path for path in sorted(HERE.glob("*.parquet")) if is_campaign(path) and not derived(path, check)]
    for path in changed:
        print(f"{path.name}: {'is not what its samples say' if check else 'derived anew'}")
    return 1 if check and changed else 0


def is_campaign(path: Path) -> bool:
    """Whether this is a latency table that a campaign wrote."""
    return path.stem.endswith(("-latency", "-colocated"))


def derived(path: Path, check: bool) -> bool:
    """Whether the table was so already; writes it otherwise, unless ``check``."""
    table = LatencyTable.load(path)
    configuration = table.provenance["configuration"]
    rule = StoppingRule(
        runs=configuration["runs"],
        precision=configuration["precision"],
        max_seconds=configuration["max_seconds_per_item"],
        single=configuration["kind"] == "colocated" and configuration["backend"] == "elastic",
    )
    records = [{str(name): value for name, value in row.items()} for row in table.rows.to_dict("records")]
    rows = [{**row, "samples_per_round": known_rounds(row, rule)} for row in records]
    stable = [bool(judged(row, rule)["stable"]) for row in rows]
    rounds = [row["samples_per_round"] for row in rows]
    same = stable == table.rows["stable"].tolist() and [list(r) for r in table.rows["samples_per_round"]] == rounds
    now = LatencyTable(table.rows.assign(stable=stable, samples_per_round=pd.Series(rounds)), table.provenance)
    if not same and not check:
        now.save(path)
        unchanged(table, LatencyTable.load(path))
    print(f"{path.name}: {summary(now)}")
    return same


def unchanged(before: LatencyTable, after: LatencyTable) -> None:
    """Raises ``AssertionError`` unless all but the derived columns are as they were, every sample included."""
    for name in before.rows.columns:
        if name not in ("stable", "samples_per_round"):
            for old, new in zip(before.rows[name], after.rows[name], strict=True):
                np.testing.assert_array_equal(old, new, err_msg=name)


def known_rounds(row: dict[str, Any], rule: StoppingRule) -> list[int]:
    """How many samples each round of the row gave: as written down, else as the stopping rule tells."""
    if len(row["samples_per_round"]) or row["status"] != "ok":
        return [int(count) for count in row["samples_per_round"]]
    samples, rounds = np.asarray(row["samples_s"]), int(row["rounds"])
    if rounds == 1:
        return [len(samples)]
    assert rounds == 2, "no table here has more"
    first = end_of_first(samples, int(row["calls_per_sample"]), rule)
    return [first, len(samples) - first]


def end_of_first(samples: np.ndarray, calls: int, rule: StoppingRule) -> int:
    """The count at which the first of two rounds ended; the middle where the replay leaves none to the second."""
    runs, seconds = -(-rule.runs // 2), rule.max_seconds / 2
    for count in takewhile(lambda count: count <= len(samples) - runs, check_counts(runs, rule.max_samples)):
        if is_stable(samples[:count], rule.precision) or samples[:count].sum() * calls >= SPENT * seconds:
            return count
    return len(samples) // 2


def summary(table: LatencyTable) -> str:
    """How far rounds differ, and how often intervals of the first half of a row's rounds and of the last meet."""
    noise = table.round_noise()
    ok = table.rows[(table.rows["status"] == "ok")]
    text = f"{len(ok)} rows, {int(ok['stable'].sum())} stable"
    records = [{str(name): value for name, value in row.items()} for row in ok.to_dict("records")]
    rows = [row for row in records if len(row["samples_per_round"]) > 1]
    if not rows:
        return f"{text}; one round each"
    apart = [
        np.ptp(round_medians(row["samples_s"], row["samples_per_round"])) / np.median(row["samples_s"]) for row in rows
    ]
    text += f"; noise between rounds {noise.scale:.2%} with {noise.degrees:.2f} degrees of freedom"
    text += f"; rounds differ by {np.median(apart):.2%} (median), {np.quantile(apart, 0.95):.1%} (95 %)"
    for name, chosen in (("stable", [row for row in rows if row["stable"]]), ("all", rows)):
        meet, hold, plain = zip(*(halves(row, noise) for row in chosen), strict=True)
        text += (
            f"\n  {name}: intervals of halves meet in {np.mean(meet):.1%} (of samples alone {np.mean(plain):.1%}), "
            f"that of the first holds the last one's median in {np.mean(hold):.1%}, "
            f"half-width of a label {np.median(list(widths(chosen, noise))):.1%}"
        )
    return text


def halves(row: dict[str, Any], noise: Any) -> tuple[bool, bool, bool]:
    """Of the first half of a row's rounds and of the last: whether their intervals meet, whether that of the first
    holds the median of the last, and whether the intervals of their samples alone meet."""
    rounds = rounds_of(row["samples_s"], row["samples_per_round"])
    parts = [rounds[: len(rounds) // 2], rounds[len(rounds) // 2 :]]
    samples = [np.concatenate(part) for part in parts]
    first, last = (
        repetition_interval(values, [len(samples) for samples in part], noise)
        for values, part in zip(samples, parts, strict=True)
    )
    alone = [median_interval(values) for values in samples]
    return _meet(first, last), first[0] <= np.median(samples[1]) <= first[1], _meet(*alone)


def widths(rows: list[dict[str, Any]], noise: Any) -> Iterator[float]:
    """Half the width of each label's interval, relative."""
    for row in rows:
        low, high = repetition_interval(row["samples_s"], row["samples_per_round"], noise)
        yield (high - low) / 2 / float(np.median(row["samples_s"]))


def _meet(first: tuple[float, float], last: tuple[float, float]) -> bool:
    return first[0] <= last[1] and last[0] <= first[1]


if __name__ == "__main__":
    sys.exit(main())
