"""Predictor of a setting that has a handful of labels, made from one of other settings, and choice of these labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from scipy.special import stdtrit

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import Batch, once
from slotool.predictors.base import FROM_OTHERS, NO_EXAMPLES, Document, Labels, Predictor, Progress, Tensors
from slotool.predictors.features.type_costs import TypeCosts
from slotool.predictors.labels import Setting
from slotool.predictors.registry import predictor_class
from slotool.predictors.settings.predictor import SettingsPredictor
from slotool.predictors.solo.three_term import three_terms
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.trained.residuals import MAX_RESIDUAL, Residuals
from slotool.predictors.transfer.backend_change import BackendChange
from slotool.predictors.transfer.few_labels import FewLabels, Networks, covariance_before

# A fit takes the cube of the labels, and with more of them a newly trained predictor is better.
MIN_LABELS, MAX_LABELS = 3, 200
LEVELS = 199
# Networks to choose from whose variance is computed; more would help little and take the square of their number.
MAX_WATCHED = 1000
# Prefix of the tensors of the base.
BASE = "base."
# Median of the absolute value of a standard normal variable.
NORMAL_MEDIAN = 0.6745


class AdaptedPredictor(Predictor[OperatorGraph]):
    """``FewLabels`` around predictions of a base: one predictor, or all settings of a ``SettingsPredictor``.

    Labels are converted to the base's backend where prices of both are known, and predictions back (``change``). The
    spread is the deviation of log latency, a label's noise included. Fitting is a closed form of the labels, so the
    state is that of the base, and the labels with the facts of their networks. Dev set and seed play no part.
    """

    name = "adapted"
    fitted_to = (FROM_OTHERS,)
    spread_is_calibrated = True

    def __init__(self, base: Predictor[OperatorGraph] | None = None, change: BackendChange | None = None):
        self.base, self.change = base, BackendChange() if change is None else change

    @classmethod
    def of(cls, base: TrainedPredictor[OperatorGraph], setting: Setting) -> Self:
        """Return a predictor of ``setting`` without labels."""
        learnt = None if isinstance(base.predictor, SettingsPredictor) else base.setting
        return cls(base.predictor, BackendChange.of(learnt, setting))

    def fit(self, train: Labels, dev: Labels = NO_EXAMPLES, *, seed: int = 0, progress: Progress | None = None) -> None:
        """Fit to 3 to 200 labels; raises ``InputError`` for another number, or without a base."""
        train.require("training")
        count = len(train.items)
        if not MIN_LABELS <= count <= MAX_LABELS:
            raise InputError(
                f"a predictor is adapted by {MIN_LABELS} to {MAX_LABELS} labelled networks, not by {count}; "
                "--samples chooses among more"
            )
        self.labels = FewLabels(self.networks(train.items), self.log_before(train.items, train.latency_s))
        if progress:
            progress(f"{self.name}: {self.source.name} to {count} labels")

    @property
    def source(self) -> Predictor[OperatorGraph]:
        """Base predictor. Raises ``InputError`` if there is none."""
        if self.base is None:
            raise InputError("there is no predictor to adapt")
        return self.base

    def networks(self, graphs: Sequence[OperatorGraph]) -> Networks:
        """Return the facts of these networks for ``FewLabels``."""
        base, costs = self.source, TypeCosts.of(graphs).shared_by(self.change.prices)
        if isinstance(base, SettingsPredictor):
            answers = base.log_answers(graphs)
        else:
            answers = np.log(once(graphs, base.predict))[:, None]
        value_bytes = np.array([graph.bytes_per_value for graph in graphs], dtype=np.float64)
        return Networks(costs, three_terms(graphs), answers, value_bytes)

    def log_before(self, graphs: Sequence[OperatorGraph], latency_s: np.ndarray) -> np.ndarray:
        """Return log(seconds) [n] of latencies, converted to the base's backend."""
        return np.asarray(np.log(latency_s) - np.log(self.change.times(graphs)))

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        return self.predict_and_spread(graphs)[0]

    def predict_and_spread(self, graphs: Sequence[OperatorGraph]) -> tuple[np.ndarray, np.ndarray]:
        if not graphs:
            return np.empty(0), np.empty(0)
        graphs = Batch.of(graphs)
        mean, variance = self.labels.answer(self.networks(graphs))
        return np.exp(mean) * self.change.times(graphs), np.sqrt(variance)

    def is_labelled(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        facts, of_labels = (np.hstack([n.terms, n.log_answers]) for n in (self.networks(graphs), self.labels.networks))
        return np.any([np.isclose(facts, of_label).all(axis=1) for of_label in of_labels], axis=0)

    def operator_seconds(self, item: OperatorGraph) -> np.ndarray | None:
        """Return times in the base's proportions, each operator converted to the other backend by its prices."""
        batch = Batch([item])
        seconds = self.source.operator_seconds(item)
        if seconds is None:
            return None
        call_s = max(0.0, float(once(batch, self.source.predict)[0]) - float(seconds.sum()))
        converted = seconds * self.change.operator_times(item) if self.change else seconds
        return np.asarray(converted * (self.predict(batch)[0] / (converted.sum() + call_s)))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        base_tensors, state = self.source.state()
        networks, columns = self.labels.networks, self.labels.networks.costs.columns
        facts = {name: getattr(networks, name) for name in ("terms", "log_answers", "value_bytes")}
        tensors = {BASE + name: value for name, value in base_tensors.items()}
        return {**tensors, "costs": networks.costs.seconds, **facts, "log_s": self.labels.log_s}, {
            "base": {"name": self.source.name, "state": state},
            "change": self.change.document(),
            "columns": [list(pair) for pair in columns],
        }

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        """Restore from a ``state``. Raises ``InputError`` for labels and facts that do not fit each other."""
        change = BackendChange.from_document(document["change"])
        of_base = {name.removeprefix(BASE): value for name, value in tensors.items() if name.startswith(BASE)}
        base = predictor_class(document["base"]["name"]).from_state(of_base, document["base"]["state"])
        restored = cls(base, change)
        columns = tuple((str(term), str(kind)) for term, kind in document["columns"])
        costs = TypeCosts(columns, tensors["costs"])
        count = len(tensors["log_s"])
        shapes = (tensors["costs"].shape, tensors["terms"].shape, tensors["log_answers"].shape[:1])
        if shapes != ((count, len(columns)), (count, 3), (count,)):
            raise InputError(f"the facts of labelled networks do not fit the {count} labels")
        networks = Networks(costs, tensors["terms"], tensors["log_answers"], tensors["value_bytes"])
        restored.labels = FewLabels(networks, tensors["log_s"])
        return restored


def held_out_residuals(log_errors: np.ndarray, deviation: np.ndarray) -> Residuals:
    """Return residuals of new networks in units of their spread: Student's t, widened by the median held-out error.

    Args:
        log_errors: log(predicted ÷ label) of each held-out label, float64 [n].
        deviation: Stated spread of each, float64 > 0 [n].
    """
    times = max(1.0, float(np.median(np.abs(log_errors) / deviation)) / NORMAL_MEDIAN)
    levels = np.arange(1, LEVELS + 1) / (LEVELS + 1)
    return Residuals(np.minimum(stdtrit(len(deviation) - 1, 0.5 + levels / 2) * times, MAX_RESIDUAL), mirrored=True)


def propose(
    predictor: Predictor[OperatorGraph], candidates: Sequence[OperatorGraph], n: int, seed: int = 0
) -> list[int]:
    """Choose ``n`` of the candidates to measure, best first, and return their numbers.

    Each next label is the one that most reduces the variance of log latency of all candidates together (greedily
    A-optimal, by the Gaussian process of ``AdaptedPredictor``, which starts from the labels of an adapted predictor).
    The seed draws the candidates that count where there are more than ``MAX_WATCHED``.

    Raises ``InputError`` if n is below 1 or above the number of candidates.
    """
    if not 1 <= n <= len(candidates):
        raise InputError(f"{n} networks to choose, but there are {len(candidates)}")
    rng = np.random.default_rng(seed)
    watched = np.arange(len(candidates))
    if len(candidates) > MAX_WATCHED:
        watched = np.sort(rng.choice(watched, max(MAX_WATCHED, n), replace=False))
    graphs = [candidates[int(i)] for i in watched]
    adapted = predictor if isinstance(predictor, AdaptedPredictor) else AdaptedPredictor(predictor)
    labelled = adapted.labels.networks if adapted is predictor else None
    covariance, noise = covariance_before(adapted.networks(graphs), labelled)
    return [int(watched[i]) for i in greedy(covariance, noise, n)]


def greedy(covariance: np.ndarray, noise: float, n: int) -> list[int]:
    """Return n rows whose labels most reduce the variance of all rows together, each given those before it."""
    remaining = covariance.copy()
    chosen: list[int] = []
    for _ in range(n):
        gain = (remaining**2).sum(axis=0) / (np.diag(remaining) + noise)
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        column = remaining[:, best].copy()
        remaining -= np.outer(column, column) / (column[best] + noise)
    return chosen
