"""Fleets of a plan as rows, and sentences on them: why not one worker fewer, and what is promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from slotool.errors import InputError
from slotool.machine import usable_cores
from slotool.planning.fleet import Fleet, SmallestFleet
from slotool.planning.interference import Placement
from slotool.planning.planner import Fleets, Planner
from slotool.planning.promise import Promise, Verdict
from slotool.printable import counted
from slotool.progress import Reporter
from slotool.rules.evidence.losses import tolerance_unit


def rows_of(fleets: Fleets, planner: Planner) -> list[dict[str, Any]]:
    """Return a row for each fleet found, those that hold first, the cheapest first."""
    if "" in planner.models:
        return [_fleet_row(each, planner) for each in fleets.shared]
    rows = [*(_shared_row(each, planner) for each in fleets.shared), _apart_row(fleets, planner)]
    # Prefer the shared one at equal cost: one service in place of several.
    return sorted(rows, key=lambda row: (not row["holds"], row["cost"], row["kind"] == "apart"))


def explanation_of(fleets: Fleets, planner: Planner) -> str:
    """Return why not one worker fewer; of several models also what sharing saves."""
    return explained(fleets.shared, planner.promises[""]) if "" in planner.models else _compared(fleets, planner)


def _fleet_row(fleets: SmallestFleet, planner: Planner) -> dict[str, Any]:
    """Return the row of a fleet of the only model."""
    fleet, promise = fleets.fleet, planner.promises[""]
    fewer = fleets.fewer
    return {
        **_pool(fleet),
        "policy": fleet.pool.policy,
        "holds": fleets.holds,
        "confirmed": fleets.confirmed,
        **_figures(fleet.verdict, promise),
        "tiers": planner.models[""].promised(fleet),
        "fewer": None if fewer is None else {"replicas": fewer.replicas, **_figures(fewer.verdict, promise)},
        "max_batch": fleet.pool.max_batch,
        "max_queue": planner.max_queue(fleet.pools),
    }


def _shared_row(fleets: SmallestFleet, planner: Planner) -> dict[str, Any]:
    """Return the row of a fleet that all models share."""
    fleet, misses, fewer = fleets.fleet, fleets.fleet.misses(planner.promises), None
    if fleets.fewer is not None:
        fewer = {
            "replicas": fleets.fewer.replicas,
            "utilisation": fleets.fewer.utilisation,
            "misses": fleets.fewer.misses(planner.promises),
            "models": [{"model": name, **asdict(verdict)} for name, verdict in fleets.fewer.verdicts.items()],
        }
    return {
        "kind": "shared",
        **_pool(fleet),
        "holds": fleets.holds,
        "utilisation": fleet.utilisation,
        "max_queue": planner.max_queue(fleet.pools),
        "models": [_model_row(name, fleet, planner, name not in misses) for name in fleet.pools],
        "fewer": fewer,
    }


def _apart_row(fleets: Fleets, planner: Planner) -> dict[str, Any]:
    """Return the row of a fleet for each model."""
    best = {name: ranked[0] for name, ranked in fleets.apart.items()}
    pools = [_pool(chosen.fleet) for chosen in best.values()]
    threads, replicas = {pool["threads"] for pool in pools}, sum(pool["replicas"] for pool in pools)
    workers = dict.fromkeys(pool["worker"] for pool in pools)
    return {
        "kind": "apart",
        "worker": " + ".join(workers),
        "threads": min(threads) if len(workers) == 1 else None,
        "replicas": replicas,
        "cost": sum(pool["cost"] for pool in pools),
        "holds": all(chosen.holds for chosen in best.values()) and replicas <= planner.max_workers,
        "utilisation": sum(chosen.fleet.replicas * chosen.fleet.utilisation for chosen in best.values()) / replicas,
        "max_queue": None,
        "models": [_model_row(name, chosen.fleet, planner, chosen.holds) for name, chosen in best.items()],
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


def explained(fleets: Sequence[SmallestFleet], promise: Promise) -> str:
    """Explain why the first fleet cannot have one worker fewer, or its strictest tier be stricter."""
    best, short = fleets[0], partial(_short_and_busy, promise=promise)
    if not best.holds:
        reaches = [each.most for each in fleets if each.most is not None]
        if len(reaches) == len(fleets):
            most = max(reaches, key=lambda each: each.shown)
            return f"no fleet keeps the promise: {most.short_of(promise)}"
        limited = "; more workers would not change that" if best.limited else ""
        return f"no fleet keeps the promise; closest: {best.fleet}, with {short(best.fleet)}{limited}"
    text = f"the promise holds with {best.fleet}; there is no smaller fleet"
    if best.fewer is not None:
        text = f"the promise holds with {best.fleet}, not with {best.fewer.replicas:,}: {short(best.fewer)}"
    stricter = [each for each in fleets if not each.holds and each.rank < best.rank]
    if not stricter:
        return text
    closest = max(stricter, key=lambda each: (each.rank, -each.fleet.verdict.shortfall(promise)))
    return f"{text}; a stricter tier does not: {closest.fleet}, {short(closest.fleet)}"


def _compared(fleets: Fleets, planner: Planner) -> str:
    """Explain several models' cost together and apart, the need of the last worker, and why sharing does not pay."""
    failing = [name for name, ranked in fleets.apart.items() if not ranked[0].holds]
    if failing:
        return "; ".join(f"{name}: {explained(fleets.apart[name], planner.promises[name])}" for name in failing)
    apart = [ranked[0].fleet for ranked in fleets.apart.values()]
    cost, limit = sum(fleet.cost for fleet in apart), planner.max_workers
    over = sum(fleet.replicas for fleet in apart) > limit
    text = f"apart {_together(apart)} (cost {cost:g}{', more than the limit' if over else ''}), together"
    if not fleets.shared:
        return f"{text} none: no type of workers serves all of the models in time"
    best = fleets.shared[0]
    size = f"{best.fleet.replicas:,} of {best.fleet.pool.worker.name}"
    if not best.holds:
        none = f"no plan within the limit, {counted(limit, 'worker')} of all models: " if over else ""
        pays = "" if over else "sharing does not pay, as "
        return f"{none}{text} no fewer: {pays}{size} would leave {_missed(best.fleet, planner)}"
    fewer = "there is no smaller fleet"
    if best.fewer is not None:
        fewer = f"not with {best.fewer.replicas:,}, which would leave {_missed(best.fewer, planner)}"
    text = f"{text} {size} (cost {best.fleet.cost:g}), busy {best.fleet.utilisation:.0%} of the time; {fewer}"
    if over or best.fleet.cost < cost:
        return text
    if best.fleet.cost > cost:
        return f"{text}; sharing does not pay, as this costs more"
    return (
        f"{text}; sharing saves nothing: of equal cost the shared fleet is the plan, as one service in place of "
        f"{len(apart)}"
    )


