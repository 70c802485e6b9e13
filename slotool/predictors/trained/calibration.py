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

# Held-out trainings learn from so many networks at most, and are asked so many of each kind.
MAX_NETWORKS, MAX_ASKED = 1500, 250
# With fewer kinds no quantile of them bounds a new one; Student's t of their spread stands in.
MIN_KINDS = 9
LEVELS = 199
# Residuals weigh in the scale as a Student's t with so many degrees of freedom: one wild network does not set it.
DEGREES = 4
MIN_SCALE, MAX_SCALE = 1e-3, 20.0
# Median and deviation (of the logarithm) of what the seven numbers of a scale are before any residual is seen.
START, START_DEVIATION = (0.1, 1.0, 0.5, 0.3, 0.2, 0.3, 0.2), 1.0
CLUSTERS = 8
# A kind of fewer says little. One of more than this share is parted: without it hardly anything would be left to learn
# from, and the errors would be those of a predictor of half the labels.
MIN_ROWS, MAX_SHARE = 8, 0.2


@dataclass(frozen=True)
class Kind:
    """A kind of networks that was held out: how many rows had an interval to give, and their root mean square error in
    log."""

    name: str
    rows: int
    rms_log_error: float


@dataclass(frozen=True)
class Calibration:
    """The interval of a network at some ``Distance`` from the training networks.

    ``scale``: float64 [7], a and b₁ … b₆ of s² = a² + Σ bᵢ² · factorᵢ² (``Distance.factors``), fitted by maximum
    likelihood to the errors on held-out kinds. ``residuals``: of |log(measured ÷ predicted)| ÷ s. ``kinds``: what was
    held out, by whom (``surrogate``: a cheaper predictor where training this one so often would take too long).

    A new network is taken to be of a new kind, exchangeable with those held out: each of K kinds weighs the same,
    1 ÷ (K + 1), and the last share is beyond them all (Lee, Barber and Willett 2023, hierarchical conformal
    prediction). With a dozen kinds that covers 95 % of kinds left out where 90 were asked; a quantile that covers these
    as asked, in the mean, covered 76 % of real networks, which differ more from random kinds.
    """

    scale: np.ndarray
    residuals: Residuals
    kinds: tuple[Kind, ...]
    surrogate: str

    def widths(self, distances: Sequence[Distance]) -> np.ndarray:
        """s of each, float64 > 0 [n]."""
        return _scale(self.scale, _factors(distances))

    def document(self) -> dict[str, Any]:
        return {
            "scale": self.scale.tolist(),
            "residuals": self.residuals.document(),
            "kinds": [vars(kind) for kind in self.kinds],
            "surrogate": self.surrogate,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        scale = np.array(strict_json.convert(document["scale"], list[float]), dtype=np.float64)
        if len(scale) != len(START) or not np.all(np.isfinite(scale) & (scale > 0)):
            raise InputError(f"the scale of the predictor's intervals is not {len(START)} numbers greater than 0")
        return cls(
            scale,
            Residuals.from_document(document["residuals"]),
            tuple(strict_json.convert(document["kinds"], list[Kind])),
            strict_json.convert(document["surrogate"], str),
        )

    @classmethod
    def of(cls, held_out: Sequence[HeldOutKind], surrogate: str) -> Self | None:
        """Return None when fewer than two kinds have a network near enough for an interval."""
        near = [each for each in map(_within, held_out) if len(each.residuals)]
        if len(near) < 2:
            return None
        own = _fitted_scale(near)
        values = _grid([np.abs(each.residuals) / _scale(own, each.factors) for each in near])
        kinds = [Kind(each.name, len(each.residuals), _rms(each.residuals)) for each in near]
        # Of two kinds the tail has no end; factors beyond that say nothing more, and no file holds them.
        return cls(own, Residuals(np.minimum(values, MAX_RESIDUAL), mirrored=True), tuple(kinds), surrogate)


@dataclass(frozen=True)
class HeldOutKind:
    """``residuals``: log(measured ÷ predicted) [n] of networks of a kind that the predictor was not shown, and their
    ``distances`` from those it was."""

    name: str
    residuals: np.ndarray
    distances: Sequence[Distance]

    @property
    def factors(self) -> np.ndarray:
        """float64 [n, 6]."""
        return _factors(self.distances)


def hold_out_kinds(
    make: Callable[[], Predictor[OperatorGraph]],
    graphs: Sequence[OperatorGraph],
    latency_s: np.ndarray,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[HeldOutKind]:
    """Train a new predictor for each kind without it, and ask it that kind. One that cannot take a kind is left out."""
    rng = np.random.default_rng(seed)
    some = even_sample(graphs, MAX_NETWORKS, seed)
    graphs, latency_s = [graphs[i] for i in some], latency_s[some]
    found = []
    for name, rows in held_out_kinds(graphs, seed).items():
        rest = rng.permutation(np.setdiff1d(np.arange(len(graphs)), rows))
        dev, train = np.split(rest, [max(2, len(rest) // 10)])
        asked = np.sort(rng.permutation(rows)[:MAX_ASKED])
        shown = [graphs[i] for i in train]
        predictor = make()
        try:
            predictor.fit(
                Examples(shown, latency_s[train]), Examples([graphs[i] for i in dev], latency_s[dev]), seed=seed
            )
            predicted_s = predictor.predict([graphs[i] for i in asked])
        except GraphError:
            continue
        distances = Domain.of(shown).distances([graphs[i] for i in asked])
        found.append(HeldOutKind(name, np.log(latency_s[asked] / predicted_s), distances))
        if progress:
            progress(f"held out {name}: {_rms(found[-1].residuals):.0%} off in log")
    return found


def _within(kind: HeldOutKind) -> HeldOutKind:
    """Those networks of a kind for which an interval would be given."""
    rows = [i for i, each in enumerate(kind.distances) if each.too_far() is None]
    return HeldOutKind(kind.name, kind.residuals[rows], [kind.distances[i] for i in rows])


def _factors(distances: Sequence[Distance]) -> np.ndarray:
    return np.array([each.factors for each in distances]).reshape(-1, len(START) - 1)


def _scale(scale: np.ndarray, factors: np.ndarray) -> np.ndarray:
    widths: np.ndarray = np.sqrt(scale[0] ** 2 + factors**2 @ scale[1:] ** 2)
    return widths


def _fitted_scale(kinds: Sequence[HeldOutKind]) -> np.ndarray:
    """Of greatest posterior likelihood, each kind weighing the same. A distance that no kind has keeps what it starts
    with."""
    from scipy.optimize import minimize

    factors = [kind.factors for kind in kinds]

    def unlikely(log_scale: np.ndarray) -> float:
        loss = float(np.sum((log_scale - np.log(START)) ** 2)) / (2 * START_DEVIATION**2)
        for kind, own in zip(kinds, factors, strict=True):
            s = _scale(np.exp(log_scale), own)
            loss += float(np.mean(np.log(s) + (DEGREES + 1) / 2 * np.log1p((kind.residuals / s) ** 2 / DEGREES)))
        return loss

    bounds = [(np.log(MIN_SCALE), np.log(MAX_SCALE))] * len(START)
    return np.asarray(np.exp(minimize(unlikely, np.log(START), method="L-BFGS-B", bounds=bounds).x))


def _grid(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Quantiles of the score of a network of a new kind at 1/(LEVELS + 1) …, float64 [LEVELS]."""
    k, levels = len(scores), np.arange(1, LEVELS + 1) / (LEVELS + 1)
    if k < MIN_KINDS:
        spread = np.sqrt(np.mean([np.mean(own**2) for own in scores]) * (1 + 1 / k))
        return np.asarray(stdtrit(k - 1, 0.5 + levels / 2) * spread)
    return _Pooled.of(scores).quantile(np.minimum(levels * (k + 1) / k, 1.0))


@dataclass(frozen=True)
class _Pooled:
    """Scores of several kinds, each kind weighing the same: ``values`` float64 [n], ascending, and ``shares``: of all
    scores up to each."""

    values: np.ndarray
    shares: np.ndarray

    @classmethod
    def of(cls, scores: Sequence[np.ndarray]) -> Self:
        values = np.concatenate(scores)
        weights = np.concatenate([np.full(len(own), 1 / len(own) / len(scores)) for own in scores])
        order = np.argsort(values, kind="stable")
        return cls(values[order], np.cumsum(weights[order]))

    def quantile(self, levels: np.ndarray) -> np.ndarray:
        at = np.searchsorted(self.shares, levels - 1e-9)
        return np.asarray(self.values[np.minimum(at, len(self.values) - 1)])


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def held_out_kinds(graphs: Sequence[OperatorGraph], seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of each kind that may be held out, by name; no row is in two of them.

    Kinds are those that the graphs name. One of more than ``MAX_SHARE`` of all is parted into clusters of networks that
    spend their cost on the same types of operators, of about half that share each.
    """
    found: dict[str, np.ndarray] = {}
    names = np.array([graph.kind for graph in graphs], dtype=object)
    for name in sorted(set(names.tolist())):
        rows = np.flatnonzero(names == name)
        share = len(rows) / len(graphs)
        if share <= MAX_SHARE:
            found[f"kind {name}"] = rows
            continue
        labels = _clusters([graphs[i] for i in rows.tolist()], seed, math.ceil(2 * share / MAX_SHARE))
        found |= {f"kind {name}, {own + 1}": rows[labels == own] for own in sorted(set(labels.tolist()))}
    return {name: rows for name, rows in found.items() if len(rows) >= MIN_ROWS}


def even_sample(graphs: Sequence[OperatorGraph], most: int, seed: int = 0) -> np.ndarray:
    """Rows, sorted, ``most`` at most: of each cluster as many as of any other, as far as there are."""
    if len(graphs) <= most:
        return np.arange(len(graphs))
    labels, rng = _clusters(graphs, seed), np.random.default_rng(seed)
    order = rng.permutation(len(graphs))
    # How many of its cluster come before it: the first of every cluster, then the second …
    turn = np.empty(len(graphs), dtype=np.int64)
    for cluster in set(labels.tolist()):
        own = order[labels[order] == cluster]
        turn[own] = np.arange(len(own))
    return np.sort(order[np.argsort(turn[order], kind="stable")][:most])


def _clusters(graphs: Sequence[OperatorGraph], seed: int, most: int = CLUSTERS) -> np.ndarray:
    """int64 [n]: networks of one number spend their cost alike; ``most`` numbers."""
    from sklearn.cluster import KMeans

    shares = np.sqrt(cost_shares(graphs))
    count = min(most, len(np.unique(shares.round(3), axis=0)))
    return np.asarray(KMeans(count, n_init=4, random_state=seed).fit_predict(shares))
