"""How often k % of the nodes and the full network differed on held-out examples, and the loss that this bounds.

The bound is on the loss over further examples, as many as were counted, and not only on its mean over all that could
come: whoever checks a promise has a finite split too, and its chance adds to that of the validation split. The mean
itself exceeds the bound far less often (at a stated 90 % about once in thirty).

Choosing among many k costs by their order and not by their number (fixed-sequence testing, as in Learn then Test,
arXiv 2110.01052): from all nodes downwards each k is tested at the full error, and the first that fails ends the
sequence. So a lucky small k behind an unlucky larger one is never taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from slotool.errors import InputError
from slotool.tables.paired import examples_needed, further_losses

CONFIDENCE = 0.9
# Of the chance to be wrong this share is kept back for what was chosen with the same examples: the sharpness of lists,
# the ranker, the measure of confidence, and tables that other folds of them made.
KEPT_FOR_CHOICES = 1.0 / 3.0


@dataclass(frozen=True)
class DiscordantPairs:
    """How often ways of choosing k, from the fewest nodes to all of them, and the full network differ in being right.

    Of ``examples`` held-out ones; ``lost``: int64 [ways], the full network alone was right; ``gained``: int64 [ways],
    the way alone.
    """

    examples: int
    lost: np.ndarray
    gained: np.ndarray

    @classmethod
    def count(cls, correct: np.ndarray, ways: Iterable[np.ndarray]) -> DiscordantPairs:
        """From ``correct``: bool [n, points], last the full network; ``ways``: each int [n], the points chosen."""
        every, full = np.arange(len(correct)), correct[:, -1]
        answers = [correct[every, chosen] for chosen in ways]
        lost, gained = (
            [int(np.count_nonzero(d)) for d in of]
            for of in zip(*((full & ~right, right & ~full) for right in answers), strict=True)
        )
        return cls(len(correct), np.array(lost), np.array(gained))

    def with_last(self, lost: int, gained: int) -> DiscordantPairs:
        """The same with other counts for all nodes."""
        return DiscordantPairs(self.examples, np.append(self.lost[:-1], lost), np.append(self.gained[:-1], gained))

    @classmethod
    def checked(cls, examples: int, counts: np.ndarray, ways: int) -> DiscordantPairs:
        """From ``counts``, int [2, ways]: lost and gained. Raises ``ValueError`` for what cannot have been counted."""
        if examples < 1 or counts.shape != (2, ways) or counts.min() < 0 or counts.sum(axis=0).max() > examples:
            raise ValueError(f"evidence of {examples} examples cannot be {counts.shape} counts such as these")
        lost, gained = counts.astype(np.int64)
        return cls(examples, lost, gained)

    def bounds(self, confidence: float = CONFIDENCE) -> np.ndarray:
        """float64 [ways]: the loss, a share of answers, that each keeps with ``confidence``; never rises with nodes.

        A way keeps what all those of more nodes keep as well. All nodes lose nothing unless something was counted.
        """
        lost = further_losses(self.lost, self.gained, _one_test(confidence)) / self.examples
        if not self.lost[-1] and not self.gained[-1]:
            lost[-1] = 0.0
        return np.maximum.accumulate(lost[::-1])[::-1]

    def examples_needed(self, loss: float, confidence: float = CONFIDENCE) -> int | None:
        """About how many held-out examples would promise ``loss`` for fewer than all nodes; None: too many to say."""
        ways = zip(self.lost[:-1].tolist(), self.gained[:-1].tolist(), strict=True)
        found = [examples_needed(*way, self.examples, loss, _one_test(confidence)) for way in set(ways)]
        return min((n for n in found if n is not None), default=None)


def _one_test(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InputError(f"the confidence {confidence} must lie between 0 and 1, such as 0.9")
    return 1.0 - (1.0 - KEPT_FOR_CHOICES) * (1.0 - confidence)
