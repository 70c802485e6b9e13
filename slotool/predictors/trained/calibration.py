"""Intervals for networks unlike the training networks, from errors on kinds of networks held out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.special import stdtrit

from slotool import strict_json
from slotool.errors import GraphError, InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Examples, Predictor
from slotool.predictors.features.domain import Distance, Domain, cost_shares
from slotool.predictors.trained.residuals import MAX_RESIDUAL, Residuals

# Held-out trainings use at most so many networks, and are scored on so many of each kind.
MAX_NETWORKS, MAX_SCORED = 1500, 250
# With fewer kinds no quantile bounds a new one; Student's t of their spread is used instead.
MIN_KINDS = 9
LEVELS = 199
# Degrees of freedom of the Student's t of residuals, so that one outlier does not set the scale.
DEGREES = 4
MIN_SCALE, MAX_SCALE = 1e-3, 20.0
# Prior median of the seven numbers of a scale, and the deviation of their logarithms.
START, START_DEVIATION = (0.1, 1.0, 0.5, 0.3, 0.2, 0.3, 0.2), 1.0
# Kinds of fewer rows are not held out; those of more than this share are split, so that enough labels remain.
MIN_ROWS, MAX_SHARE = 8, 0.2


@dataclass(frozen=True)
class Calibration:
    """Intervals of networks by ``Distance`` from the training networks.

    ``scale``: float64 [7], a and b₁ … b₆ of s² = a² + Σ bᵢ² · factorᵢ² (``Distance.factors``), fitted by maximum
    likelihood to the errors on held-out kinds. ``residuals``: |log(measured ÷ predicted)| ÷ s.

    A new network is taken to be of a new kind, exchangeable with those held out: each of K kinds weighs 1 ÷ (K + 1),
    and the last share lies beyond them all (Lee, Barber and Willett 2023, hierarchical conformal prediction). With a
    dozen kinds, 90 % intervals cover 95 % of held-out kinds; intervals that cover these at 90 % in the mean covered
    76 % of real networks, which differ more from random kinds.
    """

    scale: np.ndarray
    residuals: Residuals

    def widths(self, distances: Sequence[Distance]) -> np.ndarray:
        """Return the scale s at each distance, float64 > 0 [n]."""
        return _scale(self.scale, _factors(distances))

    def document(self) -> dict[str, Any]:
        return {"scale": self.scale.tolist(), "residuals": self.residuals.document()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        scale = np.array(strict_json.convert(document["scale"], list[float]), dtype=np.float64)
        # The bounds of the fit, which its logarithms round.
        if len(scale) != len(START) or not np.all((scale > 0) & (scale < 1.01 * MAX_SCALE)):
            raise InputError(
                f"the scale of the predictor's intervals is not {len(START)} numbers above 0, up to {MAX_SCALE:g}"
            )
        return cls(scale, Residuals.from_document(document["residuals"]))

    @classmethod
    def of(cls, held_out: Sequence[HeldOutKind]) -> Self | None:
        """Calibrate on held-out kinds; None if fewer than two have a network near enough for an interval."""
        near = [kind for kind in map(HeldOutKind.near, held_out) if len(kind.residuals)]
        if len(near) < 2:
            return None
        scale = _fitted_scale(near)
        values = _grid([np.abs(kind.residuals) / _scale(scale, _factors(kind.distances)) for kind in near])
        # The tail of two kinds has no end.
        return cls(scale, Residuals(np.minimum(values, MAX_RESIDUAL), mirrored=True))


@dataclass(frozen=True)
class HeldOutKind:
    """Errors on a held-out kind: ``residuals``, log(measured ÷ predicted) [n], and distances from the training set."""

    name: str
    residuals: np.ndarray
    distances: Sequence[Distance]

    def near(self) -> HeldOutKind:
        """Return the networks that may have an interval."""
        rows = [i for i, distance in enumerate(self.distances) if distance.too_far() is None]
        return HeldOutKind(self.name, self.residuals[rows], [self.distances[i] for i in rows])


def hold_out_kinds(
    make: Callable[[], Predictor[OperatorGraph]],
    graphs: Sequence[OperatorGraph],
    latency_s: np.ndarray,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[HeldOutKind]:
    """Train a new predictor without each kind and score it on that kind; kinds it does not support are left out."""
    rng = np.random.default_rng(seed)
    some = random_rows(len(graphs), MAX_NETWORKS, seed)
    graphs, latency_s = [graphs[i] for i in some], latency_s[some]
    held_out = []
    for name, rows in held_out_kinds(graphs, seed).items():
        others = rng.permutation(np.setdiff1d(np.arange(len(graphs)), rows))
        dev_rows, train_rows = np.split(others, [max(2, len(others) // 10)])
        scored_rows = np.sort(rng.permutation(rows)[:MAX_SCORED])
        train, dev, scored = (
            Examples([graphs[i] for i in part], latency_s[part]) for part in (train_rows, dev_rows, scored_rows)
        )
        predictor = make()
        try:
            predictor.fit(train, dev, seed=seed)
            predicted_s = predictor.predict(scored.items)
        except GraphError:
            continue
        distances = Domain.of(train.items).distances(scored.items)
        held_out.append(HeldOutKind(name, np.log(scored.latency_s / predicted_s), distances))
        if progress:
            progress(f"held out {name}: {np.sqrt(np.mean(held_out[-1].residuals ** 2)):.0%} off in log")
    return held_out


def _factors(distances: Sequence[Distance]) -> np.ndarray:
    return np.array([distance.factors for distance in distances]).reshape(-1, len(START) - 1)


def _scale(scale: np.ndarray, factors: np.ndarray) -> np.ndarray:
    widths: np.ndarray = np.sqrt(scale[0] ** 2 + factors**2 @ scale[1:] ** 2)
    return widths


def _fitted_scale(kinds: Sequence[HeldOutKind]) -> np.ndarray:
    """Return the scale of greatest posterior likelihood, each kind weighing the same."""
    from scipy.optimize import minimize

    factors = [_factors(kind.distances) for kind in kinds]

    def loss_of(log_scale: np.ndarray) -> float:
        loss = float(np.sum((log_scale - np.log(START)) ** 2)) / (2 * START_DEVIATION**2)
        for kind, values in zip(kinds, factors, strict=True):
            s = _scale(np.exp(log_scale), values)
            loss += float(np.mean(np.log(s) + (DEGREES + 1) / 2 * np.log1p((kind.residuals / s) ** 2 / DEGREES)))
        return loss

    bounds = [(np.log(MIN_SCALE), np.log(MAX_SCALE))] * len(START)
    return np.asarray(np.exp(minimize(loss_of, np.log(START), method="L-BFGS-B", bounds=bounds).x))


def _grid(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Return quantiles of the score of a network of a new kind at 1/(LEVELS + 1) …, float64 [LEVELS]."""
    k, levels = len(scores), np.arange(1, LEVELS + 1) / (LEVELS + 1)
    if k < MIN_KINDS:
        spread = np.sqrt(np.mean([np.mean(values**2) for values in scores]) * (1 + 1 / k))
        return np.asarray(stdtrit(k - 1, 0.5 + levels / 2) * spread)
    weights = np.concatenate([np.full(len(kind), 1 / len(kind)) for kind in scores])
    # Cumulated weights are rounded: a level that they reach may lie just above them.
    levels = np.minimum(levels * (k + 1) / k, 1.0) - 1e-9
    return np.asarray(np.quantile(np.concatenate(scores), levels, weights=weights, method="inverted_cdf"))


