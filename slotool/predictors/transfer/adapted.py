"""A predictor taken to another device, backend or thread count by a handful of its labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.base import Document, Examples, Tensors
from slotool.predictors.features.type_costs import TypeCosts
from slotool.predictors.transfer.few_label_posterior import Posterior
from slotool.predictors.transfer.from_base import FromBase

MIN_LABELS = 3
# Each fit costs the cube of the labels, and with so many a predictor of their own is better.
MAX_LABELS = 200


class AdaptedPredictor(FromBase):
    """latency = base × (roofline ÷ base)^c × e^s × Σ over types of share × e^w, fitted to few labels of a setting.

    ``share`` is what a type of operator has of the network's cost by a neutral roofline (``TypeCosts``: calls,
    FLOPs and bytes apart), at the prices of the setting's backend where these are known, so w says how much dearer
    that work is here than the base thinks; c says how far the roofline is to be trusted more than the base, which
    may have never seen some of the types; s is smooth in the sizes, with a shift of all and a slight power of the
    base. All have Gaussian priors around nothing: what no label speaks for stays as the base has it. The model is
    solved as a Gaussian process, linearised around its own answer until it holds still; how large corrections may
    be and how noisy labels are is averaged over ``PRIORS`` of ``few_label_posterior``, each weighing as much as it
    makes the labels likely. So is, where labels are few, which one type of operator stands out by far, as one that
    another library has no fast kernel for: one label with that type then corrects all networks with it.

    The spread is the posterior's deviation of log latency. ``calibration`` says by which factor it is too small on
    labels left out one by one (at least 1). Fitting is a closed form of the labels, so the state is the base's, and
    the labels with their costs.
    """

    name = "adapted"
    labels_taken = (MIN_LABELS, MAX_LABELS)

    def _learn(self, train: Examples[OperatorGraph]) -> None:
        graphs, latency_s = train
        self.posterior = Posterior(self.costs(graphs), self.log_base(graphs), np.log(latency_s))

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        return np.asarray(np.exp(self.posterior.mean(self.costs(graphs), self.log_base(graphs))))

    def predict_and_spread(self, graphs: Sequence[OperatorGraph]) -> tuple[np.ndarray, np.ndarray]:
        if not graphs:
            return np.empty(0), np.empty(0)
        mean, variance = self.posterior.answer(self.costs(graphs), self.log_base(graphs))
        return np.exp(mean), np.sqrt(variance)

    @property
    def labels(self) -> int:
        """How many labels it was adapted to."""
        return len(self.posterior.log_s)

    def calibration(self) -> float:
        """Root mean square of (left-out label − its prediction) ÷ spread, in log; 1 when that is less."""
        mean, variance = self.left_out()
        return max(1.0, float(np.sqrt(np.mean((self.posterior.log_s - mean) ** 2 / variance))))

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [n] of the log of each label, from all others: fitted again without it, or, of more than
        30 labels, as the fit to all says it would be."""
        return self.posterior.left_out

    def _learnt(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        posterior = self.posterior
        own = {"costs": posterior.costs.seconds, "log_base": posterior.log_base, "log_s": posterior.log_s}
        return own, {
            "columns": [list(column) for column in posterior.costs.columns],
            "outliers": posterior.outliers,
        }

    def _restore(self, tensors: Tensors, document: Document) -> None:
        costs = TypeCosts(tuple((str(term), str(kind)) for term, kind in document["columns"]), tensors["costs"])
        # One that was written before any type could stand out answers as it did.
        outliers = bool(document.get("outliers", False))
        self.posterior = Posterior(costs, tensors["log_base"], tensors["log_s"], outliers)


def interval_factor(predictor: AdaptedPredictor, coverage: float = 0.9) -> float:
    """The factor that, raised to each graph's spread, bounds its interval: for few labels, so from Student's t of n − 1
    degrees of freedom, × ``calibration``."""
    from scipy.special import stdtrit

    return float(np.exp(stdtrit(predictor.labels - 1, (1 + coverage) / 2) * predictor.calibration()))
