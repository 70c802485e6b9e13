"""Ways to choose a route that keeps a tolerance: one class each. Add a class to ``COMPARED`` to compare another.

A method is fitted to the recorded answers of one part of a table. It returns a route: trees as of a rule set's JSON
form, each with the share of requests that it serves. The route should err at most ``tolerance`` more than ``best``, the
version with the fewest errors in that part, and, if the method promises anything, with probability ``confidence``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import permutations
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.special import bdtr

from slotool.rules import METHODS, Problem, from_point, generate_rules
from slotool.rules.generate.certified import Certified
from slotool.rules.generate.proposals import Goal, Proposals, chains
from slotool.rules.policies.cascades import Cascade
from slotool.tables import OutcomeTable

Tree = dict[str, Any]
Route = list[tuple[float, Tree]]
TOLERANCES = (0.01, 0.02, 0.05)  # each of which is certified by itself
GRID = 24  # thresholds of a version, where pairs of versions are searched


class Method(Protocol):
    """``name``: shown in tables; ``proves``: it states a probability; ``sees_judge``: it is fitted to the part that
    judges, as a limit for all others; ``source``: where it is described."""

    name: ClassVar[str]
    proves: ClassVar[bool]
    sees_judge: ClassVar[bool]
    source: ClassVar[str]

    def fit(self, rows: OutcomeTable, best: str, tolerance: float, confidence: float) -> Route:
        """Return the route for one tolerance, in points of error."""


class Slotool:
    """The rules of ``slotool gen-rules``, all policies."""

    name, proves, sees_judge = "slotool", True, False
    source = "docs/explanation/tolerance-tiers.md"

    def fit(self, rows: OutcomeTable, best: str, tolerance: float, confidence: float) -> Route:
        """Return the rule for the least cost."""
        if self._rows is not rows:
            self._rows, self._proposed = rows, {}
        METHODS[_Shared.name] = type(_Shared.name, (_Shared,), {"proposed": self._proposed})
        rules = generate_rules(rows, [tolerance], ("cost",), confidence, _Shared.name, "absolute")
        return [(1.0, tree_of(rules.rules[0].point))]

    _rows: OutcomeTable | None = None


class _Shared(Certified):
    """The generator of ``gen-rules``. Chains of a part of the table are proposed for all tolerances at once: those of
    one do not depend on the others, and a tolerance is certified alone all the same. ``proposed``: by part."""

    name = "certified, chains shared"
    proposed: dict[bytes, Proposals]

    def propose(self, problem: Problem, goals: Sequence[Goal], *parts: np.ndarray) -> Proposals:
        """Return the chain of the only goal."""
        (goal,), key = goals, parts[0].tobytes()
        every = [Goal(goal.objective, tolerance, goal.saves) for tolerance in TOLERANCES]
        if key not in self.proposed:
            self.proposed[key] = chains(problem, every, *parts)
        return Proposals([self.proposed[key].chains[every.index(goal)]], self.proposed[key].considered)


class ClopperPearson:
    """The cheapest version, then the best one: thresholds in turn from the safest, until the exact binomial bound of
    the error lies above the best version's observed error plus the tolerance."""

    name, proves, sees_judge = "Clopper–Pearson", True, False
    source = "Clopper & Pearson, Biometrika 26, 1934"

    def fit(self, rows: OutcomeTable, best: str, tolerance: float, confidence: float) -> Route:
        """Return the last threshold before the first that fails."""

        allowed = min(1.0, error_of(rows, best) + tolerance)
        return first_pair(rows, best, lambda errors, n: bdtr(errors, n, allowed) <= 1.0 - confidence)


class RouteLLM:
    """The cheapest version, then the best one, by the threshold that saves most of those observed to keep the
    tolerance, as a router is calibrated on recorded answers."""

    name, proves, sees_judge = "RouteLLM thresholds", False, False
    source = "Ong et al., arXiv 2406.18665"

    def fit(self, rows: OutcomeTable, best: str, tolerance: float, confidence: float) -> Route:
        """Return the last threshold whose observed error is low enough."""
        allowed = error_of(rows, best) + tolerance
        return first_pair(rows, best, lambda errors, n: errors / n <= allowed + 1e-12)


