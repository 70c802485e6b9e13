"""Model of labels in many settings: one encoder of networks, and a function of it for every setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from slotool import strict_json
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Document, Tensors
from slotool.predictors.features.network_features import (
    AMOUNTS,
    FEATURES,
    RIDGE,
    RIDGE_BY_CATEGORY,
    WORK,
    amounts,
    log_seconds,
    network_features,
    prices,
)
from slotool.predictors.labels import MIN_LABELS_OF_SETTING, Setting

# More networks take the cube of their number to fit, the square to store.
MAX_NETWORKS = 2000
# Choices of the encoder, which is that of greatest likelihood of all labels: reach of a network in features (deviations
# × the square root of their number), share of the linear part, and noise of labels.
REACHES, LINEAR, NOISES = (0.35, 0.5, 0.7, 1.0, 1.4), (0.01, 0.03, 0.1, 0.3), (0.001, 0.003, 0.01, 0.03, 0.1)
SMOOTH = 0.5
MAX_DEVIATIONS, JITTER = 5.0, 1e-8
# Root mean square distance within which two networks count as one: labels of timm's networks differ there by 1 % in the
# median, at twice the distance by 2 %, at ten times by 25 %.
SAME_NETWORK = 0.01
OPERATORS = WORK.index("operators")


@dataclass(frozen=True)
class Encoder:
    """Scaled features of networks, and the covariance of their latencies, ``kernel``, the same in all settings.

    ``mean`` and ``deviation``: of the features of the training networks, float64 [``FEATURES``].
    """

    mean: np.ndarray
    deviation: np.ndarray
    reach: float
    linear: float
    noise: float

    def encoded(self, features: np.ndarray) -> np.ndarray:
        """Return features in deviations from the mean, float64 [n, ``FEATURES``]."""
        scaled = (features - self.mean) / self.deviation
        return np.asarray(np.clip(scaled, -MAX_DEVIATIONS, MAX_DEVIATIONS))

    def kernel(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the covariance [n, m] of log(seconds ÷ roofline) of encoded networks, in units of ``variance``."""
        width = first.shape[1]
        near = np.exp(-cdist(first, second, "sqeuclidean") / (2 * self.reach**2 * width))
        return np.asarray(SMOOTH * near + self.linear * first @ second.T / width)

    def variances(self, encoded: np.ndarray) -> np.ndarray:
        return np.asarray(SMOOTH + self.linear * np.mean(encoded**2, axis=1))


