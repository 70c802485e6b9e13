"""The paper's splits into training, dev and test sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotool.errors import InputError

# Share of all rows that the dev set takes, and the test set as well. Source: inference-latency-prediction, 5.1.
DEV_SHARE = {"mlp": 0.10, "cnn": 0.15}
DEV_SHARE_OTHER = 0.15
DEV_SHARE_MIXED = 0.075
# Half of the dev set gives the 90 % interval, which fewer than 9 labels cannot bound.
FEWEST_DEV_ROWS = 18


@dataclass(frozen=True)
class Split:
    """Row numbers, int64, sorted; together they are all rows, each once."""

    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray


def paper_split(kinds: Sequence[str], seed: int) -> Split:
    """Random split of rows whose networks are of these kinds.

    MLPs alone 80-10-10, CNNs (or another kind) alone 70-15-15, several kinds 85-7.5-7.5 with as many of each kind in
    the dev set, and in the test set, as of any other. Where a kind is so scarce that this would take more than half
    of it, all kinds give fewer. Source: inference-latency-prediction, 5.1.

    Raises ``InputError`` when the dev set would have fewer than ``FEWEST_DEV_ROWS`` rows.
    """
    per_kind = _held_out_per_kind(Counter(kinds))
    rng = np.random.default_rng(seed)
    train, dev, test = [], [], []
    labels = np.asarray(kinds, dtype=object)
    for kind in sorted(set(kinds)):
        rows = rng.permutation(np.flatnonzero(labels == kind))
        dev.append(rows[:per_kind])
        test.append(rows[per_kind : 2 * per_kind])
        train.append(rows[2 * per_kind :])
    return Split(*(np.sort(np.concatenate(part)) for part in (train, dev, test)))


def _held_out_per_kind(counts: Counter[str]) -> int:
    rows, scarcest = sum(counts.values()), min(counts.values(), default=0)
    if len(counts) == 1:
        per_kind = round(DEV_SHARE.get(next(iter(counts)), DEV_SHARE_OTHER) * rows)
    else:
        per_kind = min(round(DEV_SHARE_MIXED * rows / max(len(counts), 1)), scarcest // 4)
    if per_kind * len(counts) < FEWEST_DEV_ROWS:
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"
        raise InputError(
            f"too few labelled graphs to split ({found}): the dev set would have {per_kind * len(counts)}, "
            f"and needs {FEWEST_DEV_ROWS}"
        )
    return per_kind
