"""Splits of labelled networks into training, dev and test sets."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.errors import InputError

# Share of all rows that the dev set takes, and the test set as well. Source: inference-latency-prediction, 5.1.
DEV_SHARE = {"mlp": 0.10, "cnn": 0.15}
DEV_SHARE_OTHER = 0.15
DEV_SHARE_MIXED = 0.075
# Half of the dev set gives the 90 % interval, which fewer than 9 labels cannot bound.
MIN_DEV_ROWS = 18


@dataclass(frozen=True)
class RowSplit:
    """Disjoint sets of row numbers, int64, sorted."""

    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray


def paper_split(kinds: Sequence[str], seed: int) -> RowSplit:
    """Split rows at random by the kinds of their networks.

    Shares in percent of training, dev and test set: MLPs alone 80-10-10, another kind alone 70-15-15, several kinds
    85-7.5-7.5, each kind with the same number of rows in the dev set, and in the test set. Those numbers shrink where
    they would take more than half of a scarce kind. Source: inference-latency-prediction, 5.1.

    Raises ``InputError`` when the dev set would have fewer than ``MIN_DEV_ROWS`` rows.
    """
    per_kind = _held_out_per_kind(Counter(kinds))
    labels = np.asarray(kinds, dtype=object)
    groups = [np.flatnonzero(labels == kind) for kind in sorted(set(kinds))]
    return split_each(groups, lambda _: per_kind, np.random.default_rng(seed))


def split_each(groups: Sequence[np.ndarray], held_out: Callable[[int], int], rng: np.random.Generator) -> RowSplit:
    """Split each group at random; ``held_out`` maps its size to the rows of the dev set, and of the test set."""
    train, dev, test = [], [], []
    for group in groups:
        rows, size = rng.permutation(group), held_out(len(group))
        dev.append(rows[:size])
        test.append(rows[size : 2 * size])
        train.append(rows[2 * size :])
    return RowSplit(*(np.sort(np.concatenate(part)) for part in (train, dev, test)))


def _held_out_per_kind(counts: Counter[str]) -> int:
    rows, kinds = sum(counts.values()), max(len(counts), 1)
    share = DEV_SHARE.get(next(iter(counts)), DEV_SHARE_OTHER) if len(counts) == 1 else DEV_SHARE_MIXED
    per_kind = round(share * rows / kinds)
    if kinds > 1:
        per_kind = min(per_kind, min(counts.values()) // 4)
    if per_kind * len(counts) < MIN_DEV_ROWS:
        least = math.ceil(MIN_DEV_ROWS / kinds)
        needed = next(rows for rows in itertools.count(1) if round(share * rows / kinds) >= least)
        of_each = f", and {4 * least} of each kind" if kinds > 1 else ""
        in_words = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"
        raise InputError(
            f"too few labelled graphs to split ({in_words}): at least {needed} are needed{of_each}, "
            f"of which {least * kinds} choose the predictor"
        )
    return per_kind
