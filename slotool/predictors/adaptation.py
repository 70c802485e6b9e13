"""Few-shot transfer as a run: a trained predictor adapted to labels of a new setting, scored beside its rivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slotool.artifacts import create_artifact
from slotool.errors import InputError
from slotool.predictors.adapted import FEWEST_LABELS, AdaptedPredictor, residuals_of
from slotool.predictors.additive import AdditivePredictor
from slotool.predictors.labels import LabelledGraphs
from slotool.predictors.sampling import propose
from slotool.predictors.trained import KIND, SCORES, Bounds, TrainedPredictor

AS_IS, SCALED, SCRATCH = "as it is", "scaled", "from scratch"
# Training from scratch once per label left out is shown for so many at most.
MOST_TRAINED = 50


def adapt(base: TrainedPredictor, labelled: LabelledGraphs) -> TrainedPredictor:
    """``base`` adapted to all these labels and their setting.

    Its interval is for few labels (``adapted.interval_factor``) and its dev MAE that of labels left out one by one.
    Raises ``InputError`` for fewer than 3 labels or more than an adaptation takes.
    """
    predictor = AdaptedPredictor(base.predictor)
    predictor.fit(labelled.graphs, labelled.latency_s)
    mean, _ = predictor.left_out()
    return TrainedPredictor(
        predictor=predictor,
        bounds=_wider(base.bounds, Bounds.of(labelled.graphs, labelled.latency_s)),
        residuals=residuals_of(predictor),
        setting=labelled.setting,
        dev_mae_s=float(np.mean(np.abs(np.exp(mean) - labelled.latency_s))),
    )


@dataclass(frozen=True)
class AdaptationRun:
    """``adapted`` to the rows ``chosen``, and how it and its rivals predict others.

    ``scored``: rows that were predicted: those not chosen, or, where all were, each left out in turn. ``mape`` and
    ``mae_s`` by contender; ``coverage``: share of scored rows inside the adapted one's interval, None where each was
    left out in turn.
    """

    base: TrainedPredictor
    adapted: TrainedPredictor
    labelled: LabelledGraphs
    chosen: np.ndarray
    scored: np.ndarray
    mape: Mapping[str, float]
    mae_s: Mapping[str, float]
    coverage: float | None

    def scores(self) -> dict[str, Any]:
        """JSON document."""
        return {
            "base": {"name": self.base.predictor.name, "setting": self.base.setting.document()},
            "setting": self.labelled.setting.document(),
            "adapted_to": [self.labelled.graphs[i].id for i in self.chosen],
            "scored": len(self.scored),
            "left_out_in_turn": self.coverage is None,
            "interval_coverage": self.coverage,
            "predictors": {name: {"mape": self.mape[name], "mae_s": self.mae_s[name]} for name in self.mape},
        }

    def save(self, path: Path, *, config: Mapping[str, Any], seed: int, force: bool = False) -> None:
        """Write the adapted predictor and the scores as one artifact."""
        with create_artifact(path, KIND, config=config, seed=seed, force=force) as writer:
            self.adapted.write(writer)
            writer.write_json(SCORES, self.scores())


def adapt_and_score(
    base: TrainedPredictor, labelled: LabelledGraphs, samples: int | None = None, seed: int = 0
) -> AdaptationRun:
    """Adapt to ``samples`` networks that the active sampler chooses, and score on the rest; without, adapt to all and
    score each with the others as labels.

    Raises ``InputError`` when ``samples`` leaves nothing to score by, or there are too few labels.
    """
    n = len(labelled)
    if n < FEWEST_LABELS:
        raise InputError(f"{n} labelled networks are too few to adapt a predictor, which takes {FEWEST_LABELS}")
    if samples is None:
        chosen = np.arange(n)
        adapted = adapt(base, labelled)
        scored = chosen
        folds = [(np.delete(chosen, row), np.array([row])) for row in range(n)]
    else:
        if samples >= n:
            raise InputError(f"{samples} samples of {n} labelled networks leave none to score by; leave --samples out")
        chosen = np.array(propose(base.predictor, labelled.graphs, samples, seed))
        adapted = adapt(base, _only(labelled, chosen))
        scored = np.setdiff1d(np.arange(n), chosen)
        folds = [(chosen, scored)]
    answers = _answers(base, adapted, labelled, folds)
    measured_s = labelled.latency_s[scored]
    errors = {name: np.abs(predicted_s - measured_s) for name, predicted_s in answers.items()}
    return AdaptationRun(
        base=base,
        adapted=adapted,
        labelled=labelled,
        chosen=chosen,
        scored=scored,
        mape={name: float(np.mean(error_s / measured_s)) for name, error_s in errors.items()},
        mae_s={name: float(np.mean(error_s)) for name, error_s in errors.items()},
        coverage=None if samples is None else _coverage(adapted, labelled, scored),
    )


def _answers(
    base: TrainedPredictor,
    adapted: TrainedPredictor,
    labelled: LabelledGraphs,
    folds: Sequence[tuple[np.ndarray, np.ndarray]],
) -> dict[str, np.ndarray]:
    """What each contender predicts for the rows asked from the rows known, in the order of the folds, by name."""
    own, base_s = adapted.predictor, base.predictor.predict(labelled.graphs)
    assert isinstance(own, AdaptedPredictor)
    asked = np.concatenate([rows for _, rows in folds])
    factors = [np.full(len(rows), np.median(labelled.latency_s[known] / base_s[known])) for known, rows in folds]
    found = {AS_IS: base_s[asked], SCALED: base_s[asked] * np.concatenate(factors)}
    in_turn = own.labels == len(labelled)
    found[own.name] = np.exp(own.left_out()[0]) if in_turn else own.predict(labelled.take(asked)[0])
    if len(folds) <= MOST_TRAINED:
        found[SCRATCH] = np.concatenate([_from_scratch(labelled, *fold) for fold in folds])
    return found


def _from_scratch(labelled: LabelledGraphs, known: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The additive predictor's answer, the only one that so few labels can train."""
    predictor = AdditivePredictor()
    predictor.fit(*labelled.take(known), [], np.empty(0), seed=0)
    return predictor.predict(labelled.take(asked)[0])


def _coverage(adapted: TrainedPredictor, labelled: LabelledGraphs, rows: np.ndarray) -> float:
    graphs, measured_s = labelled.take(rows)
    found = adapted.predict(graphs)
    return float(np.mean((found.low_s <= measured_s) & (measured_s <= found.high_s)))


def _only(labelled: LabelledGraphs, rows: np.ndarray) -> LabelledGraphs:
    graphs, latency_s = labelled.take(rows)
    return replace(labelled, graphs=tuple(graphs), latency_s=latency_s, noise_s=labelled.noise_s[rows])


def _wider(first: Bounds, second: Bounds) -> Bounds:
    """What either holds."""

    def both(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
        return min(a[0], b[0]), max(a[1], b[1])

    return Bounds(
        operators=both(first.operators, second.operators),
        weights=both(first.weights, second.weights),
        flops=both(first.flops, second.flops),
        latency_s=both(first.latency_s, second.latency_s),
        operator_types=tuple(sorted({*first.operator_types, *second.operator_types})),
    )
