"""Ways to predict a new setting from a predictor of another and a few labels, scored on labels held out in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.base import NO_EXAMPLES, Examples, Predictor
from slotool.predictors.features.backend_prices import NO_PRICES, Prices
from slotool.predictors.features.type_costs import TypeCosts
from slotool.predictors.settings.predictor import SettingsPredictor
from slotool.predictors.solo.additive import AdditivePredictor
from slotool.predictors.solo.three_term import ThreeTermPredictor
from slotool.predictors.transfer.adapted import MAX_LABELS, MIN_LABELS, AdaptedPredictor
from slotool.predictors.transfer.composition import CompositionPredictor
from slotool.predictors.transfer.ensemble import EnsemblePredictor, blended, inverse_errors
from slotool.predictors.transfer.residual import ResidualPredictor
from slotool.predictors.transfer.scaled import ScaledPredictor

AS_IS, SCRATCH, ADAPTED_THREE_TERM = "as it is", "from scratch", "adapted three-term"
SCALED, THREE_TERM, ADAPTED = ScaledPredictor.name, ThreeTermPredictor.name, AdaptedPredictor.name
COMPOSITION, ENSEMBLE, SETTINGS = CompositionPredictor.name, EnsemblePredictor.name, SettingsPredictor.name
RESIDUAL = ResidualPredictor.name
Fit = Callable[[Examples[OperatorGraph]], Predictor[OperatorGraph]]
# Up to so many labels each is left out alone; of more, a tenth at a time, in an order the seed draws.
MAX_LEFT_OUT_ALONE = 30
FOLDS = 10
# ``composition`` has this share of the ensemble whatever the held-out errors. The rest is the median of all contenders
# where labels are few, whose errors tell little of other networks; of more all have it by these errors.
COMPOSITION_SHARE = 0.5
MAX_LABELS_OF_MEDIAN = 20
# A single contender is kept in place of the ensemble if that errs so many times as much, and in place of a predictor of
# many settings if it is better by so many standard errors.
MAX_TIMES_WORSE, CLEARLY = 2.0, 2.0
# Draws of labels of six settings where one contender's held-out error was lower than the ensemble's, and those of them
# where it was worse on all other networks, also in three of the four where it was ahead by over one standard error.
PICKS_TRIED, PICKS_WORSE = 18, 14


@dataclass(frozen=True)
class Known:
    """What is known of a setting besides its labels and a base. ``settings``: a predictor of many settings, to be taken
    to this one; ``prices``: of its backend (``other_backend.prices_in``)."""

    settings: SettingsPredictor | None = None
    prices: Mapping[str, Prices] = field(default_factory=lambda: NO_PRICES)


NOTHING = Known()


def contenders(base: Predictor[OperatorGraph], count: int, known: Known = NOTHING) -> dict[str, Fit]:
    """Simplest first, those that take this many labels."""
    settings, prices = known.settings, known.prices
    fits: dict[str, Fit] = {
        SCALED: lambda labels: _fit(ScaledPredictor(base), labels),
        THREE_TERM: lambda labels: _fit(ThreeTermPredictor(), labels),
        SCRATCH: lambda labels: _fit(AdditivePredictor(), labels),
        RESIDUAL: lambda labels: _fit(ResidualPredictor(base, prices), labels),
    }
    if MIN_LABELS <= count <= MAX_LABELS:
        fits[ADAPTED] = lambda labels: _fit(AdaptedPredictor(base, prices), labels)
        fits[ADAPTED_THREE_TERM] = lambda labels: _adapted_three_term(labels, prices)
        fits[COMPOSITION] = lambda labels: _fit(CompositionPredictor(base, prices), labels)
        if settings is not None:
            fits[SETTINGS] = lambda labels: _fit(settings.for_new(settings.target), labels)
    return fits


def _adapted_three_term(labels: Examples[OperatorGraph], prices: Mapping[str, Prices]) -> Predictor[OperatorGraph]:
    """Where the base is worth little: the labels' own regression, corrected by the same labels."""
    return _fit(AdaptedPredictor(_fit(ThreeTermPredictor(), labels), prices), labels)


