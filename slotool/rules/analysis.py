"""Statistics of the versions of a service, per version and per request (tolerance-tiers, §III)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slotool.tables import OutcomeTable

CATEGORIES = ("unchanged", "improves", "degrades", "varies")


@dataclass(frozen=True)
class VersionFacts:
    """Means over the table.

    ``pareto``: no other version is at least as accurate, as fast and as cheap, and better in one of the three.
    """

    version: str
    error: float
    response_time_s: float
    cost: float
    confidence: float
    pareto: bool


def version_facts(outcomes: OutcomeTable) -> list[VersionFacts]:
    """Return the facts of every version, fastest first."""
    error, time_s, cost, sure = (
        outcomes.matrix(column).mean(axis=0) for column in ("error", "latency_s", "cost", "confidence")
    )
    figures = np.stack((error, time_s, cost))
    return [
        VersionFacts(
            outcomes.versions[v], float(error[v]), float(time_s[v]), float(cost[v]), float(sure[v]),
            not bool(((figures <= figures[:, [v]]).all(axis=0) & (figures < figures[:, [v]]).any(axis=0)).any()),
        )
        for v in np.argsort(time_s, kind="stable")
    ]  # fmt: skip


def categories(outcomes: OutcomeTable) -> np.ndarray:
    """Return each request's category as an index into ``CATEGORIES``: int [examples].

    From faster to slower versions (by mean latency) the error of ``improves`` never rises and falls at least once;
    ``degrades`` is the reverse; ``unchanged``: no version makes a difference; ``varies``: all else (§III-C).
    """
    order = np.argsort(outcomes.matrix("latency_s").mean(axis=0), kind="stable")
    steps = np.diff(outcomes.matrix("error")[:, order], axis=1)
    rises, falls = (steps > 0).any(axis=1), (steps < 0).any(axis=1)
    return np.asarray(falls * 1 + rises * 2)


def category_shares(outcomes: OutcomeTable) -> dict[str, float]:
    counts = np.bincount(categories(outcomes), minlength=len(CATEGORIES))
    return {name: float(count / counts.sum()) for name, count in zip(CATEGORIES, counts, strict=True)}
