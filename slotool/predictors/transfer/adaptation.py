"""Adaptation of a trained predictor to a new setting by few labels, scored on held-out ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from slotool.artifacts import create_artifact
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Examples
from slotool.predictors.features.domain import Domain
from slotool.predictors.labels import LabelledSet, Setting, facts_of
from slotool.predictors.settings.predictor import SettingsPredictor
from slotool.predictors.solo.three_term import fitted_terms, priced_terms
from slotool.predictors.trained.artifact import KIND, SCORES, TrainedPredictor
from slotool.predictors.transfer.adapted import AdaptedPredictor, held_out_residuals, propose
from slotool.predictors.transfer.few_labels import FewLabels, Networks
from slotool.predictors.transfer.odd_labels import (
    MAX_LABELS_DOUBTED,
    OddLabel,
    doubtful_label,
    odd_labels,
    suspects,
)

# Baselines: the base, the base times one factor, three coefficients fitted to the labels.
AS_IS, FACTOR, THREE_TERM = "as it is", "one factor", "three-term"
ADAPTED = AdaptedPredictor.name
# Labels that differ more from the base are hardly in seconds; held-out errors above the second number make it unlikely
# that labels belong to their networks.
MAX_TIMES, MAX_HELD_OUT = 200.0, 0.5
# Labels that differ by no more than this share are equal.
MAX_EQUAL = 1e-6
# Up to so many labels each is left out alone; of more, a tenth at a time, in an order the seed draws.
MAX_LEFT_OUT_ALONE, FOLDS = 30, 10


@dataclass(frozen=True)
class HeldOut:
    """Errors on held-out labels.

    Attributes:
        log_errors: log(predicted ÷ label) of each held-out label, by name of the prediction, float64 [n].
        deviation: Deviation that the adapted predictor stated for each, in log, float64 > 0 [n].
    """

    log_errors: Mapping[str, np.ndarray]
    deviation: np.ndarray

    def mape(self, name: str = ADAPTED) -> float:
        """Return the mean absolute percentage error of a prediction, as a share."""
        return float(np.mean(np.abs(np.expm1(self.log_errors[name]))))


def hold_out(networks: Networks, log_s: np.ndarray, folds: Sequence[np.ndarray]) -> HeldOut:
    """Predict labels, ``log_s`` float64 [n], from all others; ``folds``: rows that are held out together."""
    errors = {name: np.empty(len(log_s)) for name in (AS_IS, FACTOR, THREE_TERM)}
    for rows in folds:
        others = np.setdiff1d(np.arange(len(log_s)), rows)
        answers = baselines(networks.take(others), log_s[others], networks.take(rows))
        for name, values in errors.items():
            values[rows] = answers[name] - log_s[rows]
    # The base as it is needs labels only to choose its nearest setting.
    errors[AS_IS] = baselines(networks, log_s, networks)[AS_IS] - log_s
    mean, variance = FewLabels(networks, log_s).left_out(folds)
    return HeldOut({**errors, ADAPTED: mean - log_s}, np.sqrt(variance))


def baselines(known: Networks, log_s: np.ndarray, networks: Networks) -> dict[str, np.ndarray]:
    """Predict log(seconds), float64 [m], by the nearest source, by it times one factor, and by three terms."""
    source = nearest(known, log_s)
    answers = networks.log_answers[:, source]
    factor = float(np.median(log_s - known.log_answers[:, source]))
    prices = fitted_terms(known.terms, np.exp(log_s))
    return {AS_IS: answers, FACTOR: answers + factor, THREE_TERM: priced_terms(networks.terms, *prices)}


def settings_of(base: TrainedPredictor[OperatorGraph]) -> tuple[Setting, ...]:
    """Return the settings that a base predicts."""
    learnt = base.predictor
    return learnt.settings if isinstance(learnt, SettingsPredictor) else (base.setting,)


def usual_batch_size(base: TrainedPredictor[OperatorGraph]) -> int:
    """Return the batch size of most settings of a base."""
    return Counter(setting.batch_size for setting in settings_of(base)).most_common(1)[0][0]


def nearest(known: Networks, log_s: np.ndarray) -> int:
    """Return the source whose answers times one factor are nearest to the labels."""
    apart = log_s[:, None] - known.log_answers
    return int(np.argmin(np.mean(np.abs(apart - np.median(apart, axis=0)), axis=0)))


def folds_of(count: int, seed: int = 0) -> list[np.ndarray]:
    """Return the rows of ``count`` labels that are held out together: one by one, or tenths."""
    if count <= MAX_LEFT_OUT_ALONE:
        return [np.array([row]) for row in range(count)]
    return np.array_split(np.random.default_rng(seed).permutation(count), FOLDS)


def adapt(
    base: TrainedPredictor[OperatorGraph], labelled: LabelledSet[OperatorGraph], seed: int = 0
) -> tuple[TrainedPredictor[OperatorGraph], HeldOut]:
    """Fit an adapted predictor to 3 to 200 labels of one setting.

    Returns:
        The predictor, with intervals from its spread and its errors on held-out labels; and these errors.
    """
    graphs, latency_s = labelled.items, labelled.latency_s
    predictor = AdaptedPredictor.of(base, labelled.setting)
    predictor.fit(Examples(graphs, latency_s))
    held_out = hold_out(predictor.labels.networks, predictor.labels.log_s, folds_of(len(graphs), seed))
    trained = TrainedPredictor(
        predictor=predictor,
        residuals=held_out_residuals(held_out.log_errors[ADAPTED], held_out.deviation),
        setting=labelled.setting,
        dev_mae_s=float(np.mean(np.abs(np.expm1(held_out.log_errors[ADAPTED])) * latency_s)),
        domain=Domain.of(graphs) if base.domain is None else base.domain.wider(graphs),
        facts=facts_of(labelled.setting),
    )
    return trained, held_out


def other_unit(ratios: np.ndarray) -> str | None:
    """Return a sentence if labels can hardly be in seconds, else None; ``ratios``: label ÷ prediction [n]."""
    times = float(np.median(ratios))
    if max(times, 1 / times) <= MAX_TIMES:
        return None
    return f"the labels are {times:.3g} times the predictions, in the median: are they in seconds?"


@dataclass(frozen=True)
class AdaptationRun:
    """Result of an adaptation: ``adapted``, fitted to the rows ``chosen``, and held-out errors on these.

    ``odd``: labels that cannot be right, which are not among ``chosen``. ``others``: rows that were not chosen, with
    ``mape`` by name of the prediction and ``coverage``, the share of them inside their interval, None without any.
    """

    base: TrainedPredictor[OperatorGraph]
    adapted: TrainedPredictor[OperatorGraph]
    labelled: LabelledSet[OperatorGraph]
    chosen: np.ndarray
    held_out: HeldOut
    others: np.ndarray
    mape: Mapping[str, float]
    coverage: float | None
    odd: tuple[OddLabel, ...] = ()

    @property
    def odd_in_words(self) -> list[str]:
        return [each.sentence(self.name(each.row), float(self.labelled.latency_s[each.row])) for each in self.odd]

    def name(self, row: int) -> str:
        graph = self.labelled.items[row]
        return graph.name or graph.id

    @cached_property
    def sources(self) -> list[tuple[str, float]]:
        """Settings or base, roofline and three terms, with their shares of the prediction, largest first."""
        settings = (f"{each.device} {each.backend} {each.precision}" for each in settings_of(self.base))
        names = [*settings, "a roofline", THREE_TERM]
        shares = self._predictor.labels.shares
        return [(names[i], float(shares[i])) for i in np.argsort(-shares, kind="stable").tolist() if shares[i] >= 0.01]

    @property
    def _predictor(self) -> AdaptedPredictor:
        assert isinstance(self.adapted.predictor, AdaptedPredictor)
        return self.adapted.predictor

    @property
    def base_setting(self) -> Setting:
        """Setting of the base; of many settings, the nearest to the labels."""
        labels = self._predictor.labels
        return settings_of(self.base)[nearest(labels.networks, labels.log_s)]

    @property
    def other_backend(self) -> str | None:
        """Sentence on labels of another backend than the base's; None without known prices of the two."""
        if not self._predictor.change:
            return None
        base, other = self.base.setting.backend, self.labelled.setting.backend
        return f"labels were taken from {other} to {base} and answers back, by what random networks take in both"

    @property
    def harm(self) -> str | None:
        """Warning that a simpler prediction has smaller held-out errors, or None."""
        adapted = self.held_out.mape()
        simple = min((AS_IS, FACTOR), key=self.held_out.mape)
        if self.held_out.mape(simple) >= adapted:
            return None
        instead = "without any label" if simple == AS_IS else "times one factor"
        cause = "these labels do harm: " if simple == AS_IS else ""
        return (
            f"{cause}held out in turn, the adapted predictor is {adapted:.1%} off, and {self.base_setting} {instead} "
            f"{self.held_out.mape(simple):.1%}; measure more networks, or again on an idle machine"
        )

    @property
    def doubt(self) -> str | None:
        """Sentence on labels that are implausible as a whole, or None."""
        label_s = self.labelled.latency_s[self.chosen]
        if np.ptp(label_s) <= MAX_EQUAL * label_s.max():
            return (
                f"all {len(label_s)} labels are {label_s[0] * 1e3:.3g} ms, whatever the network: they tell nothing of "
                "any; was one value written for all?"
            )
        if unit := other_unit(np.exp(-self.held_out.log_errors[AS_IS])):
            return unit
        if (error := self.held_out.mape()) > MAX_HELD_OUT:
            return (
                f"held out in turn, the adapted predictor is {error:.0%} off: these labels tell nothing of one "
                "another. Is each that of the network it names, in seconds, and are all of one setting?"
            )
        return None

    def scores(self) -> dict[str, Any]:
        return {
            "base": {"name": self.base.predictor.name, "setting": self.base_setting.document()},
            "taken_to_backend": None if self.other_backend is None else self.labelled.setting.backend,
            "setting": self.labelled.setting.document(),
            "sources": [{"source": name, "share": share} for name, share in self.sources],
            "set_aside": [{"graph_id": self.labelled.items[each.row].id, "times": each.times} for each in self.odd],
            "adapted_to": [self.labelled.items[i].id for i in self.chosen],
            "chosen": ADAPTED,
            "scored": len(self.others),
            "interval_coverage": self.coverage,
            "predictors": {
                name: {"held_out_mape": self.held_out.mape(name), "others_mape": self.mape.get(name)}
                for name in self.held_out.log_errors
            },
        }

    def save(self, path: Path, *, config: Mapping[str, Any], seed: int, force: bool = False) -> None:
        with create_artifact(path, KIND, config=config, seed=seed, force=force) as writer:
            self.adapted.write(writer)
            writer.write_json(SCORES, self.scores())


