"""Of ``slotool.plan(explain=True)``: why the plan is as it is, as a document and in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slotool.api.display import duration

if TYPE_CHECKING:
    from slotool.api.progress import Reporter
    from slotool.planning.fleet import FleetSearch, Found

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


def reasons_of(search: FleetSearch, found: Sequence[Found], reporter: Reporter) -> dict[str, Any]:
    """The document of ``planning.explain.reasons``, and its ``sentences``."""
    from slotool.planning.explain import reasons

    with reporter.progress("fleets to explain the plan") as steps:
        document = asdict(reasons(search, found, steps.advance))
    return {**document, "sentences": list(_sentences(document, search))}


def _sentences(document: Mapping[str, Any], search: FleetSearch) -> Iterator[str]:
    fewer = document["fewer"]
    if fewer is not None:
        yield from _why_not_fewer(fewer, search)
    yield from _alternatives(document, search)
    yield from _limits(document["margins"], search)
    if fewer is not None:
        yield _what_would_allow(fewer, search)


def _why_not_fewer(fewer: Mapping[str, Any], search: FleetSearch) -> Iterator[str]:
    tried, found = fewer["tried"], fewer["lateness"]
    replicas, verdict = f"with {_workers(tried['replicas'])}", tried["verdict"]
    for miss in tried["misses"]:
        yield f"{replicas}: {_missed(miss, verdict, search)}{_shown_by(miss, fewer)}"
    late = {name: count for name, count in found["not_in_time"].items() if count}
    if not late:
        return
    total = sum(late.values())
    causes = ", ".join(f"{count / total:.0%} {_CAUSES[name]}" for name, count in late.items())
    worst, busiest = found["worst"], found["busiest"]
    yield (
        f"{replicas} {total:,} requests are not in time: {causes}; half of them come in {found['half_within']} of "
        f"{found['windows']} windows of {duration(worst['end_s'] - worst['start_s'])}"
    )
    same = busiest == worst
    yield f"worst {'and busiest ' if same else ''}window, {_window(worst, search)}"
    if not same:
        yield f"busiest window, {_window(busiest, search)}"


def _missed(what: str, verdict: Mapping[str, Any], search: FleetSearch) -> str:
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
    times = window["rate_per_s"] / search.rate_per_s
    return (
        f"{window['start_s']:.4g} s to {window['end_s']:.4g} s: {window['requests']:,} requests at "
        f"{window['rate_per_s']:,.0f}/s, {times:.2g} times the mean, {window['late_share']:.1%} of them not in time"
    )


def _alternatives(document: Mapping[str, Any], search: FleetSearch) -> Iterator[str]:
    for tried in document["alternatives"][:SHOWN]:
        named = f"{_workers(tried['replicas'])} of {tried['worker']} under {tried['policy']}"
        if tried["change"] == "batch limit":
            named = f"the same workers with batches of up to {tried['max_batch']:,}"
        misses = [_missed(what, tried["verdict"], search) for what in tried["misses"]]
        says = " and ".join(misses) if misses else f"keeps the promise too, {_kept(tried['verdict'])}"
        yield f"{tried['change']}: {named} (cost {tried['cost']:g}): {says}"
    other = document["as_cheap"]
    if other is not None:
        own = document["margins"]["verdict"]
        named = f"{_workers(other['replicas'])} of {other['worker']} under {other['policy']}"
        right = f"{other['verdict']['effective_accuracy']:.4f} of the requests right and in time"
        yield f"{other['change']}: {named} costs the same and holds, with {right} for {own['effective_accuracy']:.4f}"


def _kept(verdict: Mapping[str, Any]) -> str:
    return f"attainment at least {verdict['attainment_at_least']:.4f}"


def _limits(margins: Mapping[str, Any], search: FleetSearch) -> Iterator[str]:
    promise, verdict = search.promise, margins["verdict"]
    busiest, queue = margins["lateness"]["busiest"], margins["lateness"]["longest_queue"]
    accurate = margins["accurate_per_s"]
    capacity = f"the workers answer {margins['fastest_per_s']:,.0f}/s at their fastest point"
    if promise.accuracy and 0 < accurate < margins["fastest_per_s"]:
        capacity += f" and {accurate:,.0f}/s at the fastest that is accurate enough"
    yield (
        f"capacity: {capacity}; {search.rate_per_s:,.0f}/s come on average and {busiest['rate_per_s']:,.0f}/s in the "
        f"busiest window; busy {verdict['utilisation']:.0%} of the time; "
        f"{_until(margins['traffic'], 'at up to {:.2f} times the traffic', 'above')}"
    )
    fastest_ms, may_wait_ms = margins["fastest_us"] / 1e3, max(0.0, margins["may_wait_us"]) / 1e3
    yield (
        f"deadline: of {promise.deadline_us / 1e3:g} ms the fastest call takes {fastest_ms:.3g}, so that a request may "
        f"wait {may_wait_ms:.3g}; 99 % are answered within {_p99(verdict)}; "
        f"{_until(margins['deadline_us'], 'down to {}', 'below')}"
    )
    shares = list(margins["point_shares"].items())
    points = ", ".join(f"{share:.0%} by {key}" for key, share in shares[:3])
    more = f" and {len(shares) - 3} more points" if len(shares) > 3 else ""
    shown = verdict["accuracy"] if verdict["accuracy_at_least"] is None else verdict["accuracy_at_least"]
    yield f"accuracy: at least {shown:.4f} for {promise.accuracy:g}; answered {points}{more}"
    yield f"queue: at most {queue:,} requests wait at the same time, of {margins['max_queue']:,} that may"
    yield f"what gives way first: {_first(margins, promise.deadline_us)}"


def _until(limit: Mapping[str, Any], words: str, side: str) -> str:
    value = limit["value"]
    if value is None:
        return "no change of it that was tried holds"
    shown = words.format(f"{value / 1e3:.3g} ms") if "{}" in words else words.format(value)
    beyond = f", {side} which {' and '.join(limit['breaks'])} breaks" if limit["breaks"] else ""
    return f"the promise holds {shown}{beyond}"


def _first(margins: Mapping[str, Any], deadline_us: float) -> str:
    """Which of a busier traffic and a shorter deadline breaks the promise by the lesser change."""
    traffic, deadline = margins["traffic"], margins["deadline_us"]
    more = (traffic["value"] or 1.0) - 1
    shorter = 1 - (deadline["value"] or deadline_us) / deadline_us
    what, limit = ("capacity", traffic) if more <= shorter else ("the deadline", deadline)
    if "accuracy" in limit["breaks"] and "attainment" not in limit["breaks"]:
        what = f"accuracy, as {what} leaves less time for accurate points"
    return f"{what} ({min(more, shorter):.0%} to spare)"


def _what_would_allow(fewer: Mapping[str, Any], search: FleetSearch) -> str:
    promise, verdict = search.promise, fewer["tried"]["verdict"]
    allow = []
    if fewer["deadline_us"]["value"] is not None:
        allow.append(f"a deadline of {fewer['deadline_us']['value'] / 1e3:.3g} ms for {promise.deadline_us / 1e3:g}")
    if fewer["traffic"]["value"] is not None:
        allow.append(f"{fewer['traffic']['value']:.0%} of the traffic")
    promises = []
    for what in fewer["tried"]["misses"]:
        shown = verdict[f"{what}_at_least"]
        promises.append(f"{what} {_down(verdict[what] if shown is None else shown)} for {getattr(promise, what):g}")
    if promises:
        allow.append(f"a promise of {' and '.join(promises)}")
    return f"{_workers(fewer['tried']['replicas'])} would do with {', or '.join(allow)}"


def _down(share: float) -> str:
    return f"{int(share * 1e4) / 1e4:g}"


def _workers(count: int) -> str:
    return f"{count:,} worker{'s' if count != 1 else ''}"


def _p99(verdict: Mapping[str, Any]) -> str:
    return duration(verdict["p99_us"] / 1e6) if verdict["p99_us"] < float("inf") else "no time"
