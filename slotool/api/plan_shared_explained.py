"""Of ``slotool.plan(models=…, explain=True)``: why the plan is as it is, as a document and in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slotool.api.plan_explained import (
    EXPLAINING,
    NONE_HOLDS,
    SHOWN,
    accuracy,
    broken,
    capacity,
    counted_workers,
    deadline,
    kept_by,
    longest_queue,
    missed,
    rounded_down,
    shorter,
    why_not_fewer,
)

if TYPE_CHECKING:
    from slotool.api.progress import Reporter
    from slotool.planning.fleet import Found
    from slotool.planning.shared import SharedFleetSearch, SharedFound


def shared_reasons_of(
    search: SharedFleetSearch, found: Sequence[SharedFound], apart: Mapping[str, Sequence[Found]], reporter: Reporter
) -> dict[str, Any]:
    """The document of ``planning.shared_explain.shared_reasons``, and its ``sentences``."""
    from slotool.planning.shared_explain import shared_reasons, trials_of

    with reporter.progress(EXPLAINING, total=trials_of(search, found, apart)) as steps:
        document = asdict(shared_reasons(search, found, apart, steps.advance))
    return {**document, "sentences": list(_sentences(document, search))}


def why_not_shared(search: SharedFleetSearch, found: SharedFound, reporter: Reporter) -> dict[str, Any]:
    """Of the shared fleet that comes closest, where none holds that costs as little as a fleet for each model."""
    from slotool.planning.shared_explain import closest_shared, trials_of_fewer

    with reporter.progress(EXPLAINING, total=trials_of_fewer(found)) as steps:
        fewer = asdict(closest_shared(search, found, steps.advance))
    return {"fewer": fewer, "sentences": list(_why_not_fewer(fewer, search))}


def _sentences(document: Mapping[str, Any], search: SharedFleetSearch) -> Iterator[str]:
    if document["fewer"] is not None:
        yield from _why_not_fewer(document["fewer"], search)
    yield from _alternatives(document["alternatives"], search)
    yield from _limits(document["margins"], search)


def _why_not_fewer(fewer: Mapping[str, Any], search: SharedFleetSearch) -> Iterator[str]:
    for name, own in fewer["models"].items():
        for said in why_not_fewer(own, search.alone[name]) if own["tried"]["misses"] else ():
            yield f"{name}: {said}"
    for name, shares in fewer["taken"].items():
        named = ", ".join(
            f"{share:.0%} {'its own' if own == name else f'those of {own}'}"
            for own, share in sorted(shares.items(), key=lambda each: -each[1])
        )
        if any(shares.values()):
            yield f"{name}: while its requests that are not in time wait, the workers compute calls: {named}"
    for absent, left in fewer["without"].items():
        for name, tried in left.items():
            kept = "still does not hold" if tried["misses"] else "holds"
            workers = counted_workers(tried["replicas"])
            yield f"{name}: without {absent} its promise {kept} with {workers}, {kept_by(tried['verdict'])}"
    yield _what_would_allow(fewer, search)


def _what_would_allow(fewer: Mapping[str, Any], search: SharedFleetSearch) -> str:
    allow, promises = [], []
    for name, own in fewer["models"].items():
        if own["deadline_us"]["value"] is not None:
            before = search.promises[name].deadline_us
            allow.append(f"a deadline of {own['deadline_us']['value'] / 1e3:.3g} ms for {before / 1e3:g} of {name}")
        if own["traffic"] is not None and own["traffic"]["value"] is not None:
            allow.append(f"{own['traffic']['value']:.0%} of the requests of {name}")
        for what in own["tried"]["misses"]:
            verdict, promised = own["tried"]["verdict"], getattr(search.promises[name], what)
            shown = verdict[f"{what}_at_least"]
            promises.append(
                f"{what} {rounded_down(verdict[what] if shown is None else shown)} for {promised:g} of {name}"
            )
    if fewer["traffic"] is not None and fewer["traffic"]["value"] is not None:
        allow.append(f"the same requests of all models at {fewer['traffic']['value']:.0%} of the rate")
    if promises:
        allow.append(f"a promise of {' and '.join(promises)}")
    workers = counted_workers(fewer["replicas"])
    return f"{workers} would do with {', or '.join(allow)}" if allow else f"nothing that is tried allows {workers}"


def _alternatives(alternatives: Sequence[Mapping[str, Any]], search: SharedFleetSearch) -> Iterator[str]:
    for tried in alternatives[:SHOWN]:
        of = f" of {tried['model']}" if tried["model"] else ""
        policies = ", ".join(f"{own['policy']} for {name}" for name, own in tried["models"].items())
        misses = [
            f"{name}: {missed(what, own['verdict'], search.alone[name])}"
            for name, own in tried["models"].items()
            for what in own["misses"]
        ]
        says = " and ".join(misses) if misses else "keeps every promise too"
        named = f"{counted_workers(tried['replicas'])} of {tried['worker']} under {policies}"
        yield f"{tried['change']}{of}: {named} (cost {tried['cost']:g}): {says}"


def _limits(margins: Mapping[str, Any], search: SharedFleetSearch) -> Iterator[str]:
    busy = ", ".join(f"{share:.0%} for {name}" for name, share in margins["busy"].items())
    traffic = margins["traffic"]
    all_of_them = "" if traffic is None else f"; {_more(traffic, 'the same requests of all models', ' as fast')}"
    yield f"workers: busy {sum(margins['busy'].values()):.0%} of the time, {busy}{all_of_them}"
    spare: dict[str, float] = {}
    if traffic is not None and traffic["breaks"]:
        spare["the requests of all models"] = (traffic["value"] or 1.0) - 1
    for name, own in margins["models"].items():
        alone, promise = search.alone[name], search.promises[name]
        more = "" if own["traffic"] is None else f"; {_more(own['traffic'], f'requests of {name}', ' as many')}"
        yield f"{name}: capacity: were they all for it, {capacity(own, alone)}{more}"
        yield f"{name}: deadline: {deadline(own, alone)}; {shorter(own['deadline_us'])}"
        yield f"{name}: accuracy: {accuracy(own, alone)}"
        yield f"{name}: queue: {longest_queue(own)}"
        if own["traffic"] is not None and own["traffic"]["breaks"]:
            spare[f"the requests of {name}"] = (own["traffic"]["value"] or 1.0) - 1
        if own["deadline_us"]["breaks"]:
            least = own["deadline_us"]["value"]
            spare[f"the deadline of {name}"] = 0.0 if least is None else 1 - least / promise.deadline_us
    most = next(iter(margins["models"].values()))["max_queue"]
    yield f"queue: of all models together up to {most:,} requests may wait"
    if not spare:
        yield "what gives way first: nothing, as far as is tried"
        return
    first = min(spare, key=lambda each: spare[each])
    yield f"what gives way first: {first} ({spare[first]:.0%} to spare)"


def _more(limit: Mapping[str, Any], what: str, unit: str) -> str:
    if limit["value"] is None:
        return NONE_HOLDS
    times = f"every promise holds with {what} {limit['value']:.2f} times{unit}"
    return f"{times}{broken(limit, 'above')}" if limit["breaks"] else f"{times} or more, the most that is tried"
