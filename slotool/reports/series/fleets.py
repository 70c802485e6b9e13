"""What fleets of different size and policy cost, answer in time and answer correctly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from slotool.reports.axes import linear_axis, share_axis
from slotool.reports.figure import Curve, Figure, Rows
from slotool.reports.text import percent

# Attribute of a fleet's row, what it is in short and in full, and the id of its figure.
_SHOWN = (
    ("attainment", "in time", "answered within the deadline", "plan-attainment"),
    ("effective_accuracy", "correct in time", "answered correctly within the deadline", "plan-accuracy"),
)


def fleet_figures(
    name: str,
    rows: Sequence[Mapping[str, float | str]],
    chosen_cost: float,
    promised: Mapping[str, float] = MappingProxyType({}),
    *,
    of: str = "",
) -> Iterator[Figure]:
    """Share in time, and share correct in time, by cost: a curve per policy of ``rows``, and a dashed line at what is
    promised of it.

    ``rows``: of each fleet ``policy``, ``cost``, ``attainment`` and ``effective_accuracy``. ``promised``: by the same
    names; where one is missing or 0 no line is drawn. ``of``: what tells the ids of several models' figures apart.
    """
    policies = list(dict.fromkeys(str(row["policy"]) for row in rows))
    for key, short, title, figure_id in _SHOWN:
        curves = tuple(_curve(policy, at, key, rows) for at, policy in enumerate(policies))
        least = promised.get(key, 0.0)
        costs = np.array([float(row["cost"]) for row in rows])
        if least:
            ends = np.array([costs.min(), costs.max()])
            curves += (Curve("promised", ends, np.full(2, least), "dashes", len(policies)),)
        values = np.array([float(row[key]) for row in rows] + [least] * bool(least))
        yield Figure(
            id=f"{figure_id}-{of}" if of else figure_id,
            title=f"{name}: {short} by cost",
            caption=f"The plan costs {chosen_cost:g}. Each dot is a fleet on the simulated traffic.",
            source=name,
            x=linear_axis("cost of the fleet", costs),
            y=share_axis(f"requests {title}", values),
            curves=curves,
            table=Rows(
                ("policy", "cost", title),
                tuple((str(row["policy"]), f"{row['cost']:g}", percent(float(row[key]), 2)) for row in rows),
            ),
        )


def _curve(policy: str, at: int, key: str, rows: Sequence[Mapping[str, float | str]]) -> Curve:
    mine = [row for row in rows if row["policy"] == policy]
    x, y = (np.array([float(row[name]) for row in mine]) for name in ("cost", key))
    return Curve(policy, x, y, "dots and line", at)