@dataclass(frozen=True)
class SettingsModel:
    """Prices of work, and Gaussian processes over networks, one for each of S settings, with one encoder.

    log(seconds) is the mean of two predictions. One is the log of Σ amount × price over all ``AMOUNTS``. The other is
    that of the totals alone, plus a level and a smooth function of the encoded network. Prices extend to families of
    networks without labels, where such a function has no data; the function learns the rest of the latency.

    ``prices_s`` float64 [``AMOUNTS``, S], ``total_prices_s`` [``WORK``, S]; ``min_operator_s`` [S]: the smallest
    seconds per operator of a labelled network. ``known`` float32 [n, ``FEATURES``] are the encoded
    training networks; ``log_s`` float64 [n, S] their labels, log(seconds), NaN where there is none; ``weights`` float64
    [n, S] their weights in each function, 0 where there is no label; ``level`` and ``variance`` float64 [S].
    """

    settings: tuple[Setting, ...]
    encoder: Encoder
    known: np.ndarray
    log_s: np.ndarray
    weights: np.ndarray
    level: np.ndarray
    variance: np.ndarray
    prices_s: np.ndarray
    total_prices_s: np.ndarray
    min_operator_s: np.ndarray

    @classmethod
    def fit(cls, features: np.ndarray, latency_s: np.ndarray, settings: Sequence[Setting]) -> Self:
        """Fit to ``network_features`` [n, ``FEATURES``] and labels, float64 seconds [n, S], NaN where there is none.

        Raises ``InputError`` if a setting has fewer than ten labels.
        """
        labelled = np.isfinite(latency_s)
        for setting, count in zip(settings, labelled.sum(axis=0).tolist(), strict=True):
            if count < MIN_LABELS_OF_SETTING:
                raise InputError(f"{setting}: {count} labels, but a setting is learnt from {MIN_LABELS_OF_SETTING}")
        deviation = features.std(axis=0)
        mean, deviation = features.mean(axis=0), np.where(deviation > 1e-6, deviation, 1.0)
        log_s, work = np.log(np.where(labelled, latency_s, 1.0)), amounts(features)
        pairs = [(work[rows], log_s[rows, s]) for s, rows in enumerate(labelled.T)]
        all_prices = np.column_stack([prices(rows, labels, RIDGE_BY_CATEGORY) for rows, labels in pairs])
        of_totals = np.column_stack([prices(rows[:, : len(WORK)], labels, RIDGE) for rows, labels in pairs])
        target = log_s - log_seconds(work[:, : len(WORK)], of_totals)
        min_operator_s = np.array([np.min(np.exp(labels) / rows[:, OPERATORS]) for rows, labels in pairs])
        level = np.array([target[rows, s].mean() for s, rows in enumerate(labelled.T)])
        target = np.where(labelled, target - level, 0.0)
        with threadpool_limits(2):
            encoded = Encoder(mean, deviation, 1.0, 0.1, 0.01).encoded(features).astype(np.float32).astype(np.float64)
            encoder = _likeliest(encoded, target, labelled, mean, deviation)
            weights, variance, _ = _solved(encoder, encoder.kernel(encoded, encoded), target, labelled)
        work_prices = (all_prices, of_totals, min_operator_s)
        labels = np.where(labelled, log_s, np.nan)
        return cls(tuple(settings), encoder, encoded, labels, weights, level, variance, *work_prices)

    def features(self, graphs: Sequence[OperatorGraph]) -> Encoded:
        return self.encode(network_features(graphs))

    def encode(self, features: np.ndarray) -> Encoded:
        return Encoded(self.encoder.encoded(features), amounts(features))

    def answer(self, networks: Encoded) -> np.ndarray:
        return np.asarray(sum(self._answers(networks)) / 2)

    def labels_or_answers(self, networks: Encoded) -> np.ndarray:
        """Return log(seconds) in every setting, float64 [n, S]: labels of the same network, else predictions."""
        answers = self.answer(networks)
        apart = cdist(networks.at, self.known) / np.sqrt(self.known.shape[1])
        nearest = apart.argmin(axis=1)
        labels = np.where(apart.min(axis=1)[:, None] <= SAME_NETWORK, self.log_s[nearest], np.nan)
        return np.asarray(np.where(np.isfinite(labels), labels, answers))

    @cached_property
    def labelled(self) -> np.ndarray:
        """True for each network with a label in a setting, bool [n, S]."""
        return np.asarray(np.isfinite(self.log_s))

    def _answers(self, networks: Encoded) -> tuple[np.ndarray, np.ndarray]:
        """Predict log(seconds) by prices, and by totals with a smooth function, float64 [n, S] each."""
        smooth = self.level + self.encoder.kernel(networks.at, self.known) @ self.weights
        of_totals = log_seconds(networks.work[:, : len(WORK)], self.total_prices_s)
        return log_seconds(networks.work, self.prices_s), of_totals + smooth

    def spread(self, networks: Encoded, setting: int) -> np.ndarray:
        """Return the deviation of log(seconds) in a setting, a label's noise included, float64 > 0 [n].

        It combines the deviation of the Gaussian process with the difference of the two predictions.
        """
        rows = np.flatnonzero(self.labelled[:, setting])
        across = solve_triangular(self._factor(setting), self.encoder.kernel(self.known[rows], networks.at), lower=True)
        remaining = np.maximum(self.encoder.variances(networks.at) - np.sum(across**2, axis=0), 0.0)
        by_prices, by_function = (answers[:, setting] for answers in self._answers(networks))
        apart = (by_prices - by_function) / 2
        return np.asarray(np.sqrt(self.variance[setting] * (remaining + self.encoder.noise) + apart**2))

    def _factor(self, setting: int) -> np.ndarray:
        rows = self.labelled[:, setting]
        key = rows.tobytes()
        if key not in self._factors:
            kernel = self.encoder.kernel(self.known[rows], self.known[rows])
            try:
                self._factors[key] = np.linalg.cholesky(kernel + (self.encoder.noise + JITTER) * np.eye(len(kernel)))
            except np.linalg.LinAlgError:
                raise InputError("the predictor's file is damaged: its covariances are none; train it again") from None
        return self._factors[key]

    @cached_property
    def _factors(self) -> dict[bytes, np.ndarray]:
        """Cholesky factors by set of labelled networks."""
        return {}

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors = {
            "mean": self.encoder.mean,
            "deviation": self.encoder.deviation,
            "known": self.known.astype(np.float32),
            "labelled": self.labelled.astype(np.uint8),
            "log_s": np.where(self.labelled, self.log_s, 0.0),
            "weights": self.weights,
            "level": self.level,
            "variance": self.variance,
            "prices_s": self.prices_s,
            "total_prices_s": self.total_prices_s,
            "min_operator_s": self.min_operator_s,
        }
        encoder = {name: getattr(self.encoder, name) for name in ("reach", "linear", "noise")}
        settings = [setting.document() for setting in self.settings]
        return tensors, {"features": list(FEATURES), "encoder": encoder, "settings": settings}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        """Restore from a ``state``. Raises ``InputError`` for other features, or parts that do not fit."""
        if document["features"] != list(FEATURES) or not {"prices_s", "labelled", "log_s"} <= tensors.keys():
            raise InputError("the predictor was trained with other features of networks than this slotool has: retrain")
        numbers = strict_json.convert(document["encoder"], dict[str, float])
        settings = tuple(map(Setting.from_document, document["settings"]))
        encoded, weights = tensors["known"].astype(np.float64), tensors["weights"]
        shape = (len(encoded), len(settings))
        labelled = tensors["labelled"].astype(bool)
        work = tensors["prices_s"], tensors["total_prices_s"]
        if [prices.shape for prices in work] != [(len(AMOUNTS), len(settings)), (len(WORK), len(settings))]:
            raise InputError(f"the prices of work do not fit the {len(settings)} settings")
        shapes = {weights.shape, labelled.shape, tensors["log_s"].shape}
        if encoded.shape[1:] != (len(FEATURES),) or shapes != {shape}:
            raise InputError(f"the weights of {len(encoded)} networks do not fit the {len(settings)} settings")
        log_s = np.where(labelled, tensors["log_s"], np.nan)
        encoder = Encoder(tensors["mean"], tensors["deviation"], **numbers)
        min_operator_s = tensors["min_operator_s"]
        if min_operator_s.shape != (len(settings),):
            raise InputError(f"the seconds of an operator do not fit the {len(settings)} settings")
        levels = (tensors["level"], tensors["variance"])
        return cls(settings, encoder, encoded, log_s, weights, *levels, *work, min_operator_s)


