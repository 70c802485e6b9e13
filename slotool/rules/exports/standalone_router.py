"""Router of requests between versions of a service by tolerance tiers. It needs Python 3.10 and nothing else.

``slotool export-rules`` writes this file with its tiers in ``ROUTES``. ``route`` makes the decisions of the rules that
they were exported from:

    result = route(request, {"small": ask_small, "large": ask_large}, tolerance=0.02, objective="cost")
    result["answer"]

A version is a function of the request that returns ``(answer, confidence)``, or None where it gives no answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

ROUTES: dict[str, Any] = {"tiers": []}

Answer = tuple[Any, float]
Version = Callable[[Any], "Answer | None"]

_THREADS = ThreadPoolExecutor(max_workers=64, thread_name_prefix="routes")


def route(
    request: Any,
    versions: Mapping[str, Version],
    tolerance: float,
    objective: str = "response-time",
) -> dict[str, Any]:
    """Answer ``request``: return ``answer``, ``confidence``, ``version``, ``asked`` and the id of the ``tier``.

    ``confidence`` is NaN if no version answered; ``asked`` lists the versions in order. Raises ``ValueError`` for a
    tolerance or objective without a tier, ``KeyError`` for a missing version, and what a version raises.
    """
    tier = tier_for(tolerance, objective)
    steps = tier["route"]["steps"]
    answers: dict[str, Answer] = {}
    early = {}
    if tier["route"].get("at_once"):
        early = {step["ask"]: _THREADS.submit(versions[step["ask"]], request) for step in steps[1:]}
    for step in steps:
        answers[step["ask"]] = _answer_of(step["ask"], request, versions, early)
        if "accept" in step and accepts(step["accept"], answers):
            break
    version = outgoing(tier["route"], answers)
    answer, confidence = answers[version]
    about = {"version": version, "asked": [*dict.fromkeys([*answers, *early])], "tier": tier["id"]}
    return {"answer": answer, "confidence": confidence, **about}


def tier_for(tolerance: float, objective: str) -> dict[str, Any]:
    """Return the tier of the greatest tolerance up to ``tolerance``."""
    widest = max((tier["tolerance"] for tier in ROUTES["tiers"]), default=0.0)
    if ROUTES.get("tolerances_are_shares") and tolerance >= 1 and tolerance > widest:
        raise ValueError(f"tolerance {tolerance}: tolerances are shares; for {tolerance} % give {tolerance / 100:g}")
    offered = [tier for tier in ROUTES["tiers"] if tier["objective"] == objective]
    allowed = [tier for tier in offered if tier["tolerance"] <= tolerance + 1e-12]
    if not allowed:
        what = f"tolerance {tolerance} is stricter than all tiers" if offered else "it has no tiers"
        raise ValueError(f"objective {objective!r}: {what}")
    widest_allowed: dict[str, Any] = max(allowed, key=lambda tier: tier["tolerance"])
    return widest_allowed


def accepts(condition: Mapping[str, Any], answers: Mapping[str, Answer]) -> bool:
    """True if the version that ``condition`` names is sure enough of its answer."""
    least = condition["at_least"]
    return least is not None and answers[condition["version"]][1] >= least


def outgoing(tree: Mapping[str, Any], answers: Mapping[str, Answer]) -> str:
    """Return the version whose answer is sent. Ties go to the version asked last."""
    names = list(answers)
    sure = [answers[name][1] for name in names]
    votes = [float(place) for place in range(len(names))] if tree["answer"] == "last" else sure
    best = len(names) - 1
    for place in range(len(names) - 1, -1, -1):
        if not math.isnan(sure[place]) and (math.isnan(sure[best]) or votes[place] > votes[best]):
            best = place
    return names[best]


def _answer_of(name: str, request: Any, versions: Mapping[str, Version], early: Mapping[str, Future[Any]]) -> Answer:
    answer = early[name].result() if name in early else versions[name](request)
    return (None, math.nan) if answer is None else (answer[0], float(answer[1]))
