"""Populations of requests whose truth is known: rules made from tables drawn from them are held against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from slotool.rules.policies.points import from_point
from slotool.rules.policies.routing import OSFA
from slotool.rules.ruleset.rules import RuleSet
from slotool.tables import OutcomeTable
from slotool.testing.rules import family_outcomes

Population = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def rare_one_sided(draw: np.random.Generator, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Unsure of 5 % the fast versions are wrong; so they are, surely, on 0.2 %, and a table of 500 may show none.

    Like every population: errors and confidences of three versions, float64 [examples, 3].
    """
    rare, unsure, hopeless = (draw.random(examples) < rate for rate in (0.002, 0.05, 0.05))
    error = np.stack([rare | unsure | hopeless, rare | unsure | hopeless, hopeless], axis=1)
    sure = np.where(unsure, 0.3, 0.8)[:, None] + 0.1 * draw.random((examples, 3))
    return error.astype(float), sure + np.array([0.0, 0.0, 0.1])


def common(draw: np.random.Generator, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Every tenth to fourth answer is wrong, mostly the same ones, and confidence tells a little."""
    hard = draw.random((examples, 1))
    error = hard * draw.uniform(0.8, 1.2, (examples, 3)) > np.array([0.74, 0.8, 0.84])
    return error.astype(float), 1.0 - 0.5 * hard * draw.random((examples, 3))


def common_and_tied(draw: np.random.Generator, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """A quarter wrong, versions nearly equal (the best one is a draw of luck), four levels of confidence."""
    error = draw.random((examples, 3)) < [0.26, 0.25, 0.25]
    return error.astype(float), np.round(3 * (0.7 - 0.1 * error + 0.3 * draw.random((examples, 3)))) / 3


def continuous(draw: np.random.Generator, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Errors as of speech recognition: mostly small, correlated across versions."""
    hard = draw.random((examples, 1))
    error = np.clip(hard * [1.0, 0.95, 0.93] * draw.random((examples, 3)), 0, 1) ** 2
    return error, np.round(1 - 0.5 * hard - 0.3 * draw.random((examples, 3)), 2)


POPULATIONS: dict[str, Population] = {
    "rare one-sided": rare_one_sided,
    "common": common,
    "common, tied": common_and_tied,
    "continuous": continuous,
}


def population_outcomes(error: np.ndarray, sure: np.ndarray) -> OutcomeTable:
    """What a population drew as a table; latencies as of ``family_outcomes``."""
    rows = family_outcomes(len(error), error=(0.1,) * error.shape[1]).rows
    return OutcomeTable(rows.assign(error=error.T.ravel(), confidence=sure.T.ravel()))


def excesses_over_bound(rules: RuleSet, truth: OutcomeTable) -> Iterator[np.ndarray]:
    """Per ensemble of ``rules`` with a bound how far above it each answer's degradation is: float64 [examples].

    The best version is the truly best one where the rules' bounds lie above that."""
    name = min(rules.references(truth), key=lambda own: OSFA(own).replay(truth).error.mean())
    truth = rules.losses(truth, name)
    best = OSFA(name).replay(truth).error
    for point, bound in {rule.point: rule.bound for rule in rules.rules}.items():
        if bound is None:
            continue
        allowed = bound * (best if rules.tolerance_kind == "relative" else 1.0)
        yield from_point(point).replay(truth).error - best - allowed
