"""A setting of which only a few labels are known: its function, by what the known settings make likely."""

from __future__ import annotations

from itertools import product

import numpy as np
from threadpoolctl import threadpool_limits

from slotool.predictors.features.amounts import CALLS_DEVIATION, GROUPS, group_shares
from slotool.predictors.labels import Setting
from slotool.predictors.settings.model import SMOOTH, Encoded, SettingsModel
from slotool.predictors.settings.price_prior import PricedLabels, PricePrior, terms_s

# How far a new setting's function lies from each known one (deviations of the weights of all known functions), how much
# it is one of its own (in units of the mean variance), and noise of its labels.
NEAR, OWN, NOISE = (0.05, 0.3), (0.003, 0.03, 0.15, 0.6), (0.02, 0.06, 0.15)
SHIFT, STRETCH = 2.0, 0.1
# How far prices of categories may differ from those of the known settings, in units of ``GROUPS``.
PRICES = (0.0, 0.3, 1.0)
DEVIATIONS = np.array([*GROUPS.values(), CALLS_DEVIATION])
BROAD = 1.0
FACTS = ("device", "backend", "threads", "batch_size", "precision")
# A known setting counts so many times less for each fact in which the new one differs.
FACT_ODDS = 0.7
MIN_WEIGHT = 1e-4
# How likely a setting is to be like none known, as odds, and then: deviations of a smooth rest, and of labels' noise.
UNLIKE_ODDS, UNLIKE_RESTS, UNLIKE_NOISES = 0.1, (0.1, 0.25), (0.03, 0.1)


class Function:
    """A new setting's function, found by its labels: the Gaussian mixture of functions that the known settings make
    likely, conditioned on them.

    Each known setting is one hypothesis: the new function is near its, stretched, shifted, with a share in the others,
    other prices of categories of operators (to first order: a network's shares × log price), and a part of its own that
    is smooth in the encoder's kernel. Another is their mean, and far from it. A last one knows none of these functions,
    but how prices of all work differ from setting to setting (``PricePrior``): the new setting is like none known. All
    are weighed by how likely they make the labels, ``sources`` says how much each known setting got, and ``unlike`` how
    much the last. ``at``: the labelled networks; ``log_s``: their labels, float64 [m].
    """

    def __init__(self, model: SettingsModel, at: Encoded, log_s: np.ndarray, setting: Setting | None = None):
        self.model, self.at, self.log_s = model, at, log_s
        self._functions = model.answer(at)
        self._own = model.encoder.kernel(at.at, at.at)
        self._priced = _priced(at)
        self._middle = float((self._functions - at.roofline[:, None]).mean())
        with threadpool_limits(1):
            fits: list[_Hypothesis | _Unlike] = [_Hypothesis(self, *numbers) for numbers in self._hypotheses(setting)]
            fits += self._unlike(setting)
        evidence = np.array([each.evidence for each in fits])
        weights = np.exp(evidence - evidence.max())
        weights /= weights.sum()
        kept = weights > MIN_WEIGHT
        self._fits = [each for each, keep in zip(fits, kept.tolist(), strict=True) if keep]
        self._weights = weights[kept] / weights[kept].sum()
        of = np.array([-1 if each.source is None else each.source for each in fits])
        self.sources = np.array([weights[of == s].sum() for s in range(len(model.settings))])
        self.unlike = float(sum(weights[i] for i, each in enumerate(fits) if isinstance(each, _Unlike)))

    def _hypotheses(self, setting: Setting | None) -> list[tuple[int | None, float, float, float, float, float]]:
        """Source or None, near, own, prices, noise, and log of the prior weight."""
        found: list[tuple[int | None, float, float, float, float, float]] = []
        parts = [*range(len(self.model.settings))]
        prior = np.array([fact_odds(setting, known) for known in self.model.settings])
        prior = np.log(prior / prior.sum())
        for numbers in product(OWN, PRICES, NOISE):
            found.append((None, BROAD, *numbers, 0.0))
            found += [(source, near, *numbers, float(prior[source])) for source in parts for near in NEAR]
        return found

    def _unlike(self, setting: Setting | None) -> list[_Unlike]:
        prior = self.model.price_prior
        if prior is None:
            return []
        sizes = [known.batch_size for known in self.model.settings] if setting is None else [setting.batch_size]
        numbers = list(product(UNLIKE_RESTS, UNLIKE_NOISES))
        others = sum(np.exp(each[-1]) for each in self._hypotheses(setting))
        odds = float(np.log(UNLIKE_ODDS * others / len(numbers)))
        return [_Unlike(self, prior, int(np.median(sizes)), *each, odds) for each in numbers]

    def answer(self, asked: Encoded) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of log(seconds), a label's noise included, float64 [n] each."""
        functions, across = self.model.answer(asked), self.model.encoder.kernel(asked.at, self.at.at)
        diagonal = self.model.encoder.variances(asked.at)
        pairs = [each.answer(functions, asked, across, diagonal) for each in self._fits]
        means, variances = (np.stack(part) for part in zip(*pairs, strict=True))
        mean = self._weights @ means
        return mean, self._weights @ (variances + (means - mean) ** 2)

    def left_out(self) -> np.ndarray:
        """Error of each label, log(predicted ÷ label), from all others, float64 [m]."""
        return np.asarray(self._weights @ np.stack([each.left_out for each in self._fits]))


