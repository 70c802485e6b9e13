"""Labels that cannot be right: many times what all others make likely, or apart from others that agree without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.features.type_costs import TypeCosts

# A label is odd that differs by so many times, and by so many deviations of the others, both from what a base makes of
# its network and from what a roofline does. None of 18,720 labels of 24 settings is, in draws of 5, 10 and 30; one made
# 100 times too long or too short is in 98 to 100 % of draws, 30 times in 94 to 97 %, 10 times in 62 to 66 %.
MIN_TIMES, MIN_DEVIATIONS = 8.0, 5.0
# Beyond these it is named, but kept: so is a network that another backend is slow for (a ConvNeXt in TensorFlow, 21 of
# 4,160 labels in draws of ten); 85 % of labels made 10 times wrong are.
NAMED_TIMES, NAMED_DEVIATIONS = 5.0, 4.0
# Labels that agree better than this (deviation, in log) are taken to agree so well.
MIN_DEVIATION = 0.05
MIN_LABELS = 5
# Labels so many times the others, within a factor of ``UNIT_TOLERANCE``, are in another unit of time; between the two
# units no label is within a factor of ``MIN_GAP`` of the other group.
UNITS = {1e3: "milliseconds", 1e6: "microseconds", 1e9: "nanoseconds"}
UNIT_TOLERANCE, MIN_GAP = 3.0, 30.0
# More odd ones than this share are no mistakes, but a setting unlike what is known.
MAX_SHARE = 0.2
# A label is doubtful that differs from what is predicted without it by so many times, and by so many root mean squares
# of what the others differ by without it. It is set aside where the errors of the others, held out, are so many times
# as large with it: a network that is slow for a reason does not make others disagree. Of more labels none is doubted.
DOUBTFUL_TIMES, DOUBTFUL_DEVIATIONS, MIN_DISAGREEMENT = 2.0, 2.5, 1.35
MIN_DOUBTED, MAX_LABELS_DOUBTED, MAX_SUSPECTS = 8, 30, 3


@dataclass(frozen=True)
class OddLabel:
    """``row``: of the labels; ``times``: label ÷ what the ``others`` (how many) make likely, below 1 where it is too
    short; ``is_clear``: whether it cannot be right. ``disagreement``: how many times as large the errors of the others
    are with it, where that was found."""

    row: int
    times: float
    is_clear: bool
    others: int
    disagreement: float | None = None

    def sentence(self, name: str, latency_s: float) -> str:
        """What a user reads of it."""
        much = f"{self.times:.3g} times" if self.times > 1 else f"1 / {1 / self.times:.3g} of"
        then = "it is set aside; measure that network again"
        if not self.is_clear:
            then = "it is learnt from; measure that network again if other work may have delayed it"
        if self.disagreement is not None and self.is_clear:
            then = f"with it they are {self.disagreement:.2g} times as far off one another; {then}"
        likely = f"what the other {self.others} make likely"
        return f"the label of {name}, {latency_s * 1e3:.3g} ms, is {much} {likely}: {then}"


def odd_labels(base_s: np.ndarray, graphs: Sequence[OperatorGraph], latency_s: np.ndarray) -> list[OddLabel]:
    """Which of n ≥ 5 labels are odd, none of fewer. ``base_s``: what a base predicts, float64 seconds [n]."""
    if len(graphs) < MIN_LABELS:
        return []
    ratios = np.log(latency_s) - np.log([base_s, TypeCosts.of(graphs).total_s])
    apart = np.array([[_apart(ratio, row) for row in range(len(graphs))] for ratio in ratios])
    factors, deviations = apart[..., 0], apart[..., 1]
    same_side = np.sign(factors[0]) == np.sign(factors[1])
    far, sure = np.abs(factors).min(axis=0), deviations.min(axis=0)
    named = same_side & (far > np.log(NAMED_TIMES)) & (sure > NAMED_DEVIATIONS)
    clear = named & (far > np.log(MIN_TIMES)) & (sure > MIN_DEVIATIONS)
    if np.sum(clear) > MAX_SHARE * len(graphs):
        return []
    nearer = np.abs(factors).argmin(axis=0)
    return [
        OddLabel(row, float(np.exp(factors[nearer[row], row])), bool(clear[row]), len(graphs) - 1)
        for row in np.flatnonzero(named).tolist()
    ]


def suspects(log_errors: np.ndarray) -> list[int]:
    """Return the rows, of n ≥ 8 labels, that are furthest off what is predicted without them, by ``DOUBTFUL_TIMES``.

    ``log_errors``: log(predicted ÷ label) of each while it was held out, float64 [n]. One wrong label spoils the
    prediction of those like it, so it need not be the furthest.
    """
    if len(log_errors) < MIN_DOUBTED:
        return []
    far = np.argsort(-np.abs(log_errors), kind="stable")[:MAX_SUSPECTS]
    return [row for row in far.tolist() if abs(log_errors[row]) > np.log(DOUBTFUL_TIMES)]


def doubtful_label(row: int, with_it: np.ndarray, without: np.ndarray, *, same_backend: bool) -> OddLabel | None:
    """Return one of the ``suspects`` as odd; None where the others are as far off without it.

    Args:
        row: The label.
        with_it: Held-out log errors of all labels, float64 [n].
        without: Held-out log errors of all others without it, float64 [n − 1].
        same_backend: True if the base learnt the backend of these labels. In another one some network is slow for a
            reason in every third to second set of ten right labels, so a label is named only if the others disagree.
    """
    error = float(with_it[row])
    if abs(error) <= DOUBTFUL_DEVIATIONS * float(np.sqrt(np.mean(without**2))):
        return None
    before, after = np.mean(np.abs(np.delete(with_it, row))), max(float(np.mean(np.abs(without))), 1e-12)
    disagreement = float(before / after)
    is_clear = disagreement > MIN_DISAGREEMENT
    if not is_clear and not same_backend:
        return None
    return OddLabel(row, float(np.exp(-error)), is_clear, len(without), disagreement)


def mixed_units(base_s: np.ndarray, latency_s: np.ndarray) -> str | None:
    """That labels are in two units, in words: they part into two groups, the ratios of one to what a base predicts,
    float64 seconds [n], about 1,000, 10⁶ or 10⁹ times those of the other. None where they do not."""
    ratios = np.sort(np.log(latency_s) - np.log(base_s))
    if len(ratios) < MIN_LABELS:
        return None
    gaps = np.diff(ratios)
    split = int(np.argmax(gaps)) + 1
    apart = float(np.median(ratios[split:]) - np.median(ratios[:split]))
    for times, unit in UNITS.items():
        if gaps[split - 1] > np.log(MIN_GAP) and abs(apart - np.log(times)) < np.log(UNIT_TOLERANCE):
            return (
                f"{len(ratios) - split} of {len(ratios)} labels are about {times:,.0f} times what the others make "
                f"likely: are some of them in {unit}, others in seconds?"
            )
    return None


def _apart(ratio: np.ndarray, row: int) -> tuple[float, float]:
    """How far one lies from the median of the others, and in how many of their deviations (by the median too)."""
    others = np.delete(ratio, row)
    middle = float(np.median(others))
    deviation = 1.4826 * float(np.median(np.abs(others - middle)))
    away = float(ratio[row]) - middle
    return away, abs(away) / max(deviation, MIN_DEVIATION)
