"""Explanation of ``slotool.plan(explain=True)``: what one worker fewer misses, or the fleet that comes closest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slotool.commands.display import duration

if TYPE_CHECKING:
    from slotool.planning.fleet import Fleet
    from slotool.planning.fleet_search import FleetSearch
    from slotool.planning.planner import Planner

# The latencies of the draw that confirmed the plan.
CONFIRMED = 1
_CAUSES = {
    "rejected": "rejected, as no call could end in time",
    "expired": "expired in the queue",
    "late": "answered late",
    "shed": "shed",
}
_BOUNDS = {
    "Clopper-Pearson": "the exact bound of a share (Clopper and Pearson)",
    "batch means": "the means of 20 consecutive parts of the traffic (Student), as late requests come together",
}


def why_not(planner: Planner, fleet: Fleet | None) -> dict[str, Any]:
    """Explain what the only model misses on the workers of ``fleet``; None where one worker is the least there is."""
    found = why_not_together(planner, fleet)
    if fleet is None:
        return found
    (only,) = found["fewer"].pop("models").values()
    name = next(iter(fleet.pools))
    prefix = f"{name}: " if name else ""
    return {
        "fewer": {**found["fewer"], **only},
        "sentences": [sentence.removeprefix(prefix) for sentence in found["sentences"]],
    }


def why_not_together(planner: Planner, fleet: Fleet | None) -> dict[str, Any]:
    """Explain of each model what it misses on the workers of ``fleet``, which all models share."""
    from slotool.planning.explain import shortfall

    if fleet is None:
        return {"fewer": None, "sentences": ["one worker is the least there is"]}
    traffic = planner.confirming
    results = planner.results(fleet.pools, CONFIRMED, traffic)
    models = {name: asdict(shortfall(planner.alone[name], own, traffic[name])) for name, own in results.items()}
    sentences = [
        f"{name}: {sentence}" if name else sentence
        for name, own in models.items()
        if own["misses"] or planner.is_of_one
        for sentence in _sentences({"replicas": fleet.replicas, **own}, planner.alone[name])
    ]
    return {"fewer": {"replicas": fleet.replicas, "cost": fleet.cost, "models": models}, "sentences": sentences}


def _sentences(fewer: Mapping[str, Any], search: FleetSearch) -> Iterator[str]:
    """Sentences on what is missed, by how much, when, and what becomes of the late requests."""
    count, found = fewer["replicas"], fewer["lateness"]
    workers = f"with {count:,} worker{'s' if count != 1 else ''}"
    for what in fewer["misses"]:
        yield f"{workers}: {_missed(what, fewer['verdict'], search)}{_bound(what, fewer)}"
    late = {name: number for name, number in found["not_in_time"].items() if number}
    if not late:
        return
    total, worst, busiest = sum(late.values()), found["worst"], found["busiest"]
    causes = ", ".join(f"{number / total:.0%} {_CAUSES[name]}" for name, number in late.items())
    if found["windows"] == 1:
        yield f"{workers} {total:,} requests are not in time: {causes}"
        return
    yield (
        f"{workers} {total:,} requests are not in time: {causes}; half of them come in {found['half_within']} of "
        f"{found['windows']} windows of {duration(worst['end_s'] - worst['start_s'])}"
    )
    yield f"worst {'and busiest ' if busiest == worst else ''}window, {_window(worst, search)}"
    if busiest != worst:
        yield f"busiest window, {_window(busiest, search)}"
    yield f"at most {found['longest_queue']:,} requests wait at the same time"


def _missed(what: str, verdict: Mapping[str, Any], search: FleetSearch) -> str:
    promised, shown = getattr(search.promise, what), verdict[f"{what}_at_least"]
    if shown is None:
        return f"{what} is {verdict[what]:.4f}, {promised - verdict[what]:.4f} short of {promised:g}"
    return (
        f"{what} is {verdict[what]:.4f}, and at least {shown:.4f} at confidence {search.promise.confidence:g}: "
        f"{promised - shown:.4f} short of {promised:g}"
    )


def _bound(what: str, fewer: Mapping[str, Any]) -> str:
    if what == "attainment":
        return f", by {_BOUNDS[min(fewer['bounds'], key=fewer['bounds'].get)]}"
    known = fewer["verdict"]["accuracy_at_least"] is None
    return "" if known else ", by the sampling error of the outcome table's examples"


def _window(window: Mapping[str, Any], search: FleetSearch) -> str:
    times, share = window["rate_per_s"] / search.rate_per_s, window["late_share"]
    late = "none of them simulated" if share is None else f"{share:.1%} of them not in time"
    return (
        f"{window['start_s']:.4g} s to {window['end_s']:.4g} s: {window['requests']:,} requests at "
        f"{window['rate_per_s']:,.0f}/s, {times:.2g} times the mean, {late}"
    )
