"""What an SLO-NN promises at an allowed loss: which k to use and how much it may lose (see ``evidence``)."""

from __future__ import annotations

from dataclasses import dataclass

from slotool.elastic.activators.slo_nn import SloNN


@dataclass(frozen=True)
class Promise:
    """What a model promises at an allowed loss, a share of answers, with ``confidence``, by ``examples`` held-out ones.

    ``point``: the least k for all inputs, which loses ``point_loss`` at most; ``target``: the accuracy target at which
    k is chosen per input, which loses ``target_loss`` at most. ``saves`` and ``target_saves``: whether either is
    less than all nodes. ``examples_needed``: about how many held-out examples would promise the loss for fewer than all
    nodes, None where they do or where no number would; ``examples``: 0 for tables built before any were counted.
    """

    allowed_loss: float
    confidence: float
    examples: int
    point: str
    point_loss: float
    saves: bool
    target: float
    target_loss: float
    target_saves: bool
    examples_needed: int | None

    @classmethod
    def of(cls, model: SloNN, loss: float, confidence: float | None = None) -> Promise:
        calibration, point = model.calibration, model.fixed_for(loss, confidence)
        stated = calibration.stated if confidence is None else confidence
        levels = calibration.bounds(confidence) <= loss
        level = int(levels.argmax()) if levels.any() else len(levels) - 1
        saves, per_input = point != model.full, level < len(levels) - 1 and not model.all_int8
        evidence, needed = calibration.evidence_by_point, None
        if not (saves or per_input):
            both = [of.examples_needed(loss, stated) for of in (evidence, calibration.evidence) if of]
            needed = min((n for n in both if n is not None), default=None)
        return cls(
            allowed_loss=loss,
            confidence=stated,
            examples=evidence.examples if evidence else 0,
            point=point.key,
            point_loss=float(calibration.bounds_by_point(confidence)[model.points.index(point)]),
            saves=saves,
            target=model.target(loss, confidence),
            target_loss=float(calibration.bounds(confidence)[level]),
            target_saves=per_input,
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
        if self.target_saves:
            chosen = (
                f"k per input (accuracy target {self.target:.4f}): at most {100 * self.target_loss:.2f} points lost"
            )
        if self.saves:
            fixed = f"use k = {self.point.removeprefix('k=')}: at most {100 * self.point_loss:.2f} points lost {sure}"
            return [f"{fixed}, {by}", *([f"or {chosen} {sure}"] if self.target_saves else [])]
        if self.target_saves:
            return [f"use {chosen} {sure}, {by}; no fixed k loses at most {allowed}"]
        needed = f"about {self.examples_needed:,} would be needed" if self.examples_needed else "no number would do"
        return [
            f"use all nodes (k = 1): at most {100 * self.point_loss:.2f} points lost {sure}; "
            f"no smaller k loses at most {allowed} {by}; {needed}"
        ]
