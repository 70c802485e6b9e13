"""Few-shot transfer as a run: a trained predictor taken to a new setting by a few labels, scored on labels held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from slotool.predictors.trained.bounds import Bounds, Floor
from slotool.predictors.transfer.adapted import MIN_LABELS, AdaptedPredictor, held_out_residuals
from slotool.predictors.transfer.few_labels import FewLabels, Networks
from slotool.predictors.transfer.odd_labels import (
    MAX_LABELS_DOUBTED,
    OddLabel,
    doubtful_label,
    mixed_units,
    odd_labels,
    suspects,
)
from slotool.predictors.transfer.sampling import propose

# Predictions that adapting is compared with: the base, the base times one factor, three coefficients of the labels.
AS_IS, FACTOR, THREE_TERM = "as it is", "one factor", "three-term"
ADAPTED = AdaptedPredictor.name
# Labels so many times what a base says are hardly in seconds; those that are further off than this while held out are
# hardly of the networks that they name.
MAX_TIMES, MAX_HELD_OUT = 200.0, 0.5
# Labels that differ by no more than this share are the same.
MAX_EQUAL = 1e-6
# Up to so many labels each is left out alone; of more, a tenth at a time, in an order the seed draws.
MAX_LEFT_OUT_ALONE, FOLDS = 30, 10


@dataclass(frozen=True)
class HeldOut:
    """Errors of labels that were left out.

    Attributes:
        log_errors: log(predicted ÷ label) of each label while it was held out, by name of the prediction, float64 [n].
        deviation: Deviation that the adapted predictor stated of each, in log, float64 > 0 [n].
    """

    log_errors: Mapping[str, np.ndarray]
    deviation: np.ndarray

    def mape(self, name: str = ADAPTED) -> float:
        """Return the mean absolute percentage error of a prediction, as a share."""
        return float(np.mean(np.abs(np.expm1(self.log_errors[name]))))


def hold_out(networks: Networks, log_s: np.ndarray, folds: Sequence[np.ndarray]) -> HeldOut:
    """Predict the labels of each fold from all others.

    Args:
        networks: Labelled networks.
        log_s: Logarithm of their latencies, float64 [n].
        folds: Rows that are held out together.
    """
    errors = {name: np.empty(len(log_s)) for name in (AS_IS, FACTOR, THREE_TERM)}
    for rows in folds:
        rest = np.setdiff1d(np.arange(len(log_s)), rows)
        answers = baselines(networks.take(rest), log_s[rest], networks.take(rows))
        for name, own in errors.items():
            own[rows] = answers[name] - log_s[rows]
    # The base as it is needs no label, but for which of its settings is nearest.
    errors[AS_IS] = baselines(networks, log_s, networks)[AS_IS] - log_s
    mean, variance = FewLabels(networks, log_s).left_out(folds)
    return HeldOut({**errors, ADAPTED: mean - log_s}, np.sqrt(variance))


def baselines(known: Networks, log_s: np.ndarray, asked: Networks) -> dict[str, np.ndarray]:
    """Return log(seconds) of ``asked``, float64 [m], by name: the nearest source, it times a factor, three terms."""
    source = nearest(known, log_s)
    answers = asked.log_answers[:, source]
    factor = float(np.median(log_s - known.log_answers[:, source]))
    prices = fitted_terms(known.terms, np.exp(log_s))
    return {AS_IS: answers, FACTOR: answers + factor, THREE_TERM: priced_terms(asked.terms, *prices)}


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
    base: TrainedPredictor[OperatorGraph],
    labelled: LabelledSet[OperatorGraph],
    seed: int = 0,
) -> tuple[TrainedPredictor[OperatorGraph], HeldOut]:
    """Fit an adapted predictor to these labels and their setting.

    Args:
        base: Predictor of other settings.
        labelled: At least 3 labels of one setting.
        seed: Seed of the folds of more than 30 labels.

    Returns:
        The predictor, whose interval is from its own spread and the errors on labels held out; and these errors.

    Raises:
        InputError: There are fewer than 3 labels.
    """
    graphs, latency_s = labelled.items, labelled.latency_s
    if len(graphs) < MIN_LABELS:
        found = len(graphs)
        raise InputError(f"{found} labelled networks are too few to adapt a predictor, which takes {MIN_LABELS}")
    predictor = AdaptedPredictor.of(base, labelled.setting)
    predictor.fit(Examples(graphs, latency_s))
    held_out = hold_out(predictor.labels.networks, predictor.labels.log_s, folds_of(len(graphs), seed))
    known = base.predictor
    floor = base.floor
    if isinstance(known, SettingsPredictor):
        taken = () if base.domain is None else base.domain.inputs
        floor = Floor(dict.fromkeys(taken, known.min_operator_s)) if known.min_operator_s > 0 else None
    trained = TrainedPredictor(
        predictor=predictor,
        bounds=base.bounds.wider(Bounds.of(graphs, latency_s)),
        residuals=held_out_residuals(held_out.log_errors[ADAPTED], held_out.deviation),
        setting=labelled.setting,
        dev_mae_s=float(np.mean(np.abs(np.expm1(held_out.log_errors[ADAPTED])) * latency_s)),
        domain=Domain.of(graphs) if base.domain is None else base.domain.wider(graphs),
        like=base.like,
        facts=facts_of(labelled.setting),
        floor=None if floor is None else floor.adapted(Examples(graphs, latency_s)),
    )
    return trained, held_out


@dataclass(frozen=True)
class AdaptationRun:
    """``adapted``: fitted to the rows ``chosen``; ``held_out``: errors of it and of baselines on these.

    ``odd``: labels unlike all others; those that cannot be right were set aside before all else. ``others``: rows that
    were not chosen; ``mape`` on them, by name of the prediction, and ``coverage``: the share of them inside the
    interval, of those that have one; None where there are none. ``units``: that labels are in two units, in words.
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
    units: str | None = None

    @property
    def learnt(self) -> LabelledSet[OperatorGraph]:
        """The labels that were chosen, in the order of ``held_out``."""
        return self.labelled.only(self.chosen)

    @property
    def odd_in_words(self) -> list[str]:
        """A sentence for each of ``odd``."""
        return [each.sentence(self.name(each.row), float(self.labelled.latency_s[each.row])) for each in self.odd]

    def name(self, row: int) -> str:
        """Return the name of a labelled network."""
        graph = self.labelled.items[row]
        return graph.name or graph.id

    @cached_property
    def sources(self) -> list[tuple[str, float]]:
        """Settings or base, roofline and three terms with their shares of the prediction, largest first."""
        base = self.base.predictor
        settings = base.settings if isinstance(base, SettingsPredictor) else (self.base.setting,)
        names = [*(f"{own.device} {own.backend} {own.precision}" for own in settings), "a roofline", THREE_TERM]
        shares = self._predictor.labels.shares
        return [(names[i], float(shares[i])) for i in np.argsort(-shares, kind="stable").tolist() if shares[i] >= 0.01]

    @property
    def _predictor(self) -> AdaptedPredictor:
        assert isinstance(self.adapted.predictor, AdaptedPredictor)
        return self.adapted.predictor

    @property
    def has_several_settings(self) -> bool:
        """True if the base answers for several settings."""
        return isinstance(self.base.predictor, SettingsPredictor)

    @property
    def base_setting(self) -> Setting:
        """Setting of the base; of many settings, the nearest to the labels."""
        base, labels = self.base.predictor, self._predictor.labels
        if not isinstance(base, SettingsPredictor):
            return self.base.setting
        return base.settings[nearest(labels.networks, labels.log_s)]

    @property
    def other_backend(self) -> str | None:
        """How labels of another backend than the base's were used, in words; None where nothing is known of the two."""
        if not self._predictor.change:
            return None
        there, here = self.base.setting.backend, self.labelled.setting.backend
        return f"labels were taken from {here} to {there} and answers back, by what random networks take in both"

    @property
    def harm(self) -> str | None:
        """Warning that a simpler prediction is better on the labels held out, or None."""
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
    def equal_labels(self) -> bool:
        """True if all labels are the same, whatever the network."""
        return bool(np.ptp(self.learnt.latency_s) <= MAX_EQUAL * self.learnt.latency_s.max())

    @property
    def doubts(self) -> list[str]:
        """What all labels together give reason to ask, a sentence each."""
        found = []
        label_s = self.learnt.latency_s
        if self.equal_labels:
            return [
                f"all {len(label_s)} labels are {label_s[0] * 1e3:.3g} ms, whatever the network: they tell nothing of "
                "any; was one value written for all?"
            ]
        if self.units is not None:
            return [self.units]
        times = float(np.exp(-np.median(self.held_out.log_errors[AS_IS])))
        if max(times, 1 / times) > MAX_TIMES:
            found.append(
                f"the labels are {times:.3g} times what the base predicts, in the median: are they in seconds?"
            )
        if (error := self.held_out.mape()) > MAX_HELD_OUT:
            found.append(
                f"held out in turn, the adapted predictor is {error:.0%} off: these labels tell nothing of one "
                "another. Is each that of the network it names, and are all of one setting?"
            )
        return found

    def scores(self) -> dict[str, Any]:
        """Return a JSON document."""
        return {
            "base": {"name": self.base.predictor.name, "setting": self.base_setting.document()},
            "taken_to_backend": None if self.other_backend is None else self.labelled.setting.backend,
            "setting": self.labelled.setting.document(),
            "sources": [{"source": name, "share": share} for name, share in self.sources],
            "set_aside": [
                {"graph_id": self.labelled.items[each.row].id, "times": each.times}
                for each in self.odd
                if each.is_clear
            ],
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
        """Write the adapted predictor and the scores as one artifact."""
        with create_artifact(path, KIND, config=config, seed=seed, force=force) as writer:
            self.adapted.write(writer)
            writer.write_json(SCORES, self.scores())


def adapt_and_score(
    base: TrainedPredictor[OperatorGraph],
    labelled: LabelledSet[OperatorGraph],
    samples: int | None = None,
    seed: int = 0,
    *,
    advance: Callable[[], object] = lambda: None,
) -> AdaptationRun:
    """Adapt to ``samples`` networks that the active sampler chooses, or to all; the labels of the rest only score.

    Chosen labels that cannot be right (``odd_labels``) are set aside, and so is one of up to 30 that the others
    contradict while each is held out (``doubtful_label``). ``advance``: called once the labels are
    fitted.

    Raises ``InputError`` when ``samples`` leaves nothing to score by, or there are too few labels.
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
    own = labelled.only(chosen)
    source = nearest(networks.take(chosen), log_s[chosen])
    base_s = np.exp(networks.log_answers[chosen, source]) * fresh.change.times(own.items)
    units = mixed_units(base_s, own.latency_s)
    odd = [replace(each, row=int(chosen[each.row])) for each in odd_labels(base_s, own.items, own.latency_s)]
    chosen = chosen[~np.isin(chosen, [each.row for each in odd if each.is_clear])]
    own = labelled.only(chosen)
    adapted, held_out = adapt(base, own, seed)
    found = suspects(held_out.log_errors[ADAPTED]) if len(own) <= MAX_LABELS_DOUBTED else []
    if found:
        rest = {row: adapt(base, own.only(np.delete(np.arange(len(own)), row)), seed) for row in found}
        row = min(rest, key=lambda row: rest[row][1].mape())
        errors = held_out.log_errors[ADAPTED], rest[row][1].log_errors[ADAPTED]
        label = doubtful_label(row, *errors, same_backend=base.setting.backend == own.setting.backend)
        if label is not None:
            odd = [*(each for each in odd if each.row != chosen[row]), replace(label, row=int(chosen[row]))]
            if label.is_clear:
                chosen, (adapted, held_out) = np.delete(chosen, row), rest[row]
    advance()
    mape, coverage = _on_others(labelled, networks, log_s, chosen, others, adapted) if len(others) else ({}, None)
    return AdaptationRun(base, adapted, labelled, chosen, held_out, others, mape, coverage, tuple(odd), units)


def _on_others(
    labelled: LabelledSet[OperatorGraph],
    networks: Networks,
    log_s: np.ndarray,
    chosen: np.ndarray,
    others: np.ndarray,
    adapted: TrainedPredictor[OperatorGraph],
) -> tuple[dict[str, float], float | None]:
    """Return the MAPE of each prediction on rows that were not chosen, and the share of them in the interval."""
    answers = baselines(networks.take(chosen), log_s[chosen], networks.take(others))
    mape = {name: float(np.mean(np.abs(np.expm1(own - log_s[others])))) for name, own in answers.items()}
    scores = adapted.held_out(labelled, others).scores()
    return {**mape, ADAPTED: scores["mape"]}, scores["interval_coverage"]