@dataclass(frozen=True)
class HeldOut:
    """``log_errors``: by contender, log(predicted ÷ label) of each label while it was held out, float64 [n]. That of
    the ensemble has weights that the other labels gave."""

    log_errors: Mapping[str, np.ndarray]

    def mape(self, name: str) -> float:
        return float(np.mean(self.relative(name)))

    def relative(self, name: str) -> np.ndarray:
        """|predicted ÷ label − 1|, float64 [n]."""
        relative: np.ndarray = np.abs(np.exp(self.log_errors[name]) - 1)
        return relative

    def best(self) -> str:
        """The ensemble, unless it errs more than ``MAX_TIMES_WORSE`` times as much as one contender.

        With ten labels the lowest of several errors is lowest by luck as often as by merit, and the ensemble does not
        bet on one: keeping a contender wherever it was better by two standard errors, or by a quarter, made the error
        of other networks larger in nine of ten settings. The untouched base is shown, not chosen among. Of a predictor
        of many settings that one is kept, which weighs all it knows itself, unless another is better by ``CLEARLY``
        standard errors of the difference.
        """
        single = self.single
        if SETTINGS not in self.log_errors:
            return single if self.mape(ENSEMBLE) > MAX_TIMES_WORSE * self.mape(single) else ENSEMBLE
        gain, error = self.gain(SETTINGS, single)
        return single if gain > CLEARLY * error else SETTINGS

    @property
    def single(self) -> str:
        """The contender of lowest error, the ensemble and the untouched base apart."""
        return min((name for name in self.log_errors if name not in (AS_IS, ENSEMBLE)), key=self.mape)

    def gain(self, kept: str, other: str) -> tuple[float, float]:
        """By how much ``other`` errs less than ``kept`` on the same labels, in the mean, and its standard error."""
        found = self.relative(kept) - self.relative(other)
        return float(np.mean(found)), float(np.std(found, ddof=1)) / np.sqrt(len(found))

    def why(self) -> str:
        """The reason for ``best``, as the end of a sentence."""
        kept, single = self.best(), self.single
        if kept == single and kept != SETTINGS:
            return "its error on held-out labels is clearly the lowest"
        what = "it weighs all settings it knows by the labels"
        if kept == ENSEMBLE:
            few = len(self.log_errors[kept]) <= MAX_LABELS_OF_MEDIAN and COMPOSITION in self.log_errors
            what = f"the mean of all, {f'half {COMPOSITION}, half their median' if few else 'by their held-out errors'}"
        gain, error = self.gain(kept, single)
        if gain <= 0:
            return f"{what}; none of the others has a lower error"
        labels = len(self.log_errors[kept])
        less = f"{what}; {single} alone erred {gain:.1%} ± {error:.1%} less on the {labels} held-out labels"
        if kept == SETTINGS:
            return f"{less}, which is less than the {CLEARLY:g} standard errors that count"
        return (
            f"{less}, but these labels also chose it among {len(self.log_errors) - 2}, and in {PICKS_WORSE} of "
            f"{PICKS_TRIED} trials such a choice erred more on other networks than the mean did"
        )


def hold_out(
    base: Predictor[OperatorGraph],
    labels: Examples[OperatorGraph],
    seed: int = 0,
    known: Known = NOTHING,
    groups: Sequence[str] | None = None,
    advance: Callable[[], object] = lambda: None,
) -> HeldOut:
    """Fit every contender without each label in turn, or without each of ``groups`` in turn, which name one for each
    label; ``advance`` is called after each of these turns."""
    graphs, latency_s = labels
    n = len(graphs)
    remembered = cast("Predictor[OperatorGraph]", _Answers(base, graphs))
    folds = _folds(n, seed) if groups is None else folds_of(groups)
    # Three labels leave two to learn from: then those that need three do not take part.
    fits = contenders(remembered, n - max(map(len, folds)), known)
    errors = {name: np.empty(n) for name in fits}
    for asked in folds:
        learnt = np.setdiff1d(np.arange(n), asked)
        for name, fit in fits.items():
            predictor = fit(Examples([graphs[i] for i in learnt], latency_s[learnt]))
            errors[name][asked] = np.log(predictor.predict([graphs[i] for i in asked]) / latency_s[asked])
        advance()
    found = {AS_IS: np.log(remembered.predict(graphs) / latency_s), **errors}
    return HeldOut({**found, ENSEMBLE: _ensemble_errors(errors)})


