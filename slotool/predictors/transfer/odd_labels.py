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
# Lower limit of the deviation, in log.
MIN_DEVIATION = 0.05
MIN_LABELS = 5
# More odd labels than this share are no mistakes, but a setting unlike the base.
MAX_SHARE = 0.2
# A doubtful label differs from its held-out prediction by this factor, and by this number of root mean square errors of
# the others without it. It is odd if the held-out errors of the others are larger with it by the third factor: a
# network that is slow for a reason does not disturb others. Checked for sets between the two sizes only.
DOUBTFUL_TIMES, DOUBTFUL_DEVIATIONS, MIN_DISAGREEMENT = 2.0, 2.5, 1.35
MIN_DOUBTED, MAX_LABELS_DOUBTED, MAX_SUSPECTS = 8, 30, 3


@dataclass(frozen=True)
class OddLabel:
    """Label number ``row`` that cannot be right: ``times``, label ÷ value that the other labels make likely.

    ``others``: number of other labels.
    """

    row: int
    times: float
    others: int

    def sentence(self, name: str, latency_s: float) -> str:
        much = f"{self.times:.3g} times" if self.times > 1 else f"1 / {1 / self.times:.3g} of"
        return (
            f"the label of {name}, {latency_s * 1e3:.3g} ms, is {much} what the other {self.others} make likely: it is "
            "set aside; measure that network again"
        )


def odd_labels(base_s: np.ndarray, graphs: Sequence[OperatorGraph], latency_s: np.ndarray) -> list[OddLabel]:
    """Return labels, of n ≥ 5, far from all others. ``base_s``: predictions of the base, float64 seconds [n]."""
    if len(graphs) < MIN_LABELS:
        return []
    ratios = np.log(latency_s) - np.log([base_s, TypeCosts.of(graphs).total_s])
    apart = np.array([[_apart(ratio, row) for row in range(len(graphs))] for ratio in ratios])
    factors, deviations = apart[..., 0], apart[..., 1]
    same_side = np.sign(factors[0]) == np.sign(factors[1])
    far, sure = np.abs(factors).min(axis=0), deviations.min(axis=0)
    odd = np.flatnonzero(same_side & (far > np.log(MIN_TIMES)) & (sure > MIN_DEVIATIONS))
    if len(odd) > MAX_SHARE * len(graphs):
        return []
    nearer = np.abs(factors).argmin(axis=0)
    return [OddLabel(row, float(np.exp(factors[nearer[row], row])), len(graphs) - 1) for row in odd.tolist()]


def suspects(log_errors: np.ndarray) -> list[int]:
    """Return the rows, of n ≥ 8 labels, of largest held-out errors beyond a factor of ``DOUBTFUL_TIMES``.

    ``log_errors``: log(predicted ÷ label) of each held-out label, float64 [n]. A wrong label spoils predictions of
    similar networks, so its error need not be the largest.
    """
    if len(log_errors) < MIN_DOUBTED:
        return []
    far = np.argsort(-np.abs(log_errors), kind="stable")[:MAX_SUSPECTS]
    return [row for row in far.tolist() if abs(log_errors[row]) > np.log(DOUBTFUL_TIMES)]


def doubtful_label(row: int, with_it: np.ndarray, without: np.ndarray) -> OddLabel | None:
    """Return one of the ``suspects`` as odd; None if the errors of the others do not fall without it.

    Args:
        row: The label.
        with_it: Held-out log errors of all labels, float64 [n].
        without: Held-out log errors of all others without it, float64 [n − 1].
    """
    error = float(with_it[row])
    before, after = np.mean(np.abs(np.delete(with_it, row))), max(float(np.mean(np.abs(without))), 1e-12)
    is_far = abs(error) > DOUBTFUL_DEVIATIONS * float(np.sqrt(np.mean(without**2)))
    return OddLabel(row, float(np.exp(-error)), len(without)) if is_far and before > MIN_DISAGREEMENT * after else None


def _apart(ratio: np.ndarray, row: int) -> tuple[float, float]:
    """Return the distance of one ratio from the median of the others, and the same in their median deviations."""
    others = np.delete(ratio, row)
    middle = float(np.median(others))
    deviation = 1.4826 * float(np.median(np.abs(others - middle)))
    away = float(ratio[row]) - middle
    return away, abs(away) / max(deviation, MIN_DEVIATION)
