"""What ``slotool.plan`` returns for several models: fleets that they share, in tables and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.display import Part, duration, table
from slotool.api.planned import VERIFIED_COLUMNS, Plan, explained, verified_cells

if TYPE_CHECKING:
    from slotool.planning.fleet import Fleet, Found
    from slotool.planning.promise import Promise, Verdict
    from slotool.planning.shared import SharedFleet, SharedFleetSearch, SharedFound


@dataclass(frozen=True, repr=False, eq=False)
class SharedPlan(Plan):
    """``rows``: fleets that serve all models, of ``kind`` ``shared``, one per worker type, and ``apart``, a fleet for
    each model; those that hold all promises first, the cheapest of them first. ``out``: the service file; where the
    models are served apart, that of the first, and ``others`` those of the others. ``verified``: as of ``Plan``, by
    model."""

    others: Sequence[Path] = ()

    schema = "plan-models"

    def findings(self) -> Mapping[str, Any]:
        return {
            **self.facts,
            "fleets": list(self.rows),
            "explanation": self.explanation,
            "verified": list(self.verified),
            "kept": self.kept,
            "verdict": self.verdict,
            "out": None if self.out is None else str(self.out),
            "others": [str(path) for path in self.others],
            "scaling": self.scaling,
            "reasons": self.reasons,
            "plots": [str(path) for path in self.plots],
        }

    def shown(self) -> list[Part]:
        facts, best = self.facts, self.rows[0]
        how = f"on {_workers(best)} that they share" if best["kind"] == "shared" else "apart"
        title = f"{len(facts['promises'])} models {how}, confidence {facts['confidence']:g}"
        promises = {promise["model"]: promise for promise in facts["promises"]}
        idle = [name for name, promise in promises.items() if not promise["requests"]]
        bounded = any(model["accuracy_at_least"] is not None for model in best["models"])
        columns = [
            "model", "requests/s", "within", "policy", "in time ≥", "promised", "accuracy ≥" if bounded else "accuracy",
            "promised", "p99", "apart",
        ]  # fmt: skip
        apart = next(row for row in self.rows if row["kind"] == "apart")
        alone = {model["model"]: model for model in apart["models"]}
        shown: list[Part] = [
            table(title, columns, [_cells(model, promises[model["model"]], alone) for model in best["models"]]),
            *(f"{name}: served too, without requests that are planned for" for name in idle),
            *([self.explanation] if self.holds else []),  # else it is the error's sentence
            *(self.reasons["sentences"] if self.reasons else []),
        ]
        if self.holds and best["kind"] == "shared":
            shown.append(f"{_batches(best)}a queue of up to {best['max_queue']:,} requests, of all models")
        shown += [self.scaling["sentence"]] if self.scaling else []
        shown += [f"wrote {path}" for path in (self.out, *self.others, *self.plots) if path is not None]
        if self.verified:
            title = f"The busiest {duration(facts['verify_s'])} on this machine"
            cells = [[row["model"], f"{row['requests']:,}", *verified_cells(row)] for row in self.verified]
            shown.append(table(title, ["model", "requests", *VERIFIED_COLUMNS], cells))
        if self.verdict and self.kept is not False:  # else it is the error's sentence
            shown.append(self.verdict)
        return shown


def _workers(row: Mapping[str, Any]) -> str:
    return f"{_counted(row['replicas'])} of {row['worker']}"


def _counted(workers: int) -> str:
    return f"{workers:,} worker{'s' if workers > 1 else ''}"


def _batches(row: Mapping[str, Any]) -> str:
    most = {model["model"]: model["max_batch"] for model in row["models"]}
    return f"batches of up to {', '.join(f'{size:,} of {name}' for name, size in most.items())}, "


def _cells(model: Mapping[str, Any], promise: Mapping[str, Any], alone: Mapping[str, Any]) -> list[str]:
    own, bound = alone[model["model"]], model["accuracy_at_least"]
    return [
        model["model"],
        f"{rate:,.0f}" if (rate := promise["rate_per_s"]) >= 100 else f"{rate:.3g}",
        f"{promise['deadline_ms']:g} ms",
        model["policy"],
        f"{model['attainment_at_least']:.4f}",
        f"{promise['attainment']:g}",
        f"{model['accuracy'] if bound is None else bound:.4f}",
        f"{promise['min_accuracy']:g}" if promise["min_accuracy"] else "–",
        duration(model["p99_us"] / 1e6) if model["p99_us"] < float("inf") else "never",
        f"{own['replicas']:,} of {own['worker']}" if own["holds"] else "none holds",
    ]


def shared_row(found: SharedFound, search: SharedFleetSearch) -> dict[str, Any]:
    """What is said of a fleet that all models share."""
    fleet, fewer = found.tried, found.fewer
    misses = fleet.misses(search.promises)
    return {
        "kind": "shared",
        "worker": fleet.worker.name,
        "threads": fleet.worker.threads,
        "replicas": fleet.replicas,
        "cost": fleet.cost,
        "holds": found.holds,
        "utilisation": fleet.utilisation,
        "max_queue": search.max_queue(fleet.pools),
        "models": [
            {
                "model": name,
                "worker": fleet.worker.name,
                "replicas": fleet.replicas,
                "policy": pool.policy,
                "max_batch": pool.max_batch,
                "holds": name not in misses,
                **asdict(fleet.verdicts[name]),
                "misses": misses.get(name, []),
            }
            for name, pool in fleet.pools.items()
        ],
        "fewer": None
        if fewer is None
        else {
            "replicas": fewer.replicas,
            "utilisation": fewer.utilisation,
            "misses": fewer.misses(search.promises),
            "models": [{"model": name, **asdict(verdict)} for name, verdict in fewer.verdicts.items()],
        },
    }


def apart_row(apart: Mapping[str, Sequence[Found]], search: SharedFleetSearch) -> dict[str, Any]:
    """What is said of a fleet for each model."""
    fleets = {name: found[0].tried for name, found in apart.items()}
    workers = {fleet.pool.worker.name: fleet.pool.worker.threads for fleet in fleets.values()}
    replicas = sum(fleet.replicas for fleet in fleets.values())
    busy = sum(fleet.replicas * fleet.verdict.utilisation for fleet in fleets.values())
    return {
        "kind": "apart",
        "worker": " + ".join(workers),
        "threads": next(iter(workers.values())) if len(workers) == 1 else None,
        "replicas": replicas,
        "cost": sum(fleet.cost for fleet in fleets.values()),
        "holds": all(found[0].holds for found in apart.values()) and replicas <= search.max_workers,
        "utilisation": busy / replicas,
        "max_queue": None,
        "models": [
            {
                "model": name,
                "worker": fleet.pool.worker.name,
                "replicas": fleet.replicas,
                "policy": fleet.pool.policy,
                "max_batch": fleet.pool.max_batch,
                "holds": apart[name][0].holds,
                **asdict(fleet.verdict),
                "misses": fleet.verdict.misses(search.promises[name]),
            }
            for name, fleet in fleets.items()
        ],
        "fewer": None,
    }


def why_shared(found: Sequence[SharedFound], apart: Mapping[str, Sequence[Found]], search: SharedFleetSearch) -> str:
    """What the models take together and apart, why not one worker fewer, and where sharing does not pay, why."""
    failing = [name for name, each in apart.items() if not each[0].holds]
    if failing:
        return "; ".join(f"{name}: {explained(apart[name][0], search.promises[name], apart[name])}" for name in failing)
    fleets = [each[0].tried for each in apart.values()]
    best = found[0] if found else None
    if search.is_of_one and best is not None and best.holds and best.tried.cost == fleets[0].cost:
        (name,) = search.alone
        return f"only {name} has requests that are planned for, so that nothing is shared: {_fleet(best, search)}"
    return _compared(best, fleets, search)


def _compared(best: SharedFound | None, fleets: Sequence[Fleet], search: SharedFleetSearch) -> str:
    """The ``best`` shared fleet beside the ``fleets`` of each model."""
    cost, limit = sum(fleet.cost for fleet in fleets), search.max_workers
    over = sum(fleet.replicas for fleet in fleets) > limit
    said = f"apart {_together(fleets)} (cost {cost:g}{', more than the limit' if over else ''}), together"
    if best is None or not best.holds:
        why = "no type of workers serves all of the models in time"
        if best is not None:
            why = f"{best.tried.replicas:,} of {best.tried.worker.name} would leave {_left(best.tried, search)}"
        if over:
            return f"no plan within the limit, {_counted(limit)} of all models: {said} more too: {why}"
        limited = best is not None and best.tried.replicas == limit and best.tried.cost < cost
        none = f"none within the limit, {_counted(limit)} of all models" if limited else "no fewer"
        return f"{said} {none}: {why if limited or best is None else f'sharing does not pay, as {why}'}"
    said = f"{said} {_fleet(best, search)}"
    if over or best.tried.cost < cost:
        return said
    if best.tried.cost > cost:
        return f"{said}; sharing does not pay, as this costs more"
    return (
        f"{said}; sharing saves nothing: of equal cost the shared fleet is the plan, as one service in place of "
        f"{len(fleets)}"
    )


def _fleet(found: SharedFound, search: SharedFleetSearch) -> str:
    """Of one that holds, and why not with one worker fewer."""
    tried, fewer = found.tried, "there is no smaller fleet"
    if found.fewer is not None:
        fewer = f"not with {found.fewer.replicas:,}, which would leave {_left(found.fewer, search)}"
    fleet = f"{tried.replicas:,} of {tried.worker.name} (cost {tried.cost:g})"
    return f"{fleet}, busy {tried.utilisation:.0%} of the time; {fewer}"


def _together(fleets: Sequence[Fleet]) -> str:
    """``2 + 1 workers of 1 thread``, or each with its type where they differ."""
    types = {fleet.pool.worker.name for fleet in fleets}
    if len(types) > 1:
        return " + ".join(f"{fleet.replicas:,} of {fleet.pool.worker.name}" for fleet in fleets) + " workers"
    replicas = " + ".join(f"{fleet.replicas:,}" for fleet in fleets)
    return f"{replicas} worker{'' if replicas == '1' else 's'} of {min(types)}"


def _left(fleet: SharedFleet, search: SharedFleetSearch) -> str:
    """What each model falls short of."""
    misses, promises = fleet.misses(search.promises), search.promises
    return " and ".join(f"{name} with {_short_of(fleet.verdicts[name], promises[name])}" for name in misses)


def _short_of(verdict: Verdict, promise: Promise) -> str:
    """By how much it lies below the promise."""
    parts = []
    for what in verdict.misses(promise):
        shown, least = getattr(verdict, f"{what}_at_least"), getattr(promise, what)
        bound = "" if shown is None else f", at least {shown:.4f} at this confidence"
        parts.append(f"{what} of {getattr(verdict, what):.4f}{bound}, for {least:g}")
    return " and ".join(parts)
