"""The k to use for an allowed loss of accuracy, with the loss that is guaranteed (see ``calibration``)."""

from __future__ import annotations

from dataclasses import dataclass

from slotool.elastic.slo_nn.model import SloNN


@dataclass(frozen=True)
class Promise:
    """Guarantees of a model at ``allowed_loss``, a share of answers, with ``confidence`` between 0 and 1.

    ``examples``: number of held-out examples; 0 for tables without evidence. ``point``: key of the
    least fixed k; it loses at most ``point_loss``. ``target``: accuracy target for k chosen per input; it loses at most
    ``target_loss``. ``saves``, ``target_saves``: True if they compute fewer than all nodes. ``examples_needed``: about
    how many held-out examples would guarantee the loss below all nodes; None if these do, or no number would. For a
    fixed k, and k per input: ``fixed_examples_needed``, ``per_input_examples_needed``.
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
    fixed_examples_needed: int | None = None
    per_input_examples_needed: int | None = None

    @classmethod
    def of(cls, model: SloNN, loss: float, confidence: float | None = None) -> Promise:
        """Return the promise of ``model`` at an allowed ``loss``; ``confidence`` None: that of its tables.

        Raises ``InputError`` for values out of range.
        """
        calibration, point = model.calibration, model.fixed_for(loss, confidence)
        stated = calibration.stated if confidence is None else confidence
        levels = calibration.bounds(confidence) <= loss
        level = int(levels.argmax()) if levels.any() else len(levels) - 1
        saves, per_input = point != model.full, level < len(levels) - 1
        evidence = calibration.evidence_by_point
        both: list[int | None] = [None, None]
        if not (saves or per_input):
            both = [of.examples_needed(loss, stated) if of else None for of in (evidence, calibration.evidence)]
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
            examples_needed=min((n for n in both if n is not None), default=None),
            fixed_examples_needed=both[0],
            per_input_examples_needed=both[1],
        )

    def verdict(self) -> str | None:
        """Return the reason why choosing nodes saves nothing within the allowed loss, in one sentence, or None."""
        if self.saves or self.target_saves:
            return None
        return f"no k below 100 % keeps the allowed loss of {100 * self.allowed_loss:g} points"

    @property
    def sentences(self) -> list[str]:
        """Sentences for a user: what to use, and what it may lose."""
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
        return [
            f"use all nodes (k = 1): at most {100 * self.point_loss:.2f} points lost {sure}; "
            f"no smaller k loses at most {allowed} {by}; {self._needed}"
        ]

    @property
    def _needed(self) -> str:
        """Number of examples that would show otherwise, and for which k, if they differ."""
        ways = {"a fixed k": self.fixed_examples_needed, "k chosen per input": self.per_input_examples_needed}
        texts = {
            way: f"about {number:,} would be needed" if number else "no number would do" for way, number in ways.items()
        }
        if len(set(texts.values())) == 1:
            return texts["a fixed k"]
        return ", ".join(f"for {way} {what}" for way, what in texts.items())