class _Hypothesis:
    """One Gaussian process of the mixture. Functions are centred on the roofline, and on ``middle``, over the labels'
    networks."""

    def __init__(
        self, of: Function, source: int | None, near: float, own: float, prices: float, noise: float, prior: float
    ):
        self.source, self._near, self._noise = source, near, noise
        self._own = own * float(of.model.variance.mean())
        self._spots = _centred(of._functions, of.at.roofline, of._middle)
        self._priced = prices * of._priced
        base = self._mean(of._functions)
        covariance = self._covariance(self._spots, self._spots) + self._own * of._own + noise**2 * np.eye(len(base))
        covariance += self._priced @ self._priced.T
        self._inverse = np.linalg.inv(covariance)
        residual = of.log_s - base
        self._alpha = self._inverse @ residual
        sign = np.linalg.slogdet(self._inverse)[1]
        self.evidence = float(-0.5 * residual @ self._alpha + 0.5 * sign) + prior
        self._middle, self._prices = of._middle, prices
        self.left_out = -self._alpha / np.diag(self._inverse)

    def _mean(self, functions: np.ndarray) -> np.ndarray:
        return np.asarray(functions.mean(axis=1) if self.source is None else functions[:, self.source])

    def _covariance(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Shift, stretch of the mean function, and a share in how each known setting differs from the mean."""
        means = first.mean(axis=1), second.mean(axis=1)
        apart = (first - means[0][:, None]) @ (second - means[1][:, None]).T / first.shape[1]
        return np.asarray(SHIFT**2 + STRETCH**2 * np.outer(*means) + self._near * apart)

    def answer(
        self, functions: np.ndarray, asked: Encoded, across: np.ndarray, diagonal: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        spots, priced = _centred(functions, asked.roofline, self._middle), self._prices * _priced(asked)
        between = self._covariance(spots, self._spots) + self._own * across + priced @ self._priced.T
        means = spots.mean(axis=1)
        apart = np.mean((spots - means[:, None]) ** 2, axis=1)
        before = SHIFT**2 + STRETCH**2 * means**2 + self._near * apart + self._own * diagonal
        before += np.sum(priced**2, axis=1)
        after = before - np.sum((between @ self._inverse) * between, axis=1)
        return self._mean(functions) + between @ self._alpha, np.maximum(after, 0.0) + self._noise**2


class _Unlike:
    """One hypothesis that goes by prices alone. ``rest``, ``noise``: deviations."""

    source: int | None = None

    def __init__(self, of: Function, prior: PricePrior, batch_size: int, rest: float, noise: float, odds: float):
        self._batch_size, self._rest, self._noise = batch_size, rest**2 / SMOOTH, noise
        left = self._rest * of._own + noise**2 * np.eye(len(of.log_s))
        self._labels = PricedLabels(prior, terms_s(of.at.work, batch_size), of.log_s, left)
        self.evidence, self.left_out = self._labels.evidence + odds, self._labels.left_out

    def answer(
        self, functions: np.ndarray, asked: Encoded, across: np.ndarray, diagonal: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        terms = terms_s(asked.work, self._batch_size)
        mean, variance = self._labels.answer(terms, self._rest * across, self._rest * diagonal)
        return mean, variance + self._noise**2


def _priced(asked: Encoded) -> np.ndarray:
    """float64 [n, groups + 1]: shares of categories, by how much their prices differ."""
    return np.asarray(group_shares(asked.work) * DEVIATIONS)


def _centred(functions: np.ndarray, roofline: np.ndarray, middle: float) -> np.ndarray:
    return np.asarray(functions - roofline[:, None] - middle)


def fact_odds(new: Setting | None, known: Setting) -> float:
    """How much a known setting counts before any label: less for each fact in which it differs from the new one."""
    if new is None:
        return 1.0
    differing = sum(getattr(new, fact) != getattr(known, fact) for fact in FACTS)
    return float(FACT_ODDS**differing)


def covariance_before(model: SettingsModel, asked: Encoded) -> tuple[np.ndarray, float]:
    """Covariance [n, n] of log(seconds) of networks in a setting that nothing is known of, and the variance of a
    label's noise: what choosing networks to measure goes by."""
    spots = _centred(model.answer(asked), asked.roofline, 0.0)
    means = spots.mean(axis=1)
    apart = (spots - means[:, None]) @ (spots - means[:, None]).T / spots.shape[1]
    own = OWN[2] * float(model.variance.mean()) * model.encoder.kernel(asked.at, asked.at)
    return SHIFT**2 + STRETCH**2 * np.outer(means, means) + BROAD * apart + own, NOISE[1] ** 2
