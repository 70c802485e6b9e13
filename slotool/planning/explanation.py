"""Fleets of a plan as rows, and sentences on them: why not one worker fewer, and what is promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from slotool.planning.fleet import Fleet, SmallestFleet
from slotool.planning.planner import Fleets, Planner
from slotool.planning.promise import Promise, Verdict
from slotool.printable import counted
from slotool.rules.evidence.losses import tolerance_unit


def rows_of(fleets: Fleets, planner: Planner) -> list[dict[str, Any]]:
    """Return a row for each fleet found, those that hold first, the cheapest first."""
    if "" in planner.models:
        return [_fleet_row(each, planner) for each in fleets.shared]
    rows = [*(_shared_row(each, planner) for each in fleets.shared), _apart_row(fleets, planner)]
    # Of equal cost the shared one: one service in place of several.
    return sorted(rows, key=lambda row: (not row["holds"], row["cost"], row["kind"] == "apart"))


def explanation_of(fleets: Fleets, planner: Planner) -> str:
    """Return why not one worker fewer; of several models also what sharing saves."""
    return explained(fleets.shared, planner.promises[""]) if "" in planner.models else _compared(fleets, planner)


def _fleet_row(found: SmallestFleet, planner: Planner) -> dict[str, Any]:
    """Return the row of a fleet of the only model."""
    fleet, promise = found.fleet, planner.promises[""]
    fewer = found.fewer
    return {
        **_pool(fleet),
        "policy": fleet.pool.policy,
        "holds": found.holds,
        "confirmed": found.confirmed,
        **_figures(fleet.verdict, promise),
        "tiers": planner.models[""].promised(fleet),
        "fewer": None if fewer is None else {"replicas": fewer.replicas, **_figures(fewer.verdict, promise)},
        "max_batch": fleet.pool.max_batch,
        "max_queue": planner.max_queue(fleet.pools),
    }


def _shared_row(found: SmallestFleet, planner: Planner) -> dict[str, Any]:
    """Return the row of a fleet that all models share."""
    fleet, misses, fewer = found.fleet, found.fleet.misses(planner.promises), None
    if found.fewer is not None:
        fewer = {
            "replicas": found.fewer.replicas,
            "utilisation": found.fewer.utilisation,
            "misses": found.fewer.misses(planner.promises),
            "models": [{"model": name, **asdict(verdict)} for name, verdict in found.fewer.verdicts.items()],
        }
    return {
        "kind": "shared",
        **_pool(fleet),
        "holds": found.holds,
        "utilisation": fleet.utilisation,
        "max_queue": planner.max_queue(fleet.pools),
        "models": [_model_row(name, fleet, planner, name not in misses) for name in fleet.pools],
        "fewer": fewer,
    }


def _apart_row(fleets: Fleets, planner: Planner) -> dict[str, Any]:
    """Return the row of a fleet for each model."""
    best = {name: found[0] for name, found in fleets.apart.items()}
    pools = [_pool(found.fleet) for found in best.values()]
    threads, replicas = {pool["threads"] for pool in pools}, sum(pool["replicas"] for pool in pools)
    workers = dict.fromkeys(pool["worker"] for pool in pools)
    return {
        "kind": "apart",
        "worker": " + ".join(workers),
        "threads": min(threads) if len(workers) == 1 else None,
        "replicas": replicas,
        "cost": sum(pool["cost"] for pool in pools),
        "holds": all(found.holds for found in best.values()) and replicas <= planner.max_workers,
        "utilisation": sum(found.fleet.replicas * found.fleet.utilisation for found in best.values()) / replicas,
        "max_queue": None,
        "models": [_model_row(name, found.fleet, planner, found.holds) for name, found in best.items()],
        "fewer": None,
    }


def _model_row(name: str, fleet: Fleet, planner: Planner, holds: bool) -> dict[str, Any]:
    pool = fleet.pools[name]
    return {
        "model": name,
        "worker": pool.worker.name,
        "replicas": fleet.replicas,
        "policy": pool.policy,
        "max_batch": pool.max_batch,
        "holds": holds,
        **_figures(fleet.verdicts[name], planner.promises[name]),
    }


def _pool(fleet: Fleet) -> dict[str, Any]:
    worker = fleet.pool.worker
    return {"worker": worker.name, "threads": worker.threads, "replicas": fleet.replicas, "cost": fleet.cost}


def _figures(verdict: Verdict, promise: Promise) -> dict[str, Any]:
    return {**asdict(verdict), "misses": verdict.misses(promise)}


def explained(found: Sequence[SmallestFleet], promise: Promise) -> str:
    """Explain of the first of ``found`` why not one worker fewer and, of the strictest tier that holds, why not a
    stricter one."""
    best, short = found[0], partial(_short_and_busy, promise=promise)
    if not best.holds:
        reaches = [each.most for each in found if each.most is not None]
        if len(reaches) == len(found):
            most = max(reaches, key=lambda each: each.shown)
            return f"no fleet keeps the promise: {most.short_of(promise)}"
        limited = "; more workers would not change that" if best.limited else ""
        return f"no fleet keeps the promise; closest: {best.fleet}, with {short(best.fleet)}{limited}"
    said = f"the promise holds with {best.fleet}; there is no smaller fleet"
    if best.fewer is not None:
        said = f"the promise holds with {best.fleet}, not with {best.fewer.replicas:,}: {short(best.fewer)}"
    stricter = [each for each in found if not each.holds and each.rank < best.rank]
    if not stricter:
        return said
    closest = max(stricter, key=lambda each: (each.rank, -each.fleet.verdict.shortfall(promise)))
    return f"{said}; a stricter tier does not: {closest.fleet}, {short(closest.fleet)}"


def _compared(fleets: Fleets, planner: Planner) -> str:
    """Explain what several models take together and apart, why not one worker fewer, and where sharing does not pay,
    why."""
    failing = [name for name, found in fleets.apart.items() if not found[0].holds]
    if failing:
        return "; ".join(f"{name}: {explained(fleets.apart[name], planner.promises[name])}" for name in failing)
    apart = [found[0].fleet for found in fleets.apart.values()]
    cost, limit = sum(fleet.cost for fleet in apart), planner.max_workers
    over = sum(fleet.replicas for fleet in apart) > limit
    said = f"apart {_together(apart)} (cost {cost:g}{', more than the limit' if over else ''}), together"
    if not fleets.shared:
        return f"{said} none: no type of workers serves all of the models in time"
    best = fleets.shared[0]
    size = f"{best.fleet.replicas:,} of {best.fleet.pool.worker.name}"
    if not best.holds:
        none = f"no plan within the limit, {counted(limit, 'worker')} of all models: " if over else ""
        pays = "" if over else "sharing does not pay, as "
        return f"{none}{said} no fewer: {pays}{size} would leave {_left(best.fleet, planner)}"
    fewer = "there is no smaller fleet"
    if best.fewer is not None:
        fewer = f"not with {best.fewer.replicas:,}, which would leave {_left(best.fewer, planner)}"
    said = f"{said} {size} (cost {best.fleet.cost:g}), busy {best.fleet.utilisation:.0%} of the time; {fewer}"
    if over or best.fleet.cost < cost:
        return said
    if best.fleet.cost > cost:
        return f"{said}; sharing does not pay, as this costs more"
    return (
        f"{said}; sharing saves nothing: of equal cost the shared fleet is the plan, as one service in place of "
        f"{len(apart)}"
    )


def _together(fleets: Sequence[Fleet]) -> str:
    """Describe fleets as ``2 + 1 workers of 1 thread``, or each with its type where they differ."""
    types = {fleet.pool.worker.name for fleet in fleets}
    if len(types) > 1:
        return " + ".join(f"{fleet.replicas:,} of {fleet.pool.worker.name}" for fleet in fleets) + " workers"
    return f"{' + '.join(f'{fleet.replicas:,}' for fleet in fleets)} workers of {min(types)}"


def _left(fleet: Fleet, planner: Planner) -> str:
    """Describe what each model misses."""
    promises = planner.promises
    short = fleet.misses(promises)
    return " and ".join(f"{name} with {_short_of(fleet.verdicts[name], promises[name])}" for name in short)


def _short_and_busy(fleet: Fleet, promise: Promise) -> str:
    short = _short_of(fleet.verdict, promise) or "all of it kept by chance"
    return f"{short}; busy {fleet.verdict.utilisation:.0%} of the time"


def _short_of(verdict: Verdict, promise: Promise) -> str:
    """Describe by how much a verdict lies below the promise."""
    parts = []
    for what in verdict.misses(promise):
        shown, least = getattr(verdict, f"{what}_at_least"), getattr(promise, what)
        bound = "" if shown is None else f", at least {shown:.4f} at this confidence"
        parts.append(f"{what} of {getattr(verdict, what):.4f}{bound}, for {least:g}")
    return " and ".join(parts)


def service_lines(row: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Describe how to start a service of the fleet, and what its tiers promise."""
    if row.get("kind") == "apart":
        return []
    if row.get("kind") == "shared":
        sizes = ", ".join(f"{model['max_batch']:,} of {model['model']}" for model in row["models"])
        return [f"batches of up to {sizes}, a queue of up to {row['max_queue']:,} requests, of all models"]
    how = "by each request's own tier" if row["tiers"] else "at their fastest point"
    batches = f"batches of up to {row['max_batch']:,}" if row["max_batch"] > 1 else "no batches"
    return [
        *(_tier_lines(row, facts) if row["tiers"] else []),
        f"{batches}, a queue of up to {row['max_queue']:,} requests, as many as the workers can answer within a "
        f"deadline {how}, and no more than a server reads in that time",
    ]


