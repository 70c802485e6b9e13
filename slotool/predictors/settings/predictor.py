"""The predictor of many settings: answers for one of them, or is taken to a new one by a few labels."""

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
from slotool.predictors.settings.model import OPERATORS, Encoded, SettingsModel
from slotool.predictors.settings.new_setting import Function, covariance_before
from slotool.predictors.trained.floor import min_operator_seconds, raised, raised_in_words
from slotool.predictors.trained.residuals import Residuals

MIN_LABELS, MAX_LABELS = 3, 200
# A setting that tells less of a new one is not named.
SHOWN_SHARE = 0.01


class SettingsPredictor(Predictor[OperatorGraph]):
    """Latency in one of the settings of a ``SettingsModel``, or in a new one once fitted to its labels.

    ``chosen``: number of the known setting that it answers for, until ``fit`` takes it to a new one (``target``, where
    its facts are known). The spread is the Gaussian process's deviation of log latency, a label's noise included, so it
    grows with the distance from the training networks by itself; ``known_residuals``, one for each setting, and
    ``new_residuals`` say how large errors are in units of it, on families of networks held out, and with settings held
    out too. Dev set and seed play no part.
    """

    name = "settings"
    fitted_to = (FROM_OTHERS,)
    spread_is_calibrated = True

    def __init__(self, model: SettingsModel | None = None, chosen: int = 0, target: Setting | None = None):
        self.model, self.chosen, self.target = model, chosen, target
        self.known_residuals: tuple[Residuals, ...] = ()
        self.new_residuals: Residuals | None = None
        self.function: Function | None = None
        self._last: tuple[tuple[OperatorGraph, ...], Encoded] | None = None

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Those learnt from."""
        return self._learnt.settings

    @property
    def residuals(self) -> Residuals | None:
        """Those that hold for its answers."""
        if self.function is not None:
            return self.new_residuals
        return self.known_residuals[self.chosen] if self.known_residuals else None

    def at(self, setting: int) -> SettingsPredictor:
        """The predictor of the known setting of this number."""
        return self._copy(setting, None)

    def nearest(self, labels: Examples[OperatorGraph], target: Setting | None = None) -> SettingsPredictor:
        """That of the known setting which these labels of a new one speak for most."""
        found = self.for_new(target)
        found.fit(labels)
        assert found.function is not None
        return self.at(int(found.function.sources.argmax()))

    def for_new(self, target: Setting | None = None) -> SettingsPredictor:
        """One to be fitted to a new setting's labels."""
        return self._copy(self.chosen, target)

    def fit(
        self,
        train: Examples[OperatorGraph],
        dev: Examples[OperatorGraph] = NO_EXAMPLES,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Take it to the setting of these labels. Raises ``InputError`` also for fewer than 3 or more than 200."""
        train.require("training")
        graphs, latency_s = train
        if not MIN_LABELS <= len(graphs) <= MAX_LABELS:
            raise InputError(f"a new setting takes {MIN_LABELS} to {MAX_LABELS} labelled networks, not {len(graphs)}")
        self.function = Function(self._learnt, self._learnt.features(graphs), np.log(latency_s), self.target)
        if progress:
            progress(f"settings: {len(self.settings)} known, taken to a new one by {len(graphs)} labels")

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        asked = self._learnt.features(graphs)
        return self._raised(asked, self._answer_s(asked))

    def predict_and_spread(self, graphs: Sequence[OperatorGraph]) -> tuple[np.ndarray, np.ndarray]:
        if not graphs:
            return np.empty(0), np.empty(0)
        asked = self._encoded(graphs)
        if self.function is not None:
            mean, variance = self.function.answer(asked)
            return self._raised(asked, np.exp(mean)), np.sqrt(variance)
        return self._raised(asked, self._answer_s(asked)), self._learnt.spread(asked, self.chosen)

    def below_measured(self, graphs: Sequence[OperatorGraph]) -> list[str | None]:
        """Those whose operators would each take less than in any label of the setting; of a new one, whose few labels
        show no network of the smallest operators, than in any label of any setting."""
        if not graphs:
            return []
        asked = self._encoded(graphs)
        _, below = raised(self._answer_s(asked), asked.work[:, OPERATORS], self._min_operator_s)
        device = f"on {self.settings[self.chosen].device}" if self.function is None else "in any setting that is known"
        sentence = raised_in_words(device, self._min_operator_s)
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
        """Seconds per operator as in no label less; of a new setting, its own labels and those of all known ones."""
        if self.function is None:
            return float(self._learnt.min_operator_s[self.chosen])
        own = min_operator_seconds(self.function.at.work[:, OPERATORS], np.exp(self.function.log_s))
        return min(own, self.min_operator_s)

    @property
    def min_operator_s(self) -> float:
        """Seconds per operator as in no label of a known setting less."""
        return float(self._learnt.min_operator_s.min())

    def _answer_s(self, asked: Encoded) -> np.ndarray:
        """As it is learnt, float64 seconds [n]."""
        if self.function is not None:
            return np.asarray(np.exp(self.function.answer(asked)[0]))
        return np.asarray(np.exp(self._learnt.answer(asked)[:, self.chosen]))

    def sources(self) -> list[tuple[Setting, float]]:
        """How much each known setting tells of the new one, by its labels: those that tell anything, most first."""
        if self.function is None:
            return []
        shares = self.function.sources
        order = np.argsort(-shares)
        return [(self.settings[i], float(shares[i])) for i in order.tolist() if shares[i] >= SHOWN_SHARE]

    @property
    def unlike(self) -> float:
        """How likely the new setting is like none of those known, by its labels; 0 of a known one."""
        return 0.0 if self.function is None else self.function.unlike

    def covariance(self, graphs: Sequence[OperatorGraph]) -> tuple[np.ndarray, float]:
        """Covariance [n, n] of log latency of these networks in a setting that nothing is known of, and the variance of
        a label's noise."""
        return covariance_before(self._learnt, self._learnt.features(graphs))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors, document = self._learnt.state()
        if self.function is not None:
            at = self.function.at
            own = {"at": at.at, "roofline": at.roofline, "work": at.work, "log_s": self.function.log_s}
            tensors |= {f"labels.{name}": values for name, values in own.items()}
        new = self.new_residuals
        return tensors, {
            "model": document,
            "chosen": self.chosen,
            "target": None if self.target is None else self.target.document(),
            "residuals": {
                "known": [own.document() for own in self.known_residuals],
                "new": None if new is None else new.document(),
            },
        }

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        model = SettingsModel.from_state(tensors, document["model"])
        chosen = strict_json.convert(document["chosen"], int)
        if not 0 <= chosen < len(model.settings):
            raise InputError(f"setting {chosen} is none of the predictor's {len(model.settings)}")
        target = document["target"]
        restored = cls(model, chosen, None if target is None else Setting.from_document(target))
        known, new = document["residuals"]["known"], document["residuals"]["new"]
        if known and len(known) != len(model.settings):
            raise InputError(f"there are residuals of {len(known)} of the predictor's {len(model.settings)} settings")
        restored.known_residuals = tuple(Residuals.from_document(own) for own in known or ())
        restored.new_residuals = None if new is None else Residuals.from_document(new)
        if "labels.at" in tensors:
            at = Encoded(*(tensors[f"labels.{name}"] for name in ("at", "roofline", "work")))
            restored.function = Function(model, at, tensors["labels.log_s"], restored.target)
        return restored

    @property
    def _learnt(self) -> SettingsModel:
        if self.model is None:
            raise InputError("there is no model of several settings: train-predictor makes one of their tables")
        return self.model

    def _copy(self, chosen: int, target: Setting | None) -> SettingsPredictor:
        other = SettingsPredictor(self._learnt, chosen, target)
        other.known_residuals, other.new_residuals = self.known_residuals, self.new_residuals
        return other


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


def unlabelled(setting: Setting) -> Setting:
    """The same setting without the facts of a machine, which say nothing of another's."""
    return replace(setting, cpu=None)
