"""Detection of labels that cannot be right: far from all others, or disturbing others that agree without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.features.type_costs import TypeCosts

# Factor, and deviations of the others, by which an odd label differs both from a base and from a roofline. None of
# 18,720 labels of 24 settings does, in draws of 5, 10 and 30. Of labels made wrong by a factor of 100 it finds 98 to
# 100 %, of 30 94 to 97 %, of 10 62 to 66 %.
MIN_TIMES, MIN_DEVIATIONS = 8.0, 5.0
# Beyond these a label is named, but used: 85 % of labels made wrong by a factor of 10, and networks that a backend is
# slow for (a ConvNeXt in TensorFlow), 21 of 4,160 labels in draws of ten.
NAMED_TIMES, NAMED_DEVIATIONS = 5.0, 4.0
# Lower limit of the deviation, in log.
MIN_DEVIATION = 0.05
MIN_LABELS = 5
# Labels that differ by such a factor, within ``UNIT_TOLERANCE``, are in another unit of time, if the two groups are at
# least a factor of ``MIN_GAP`` apart.
UNITS = {1e3: "milliseconds", 1e6: "microseconds", 1e9: "nanoseconds"}
UNIT_TOLERANCE, MIN_GAP = 3.0, 30.0
# More odd labels than this share are no mistakes, but a setting unlike the base.
MAX_SHARE = 0.2
# A doubtful label differs from its held-out prediction by this factor, and by this number of root mean square errors of
# the others without it. It is set aside if the held-out errors of the others are larger with it by the third factor: a
# network that is slow for a reason does not disturb others. Checked for sets between the two sizes only.
DOUBTFUL_TIMES, DOUBTFUL_DEVIATIONS, MIN_DISAGREEMENT = 2.0, 2.5, 1.35
MIN_DOUBTED, MAX_LABELS_DOUBTED, MAX_SUSPECTS = 8, 30, 3


@dataclass(frozen=True)
class OddLabel:
    """Label number ``row`` that is odd: ``times``, label ÷ value that the other labels make likely.

    ``is_clear``: it cannot be right. ``others``: number of other labels. ``disagreement``: their errors with it ÷
    without it, where computed.
    """

    row: int
    times: float
    is_clear: bool
    others: int
    disagreement: float | None = None

    def sentence(self, name: str, latency_s: float) -> str:
        much = f"{self.times:.3g} times" if self.times > 1 else f"1 / {1 / self.times:.3g} of"
        then = "it is set aside; measure that network again"
        if not self.is_clear:
            then = "it is learnt from; measure that network again if other work may have delayed it"
        if self.disagreement is not None and self.is_clear:
            then = f"with it they are {self.disagreement:.2g} times as far off one another; {then}"
        likely = f"what the other {self.others} make likely"
        return f"the label of {name}, {latency_s * 1e3:.3g} ms, is {much} {likely}: {then}"


def odd_labels(base_s: np.ndarray, graphs: Sequence[OperatorGraph], latency_s: np.ndarray) -> list[OddLabel]:
    """Return the odd labels of n ≥ 5, none of fewer. ``base_s``: predictions of the base, float64 seconds [n]."""
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
    """Return the rows, of n ≥ 8 labels, of largest held-out errors beyond a factor of ``DOUBTFUL_TIMES``.

    ``log_errors``: log(predicted ÷ label) of each held-out label, float64 [n]. A wrong label spoils predictions of
    similar networks, so its error need not be the largest.
    """
    if len(log_errors) < MIN_DOUBTED:
        return []
    far = np.argsort(-np.abs(log_errors), kind="stable")[:MAX_SUSPECTS]
    return [row for row in far.tolist() if abs(log_errors[row]) > np.log(DOUBTFUL_TIMES)]


def doubtful_label(row: int, with_it: np.ndarray, without: np.ndarray, *, same_backend: bool) -> OddLabel | None:
    """Return one of the ``suspects`` as odd; None if the errors of the others do not fall without it.

    Args:
        row: The label.
        with_it: Held-out log errors of all labels, float64 [n].
        without: Held-out log errors of all others without it, float64 [n − 1].
        same_backend: True if the base and these labels have one backend. In another backend, a third to a half of sets
            of ten right labels have a network that is slow for a reason, so a label is named only if others disagree.
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
    """Describe labels in two units of time: two groups about 1,000, 10⁶ or 10⁹ times apart; None if they are not.

    ``base_s``: predictions of the base, float64 seconds [n].
    """
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
    """Return the distance of one ratio from the median of the others, and the same in their median deviations."""
    others = np.delete(ratio, row)
    middle = float(np.median(others))
    deviation = 1.4826 * float(np.median(np.abs(others - middle)))
    away = float(ratio[row]) - middle
    return away, abs(away) / max(deviation, MIN_DEVIATION)