_CANCELS = {
    True: "of versions that are asked at once the second is cancelled where the first is sure enough",
    False: "of versions that are asked at once the second runs to its end, as this model cannot be cancelled",
    None: "of versions that are asked at once the second counts as running to its end; with the artifact the plan says "
    "whether it is cancelled",
}
_OF = {"relative": " of its error", "absolute": " of error", "quantile": " of the requests"}


def _tier_lines(row: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Describe the tiers that a fleet serves, a line each, and the load of the versions."""
    best_version, calls = facts["best_version"], row["version_calls"]
    each = ", ".join(f"{facts['rate_per_s'] * count:,.1f} of {version}" for version, count in calls.items())
    lines = [_promised(tier, best_version) for tier in row["tiers"]]
    lines.append(f"calls per second: {each}; {sum(calls.values()):.3f} calls a request")
    if row["other_tier"]:
        lines.append(
            f"{row['other_tier']:.2%} of the requests get a stricter tier or {best_version}, as their own could be late"
        )
    if any(tier["at_once"] for tier in row["tiers"]):
        lines.append(_CANCELS[facts["cancels"]])
    return lines


def _promised(tier: Mapping[str, Any], best_version: str) -> str:
    """Describe what is promised of a tier, in the units of ``gen-rules``."""
    share = "" if tier["share"] == 1 else f" ({tier['share']:.0%} of the requests)"
    named = f"tier {tier['tolerance']:g}{share}"
    if tier["tier"] is None:
        named = f"tolerance {tier['tolerance']:g}{share}, stricter than every tier"
    elif tier["tier"] != tier["tolerance"]:
        named = f"tolerance {tier['tolerance']:g}{share}, answered by tier {tier['tier']:g}"
    said = f"{named}: {tier['routing']}; "
    if tier["bound"] == 0 and not tier["note"]:
        return f"{said}answers as {best_version}"
    if not tier["certified"]:
        return f"{said}{tier['note'] or 'no bound is proven'}"
    kind = str(tier["tolerance_kind"])
    bound = f"{tolerance_unit(kind, tier['max_error']).amount(tier['bound'])}{_OF.get(kind, '')}"
    return f"{said}at most {bound} worse than {tier['above']}, at confidence {tier['confidence']:g}"
