"""What an SLO-NN promises: a loss against its full network that is exceeded no more often than stated.

What is promised is the loss on further examples, as many as it was counted on, and not only its mean over all that
could come: whoever checks a promise has a finite split too, whose chance adds to that of the validation split. The
mean itself is exceeded far more seldom (at a stated 90 % once in some thirty times).

Choosing among many k is paid for by order and not by number (fixed-sequence testing, as in Learn then Test, arXiv
2110.01052): from all nodes downwards each is tested at the full error, and the first that fails ends the sequence. So a
lucky small k behind an unlucky larger one is never taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slotool.errors import InputError
from slotool.tables.paired import examples_needed, further_losses

if TYPE_CHECKING:
    from slotool.elastic.activators.slo_nn import SloNN

CONFIDENCE = 0.9
# Of the chance to be wrong this share is kept back for what was chosen with the same examples: the sharpness of lists,
# the ranker, the measure of confidence, and tables that other folds of them made.
KEPT_FOR_CHOICES = 1.0 / 3.0


@dataclass(frozen=True)
class Evidence:
    """How often ways of choosing k, from the fewest nodes to all of them, and the full network differ in being right.

    Of ``examples`` held-out ones; ``lost``: int64 [ways], the full network alone was right; ``gained``: int64 [ways],
    the way alone.
    """

    examples: int
    lost: np.ndarray
    gained: np.ndarray

    @classmethod
    def count(cls, correct: np.ndarray, ways: Iterable[np.ndarray]) -> Evidence:
        """From ``correct``: bool [n, points], last the full network; ``ways``: each int [n], the points chosen."""
        every, full = np.arange(len(correct)), correct[:, -1]
        answers = [correct[every, chosen] for chosen in ways]
        lost, gained = (
            [int(np.count_nonzero(d)) for d in of]
            for of in zip(*((full & ~right, right & ~full) for right in answers), strict=True)
        )
        return cls(len(correct), np.array(lost), np.array(gained))

    def with_last(self, lost: int, gained: int) -> Evidence:
        """The same with other counts for all nodes."""
        return Evidence(self.examples, np.append(self.lost[:-1], lost), np.append(self.gained[:-1], gained))

    @classmethod
    def checked(cls, examples: int, counts: np.ndarray, ways: int) -> Evidence:
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
        raise InputError(f"{confidence} is no confidence; give one between 0 and 1, such as 0.9")
    return 1.0 - (1.0 - KEPT_FOR_CHOICES) * (1.0 - confidence)


@dataclass(frozen=True)
class Promise:
    """What a model promises at an allowed loss, a share of answers, with ``confidence``, by ``examples`` held-out ones.

    ``point``: the least k for all inputs, which loses ``point_loss`` at most; ``target``: the accuracy target at which
    k is chosen per input, which loses ``target_loss`` at most. ``spares`` and ``target_spares``: whether either is
    less than all nodes. ``examples_needed``: about how many held-out examples would promise the loss for fewer than all
    nodes, None where they do or where no number would; ``examples``: 0 for tables built before any were counted.
    """

    allowed_loss: float
    confidence: float
    examples: int
    point: str
    point_loss: float
    spares: bool
    target: float
    target_loss: float
    target_spares: bool
    examples_needed: int | None

    @classmethod
    def of(cls, model: SloNN, loss: float, confidence: float | None = None) -> Promise:
        calibration, point = model.calibration, model.fixed_for(loss, confidence)
        stated = calibration.stated if confidence is None else confidence
        levels = calibration.bounds(confidence) <= loss
        level = int(levels.argmax()) if levels.any() else len(levels) - 1
        spares, per_input = point != model.full, level < len(levels) - 1 and not model.all_int8
        evidence, needed = calibration.evidence_by_point, None
        if not (spares or per_input):
            both = [of.examples_needed(loss, stated) for of in (evidence, calibration.evidence) if of]
            needed = min((n for n in both if n is not None), default=None)
        return cls(
            allowed_loss=loss,
            confidence=stated,
            examples=evidence.examples if evidence else 0,
            point=point.key,
            point_loss=float(calibration.bounds_by_point(confidence)[model.points.index(point)]),
            spares=spares,
            target=model.target(loss, confidence),
            target_loss=float(calibration.bounds(confidence)[level]),
            target_spares=per_input,
            examples_needed=needed,
        )

    @property
    def sentences(self) -> list[str]:
        """For a person: what to use, and what it may lose."""
        if not self.examples:
            return [
                "use all nodes: these tables hold no evidence for a promise; build them again (slotool build-tables)"
            ]
        sure, allowed = f"with {100 * self.confidence:g} % confidence", f"{100 * self.allowed_loss:g} points"
        by = f"by {self.examples:,} validation examples"
        if self.target_spares:
            chosen = (
                f"k per input (accuracy target {self.target:.4f}): at most {100 * self.target_loss:.2f} points lost"
            )
        if self.spares:
            fixed = f"use k = {self.point.removeprefix('k=')}: at most {100 * self.point_loss:.2f} points lost {sure}"
            return [f"{fixed}, {by}", *([f"or {chosen} {sure}"] if self.target_spares else [])]
        if self.target_spares:
            return [f"use {chosen} {sure}, {by}; no fixed k loses at most {allowed}"]
        needed = f"about {self.examples_needed:,} would be needed" if self.examples_needed else "no number would do"
        return [
            f"use all nodes (k = 1): at most {100 * self.point_loss:.2f} points lost {sure}; "
            f"no smaller k loses at most {allowed} {by}; {needed}"
        ]
