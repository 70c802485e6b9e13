"""Predictor of many settings: it predicts for one of them, or for all, from which few labels lead to a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import FROM_OTHERS, NO_EXAMPLES, Document, Labels, Predictor, Progress, Tensors
from slotool.predictors.features.domain import MAX_UNLIKE
from slotool.predictors.features.network_features import network_features
from slotool.predictors.labels import Setting
from slotool.predictors.settings.model import SettingsModel
from slotool.predictors.settings.sheets import device_errors
from slotool.predictors.trained.residuals import Residuals

# Limit of what devices by their sheets are off, in log, where labels agree with sheets exactly.
MIN_SPREAD = 1e-6


class SettingsPredictor(Predictor[OperatorGraph]):
    """Predictor of latency in setting number ``chosen`` of a ``SettingsModel``; a network labelled there has its label.

    ``known_residuals``: errors on held-out families of networks ÷ ``SettingsModel.spread``, for each setting.
    ``log_factor`` scales predictions to a device without labels (``scaled``); there, spreads are in units of the errors
    of devices, and ``networks_by_devices`` is the size of the residuals in these units.
    """

    name = "settings"
    fitted_to = (FROM_OTHERS,)
    spread_is_calibrated = True
    no_spread = "no network that spends its cost alike has a label in this setting"

    def __init__(self, model: SettingsModel | None = None, chosen: int = 0):
        self.model, self.chosen = model, chosen
        self.known_residuals: tuple[Residuals, ...] = ()
        self.log_factor, self.networks_by_devices = 0.0, 0.0

    @property
    def settings(self) -> tuple[Setting, ...]:
        return self._learnt.settings

    @property
    def residuals(self) -> Residuals | None:
        return self.known_residuals[self.chosen] if self.known_residuals else None

    def at(self, setting: int) -> SettingsPredictor:
        other = SettingsPredictor(self._learnt, setting)
        other.known_residuals = self.known_residuals
        return other

    def scaled(self, log_factor: float) -> tuple[SettingsPredictor, Residuals | None]:
        """Return the predictor of another device, and its residuals; None with labels of fewer than two families.

        Args:
            log_factor: log(latency there ÷ latency in the chosen setting), by ``nearest_known``.
        """
        other, errors = self.at(self.chosen), device_errors(self.settings, self._learnt.log_s)
        other.log_factor = log_factor
        if not len(errors):
            return other, None
        if self.residuals is not None:
            of_devices, of_networks = (np.sqrt(np.mean(some**2)) for some in (errors, self.residuals.values))
            other.networks_by_devices = float(of_networks / max(of_devices, MIN_SPREAD))
        return other, Residuals.of(np.exp(errors), np.ones(len(errors)))

    def fit(self, train: Labels, dev: Labels = NO_EXAMPLES, *, seed: int = 0, progress: Progress | None = None) -> None:
        raise InputError("train-predictor learns several settings; adapt-predictor takes them to a new one")

    def log_answers(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """Return log(seconds) in every setting, float64 [n, S]: labels of the same networks, else predictions."""
        return self._learnt.labels_or_answers(network_features(graphs))

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        return np.asarray(np.exp(self.log_answers(graphs)[:, self.chosen] + self.log_factor))

    def predict_and_spread(self, graphs: Sequence[OperatorGraph]) -> tuple[np.ndarray, np.ndarray]:
        features = network_features(graphs)
        spread = self._learnt.spread(features, self.chosen)
        spread[self._learnt.unlike(features, self.chosen) > MAX_UNLIKE] = np.inf
        if self.networks_by_devices:
            spread = np.where(self.is_labelled(graphs), 1.0, np.hypot(1.0, self.networks_by_devices * spread))
        return self.predict(graphs), spread

    def is_labelled(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """Return True for each network that is answered with its label in the chosen setting, bool [n]."""
        return np.isfinite(self._learnt.labels(network_features(graphs))[:, self.chosen])

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors, document = self._learnt.state()
        residuals = [setting.document() for setting in self.known_residuals]
        return tensors, {"model": document, "chosen": self.chosen, "residuals": {"known": residuals}}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        model = SettingsModel.from_state(tensors, document["model"])
        chosen = strict_json.convert(document["chosen"], int)
        if not 0 <= chosen < len(model.settings):
            raise InputError(f"setting {chosen} is none of the predictor's {len(model.settings)}")
        restored, residuals = cls(model, chosen), document["residuals"]["known"]
        if residuals and len(residuals) != len(model.settings):
            raise InputError(f"residuals of {len(residuals)} settings do not fit the {len(model.settings)} settings")
        restored.known_residuals = tuple(Residuals.from_document(each) for each in residuals or ())
        return restored

    @property
    def _learnt(self) -> SettingsModel:
        if self.model is None:
            raise InputError("there is no model of several settings: train-predictor makes one of their tables")
        return self.model


# Facts that a setting is chosen by.
FACTS = ("device", "backend", "precision", "threads", "batch_size")


def matching(settings: Sequence[Setting], **facts: Any) -> list[int]:
    """Return the numbers of the settings with all ``facts`` (values of ``FACTS``) that are not None.

    Text is compared without regard to case; where no setting has the value, it may be the beginning of one.
    """
    numbers = list(range(len(settings)))
    for name, value in facts.items():
        if value is None:
            continue
        values = {i: _plain(getattr(settings[i], name)) for i in numbers}
        exact = [i for i in numbers if values[i] == _plain(value)]
        numbers = exact or [i for i in numbers if isinstance(value, str) and values[i].startswith(_plain(value))]
    return numbers


def usual(settings: Sequence[Setting], among: Sequence[int]) -> int | None:
    """Return the setting that all others are a variant of, as ``torch`` of ``torch channels-last``; None if none is.

    Variants differ by their backend only.
    """
    shortest = min(among, key=lambda i: len(settings[i].backend))
    same = replace(settings[shortest], backend="", machine="", cpu=None)
    for i in among:
        is_variant = settings[i].backend.startswith(settings[shortest].backend)
        if not is_variant or replace(settings[i], backend="", machine="", cpu=None) != same:
            return None
    return shortest


def parting_facts(settings: Sequence[Setting]) -> list[str]:
    """Describe each setting by the facts that differ between them."""
    differing = [name for name in FACTS if len({getattr(setting, name) for setting in settings}) > 1] or list(FACTS)
    return [
        ", ".join(f"{name.replace('_', ' ')} {getattr(setting, name)}" for name in differing) for setting in settings
    ]


def _plain(value: object) -> str:
    return str(value).lower().replace(" ", "-")
