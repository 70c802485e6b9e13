"""``slotool.pareto``: networks that no other one beats in latency and score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slotool.commands.predictors.prediction import Prediction
from slotool.errors import ArgumentError


def pareto(latency: Prediction | Mapping[str, float], score: Mapping[str, float] | Sequence[float]) -> list[str]:
    """Return the networks that no other one beats in both latency and score.

    Args:
        latency: Result of ``predict``, or seconds by name.
        score: Accuracy, or another number of which more is better: by name, or in the order of ``latency``.

    Returns:
        Names, the fastest first; each scores more than all before it. Of equal networks it is the first.

    Raises:
        ArgumentError: Two networks have one name, or a network has no score.
    """
    from slotool.reports.series.accuracy import pareto as front

    if isinstance(latency, Prediction):
        names = [graph.name or graph.id for graph in latency.graphs]
        latency = dict(zip(names, latency.latency_s.tolist(), strict=True))
        if len(latency) < len(names):
            raise ArgumentError("latency", f"two networks are named {next(n for n in names if names.count(n) > 1)}")
    names = list(latency)
    if not isinstance(score, Mapping):
        if len(score) != len(names):
            raise ArgumentError("score", f"there are {len(score)} scores of {len(names)} networks")
        score = dict(zip(names, score, strict=True))
    absent = [name for name in names if not np.isfinite(score.get(name, np.nan))]
    if absent:
        raise ArgumentError("score", f"{absent[0]} has none")
    return [names[i] for i in front(np.array([*latency.values()]), np.array([float(score[name]) for name in names]))]
