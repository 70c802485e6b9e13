"""Upper bounds on the accuracy that k % of the nodes lose, from paired answers to held-out examples.

A bound holds for the loss on as many further examples, not only for the expected loss: a promise is checked on a finite
split too, whose sampling error adds to that of the validation split. The expected loss exceeds the bound far less often
(at a stated confidence of 90 % about once in thirty).

Testing many k needs no correction for their number, because they are tested in a fixed sequence (as in Learn then Test,
arXiv 2110.01052): from all nodes downwards, each at the full error level, until the first one fails. A small k that
passes by luck behind a larger one that fails is therefore never taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from slotool.errors import InputError
from slotool.tables.paired import examples_needed, further_losses

CONFIDENCE = 0.9
# This share of the error level is reserved for choices made with the same examples: the sharpness of lists,
# the measure of confidence, and tables learnt from other folds.
KEPT_FOR_CHOICES = 1.0 / 3.0


@dataclass(frozen=True)
class DiscordantPairs:
    """Counts of held-out examples on which a way of choosing k and the full network differ in being right.

    Ways go from the fewest nodes to all of them; a way is a fixed k, or k chosen per input at a threshold.
    ``examples``: number of examples. ``lost``: int64 [ways], only the full network was right. ``gained``: int64 [ways],
    only the way was right.
    """

    examples: int
    lost: np.ndarray
    gained: np.ndarray

    @classmethod
    def count(cls, correct: np.ndarray, ways: Iterable[np.ndarray]) -> DiscordantPairs:
        """Count from ``correct`` bool [n, points], last the full network, and ``ways``, each int [n]: points chosen."""
        every, full = np.arange(len(correct)), correct[:, -1]
        answers = [correct[every, chosen] for chosen in ways]
        lost, gained = (
            [int(np.count_nonzero(d)) for d in of]
            for of in zip(*((full & ~right, right & ~full) for right in answers), strict=True)
        )
        return cls(len(correct), np.array(lost), np.array(gained))

    @classmethod
    def checked(cls, examples: int, counts: np.ndarray, ways: int) -> DiscordantPairs:
        """From ``counts`` int [2, ways]: lost, gained. Raises ``ValueError`` for impossible counts."""
        if examples < 1 or counts.shape != (2, ways) or counts.min() < 0 or counts.sum(axis=0).max() > examples:
            raise ValueError(f"evidence of {examples} examples cannot be {counts.shape} counts such as these")
        lost, gained = counts.astype(np.int64)
        return cls(examples, lost, gained)

    def bounds(self, confidence: float = CONFIDENCE) -> np.ndarray:
        """float64 [ways]: upper bound on each way's loss, a share of answers, with ``confidence`` between 0 and 1.

        Bounds never rise with the number of nodes. All nodes lose nothing unless a loss was counted. Raises
        ``InputError`` for a confidence out of range.
        """
        lost = further_losses(self.lost, self.gained, _one_test(confidence)) / self.examples
        if not self.lost[-1] and not self.gained[-1]:
            lost[-1] = 0.0
        return np.maximum.accumulate(lost[::-1])[::-1]

    def examples_needed(self, loss: float, confidence: float = CONFIDENCE) -> int | None:
        """About how many held-out examples would bound the loss of a way below all nodes by ``loss``; None: none.

        The way tested first decides, the one just below all nodes: no other is taken unless that one passes.
        """
        if len(self.lost) < 2:
            return None
        return examples_needed(int(self.lost[-2]), int(self.gained[-2]), self.examples, loss, _one_test(confidence))


def _one_test(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InputError(f"the confidence {confidence} must lie between 0 and 1, such as 0.9")
    return 1.0 - (1.0 - KEPT_FOR_CHOICES) * (1.0 - confidence)
