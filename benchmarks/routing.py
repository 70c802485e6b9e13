"""Routing beside what else one would use, on the same random halves, judged on the other half by a replay of its own.

``python -m benchmarks routing`` reads the FrugalML tables in ``$SLOTOOL_DATA_DIR/commercial-apis`` (left out where they
are missing) and the shipped digits outcomes; ``SLOTOOL_OUTCOMES`` names more tables, separated by colons, and
``SLOTOOL_BENCH_SPLITS`` another number of halves than 20. MAPIE is compared where it is installed (the extra
``peers``), on tables whose errors are 0 or 1.

All learn from one half: cost, error and confidence of each version. They promise that the error is at most the best
single version's plus a tolerance. The figures are those of the other half. The oracle may look at it. Seconds are of
the processor, on all cores together: several of the ways use as many threads as there are.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binom, norm
from sklearn.linear_model import LogisticRegression

from benchmarks.routing_judge import Requests, answered
from slotool.rules import from_point, generate_rules
from slotool.rules.policies.cascades import Cascade
from slotool.tables import OutcomeTable

SPLITS = int(os.environ.get("SLOTOOL_BENCH_SPLITS", "20"))
TOLERANCES = (0.0, 0.005, 0.01, 0.02)
CONFIDENCE = 0.95
GRID = 24
# A tree of a rule set's JSON form with the share of requests that it serves.
Mixture = list[tuple[float, dict[str, Any]]]
Learner = Callable[[pd.DataFrame, OutcomeTable], list[Mixture]]


def main() -> None:
    found = {name: _compare(name, rows) for name, rows in _sets()}
    print(json.dumps({"benchmark": "routing", "splits": SPLITS, "confidence": CONFIDENCE, "sets": found}))


def _sets() -> Iterator[tuple[str, pd.DataFrame]]:
    folder = Path(os.environ.get("SLOTOOL_DATA_DIR", "/nowhere"), "commercial-apis")
    for path in sorted(folder.glob("*.csv.gz")):
        yield path.name.partition(".")[0], pd.read_csv(path)
    more = [path for path in os.environ.get("SLOTOOL_OUTCOMES", "").split(":") if path]
    for name in ("datasets/digits-family-outcomes.parquet", *more):
        yield Path(name).stem, OutcomeTable.load(name).rows


def _compare(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    examples = rows["example"].unique()
    kept: dict[str, list[list[dict[str, float]]]] = {}
    seconds: dict[str, list[float]] = {}
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(examples)
        learn, judge = (rows[rows["example"].isin(half)] for half in np.array_split(order, 2))
        best = learn.groupby("version", sort=False)["error"].mean().idxmin()
        requests = Requests(judge)
        tables = {id(half): OutcomeTable(half.reset_index(drop=True)) for half in (learn, judge)}
        for method, learner in LEARNERS.items():
            seen = judge if method.startswith("oracle") else learn
            outcomes = tables[id(seen)]
            if method == "MAPIE" and not _with_mapie(outcomes):
                continue
            started = time.process_time()
            chosen = learner(seen.assign(best=best), outcomes)
            seconds.setdefault(method, []).append(time.process_time() - started)
            kept.setdefault(method, []).append([_judged(mixture, requests, best) for mixture in chosen])
    oracle = np.array([[1 - tier["cost"] for tier in tiers] for tiers in kept["oracle, three in turn"]])
    print(f"\n{name}: {len(examples):,} examples, {SPLITS} halves; saved of the best single version's cost, and share "
          "of the oracle's, medians")  # fmt: skip
    titles = [f"{'at ' if t else 'equal error'}{f'{t:.1%}' if t else ''}" for t in TOLERANCES]
    print(f"{'':28}" + "".join(f"{title:>18}" for title in titles) + "   below the promise, of splits     time")
    return {method: _row(method, tiers, oracle, seconds[method]) for method, tiers in kept.items()}


def _row(method: str, judged: list[list[dict[str, float]]], oracle: np.ndarray, seconds: list[float]) -> dict[str, Any]:
    saved = np.array([[1 - tier["cost"] for tier in tiers] for tiers in judged])
    excess = np.array([[tier["excess"] - t for tier, t in zip(tiers, TOLERANCES, strict=True)] for tiers in judged])
    # A share of next to nothing tells nothing.
    shares = np.where(np.median(oracle, axis=0) >= 0.02, saved / np.maximum(oracle, 1e-9), np.nan)
    figures = {
        "saved": np.median(saved, axis=0).tolist(),
        "share": [None if np.isnan(share) else float(share) for share in np.median(shares, axis=0)],
        "exceeded": (excess > 1e-9).sum(axis=0).tolist(),
        "any_exceeded": int((excess > 1e-9).any(axis=1).sum()),
        "seconds": float(np.median(seconds)),
    }
    shown = ["   –" if share is None else f"{share:>4.0%}" for share in figures["share"]]
    cells = "".join(f"{s:>10.1%} ({share})" for s, share in zip(figures["saved"], shown, strict=True))
    broken = " ".join(f"{n:>3}" for n in figures["exceeded"])
    print(
        f"{method:28}{cells}   {broken}  any {figures['any_exceeded']:>2}   {figures['seconds']:>10.2f} s", flush=True
    )
    return figures


def _judged(mixture: Mixture, requests: Requests, best: str) -> dict[str, float]:
    """Mean cost as a share of the best version's, and mean error above the best version's."""
    error = cost = 0.0
    for share, tree in mixture:
        its_error, its_cost = answered(tree, requests)
        error, cost = error + share * its_error.sum(), cost + share * its_cost.sum()
    base_error, base_cost = (requests.columns[column][best].sum() for column in ("error", "cost"))
    return {"cost": cost / base_cost, "excess": (error - base_error) / requests.examples}


# What chooses.


def _alone(version: str) -> dict[str, Any]:
    return {"steps": [{"ask": version}], "answer": "last"}


def _turns(versions: tuple[str, ...], thresholds: tuple[float, ...], answer: str = "last") -> dict[str, Any]:
    """Versions in turn, each enough from its threshold on."""
    steps: list[dict[str, Any]] = [
        {"ask": version, "accept": {"if": "sure", "version": version, "at_least": threshold}}
        for version, threshold in zip(versions, thresholds, strict=False)
    ]
    return {"steps": [*steps, {"ask": versions[-1]}], "answer": answer}


def _by_slotool(method: str, policies: tuple[str, ...]) -> Learner:
    def learn(rows: pd.DataFrame, outcomes: OutcomeTable) -> list[Mixture]:
        rules = generate_rules(
            outcomes, TOLERANCES, ("cost",), CONFIDENCE, method, "absolute", policies=policies, seed=0
        )
        return [[(1.0, _tree(rules.rule_for(tolerance, "cost").point))] for tolerance in TOLERANCES]

    return learn


def _tree(point: Any) -> dict[str, Any]:
    policy = from_point(point)
    if isinstance(policy, Cascade):
        return policy.document()
    if point.get("policy") == "osfa":
        return _alone(str(point.get("version")))
    return _turns((str(point.get("first")), str(point.get("second"))), (float(point.get("threshold")),), "surer")


class _Replays:
    """Every pair or triple of versions in turn at a grid of thresholds: error and cost, mean or per example."""

    def __init__(self, outcomes: OutcomeTable, length: int, answer: str = "last", grid: int = GRID):
        self.names = outcomes.versions
        self.error, self.cost, self.confidence = (outcomes.matrix(c) for c in ("error", "cost", "confidence"))
        self.answer = answer
        versions = range(len(self.names))
        quantiles = np.linspace(0, 1, grid)
        self.levels = [np.unique(np.quantile(self.confidence[:, v], quantiles, method="lower")) for v in versions]
        chains = [chain for count in range(1, length + 1) for chain in permutations(versions, count)]
        self.all = [(chain, at) for chain in chains for at in self._settings(chain)]
        self.means = np.array([(e.mean(), c.mean()) for e, c in (self.replay(*setting) for setting in self.all)])

    def _settings(self, chain: tuple[int, ...]) -> list[tuple[float, ...]]:
        settings: list[tuple[float, ...]] = [()]
        for version in chain[:-1]:
            settings = [(*before, float(level)) for before in settings for level in self.levels[version]]
        return settings

    def replay(self, chain: tuple[int, ...], thresholds: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
        error, cost = self.error[:, chain[-1]], self.cost[:, chain[-1]]
        for place in range(len(chain) - 2, -1, -1):
            first = chain[place]
            asks = self.confidence[:, first] < thresholds[place]
            taken = asks
            if self.answer == "surer":
                taken = asks & (self.confidence[:, chain[-1]] >= self.confidence[:, first])
            error = np.where(taken, error, self.error[:, first])
            cost = self.cost[:, first] + np.where(asks, cost, 0.0)
        return error, cost

    def tree(self, at: int) -> dict[str, Any]:
        chain, thresholds = self.all[at]
        return _turns(tuple(self.names[v] for v in chain), thresholds, self.answer)

    def cheapest(self, limit: float) -> int:
        """The cheapest of those with at most this mean error."""
        allowed = np.flatnonzero(self.means[:, 0] <= limit + 1e-12)
        return int(allowed[np.argmin(self.means[allowed, 1])])


def _limits(rows: pd.DataFrame) -> list[float]:
    """Per tolerance the error allowed on these rows."""
    best = rows.loc[rows["version"] == rows["best"], "error"].mean()
    return [float(best) + tolerance for tolerance in TOLERANCES]


def _best_single(rows: pd.DataFrame, outcomes: OutcomeTable) -> list[Mixture]:
    replays = _Replays(outcomes, 1)
    return [[(1.0, replays.tree(replays.cheapest(limit)))] for limit in _limits(rows)]


def _frugal_ml(rows: pd.DataFrame, outcomes: OutcomeTable) -> list[Mixture]:
    """Base service, and an add-on below a threshold, of two such strategies a mixture (Chen, Zaharia & Zou 2020).

    Its linear program has at most two strategies in its optimum: a segment of the lower convex hull of error over
    cost. Thresholds by predicted label need labels, which these tables lack; the threshold is then one of all labels.
    """
    replays = _Replays(outcomes, 2)
    error, cost = replays.means.T
    hull: list[int] = []
    for at in np.lexsort((error, cost)):
        if hull and error[at] >= error[hull[-1]]:
            continue
        while len(hull) > 1 and (error[hull[-1]] - error[hull[-2]]) * (cost[at] - cost[hull[-2]]) >= (
            error[at] - error[hull[-2]]
        ) * (cost[hull[-1]] - cost[hull[-2]]):
            hull.pop()
        hull.append(int(at))
    return [_mixed(replays, hull, limit) for limit in _limits(rows)]


def _mixed(replays: _Replays, hull: list[int], limit: float) -> Mixture:
    enough = next(place for place, at in enumerate(hull) if replays.means[at, 0] <= limit + 1e-12)
    if enough == 0:
        return [(1.0, replays.tree(hull[0]))]
    worse, better = hull[enough - 1], hull[enough]
    share = (limit - replays.means[better, 0]) / (replays.means[worse, 0] - replays.means[better, 0])
    return [(float(share), replays.tree(worse)), (1 - float(share), replays.tree(better))]


def _frugal_gpt(rows: pd.DataFrame, outcomes: OutcomeTable) -> list[Mixture]:
    """Up to three in turn; a learnt score of all answers so far is compared to a threshold (Chen, Zaharia & Zou 2023).

    The score is a logistic regression of "the answer is right" on the confidences so far; the thresholds are chosen
    on the same half, by grid, as the paper does.
    """
    error, cost, confidence = (outcomes.matrix(c) for c in ("error", "cost", "confidence"))
    names, found = outcomes.versions, []
    for chain in (c for count in (1, 2, 3) for c in permutations(range(len(names)), count)):
        scores = [_score(confidence[:, chain[: n + 1]], error[:, chain[n]]) for n in range(len(chain) - 1)]
        levels = [np.unique(np.quantile(values, np.linspace(0, 1, 12), method="lower")) for _, values in scores]
        for at in np.stack(np.meshgrid(*levels), -1).reshape(-1, len(levels)) if levels else np.zeros((1, 0)):
            its_error, its_cost = error[:, chain[-1]], cost[:, chain[-1]]
            for place in range(len(chain) - 2, -1, -1):
                asks = scores[place][1] < at[place]
                its_error = np.where(asks, its_error, error[:, chain[place]])
                its_cost = cost[:, chain[place]] + np.where(asks, its_cost, 0.0)
            found.append((its_cost.mean(), its_error.mean(), chain, at, [weights for weights, _ in scores]))
    found.sort(key=lambda one: one[0])
    chosen = (next(one for one in found if one[1] <= limit + 1e-12) for limit in _limits(rows))
    return [[(1.0, _score_tree(names, *one[2:]))] for one in chosen]


def _score(confidence: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the confidences, and the score."""
    right = error < 0.5
    weights = LogisticRegression().fit(confidence, right).coef_[0] if 0 < right.sum() < len(right) else np.ones(1)
    weights = np.resize(weights, confidence.shape[1])
    # Summed in the judge's order, so that a score at its threshold is so for both.
    return weights, np.asarray(sum(weight * confidence[:, at] for at, weight in enumerate(weights)))