def held_out_kinds(graphs: Sequence[OperatorGraph], seed: int = 0) -> dict[str, np.ndarray]:
    """Return disjoint rows of each kind that may be held out, by name.

    A kind of more than ``MAX_SHARE`` of all rows is split into clusters of about half that share, of networks that
    spend their cost on the same types of operators.
    """
    by_name: dict[str, np.ndarray] = {}
    names = np.array([graph.kind for graph in graphs], dtype=object)
    for name in sorted(set(names.tolist())):
        rows = np.flatnonzero(names == name)
        share = len(rows) / len(graphs)
        if share <= MAX_SHARE:
            by_name[f"kind {name}"] = rows
            continue
        labels = _clusters([graphs[i] for i in rows.tolist()], seed, math.ceil(2 * share / MAX_SHARE))
        by_name |= {f"kind {name}, {cluster + 1}": rows[labels == cluster] for cluster in sorted(set(labels.tolist()))}
    return {name: rows for name, rows in by_name.items() if len(rows) >= MIN_ROWS}


def random_rows(count: int, most: int, seed: int) -> np.ndarray:
    """Return up to ``most`` of ``count`` rows, sorted."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])


def _clusters(graphs: Sequence[OperatorGraph], seed: int, most: int) -> np.ndarray:
    """Return cluster numbers, int64 [n], of up to ``most`` clusters of networks that spend their cost alike."""
    from sklearn.cluster import KMeans

    shares = np.sqrt(cost_shares(graphs))
    count = min(most, len(np.unique(shares.round(3), axis=0)))
    return np.asarray(KMeans(count, n_init=4, random_state=seed).fit_predict(shares))