def adapt_and_score(
    base: TrainedPredictor[OperatorGraph],
    labelled: LabelledSet[OperatorGraph],
    samples: int | None = None,
    seed: int = 0,
) -> AdaptationRun:
    """Adapt to ``samples`` networks that the active sampler chooses, or to all; the other labels only score.

    Labels far from all others (``odd_labels``) are set aside, and so is one of up to 30 that the others contradict
    (``doubtful_label``). Raises ``InputError`` if there are too few labels, or ``samples`` leaves none to score.
    """
    fresh = AdaptedPredictor.of(base, labelled.setting)
    networks, log_s = fresh.networks(labelled.items), fresh.log_before(labelled.items, labelled.latency_s)
    chosen = np.arange(len(labelled))
    if samples is not None:
        if samples >= len(labelled):
            raise InputError(
                f"{samples} samples of {len(labelled)} labelled networks leave none to score by; leave --samples out"
            )
        chosen = np.array(propose(base.predictor, labelled.items, samples, seed))
    others = np.setdiff1d(np.arange(len(labelled)), chosen)
    learnt = labelled.only(chosen)
    source = nearest(networks.take(chosen), log_s[chosen])
    base_s = np.exp(networks.log_answers[chosen, source]) * fresh.change.times(learnt.items)
    odd = [replace(each, row=int(chosen[each.row])) for each in odd_labels(base_s, learnt.items, learnt.latency_s)]
    chosen = chosen[~np.isin(chosen, [each.row for each in odd])]
    learnt = labelled.only(chosen)
    adapted, held_out = adapt(base, learnt, seed)
    doubted = suspects(held_out.log_errors[ADAPTED]) if len(learnt) <= MAX_LABELS_DOUBTED else []
    if doubted:
        without = {row: adapt(base, learnt.only(np.delete(np.arange(len(learnt)), row)), seed) for row in doubted}
        row = min(without, key=lambda row: without[row][1].mape())
        label = doubtful_label(row, held_out.log_errors[ADAPTED], without[row][1].log_errors[ADAPTED])
        if label is not None:
            odd.append(replace(label, row=int(chosen[row])))
            chosen, (adapted, held_out) = np.delete(chosen, row), without[row]
    mape: dict[str, float] = {}
    coverage = None
    if len(others):
        answers = baselines(networks.take(chosen), log_s[chosen], networks.take(others))
        scores = adapted.held_out(labelled, others).scores()
        mape = {name: float(np.mean(np.abs(np.expm1(values - log_s[others])))) for name, values in answers.items()}
        mape[ADAPTED], coverage = scores["mape"], scores["interval_coverage"]
    return AdaptationRun(base, adapted, labelled, chosen, held_out, others, mape, coverage, tuple(odd))