def _together(fleets: Sequence[Fleet]) -> str:
    """Describe fleets as ``2 + 1 workers of 1 thread``, or each with its type where they differ."""
    types = {fleet.pool.worker.name for fleet in fleets}
    if len(types) > 1:
        return " + ".join(f"{fleet.replicas:,} of {fleet.pool.worker.name}" for fleet in fleets) + " workers"
    return f"{' + '.join(f'{fleet.replicas:,}' for fleet in fleets)} workers of {min(types)}"


def _missed(fleet: Fleet, planner: Planner) -> str:
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
        bound = "" if shown is None else f"at least {shown:.4f}, "
        parts.append(f"{what} {getattr(verdict, what):.4f} ({bound}promised {least:g})")
    return ", ".join(parts)


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
    text = f"{named}: {tier['routing']}; "
    if tier["bound"] == 0 and not tier["note"]:
        return f"{text}answers as {best_version}"
    if not tier["certified"]:
        return f"{text}{tier['note'] or 'no bound is proven'}"
    kind = str(tier["tolerance_kind"])
    bound = f"{tolerance_unit(kind, tier['max_error']).amount(tier['bound'])}{_OF.get(kind, '')}"
    return f"{text}at most {bound} worse than {tier['above']}, at confidence {tier['confidence']:g}"


def why_nothing_fits(planner: Planner, reporter: Reporter) -> str:
    """Return why the only model can be served by no fleet at all, empty where it can.

    Raises ``InputError`` for one of several.
    """
    for name, search in planner.models.items():
        of = f"{name}: " if name else ""
        for remark in search.remarks:
            reporter.warn(remark)
        workers = list(planner.demands[name].workers.values())
        fitting = {worker.name for worker, _ in planner.choices_of(name)}
        if not fitting:
            cause = f"{of}no fleet keeps the promise: {search.why_nothing_fits(workers)}"
            if name:
                raise InputError(cause)
            return cause
        for worker in workers:
            if worker.name not in fitting:
                reporter.note(f"{of}no fleet of {worker.name}: {search.why_nothing_fits([worker])}")
    return ""


def note_sharing(planner: Planner, fleets: Fleets, reporter: Reporter) -> None:
    """Report what is not known of workers that share a machine, and of which models where it is not so of all."""
    unknown: dict[str, list[str]] = {}
    for name, fleet in fleets.of_models.items():
        pool, placement = fleet.pools[name], planner.demands[name].placement or Placement(usable_cores(), {})
        for remark in () if pool.worker.is_gpu else placement.remarks(pool):
            unknown.setdefault(remark, []).append(name)
    for remark, names in unknown.items():
        reporter.note(remark if len(names) == len(fleets.apart) else f"{', '.join(names)}: {remark}")
