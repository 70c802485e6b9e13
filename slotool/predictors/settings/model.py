"""Model of labels in many settings: prices of work in each, and the labels themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy.spatial.distance import cdist

from slotool.errors import InputError
from slotool.predictors.base import Document, Tensors
from slotool.predictors.features.network_features import AMOUNTS, FEATURES, amounts, relative_prices
from slotool.predictors.labels import MIN_LABELS_OF_SETTING, Setting

# More networks make a file of some megabytes.
MAX_NETWORKS = 2000
# Ridge penalty on prices, as a share of the number of labels.
RIDGE = 0.02
# Predictions are at least this share of the smallest time per operator in any label, as prices may be zero; smaller
# differences may be ordinary errors.
CLEARLY_BELOW = 0.5
# Largest difference of a feature between networks that count as one.
SAME_NETWORK = 0.01
# Errors grow by this many times those near labelled networks for each deviation between a network and the nearest of
# these. Held-out families of timm: with 2 to 4 their nearest quarter and their farthest tenth are covered alike.
WIDER = 3.0
OPERATORS = FEATURES.index("log operators")
COST_SHARES = [at for at, name in enumerate(FEATURES) if name.startswith("cost share")]


@dataclass(frozen=True)
class SettingsModel:
    """Prices of work in each of S settings: seconds are Σ amount × price over ``AMOUNTS``.

    Prices extend to families of networks without labels.

    Attributes:
        settings: The settings.
        known: ``network_features`` of the training networks, float64 [n, ``FEATURES``].
        log_s: Their labels, log(seconds), float64 [n, S], NaN where there is none.
        prices_s: Seconds per amount, float64 [``AMOUNTS``, S].
    """

    settings: tuple[Setting, ...]
    known: np.ndarray
    log_s: np.ndarray
    prices_s: np.ndarray

    @classmethod
    def fit(cls, features: np.ndarray, latency_s: np.ndarray, settings: Sequence[Setting]) -> Self:
        """Fit to ``network_features`` [n, ``FEATURES``] and labels, float64 seconds [n, S], NaN where there is none.

        Raises ``InputError`` if a setting has fewer than ten labels.
        """
        features = features.astype(np.float32).astype(np.float64)  # as they are stored
        labelled, work, prices = np.isfinite(latency_s), amounts(features), []
        for s, setting in enumerate(settings):
            rows = labelled[:, s]
            if (count := int(rows.sum())) < MIN_LABELS_OF_SETTING:
                raise InputError(f"{setting}: {count} labels, but a setting is learnt from {MIN_LABELS_OF_SETTING}")
            prices.append(relative_prices(work[rows], latency_s[rows, s], ridge=RIDGE))
        return cls(tuple(settings), features, np.log(latency_s), np.column_stack(prices))

    def answers(self, features: np.ndarray) -> np.ndarray:
        """Predict log(seconds) in every setting, float64 [n, S]."""
        log_min_s = features[:, [OPERATORS]] + self._log_operator_s
        return np.asarray(np.log(np.maximum(amounts(features) @ self.prices_s, CLEARLY_BELOW * np.exp(log_min_s))))

    def labels(self, features: np.ndarray) -> np.ndarray:
        """Return the labels of the same networks, log(seconds) [n, S], NaN where there is none."""
        apart = cdist(features, self.known, "chebyshev")
        is_known = apart.min(axis=1)[:, None] <= SAME_NETWORK
        return np.asarray(np.where(is_known, self.log_s[apart.argmin(axis=1)], np.nan))

    def labels_or_answers(self, features: np.ndarray) -> np.ndarray:
        labels = self.labels(features)
        return np.asarray(np.where(np.isfinite(labels), labels, self.answers(features)))

    def spread(self, features: np.ndarray, setting: int) -> np.ndarray:
        """Return the size of errors in units of those near networks labelled in ``setting``, float64 ≥ 1 [n]."""
        labelled = self._labelled_in(setting)
        apart = cdist(features / self._deviation, labelled / self._deviation).min(axis=1)
        return np.asarray(1.0 + WIDER * apart / np.sqrt(len(FEATURES)))

    def unlike(self, features: np.ndarray, setting: int) -> np.ndarray:
        """Return the share of cost that no network labelled in ``setting`` spends in the same categories, [n]."""
        shares = (some[:, COST_SHARES] for some in (features, self._labelled_in(setting)))
        return np.asarray(cdist(*shares, "cityblock").min(axis=1) / 2)

    def _labelled_in(self, setting: int) -> np.ndarray:
        return self.known[np.isfinite(self.log_s[:, setting])]

    @cached_property
    def _deviation(self) -> np.ndarray:
        deviation = self.known.std(axis=0)
        return np.where(deviation > 1e-6, deviation, 1.0)

    @cached_property
    def _log_operator_s(self) -> np.ndarray:
        """Log of the smallest seconds per operator of a labelled network, float64 [S]."""
        return np.asarray(np.nanmin(self.log_s - self.known[:, [OPERATORS]], axis=0))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        labelled = np.isfinite(self.log_s)
        tensors = {
            "known": self.known.astype(np.float32),
            "labelled": labelled.astype(np.uint8),
            "log_s": np.where(labelled, self.log_s, 0.0),
            "prices_s": self.prices_s,
        }
        return tensors, {"features": list(FEATURES), "settings": [setting.document() for setting in self.settings]}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        """Restore from a ``state``. Raises ``InputError`` for other features, or parts that do not fit."""
        if document["features"] != list(FEATURES):
            raise InputError("the predictor was trained with other features of networks than this slotool has: retrain")
        settings = tuple(map(Setting.from_document, document["settings"]))
        known, labelled, log_s, prices_s = (tensors[name] for name in ("known", "labelled", "log_s", "prices_s"))
        shape = (len(known), len(settings))
        shapes = (known.shape[1:], labelled.shape, log_s.shape, prices_s.shape)
        if shapes != ((len(FEATURES),), shape, shape, (len(AMOUNTS), len(settings))) or not labelled.any(axis=0).all():
            raise InputError(f"labels of {len(known)} networks and prices do not fit the {len(settings)} settings")
        return cls(settings, known.astype(np.float64), np.where(labelled.astype(bool), log_s, np.nan), prices_s)