def _score_tree(names: list[str], chain: tuple[int, ...], at: np.ndarray, weights: list[np.ndarray]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    for place, version in enumerate(chain[:-1]):
        terms = [["confidence", names[v], float(w)] for v, w in zip(chain, weights[place], strict=False)]
        accept = {"if": "score", "terms": terms, "at_least": float(at[place])}
        steps.append({"ask": names[version], "accept": accept})
    return {"steps": [*steps, {"ask": names[chain[-1]]}], "answer": "last"}


def _learn_then_test(rows: pd.DataFrame, outcomes: OutcomeTable) -> list[Mixture]:
    """Learn then Test (Angelopoulos et al. 2021), as MAPIE's risk control does it, by hand: two in turn.

    The first half orders the strategies by cost; the second tests them from the dearest on, in fixed sequence, by
    Hoeffding and Bentkus; the last that passes serves. It controls an error, not a difference: the best version's
    error is taken as known. The tolerances share the level.
    """
    half = np.random.default_rng(0).permutation(len(outcomes.examples))
    first, second = (outcomes.examples_at(part) for part in np.array_split(half, 2))
    learnt, tested = _Replays(first, 2), _Replays(second, 1)
    best = outcomes.versions.index(str(rows["best"].iloc[0]))
    level, best_error = (1 - CONFIDENCE) / len(TOLERANCES), float(outcomes.matrix("error")[:, best].mean())
    chosen: list[Mixture] = []
    for tolerance in TOLERANCES:
        serves = _alone(outcomes.versions[best])
        for at in _staircase(learnt.means, np.arange(len(learnt.all))):
            error, _ = tested.replay(*learnt.all[at])
            if _hoeffding_bentkus(float(error.mean()), len(error), best_error + tolerance) > level:
                break
            serves = learnt.tree(at)
        chosen.append([(1.0, serves)])
    return chosen


def _mapie(rows: pd.DataFrame, outcomes: OutcomeTable) -> list[Mixture]:
    """MAPIE's risk control as its users would set it up: Learn then Test of the share of right answers of two in turn.

    As in ``_learn_then_test`` the first half finds the strategies, the second tests them, and the best version's error
    is taken as known. The order and the test, which is sharper for errors of 0 and 1, are MAPIE's own.
    """
    from mapie.risk_control import BinaryClassificationController, accuracy

    half = np.random.default_rng(0).permutation(len(outcomes.examples))
    first, second = np.array_split(half, 2)
    learnt, whole = _Replays(outcomes.examples_at(first), 2), _Replays(outcomes, 1)
    best = outcomes.versions.index(str(rows["best"].iloc[0]))
    candidates = _staircase(learnt.means, np.arange(len(learnt.all)))
    right = [1 - whole.replay(*learnt.all[at])[0] for at in candidates]
    best_error, chosen = float(outcomes.matrix("error")[:, best].mean()), []
    for tolerance in TOLERANCES:
        controller = BinaryClassificationController(
            lambda x, place, _: right[int(place)][x[:, 0]],
            accuracy,
            target_level=1 - best_error - tolerance,
            confidence_level=1 - (1 - CONFIDENCE) / len(TOLERANCES),
            # Of two dimensions, or they would be thresholds of probabilities.
            list_predict_params=np.array([[place, 0] for place in range(len(candidates))]),
            fwer_method="split_fixed_sequence",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing could be proven
            controller.learn_fixed_sequence_order(first[:, None], np.ones(len(first), dtype=int))
            controller.calibrate(second[:, None], np.ones(len(second), dtype=int))
        valid = [int(place) for place, _ in np.asarray(controller.valid_predict_params).reshape(-1, 2)]
        cheapest = min((candidates[place] for place in valid), key=lambda at: learnt.means[at, 1], default=None)
        chosen.append([(1.0, _alone(outcomes.versions[best]) if cheapest is None else learnt.tree(cheapest))])
    return chosen


def _with_mapie(outcomes: OutcomeTable) -> bool:
    return find_spec("mapie") is not None and bool(np.isin(outcomes.matrix("error"), (0, 1)).all())


def _staircase(means: np.ndarray, promising: np.ndarray) -> list[int]:
    """Those that nothing cheaper is as accurate as, from the dearest and most accurate on."""
    kept: list[int] = []
    for at in promising[np.argsort(means[promising, 1], kind="stable")]:
        if not kept or means[at, 0] < means[kept[-1], 0]:
            kept.append(int(at))
    return kept[::-1]


def _hoeffding_bentkus(mean: float, size: int, allowed: float) -> float:
    if mean >= allowed:
        return 1.0
    divergence = mean * math.log(mean / allowed) if mean > 0 else 0.0
    divergence += (1 - mean) * math.log((1 - mean) / (1 - allowed))
    return min(math.exp(-size * divergence), math.e * float(binom.cdf(math.ceil(size * mean), size, allowed)))


def _oracle(length: int, answer: str) -> Learner:
    """The cheapest that keeps the tolerance on the half that judges: pairs at 200 thresholds, three at fewer."""

    def learn(rows: pd.DataFrame, outcomes: OutcomeTable) -> list[Mixture]:
        classes = [_Replays(outcomes, 2, answer, 200)] + ([_Replays(outcomes, 3, answer, 16)] if length == 3 else [])
        return [[(1.0, _cheapest_of(classes, limit))] for limit in _limits(rows)]

    return learn


def _provable(rows: pd.DataFrame, outcomes: OutcomeTable) -> list[Mixture]:
    """The oracle of three in turn, of what a test could show: no rules with a certificate are expected to save more.

    As often as not a test of the level 1 − CONFIDENCE shows, from as many examples as it judges, a tolerance that is
    kept by 1.64 standard errors of the mean difference (the best test of a normal mean). So the cheapest that is that
    far below its tolerance on the half that judges; as if it were known, and nothing else were tested.
    """
    best = outcomes.matrix("error")[:, outcomes.versions.index(str(rows["best"].iloc[0]))]
    classes = (_Replays(outcomes, 2, "last", 200), _Replays(outcomes, 3, "last", 16))
    found: list[tuple[float, float, _Replays, int]] = []
    for replays in classes:
        for at, setting in enumerate(replays.all):
            excess = replays.replay(*setting)[0] - best
            need = excess.mean() + norm.isf(1 - CONFIDENCE) * excess.std() / math.sqrt(len(best))
            found.append((replays.means[at, 1], need, replays, at))
    found.sort(key=lambda one: one[0])
    kept = (next(one for one in found if one[1] <= tolerance + 1e-12) for tolerance in TOLERANCES)
    return [[(1.0, replays.tree(at))] for _, _, replays, at in kept]


def _cheapest_of(classes: list[_Replays], limit: float) -> dict[str, Any]:
    best = [(one.means[at := one.cheapest(limit), 1], one, at) for one in classes]
    _, one, at = min(best, key=lambda found: found[0])
    return one.tree(at)


LEARNERS: dict[str, Learner] = {
    "slotool, all policies": _by_slotool("certified", ("osfa", "seq", "conc", "cascade")),
    "slotool, seq and conc": _by_slotool("certified", ("osfa", "seq", "conc")),
    "paper's bootstrap": _by_slotool("bootstrap", ("osfa", "seq")),
    "Learn then Test": _learn_then_test,
    "MAPIE": _mapie,
    "FrugalML": _frugal_ml,
    "FrugalGPT cascade": _frugal_gpt,
    "best single version": _best_single,
    "oracle, two, the surer": _oracle(2, "surer"),
    "oracle, two in turn": _oracle(2, "last"),
    "oracle, three in turn": _oracle(3, "last"),
    "oracle, provable": _provable,
}
