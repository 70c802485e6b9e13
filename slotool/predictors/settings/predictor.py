"""The predictor of many settings: answers for one of them, or for all, from which few labels lead to a new one."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import FROM_OTHERS, NO_EXAMPLES, Document, Examples, Predictor, Progress, Tensors
from slotool.predictors.labels import Setting
from slotool.predictors.registry import ADAPTED_BEFORE
from slotool.predictors.settings.model import OPERATORS, Encoded, SettingsModel
from slotool.predictors.trained.bounds import raised, raised_in_words
from slotool.predictors.trained.residuals import Residuals


class SettingsPredictor(Predictor[OperatorGraph]):
    """Latency in one of the settings of a ``SettingsModel``.

    ``chosen``: number of the setting that it answers for. The spread is the Gaussian process's deviation of log
    latency, a label's noise included, so it grows with the distance from the training networks by itself;
    ``known_residuals``, one for each setting, say how large errors are in units of it, on families of networks held
    out.
    """

    name = "settings"
    fitted_to = (FROM_OTHERS,)
    spread_is_calibrated = True

    def __init__(self, model: SettingsModel | None = None, chosen: int = 0):
        self.model, self.chosen = model, chosen
        self.known_residuals: tuple[Residuals, ...] = ()
        self._last: tuple[tuple[OperatorGraph, ...], Encoded] | None = None

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Settings that have labels."""
        return self._learnt.settings

    @property
    def residuals(self) -> Residuals | None:
        """Residuals of the chosen setting."""
        return self.known_residuals[self.chosen] if self.known_residuals else None

    def at(self, setting: int) -> SettingsPredictor:
        """The predictor of the known setting of this number."""
        other = SettingsPredictor(self._learnt, setting)
        other.known_residuals = self.known_residuals
        return other

    def fit(
        self,
        train: Examples[OperatorGraph],
        dev: Examples[OperatorGraph] = NO_EXAMPLES,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        raise InputError("train-predictor learns several settings; adapt-predictor takes them to a new one")

    def log_answers(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """Return log(seconds) in every setting, float64 [n, S]: labels of the very networks, else answers."""
        return self._learnt.labels_or_answers(self._encoded(graphs))

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        asked = self._learnt.features(graphs)
        return self._raised(asked, self._answer_s(asked))

    def predict_and_spread(self, graphs: Sequence[OperatorGraph]) -> tuple[np.ndarray, np.ndarray]:
        if not graphs:
            return np.empty(0), np.empty(0)
        asked = self._encoded(graphs)
        return self._raised(asked, self._answer_s(asked)), self._learnt.spread(asked, self.chosen)

    def below_measured(self, graphs: Sequence[OperatorGraph]) -> list[str | None]:
        """Networks whose operators would each take less than in any label of the setting."""
        if not graphs:
            return []
        asked = self._encoded(graphs)
        _, below = raised(self._answer_s(asked), asked.work[:, OPERATORS], self._min_operator_s)
        sentence = raised_in_words(f"on {self.settings[self.chosen].device}", self._min_operator_s)
        return [sentence if each else None for each in below.tolist()]

    def _encoded(self, graphs: Sequence[OperatorGraph]) -> Encoded:
        """What the model is asked about. The last are kept: what is said of latencies is asked right after them."""
        last = self._last
        if last is not None and len(last[0]) == len(graphs) and all(map(operator.is_, last[0], graphs)):
            return last[1]
        self._last = None  # the graphs before are let go first
        encoded = self._learnt.features(graphs)
        self._last = (tuple(graphs), encoded)
        return encoded

    def _raised(self, asked: Encoded, answer_s: np.ndarray) -> np.ndarray:
        """``answer_s``, where that is clearly too little what the operators take at least."""
        return raised(answer_s, asked.work[:, OPERATORS], self._min_operator_s)[0]

    @property
    def _min_operator_s(self) -> float:
        """Seconds per operator as in no label of the chosen setting less."""
        return float(self._learnt.min_operator_s[self.chosen])

    @property
    def min_operator_s(self) -> float:
        """Seconds per operator as in no label of a known setting less."""
        return float(self._learnt.min_operator_s.min())

    def _answer_s(self, asked: Encoded) -> np.ndarray:
        """As it is learnt, float64 seconds [n]."""
        return np.asarray(np.exp(self._learnt.answer(asked)[:, self.chosen]))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors, document = self._learnt.state()
        known = [own.document() for own in self.known_residuals]
        return tensors, {"model": document, "chosen": self.chosen, "residuals": {"known": known}}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        model = SettingsModel.from_state(tensors, document["model"])
        chosen = strict_json.convert(document["chosen"], int)
        if not 0 <= chosen < len(model.settings):
            raise InputError(f"setting {chosen} is none of the predictor's {len(model.settings)}")
        restored, known = cls(model, chosen), document["residuals"]["known"]
        if "labels.at" in tensors:
            raise InputError(ADAPTED_BEFORE)
        if known and len(known) != len(model.settings):
            raise InputError(f"there are residuals of {len(known)} of the predictor's {len(model.settings)} settings")
        restored.known_residuals = tuple(Residuals.from_document(own) for own in known or ())
        return restored

    @property
    def _learnt(self) -> SettingsModel:
        if self.model is None:
            raise InputError("there is no model of several settings: train-predictor makes one of their tables")
        return self.model


# What a setting is chosen by.
FACTS = ("device", "backend", "precision", "threads", "batch_size")


def matching(settings: Sequence[Setting], **facts: Any) -> list[int]:
    """Numbers of the settings that have all ``facts`` (values of ``FACTS``) that are not None.

    Compared as text without regard to case; a value that none has may be the beginning of one.
    """
    found = list(range(len(settings)))
    for name, wanted in facts.items():
        if wanted is None:
            continue
        have = {i: _plain(getattr(settings[i], name)) for i in found}
        exact = [i for i in found if have[i] == _plain(wanted)]
        found = exact or [i for i in found if isinstance(wanted, str) and have[i].startswith(_plain(wanted))]
    return found


def usual(settings: Sequence[Setting], among: Sequence[int]) -> int | None:
    """Of settings that differ by their backend alone, that of which all others are a variant (``torch`` among ``torch``
    and ``torch channels-last``); None where there is none."""
    shortest = min(among, key=lambda i: len(settings[i].backend))
    same = replace(settings[shortest], backend="", machine="", cpu=None)
    for i in among:
        is_variant = settings[i].backend.startswith(settings[shortest].backend)
        if not is_variant or replace(settings[i], backend="", machine="", cpu=None) != same:
            return None
    return shortest


def parting_facts(settings: Sequence[Setting]) -> list[str]:
    """What each of the settings is told by from the others: its facts that they do not all share."""
    parting = [name for name in FACTS if len({getattr(setting, name) for setting in settings}) > 1] or list(FACTS)
    return [", ".join(f"{name.replace('_', ' ')} {getattr(one, name)}" for name in parting) for one in settings]


def _plain(value: object) -> str:
    return str(value).lower().replace(" ", "-")