class Encoded(NamedTuple):
    """Networks as input of a model: ``at``, encoded features [n, ``FEATURES``], and ``work`` [n, ``AMOUNTS``]."""

    at: np.ndarray
    work: np.ndarray


def _solved(
    encoder: Encoder, kernel: np.ndarray, target: np.ndarray, labelled: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return weights [n, S], variance [S] of greatest likelihood, and the log likelihood of all labels."""
    weights, variance, likelihood = np.zeros(target.shape), np.empty(target.shape[1]), 0.0
    masks: Mapping[bytes, list[int]] = _by_mask(labelled)
    for settings in masks.values():
        rows = labelled[:, settings[0]]
        count = int(rows.sum())
        factor = np.linalg.cholesky(kernel[np.ix_(rows, rows)] + (encoder.noise + JITTER) * np.eye(count))
        labels = target[rows][:, settings]
        solved = cho_solve((factor, True), labels)
        weights[np.flatnonzero(rows)[:, None], settings] = solved
        scale = np.maximum(np.mean(labels * solved, axis=0), 1e-9)
        variance[settings] = scale
        determinant = float(np.log(np.diag(factor)).sum())
        likelihood -= float(np.sum(0.5 * count * np.log(scale) + determinant))
    return weights, variance, likelihood


def _by_mask(labelled: np.ndarray) -> dict[bytes, list[int]]:
    """Group settings with labels of the same networks, which share one Cholesky factor."""
    by_mask: dict[bytes, list[int]] = {}
    for setting, mask in enumerate(labelled.T):
        by_mask.setdefault(mask.tobytes(), []).append(setting)
    return by_mask


def _likeliest(
    encoded: np.ndarray, target: np.ndarray, labelled: np.ndarray, mean: np.ndarray, deviation: np.ndarray
) -> Encoder:
    """Return the encoder of greatest likelihood of all labels, by a search along one number at a time."""
    # A sample of many networks is enough.
    some = np.sort(np.random.default_rng(0).permutation(len(encoded))[:600])
    sample, labels, is_labelled = encoded[some], target[some], labelled[some]
    best = Encoder(mean, deviation, 0.7, 0.1, 0.003)
    tried: dict[tuple[float, float, float], float] = {}

    def likelihood(numbers: tuple[float, float, float]) -> float:
        if numbers not in tried:
            encoder = Encoder(mean, deviation, *numbers)
            tried[numbers] = _solved(encoder, encoder.kernel(sample, sample), labels, is_labelled)[2]
        return tried[numbers]

    numbers = (best.reach, best.linear, best.noise)
    for at, values in (*enumerate((REACHES, LINEAR, NOISES)), *enumerate((REACHES, LINEAR, NOISES))):
        options = [(*numbers[:at], value, *numbers[at + 1 :]) for value in values]
        numbers = max(options, key=likelihood)  # type: ignore[assignment, arg-type]  # three numbers each
    return Encoder(mean, deviation, *numbers)