class LearnThenTest:
    """Pairs of versions in turn: half of the rows order them by cost, the others test them in this order by the bound
    of Hoeffding and Bentkus. The best version's error is taken as known."""

    name, proves, sees_judge = "Learn then Test", True, False
    source = "Angelopoulos et al., arXiv 2110.01052"

    def fit(self, rows: OutcomeTable, best: str, tolerance: float, confidence: float) -> Route:
        """Return the last pair before the first that fails."""
        learnt, tested, staircase = halves(rows)
        allowed, serves = error_of(rows, best) + tolerance, alone(best)
        for at in staircase:
            error, _ = tested.replay(*learnt.settings[at])
            if hoeffding_bentkus(float(error.mean()), len(error), allowed) > 1.0 - confidence:
                break
            serves = learnt.tree(at)
        return [(1.0, serves)]


class Mapie:
    """Learn then Test by MAPIE's risk control, with its own order and test, as its users would set it up."""

    name, proves, sees_judge = "MAPIE", True, False
    source = "Cordier et al., COPA 2023; mapie 1.6"

    def fit(self, rows: OutcomeTable, best: str, tolerance: float, confidence: float) -> Route:
        """Return the cheapest pair that MAPIE calls valid."""
        from mapie.risk_control import BinaryClassificationController, accuracy

        learnt, right, staircase = staircase_answers(rows)
        first, second = half_rows(rows)
        controller = BinaryClassificationController(
            lambda x, place, _: right[int(place)][x[:, 0]],
            accuracy,
            target_level=1.0 - error_of(rows, best) - tolerance,
            confidence_level=confidence,
            # Of two dimensions, or they would be thresholds of probabilities.
            list_predict_params=np.array([[place, 0] for place in range(len(staircase))]),
            fwer_method="split_fixed_sequence",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing could be proven
            controller.learn_fixed_sequence_order(first[:, None], np.ones(len(first), dtype=int))
            controller.calibrate(second[:, None], np.ones(len(second), dtype=int))
        valid = [int(place) for place, _ in np.asarray(controller.valid_predict_params).reshape(-1, 2)]
        cheapest = min((staircase[place] for place in valid), key=lambda at: learnt.means[at, 1], default=None)
        return [(1.0, alone(best) if cheapest is None else learnt.tree(cheapest))]


class FrugalML:
    """A base service and an add-on below a threshold, two of these in a mixture: the optimum of FrugalML's linear
    program is a segment of the lower convex hull of error over cost. Thresholds by predicted label need labels, which
    the tables lack."""

    name, proves, sees_judge = "FrugalML", False, False
    source = "Chen, Zaharia & Zou, arXiv 2006.07512"

    def fit(self, rows: OutcomeTable, best: str, tolerance: float, confidence: float) -> Route:
        """Return the mixture with the observed error that is allowed."""
        replays, limit = Replays(rows, 2), error_of(rows, best) + tolerance
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
        enough = next(place for place, at in enumerate(hull) if error[at] <= limit + 1e-12)
        if enough == 0:
            return [(1.0, replays.tree(hull[0]))]
        worse, better = hull[enough - 1], hull[enough]
        share = float((limit - error[better]) / (error[worse] - error[better]))
        return [(share, replays.tree(worse)), (1.0 - share, replays.tree(better))]


class Oracle:
    """The cheapest of two or three versions in turn that keeps the tolerance on the part that judges."""

    name, proves, sees_judge, source = "oracle", False, True, ""

    def fit(self, rows: OutcomeTable, best: str, tolerance: float, confidence: float) -> Route:
        """Return it: pairs at 200 thresholds, three versions at ``GRID`` each."""
        if self._rows is not rows:
            self._rows, self._classes = rows, [Replays(rows, 2, 200), Replays(rows, 3, GRID)]
        limit = error_of(rows, best) + tolerance
        candidates = [(own.means[at, 1], own.tree(at)) for own in self._classes if (at := own.cheapest(limit)) >= 0]
        return [(1.0, min(candidates, key=lambda pair: pair[0])[1])]

    _rows: OutcomeTable | None = None
    _classes: Sequence[Replays] = ()


COMPARED: tuple[type[Method], ...] = (Slotool, ClopperPearson, LearnThenTest, Mapie, RouteLLM, FrugalML, Oracle)


def error_of(rows: OutcomeTable, version: str) -> float:
    """Mean error of a version."""
    return float(rows.matrix("error")[:, rows.versions.index(version)].mean())


def alone(version: str) -> Tree:
    """The tree of one version for all requests."""
    return {"steps": [{"ask": version}], "answer": "last"}


def in_turn(versions: Sequence[str], thresholds: Sequence[float], answer: str = "last") -> Tree:
    """The tree of versions in turn, each of which suffices from its threshold on."""
    steps: list[dict[str, Any]] = [
        {"ask": version, "accept": {"if": "sure", "version": version, "at_least": threshold}}
        for version, threshold in zip(versions, thresholds, strict=False)
    ]
    return {"steps": [*steps, {"ask": versions[-1]}], "answer": answer}


def tree_of(point: Any) -> Tree:
    """The tree of a rule's operating point."""
    policy = from_point(point)
    if isinstance(policy, Cascade):
        return policy.document()
    if point.get("policy") == "osfa":
        return alone(str(point.get("version")))
    return in_turn((str(point.get("first")), str(point.get("second"))), (float(point.get("threshold")),), "surer")


def first_pair(rows: OutcomeTable, best: str, kept: Callable[[np.ndarray, int], np.ndarray]) -> Route:
    """The cheapest version of varying confidence and then ``best``, by the lowest of 200 thresholds before the first
    whose errors, in a number of rows, are not ``kept``."""
    path = pair_path(rows, best)
    serves = alone(best)
    if path is not None:
        cheap, levels, errors, cheaper = path
        failed = np.flatnonzero(~kept(errors, len(rows.examples)))
        useful = np.flatnonzero(cheaper[: failed[0] if len(failed) else len(levels)])
        if len(useful):
            serves = in_turn((cheap, best), (float(levels[useful[-1]]),))
    return [(1.0, serves)]


@lru_cache(maxsize=2)
def pair_path(rows: OutcomeTable, best: str) -> tuple[str, np.ndarray, np.ndarray, np.ndarray] | None:
    """The version that is asked first, its thresholds from the highest on, and by threshold the number of errors and
    whether it costs less than ``best`` alone; nothing where no confidence varies."""
    error, sure, cost = (rows.matrix(column) for column in ("error", "confidence", "cost"))
    varied = [at for at in range(len(rows.versions)) if np.ptp(sure[:, at]) > 0 and rows.versions[at] != best]
    if not varied:
        return None
    first, then = min(varied, key=lambda at: float(cost[:, at].mean())), rows.versions.index(best)
    levels = np.unique(np.quantile(sure[:, first], np.linspace(0, 1, 200), method="lower"))[::-1]
    order = np.argsort(sure[:, first])
    unsure = np.searchsorted(sure[order, first], levels)
    # Those below a threshold are answered by the second version.
    errors = np.append(0.0, (error[order, then] - error[order, first]).cumsum())[unsure] + error[:, first].sum()
    spent = np.append(0.0, cost[order, then].cumsum())[unsure] + cost[:, first].sum()
    return rows.versions[first], levels, errors, spent < cost[:, then].sum()


class Replays:
    """Every chain of at most ``length`` versions in turn at a grid of thresholds.

    ``settings``: versions and thresholds of each; ``means``: float64 [settings, 2], error and cost.
    """

    def __init__(self, rows: OutcomeTable, length: int, grid: int = GRID):
        self.names = rows.versions
        self.error, self.cost, self.confidence = (rows.matrix(c) for c in ("error", "cost", "confidence"))
        versions, shares = range(len(self.names)), np.linspace(0, 1, grid)
        self.levels = [np.unique(np.quantile(self.confidence[:, v], shares, method="lower")) for v in versions]
        chains = [chain for count in range(1, length + 1) for chain in permutations(versions, count)]
        self.settings = [(chain, at) for chain in chains for at in self._thresholds(chain)]
        self._reached = [np.searchsorted(own, self.confidence[:, v], side="right") for v, own in enumerate(self.levels)]
        self.means = np.concatenate([self._means(chain) for chain in chains])

    def _means(self, chain: tuple[int, ...]) -> np.ndarray:
        """``means`` of all thresholds of one chain: the first version's, and what each further one adds for examples
        that reach it, those below all thresholds before."""
        sizes = [len(self.levels[version]) for version in chain[:-1]]
        means = []
        for values in (self.error, self.cost):
            total = np.full(sizes, values[:, chain[0]].mean())
            for depth in range(1, len(chain)):
                cells = [size + 1 for size in sizes[:depth]]
                code = np.ravel_multi_index([self._reached[version] for version in chain[:depth]], cells)
                added = values[:, chain[depth]]
                if values is self.error:  # the last answer goes out, and all are paid for
                    added = added - values[:, chain[depth - 1]]
                sums = np.bincount(code, added, int(np.prod(cells))).reshape(cells) / len(added)
                for axis in range(depth):
                    sums = np.delete(sums.cumsum(axis=axis), -1, axis=axis)
                total += sums.reshape(*sums.shape, *[1] * (len(sizes) - depth))
            means.append(total.ravel())
        return np.stack(means, axis=1)

    def _thresholds(self, chain: tuple[int, ...]) -> list[tuple[float, ...]]:
        combinations: list[tuple[float, ...]] = [()]
        for version in chain[:-1]:
            combinations = [(*before, float(level)) for before in combinations for level in self.levels[version]]
        return combinations

    def replay(self, chain: tuple[int, ...], thresholds: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Error and cost of each example."""
        error, cost = self.error[:, chain[-1]], self.cost[:, chain[-1]]
        for place in range(len(chain) - 2, -1, -1):
            asks = self.confidence[:, chain[place]] < thresholds[place]
            error = np.where(asks, error, self.error[:, chain[place]])
            cost = self.cost[:, chain[place]] + np.where(asks, cost, 0.0)
        return error, cost

    def tree(self, at: int) -> Tree:
        """The tree of a setting."""
        chain, thresholds = self.settings[at]
        return in_turn([self.names[v] for v in chain], thresholds)

    def cheapest(self, limit: float) -> int:
        """The cheapest setting with at most this mean error; −1 where none has."""
        allowed = np.flatnonzero(self.means[:, 0] <= limit + 1e-12)
        return int(allowed[np.argmin(self.means[allowed, 1])]) if len(allowed) else -1


def half_rows(rows: OutcomeTable) -> tuple[np.ndarray, np.ndarray]:
    """Two random halves of the examples' numbers."""
    first, second = np.array_split(np.random.default_rng(0).permutation(len(rows.examples)), 2)
    return first, second


@lru_cache(maxsize=2)
def halves(rows: OutcomeTable) -> tuple[Replays, Replays, list[int]]:
    """Pairs on one half, replays of the other, and those pairs that nothing cheaper is as accurate as, dearest
    first."""
    first, second = (rows.examples_at(part) for part in half_rows(rows))
    learnt = Replays(first, 2)
    kept: list[int] = []
    for at in np.argsort(learnt.means[:, 1], kind="stable"):
        if not kept or learnt.means[at, 0] < learnt.means[kept[-1], 0]:
            kept.append(int(at))
    return learnt, Replays(second, 1), kept[::-1]


@lru_cache(maxsize=2)
def staircase_answers(rows: OutcomeTable) -> tuple[Replays, list[np.ndarray], list[int]]:
    """``halves``, with the right answers of each pair among all rows, float64 [rows], in place of replays."""
    learnt, _, staircase = halves(rows)
    whole = Replays(rows, 1)
    return learnt, [1.0 - whole.replay(*learnt.settings[at])[0] for at in staircase], staircase


def hoeffding_bentkus(mean: float, size: int, allowed: float) -> float:
    """P-value against a mean error above ``allowed``."""
    if mean >= allowed:
        return 1.0
    divergence = mean * np.log(mean / allowed) if mean > 0 else 0.0
    divergence += (1 - mean) * np.log((1 - mean) / (1 - allowed))
    return float(min(np.exp(-size * divergence), np.e * bdtr(np.ceil(size * mean), size, allowed)))
