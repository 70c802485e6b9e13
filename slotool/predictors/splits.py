"""How labelled networks are split into training, dev and test sets: the paper's way, and ways to ask for more."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.errors import InputError
from slotool.graphs import Operator, OperatorGraph

# Share of all rows that the dev set takes, and the test set as well. Source: inference-latency-prediction, 5.1.
DEV_SHARE = {"mlp": 0.10, "cnn": 0.15}
DEV_SHARE_OTHER = 0.15
DEV_SHARE_MIXED = 0.075
# Half of the dev set gives the 90 % interval, which fewer than 9 labels cannot bound.
MIN_DEV_ROWS = 18
# What extrapolation is asked of, roughly: networks come in whole steps of depth or width.
BEYOND_SHARE = 0.20
ALL = "all"


@dataclass(frozen=True)
class RowSplit:
    """Row numbers, int64, sorted; no row is in two of them."""

    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray

    def fewer(self, labels: int, seed: int) -> RowSplit:
        """The same test rows, but ``labels`` rows to learn from, training and dev set in the proportion they have here.

        Of one seed, a smaller one's rows are among a larger one's. Raises ``InputError`` for more labels than there
        are, or so few that no interval could be had from them.
        """
        there = len(self.train) + len(self.dev)
        if not 2 * MIN_DEV_ROWS <= labels <= there:
            raise InputError(
                f"a learning curve cannot have a point at {labels:,} networks: "
                f"it needs {2 * MIN_DEV_ROWS} at least, and {there:,} are there to learn from"
            )
        dev = max(MIN_DEV_ROWS, round(labels * len(self.dev) / there))
        rng = np.random.default_rng(seed)
        train_rows, dev_rows = (rng.permutation(rows) for rows in (self.train, self.dev))
        return RowSplit(np.sort(train_rows[: labels - dev]), np.sort(dev_rows[:dev]), self.test)


def paper_split(kinds: Sequence[str], seed: int) -> RowSplit:
    """Random split of rows whose networks are of these kinds.

    MLPs alone 80-10-10, CNNs (or another kind) alone 70-15-15, several kinds 85-7.5-7.5 with as many of each kind in
    the dev set, and in the test set, as of any other. Where a kind is so scarce that this would take more than half
    of it, all kinds give fewer. Source: inference-latency-prediction, 5.1.

    Raises ``InputError`` when the dev set would have fewer than ``MIN_DEV_ROWS`` rows.
    """
    per_kind = _held_out_per_kind(Counter(kinds))
    labels = np.asarray(kinds, dtype=object)
    groups = [np.flatnonzero(labels == kind) for kind in sorted(set(kinds))]
    return split_each(groups, lambda _: per_kind, np.random.default_rng(seed))


def split_each(groups: Sequence[np.ndarray], held_out: Callable[[int], int], rng: np.random.Generator) -> RowSplit:
    """Random split of the rows of each group: as many in the dev set, and in the test set, as ``held_out`` says for a
    group of that size."""
    train, dev, test = [], [], []
    for group in groups:
        rows, held = rng.permutation(group), held_out(len(group))
        dev.append(rows[:held])
        test.append(rows[held : 2 * held])
        train.append(rows[2 * held :])
    return RowSplit(*(np.sort(np.concatenate(part)) for part in (train, dev, test)))


def split_known(
    known: np.ndarray, test: np.ndarray, dev_share: float, seed: int, what: str = "labelled graphs"
) -> RowSplit:
    """Train and dev set from the ``known`` rows, ``dev_share`` of them dev, for a given test set.

    Raises ``InputError`` when the rows are too few, or none are to test on.
    """
    rows = np.random.default_rng(seed).permutation(known)
    dev = max(MIN_DEV_ROWS, round(dev_share * len(rows)))
    if len(rows) < 2 * dev or not len(test):
        raise InputError(f"too few {what} to learn from: {len(rows)}, of which {dev} would be the dev set")
    return RowSplit(np.sort(rows[dev:]), np.sort(rows[:dev]), test)


def random_splits(graphs: Sequence[OperatorGraph], seed: int) -> dict[str, RowSplit]:
    """``paper_split`` of each kind alone, under its name, and of ``all`` where there are several.

    A kind too scarce to be split alone is only among all.
    """
    kinds = np.array([graph.kind for graph in graphs], dtype=object)
    counts = Counter(kinds.tolist())
    if len(counts) < 2:
        return {kind: paper_split(kinds.tolist(), seed) for kind in counts or [ALL]}
    splits = {}
    for kind in sorted(counts, key=lambda kind: -counts[kind]):
        if round(DEV_SHARE.get(kind, DEV_SHARE_OTHER) * counts[kind]) >= MIN_DEV_ROWS:
            rows = np.flatnonzero(kinds == kind)
            alone = paper_split([kind] * len(rows), seed)
            splits[kind] = RowSplit(rows[alone.train], rows[alone.dev], rows[alone.test])
    return {**splits, ALL: paper_split(kinds.tolist(), seed)}


def depth_split(graphs: Sequence[OperatorGraph], seed: int) -> dict[str, RowSplit]:
    """Learn from the shallower networks of each kind, predict its deepest, about a fifth.

    Depth is the most operators with weights that lie on one path.
    """
    return {ALL: _beyond(graphs, [depth_of(graph) for graph in graphs], "depth", seed)}


def width_split(graphs: Sequence[OperatorGraph], seed: int) -> dict[str, RowSplit]:
    """Learn from the narrower networks of each kind, predict its widest, about a fifth.

    Width is the most units or channels that an operator with weights puts out.
    """
    return {ALL: _beyond(graphs, [width_of(graph) for graph in graphs], "width", seed)}


def family_splits(graphs: Sequence[OperatorGraph], seed: int) -> dict[str, RowSplit]:
    """For each kind: learn from the others and predict it. Raises ``InputError`` when all are of one kind."""
    kinds = np.array([graph.kind for graph in graphs], dtype=object)
    found = sorted(set(kinds.tolist()))
    if len(found) < 2:
        raise InputError(
            f"the family protocol leaves one kind of network out, but all {len(graphs)} are {''.join(found) or 'none'}"
        )
    return {f"{kind} unseen": _learnt_from(kinds != kind, seed) for kind in found}


PROTOCOLS: dict[str, Callable[[Sequence[OperatorGraph], int], dict[str, RowSplit]]] = {
    "random": random_splits,
    "depth": depth_split,
    "width": width_split,
    "family": family_splits,
}


def splits_of(protocol: str, graphs: Sequence[OperatorGraph], seed: int) -> dict[str, RowSplit]:
    """The splits, by name, of one of ``PROTOCOLS``. The dev set always comes from the side that is learnt from.

    Raises ``InputError`` for a protocol that there is none of, or that these networks do not allow.
    """
    if protocol not in PROTOCOLS:
        raise InputError(f"{protocol!r} is no protocol; there are {', '.join(PROTOCOLS)}")
    return PROTOCOLS[protocol](graphs, seed)


def _beyond(graphs: Sequence[OperatorGraph], sizes: Sequence[int], what: str, seed: int) -> RowSplit:
    """Test on what is larger than a limit of its kind, the limit that leaves nearest to ``BEYOND_SHARE`` beyond it."""
    kinds = np.array([graph.kind for graph in graphs], dtype=object)
    size = np.array(sizes)
    seen = np.ones(len(size), dtype=bool)
    for kind in set(kinds.tolist()):
        own = kinds == kind
        levels = np.unique(size[own])[1:]
        if len(levels):
            beyond = [np.mean(size[own] >= level) for level in levels]
            seen &= ~own | (size < levels[int(np.argmin(np.abs(np.array(beyond) - BEYOND_SHARE)))])
    if seen.all():
        raise InputError(f"the {what} protocol needs networks of one kind but different {what}; there are none")
    return _learnt_from(seen, seed)


def _learnt_from(seen: np.ndarray, seed: int) -> RowSplit:
    """Train and dev set from the rows ``seen``, a tenth of them dev; all others are the test set."""
    return split_known(np.flatnonzero(seen), np.flatnonzero(~seen), 0.10, seed)


def depth_of(graph: OperatorGraph) -> int:
    above: dict[str, int] = {}
    for operator in graph.operators:
        above[operator.name] = max((above[name] for name in operator.inputs), default=0) + (operator.weights > 0)
    return max(above.values())


def width_of(graph: OperatorGraph) -> int:
    return max((_channels(operator) for operator in graph.operators if operator.weights), default=0)


def _channels(operator: Operator) -> int:
    """Channels come first in [channels, height, width], features last in [steps, features]."""
    shape = operator.shape or (1,)
    return shape[-1] if len(shape) == 2 else shape[0]


def _needed(counts: Counter[str]) -> str:
    """Describe how many rows a split needs at least."""
    kinds = max(len(counts), 1)
    share = DEV_SHARE.get(next(iter(counts)), DEV_SHARE_OTHER) if len(counts) == 1 else DEV_SHARE_MIXED
    per_kind = math.ceil(MIN_DEV_ROWS / kinds)
    rows = next(rows for rows in itertools.count(1) if round(share * rows / kinds) >= per_kind)
    each = f", and {4 * per_kind} of each kind" if kinds > 1 else ""
    return f"at least {rows} are needed{each}, of which {per_kind * kinds} choose the predictor"


def _held_out_per_kind(counts: Counter[str]) -> int:
    rows, scarcest = sum(counts.values()), min(counts.values(), default=0)
    if len(counts) == 1:
        per_kind = round(DEV_SHARE.get(next(iter(counts)), DEV_SHARE_OTHER) * rows)
    else:
        per_kind = min(round(DEV_SHARE_MIXED * rows / max(len(counts), 1)), scarcest // 4)
    if per_kind * len(counts) < MIN_DEV_ROWS:
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"
        raise InputError(f"too few labelled graphs to split ({found}): {_needed(counts)}")
    return per_kind
