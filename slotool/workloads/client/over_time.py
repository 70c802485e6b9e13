"""Attainment and accuracy of a load test over time, and around the faults that it injected."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slotool.workloads.client.faults import Fault
from slotool.workloads.requests import RequestLog

WIDTH_S = 1.0
# What is compared with before, where no other fault lies in it.
BEFORE_S = 10.0
# So much less attainment than before counts as not recovered.
NOTICEABLE = 0.01


def over_time(log: RequestLog, width_s: float = WIDTH_S) -> list[dict[str, Any]]:
    """Per ``width_s`` seconds in which requests were due: ``begin_s``, ``requests``, ``attainment`` (share answered in
    time), ``accuracy`` of those answered and ``effective_accuracy``; NaN where there is nothing to say."""
    due_s = log.rows["intended_s"].to_numpy()
    bins = (due_s / width_s).astype(np.int64)
    return [{"begin_s": at * width_s, **_figures(log, bins == at)} for at in np.unique(bins).tolist()]


def around_faults(log: RequestLog) -> list[dict[str, Any]]:
    """Per injected fault of the log, in order: ``fault``, ``at_s``, ``injected_s``, ``error``, and attainment and
    accuracy before and after it.

    Before is up to 10 s from the fault before it, after until the next. ``attainment_worst``: of the worst second after
    it. ``recovered_s``: until attainment was within a point of before for good; None: not before the next fault.
    """
    injected = log.provenance.get("faults") or []
    due_s = log.rows["intended_s"].to_numpy()
    end_s = float(due_s.max()) + 1e-9
    instants = [float(record["injected_s"]) for record in injected]
    found = []
    for number, record in enumerate(injected):
        at_s, next_s = instants[number], [*instants, end_s][number + 1]
        from_s = max(at_s - BEFORE_S, instants[number - 1] if number else 0.0)
        before = _figures(log, (due_s >= from_s) & (due_s < at_s))
        after = _figures(log, (due_s >= at_s) & (due_s < next_s))
        worst, recovered_s = _recovery(log, at_s, next_s, before["attainment"])
        names = ("action", "worker", "factor", "lasts_s")
        found.append(
            {
                "fault": str(Fault(record["at_s"], *(record[name] for name in names))),
                "at_s": record["at_s"],
                "injected_s": at_s,
                "error": record["error"],
                **{f"{name}_before": before[name] for name in ("attainment", "accuracy")},
                **{f"{name}_after": after[name] for name in ("attainment", "accuracy")},
                "attainment_worst": worst,
                "recovered_s": recovered_s,
            }
        )
    return found


def _recovery(log: RequestLog, at_s: float, next_s: float, before: float) -> tuple[float, float | None]:
    """Attainment of the worst second from the fault on, and when the last second below ``before`` ended."""
    due_s = log.rows["intended_s"].to_numpy()
    worst, recovered_s = math.nan, 0.0
    for second in range(math.ceil(next_s - at_s)):
        begin_s = at_s + second * WIDTH_S
        end_s = min(begin_s + WIDTH_S, next_s)
        attainment = _figures(log, (due_s >= begin_s) & (due_s < end_s))["attainment"]
        worst = float(np.fmin(worst, attainment))
        if attainment < before - NOTICEABLE:
            recovered_s = end_s - at_s
    return worst, None if recovered_s >= next_s - at_s > 0 else recovered_s


def _figures(log: RequestLog, chosen: np.ndarray) -> dict[str, Any]:
    count, answered = int(chosen.sum()), int((chosen & log.answered).sum())
    right = chosen & log.correct
    known = log.has_labels
    return {
        "requests": count,
        "attainment": float((chosen & log.in_time).sum() / count) if count else math.nan,
        "accuracy": float(right.sum() / answered) if answered and known else math.nan,
        "effective_accuracy": float((right & log.in_time).sum() / count) if count and known else math.nan,
    }