def fitted(
    name: str,
    base: Predictor[OperatorGraph],
    labels: Examples[OperatorGraph],
    held_out: HeldOut,
    known: Known = NOTHING,
) -> Predictor[OperatorGraph]:
    """The contender of this name, fitted to all labels."""
    fits = contenders(base, len(labels.items), known)
    if name != ENSEMBLE:
        return fits[name](labels)
    names = [each for each in fits if each in held_out.log_errors]
    weights, median_share = _shares({each: held_out.log_errors[each] for each in names}, len(labels.items))
    found = zip(names, weights.tolist(), strict=True)
    kept = {each: weight for each, weight in found if weight > 0 or median_share > 0}
    return EnsemblePredictor([fits[each](labels) for each in kept], list(kept.values()), median_share)


def _shares(log_errors: Mapping[str, np.ndarray], count: int) -> tuple[np.ndarray, float]:
    """Of each contender in the mean, float64 [m], and of their median, in the ensemble of so many labels, by held-out
    errors."""
    errors = np.stack(list(log_errors.values()))
    if COMPOSITION not in log_errors:
        return inverse_errors(errors), 0.0
    one = np.array([float(name == COMPOSITION) for name in log_errors])
    if count <= MAX_LABELS_OF_MEDIAN:
        return one, 1 - COMPOSITION_SHARE
    return COMPOSITION_SHARE * one + (1 - COMPOSITION_SHARE) * inverse_errors(errors), 0.0


def _ensemble_errors(log_errors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Of each label, with weights from the held-out errors of the others."""
    errors = np.stack(list(log_errors.values()))
    rest = [{name: np.delete(own, i) for name, own in log_errors.items()} for i in range(errors.shape[1])]
    return np.array([blended(errors[:, i], *_shares(others, errors.shape[1])) for i, others in enumerate(rest)])


def _fit(predictor: Predictor[OperatorGraph], labels: Examples[OperatorGraph]) -> Predictor[OperatorGraph]:
    predictor.fit(labels, NO_EXAMPLES, seed=0)
    return predictor


def turns(n: int) -> int:
    """How often ``hold_out`` calls ``advance`` for so many labels without groups."""
    return len(_folds(n, seed=0))


def _folds(n: int, seed: int) -> list[np.ndarray]:
    if n <= MAX_LEFT_OUT_ALONE:
        return [np.array([row]) for row in range(n)]
    return np.array_split(np.random.default_rng(seed).permutation(n), FOLDS)


def folds_of(groups: Sequence[str]) -> list[np.ndarray]:
    """The rows of each group, int64 [members]."""
    return [np.flatnonzero(np.array(groups) == group) for group in sorted(set(groups))]


def roofline_mape(labels: Examples[OperatorGraph], groups: Sequence[str]) -> float:
    """Mean absolute percentage error of the neutral roofline (``TypeCosts``) times one factor, the median of label ÷
    roofline over the labels of all other groups."""
    ratio = labels.latency_s / TypeCosts.of(labels.items).total_s
    folds = folds_of(groups)
    factors = [float(np.median(np.delete(ratio, rows))) for rows in folds]
    return float(np.mean(np.concatenate([np.abs(f / ratio[rows] - 1) for f, rows in zip(factors, folds, strict=True)])))


class _Answers:
    """What contenders ask of a base, its predictions, of these graphs: computed once for all folds."""

    def __init__(self, base: Predictor[OperatorGraph], graphs: Sequence[OperatorGraph]):
        answers = zip(graphs, base.predict(graphs).tolist(), strict=True)
        self._known = {graph.id: seconds for graph, seconds in answers}
        self.name = base.name

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        return np.array([self._known[graph.id] for graph in graphs])
