"""Of ``slotool.plan(explain=True)``: why the plan is as it is, as a document and in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slotool.api.display import duration

if TYPE_CHECKING:
    from slotool.api.progress import Reporter
    from slotool.planning.fleet import Fleet, Found
    from slotool.planning.fleet_search import FleetSearch

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
# Shown of what costs less; ``--json`` has all.
SHOWN = 4
EXPLAINING = "fleets to explain the plan"
NONE_HOLDS = "no change of it that was tried holds"


def reasons_of(search: FleetSearch, found: Sequence[Found], reporter: Reporter) -> dict[str, Any]:
    """The document of ``planning.explain.reasons``, and its ``sentences``."""
    from slotool.planning.explain import reasons, trials_of

    with reporter.progress(EXPLAINING, total=trials_of(search, found)) as steps:
        document = asdict(reasons(search, found, steps.advance))
    sentences = [*_sentences(document, search), *_front_end(search, found[0].tried)]
    return {**document, "sentences": sentences}


def what_would_hold(search: FleetSearch, found: Sequence[Found], reporter: Reporter) -> dict[str, Any]:
    """Where no fleet holds: ``sentences`` alone, that say with what the one that comes closest would."""
    from slotool.planning.explain import TRIALS_OF_FEWER, closest

    with reporter.progress(EXPLAINING, total=TRIALS_OF_FEWER) as steps:
        document = asdict(closest(search, found, steps.advance))
    return {"sentences": [f"no fleet holds, but {_what_would_allow(document, search)}"]}


def _sentences(document: Mapping[str, Any], search: FleetSearch) -> Iterator[str]:
    fewer = document["fewer"]
    if fewer is not None:
        yield from why_not_fewer(fewer, search)
    yield from _alternatives(document, search)
    yield from _limits(document["margins"], search)
    if fewer is not None:
        yield _what_would_allow(fewer, search)


def _front_end(search: FleetSearch, fleet: Fleet) -> Iterator[str]:
    """What the plan counts for it, of workers that take every core of their machine."""
    longer, placement = search.longer(fleet.pools, search.rate_per_s), search.placement
    if placement is not None and longer > 1:
        takes = 1e-6 * placement.front_end_us * search.rate_per_s
        yield (
            f"front end: it takes {takes:.2g} of the {placement.cores} cores, all of which are workers', so that calls "
            f"take {longer:.3g} times as long while all workers are busy"
        )


def why_not_fewer(fewer: Mapping[str, Any], search: FleetSearch) -> Iterator[str]:
    """Of a fleet that does not hold: what it misses, by how much, and when."""
    tried, found = fewer["tried"], fewer["lateness"]
    replicas, verdict = f"with {counted_workers(tried['replicas'])}", tried["verdict"]
    for miss in tried["misses"]:
        yield f"{replicas}: {missed(miss, verdict, search)}{_shown_by(miss, fewer)}"
    late = {name: count for name, count in found["not_in_time"].items() if count}
    if not late:
        return
    total, is_divided = sum(late.values()), found["windows"] > 1
    causes = ", ".join(f"{count / total:.0%} {_CAUSES[name]}" for name, count in late.items())
    worst, busiest = found["worst"], found["busiest"]
    where = (
        f"; half of them come in {found['half_within']} of {found['windows']} windows of "
        f"{duration(worst['end_s'] - worst['start_s'])}"
    )
    yield f"{replicas} {total:,} requests are not in time: {causes}{where if is_divided else ''}"
    if not is_divided:
        return
    same = busiest == worst
    yield f"worst {'and busiest ' if same else ''}window, {_window(worst, search)}"
    if not same:
        yield f"busiest window, {_window(busiest, search)}"


def missed(what: str, verdict: Mapping[str, Any], search: FleetSearch) -> str:
    promised, shown = getattr(search.promise, what), verdict[f"{what}_at_least"]
    if shown is None:
        return f"{what} is {verdict[what]:.4f}, {promised - verdict[what]:.4f} short of {promised:g}"
    return (
        f"{what} is {verdict[what]:.4f}, and at least {shown:.4f} at confidence {search.promise.confidence:g}: "
        f"{promised - shown:.4f} short of {promised:g}"
    )


def _shown_by(what: str, fewer: Mapping[str, Any]) -> str:
    if what != "attainment":
        known = fewer["tried"]["verdict"]["accuracy_at_least"] is None
        return "" if known else ", by the sampling error of the outcome table's examples"
    return f", by {_BOUNDS[min(fewer['bounds'], key=fewer['bounds'].get)]}"


def _window(window: Mapping[str, Any], search: FleetSearch) -> str:
    times, share = window["rate_per_s"] / search.rate_per_s, window["late_share"]
    late = "none of them simulated" if share is None else f"{share:.1%} of them not in time"
    return (
        f"{window['start_s']:.4g} s to {window['end_s']:.4g} s: {window['requests']:,} requests at "
        f"{window['rate_per_s']:,.0f}/s, {times:.2g} times the mean, {late}"
    )


def _alternatives(document: Mapping[str, Any], search: FleetSearch) -> Iterator[str]:
    for tried in document["alternatives"][:SHOWN]:
        named = f"{counted_workers(tried['replicas'])} of {tried['worker']} under {tried['policy']}"
        if tried["change"] == "batch limit":
            named = f"the same workers with batches of up to {tried['max_batch']:,}"
        misses = [missed(what, tried["verdict"], search) for what in tried["misses"]]
        says = " and ".join(misses) if misses else f"keeps the promise too, {kept_by(tried['verdict'])}"
        yield f"{tried['change']}: {named} (cost {tried['cost']:g}): {says}"
    other = document["as_cheap"]
    if other is not None:
        own = document["margins"]["verdict"]
        named = f"{counted_workers(other['replicas'])} of {other['worker']} under {other['policy']}"
        theirs, right = (f"{verdict['effective_accuracy']:.4f}" for verdict in (other["verdict"], own))
        as_many = f"as many of the requests right and in time as the plan, {right}"
        fewer = f"{theirs} of the requests right and in time; with the plan it is {right}"
        yield f"{other['change']}: {named} costs the same and holds, with {as_many if theirs == right else fewer}"


def kept_by(verdict: Mapping[str, Any]) -> str:
    return f"attainment at least {verdict['attainment_at_least']:.4f}"


def _limits(margins: Mapping[str, Any], search: FleetSearch) -> Iterator[str]:
    busy = f"busy {margins['verdict']['utilisation']:.0%} of the time"
    faster = "" if margins["traffic"] is None else f"; {_faster(margins['traffic'])}"
    yield f"capacity: {capacity(margins, search)}; {busy}{faster}"
    yield f"deadline: {deadline(margins, search)}; {shorter(margins['deadline_us'])}"
    yield f"accuracy: {accuracy(margins, search)}"
    yield f"queue: {longest_queue(margins)}, of {margins['max_queue']:,} that may"
    yield f"what gives way first: {_first(margins, search.promise.deadline_us)}"


def capacity(margins: Mapping[str, Any], search: FleetSearch) -> str:
    """What the workers could answer, and what comes."""
    promise, found = search.promise, margins["lateness"]
    accurate = margins["accurate_per_s"]
    said = f"in batches that fit into the deadline the workers answer {margins['fastest_per_s']:,.0f}/s at their "
    said += "fastest point"
    if promise.accuracy and 0 < accurate < margins["fastest_per_s"]:
        said += f" and {accurate:,.0f}/s at the fastest that is accurate enough"
    said += f"; {search.rate_per_s:,.0f}/s come on average"
    if found["windows"] > 1:
        said += f" and {found['busiest']['rate_per_s']:,.0f}/s in the busiest window"
    return said


def deadline(margins: Mapping[str, Any], search: FleetSearch) -> str:
    """What becomes of it."""
    fastest_ms, may_wait_ms = margins["fastest_us"] / 1e3, max(0.0, margins["may_wait_us"]) / 1e3
    kept = f"{margins['reserve_us'] / 1e3:.3g} are kept for the front end, " if margins["reserve_us"] else ""
    return (
        f"of {search.promise.deadline_us / 1e3:g} ms {kept}the fastest call takes {fastest_ms:.3g}, so that a "
        f"request may wait {may_wait_ms:.3g}; {_p99(margins['verdict'])}"
    )


def accuracy(margins: Mapping[str, Any], search: FleetSearch) -> str:
    """What is shown of it, and what answers."""
    promise, verdict = search.promise, margins["verdict"]
    shares = list(margins["point_shares"].items())
    points = ", ".join(f"{share:.0%} by {key}" for key, share in shares[:3])
    more = f" and {len(shares) - 3} more points" if len(shares) > 3 else ""
    shown = verdict["accuracy"] if verdict["accuracy_at_least"] is None else verdict["accuracy_at_least"]
    promised = f"{promise.accuracy:g} is promised" if promise.accuracy else "none is promised"
    least = "" if verdict["accuracy_at_least"] is None else "at least "
    return f"{least}{shown:.4f}, {promised}; answered {points}{more}"


def longest_queue(margins: Mapping[str, Any]) -> str:
    return f"at most {margins['lateness']['longest_queue']:,} requests wait at the same time"


def _faster(limit: Mapping[str, Any]) -> str:
    if limit["value"] is None:
        return NONE_HOLDS
    times = f"the promise holds when the same requests come {limit['value']:.2f} times as fast"
    return f"{times}{broken(limit, 'above')}" if limit["breaks"] else f"{times} or faster, the most that is tried"


def shorter(limit: Mapping[str, Any]) -> str:
    if limit["value"] is None:
        return NONE_HOLDS
    least = f"the promise holds down to {limit['value'] / 1e3:.3g} ms"
    return f"{least}{broken(limit, 'below')}" if limit["breaks"] else f"{least} or less, the shortest that is tried"


def broken(limit: Mapping[str, Any], side: str) -> str:
    return f", {side} which {' and '.join(limit['breaks'])} breaks"


def _first(margins: Mapping[str, Any], deadline_us: float) -> str:
    """Which of a busier traffic and a shorter deadline breaks the promise by the lesser change."""
    traffic, deadline = margins["traffic"], margins["deadline_us"]
    more = math.inf if traffic is None else (traffic["value"] or 1.0) - 1
    shorter = 1 - (deadline["value"] or deadline_us) / deadline_us
    what, limit = ("capacity", traffic) if more <= shorter else ("the deadline", deadline)
    if not limit["breaks"]:
        return "nothing, as far as is tried"
    if "accuracy" in limit["breaks"] and "attainment" not in limit["breaks"]:
        what = f"accuracy, as {what} leaves less time for accurate points"
    return f"{what} ({min(more, shorter):.0%} to spare)"


def _what_would_allow(fewer: Mapping[str, Any], search: FleetSearch) -> str:
    promise, verdict = search.promise, fewer["tried"]["verdict"]
    allow = []
    if fewer["deadline_us"]["value"] is not None:
        allow.append(f"a deadline of {fewer['deadline_us']['value'] / 1e3:.3g} ms for {promise.deadline_us / 1e3:g}")
    if fewer["traffic"] is not None and fewer["traffic"]["value"] is not None:
        allow.append(f"the same requests at {fewer['traffic']['value']:.0%} of the rate")
    promises = []
    for what in fewer["tried"]["misses"]:
        shown = verdict[f"{what}_at_least"]
        promises.append(
            f"{what} {rounded_down(verdict[what] if shown is None else shown)} for {getattr(promise, what):g}"
        )
    if promises:
        allow.append(f"a promise of {' and '.join(promises)}")
    workers = counted_workers(fewer["tried"]["replicas"])
    return f"{workers} would do with {', or '.join(allow)}" if allow else f"nothing that is tried allows {workers}"


def rounded_down(share: float) -> str:
    return f"{int(share * 1e4) / 1e4:g}"


def counted_workers(count: int) -> str:
    return f"{count:,} worker{'s' if count != 1 else ''}"


def _p99(verdict: Mapping[str, Any]) -> str:
    if verdict["p99_us"] == math.inf:
        return "more than 1 % are never answered"
    return f"99 % are answered within {duration(verdict['p99_us'] / 1e6)}"
