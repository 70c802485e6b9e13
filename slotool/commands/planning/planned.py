"""Result of ``slotool.plan``: the fleets found, as rows, in tables and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Part, duration, table
from slotool.commands.planning.plan_tiers import strictest_of, tier_lines
from slotool.commands.result import Result
from slotool.errors import PromiseBroken

if TYPE_CHECKING:
    from slotool.planning.fleet import Fleet, Found
    from slotool.planning.planner import Planner
    from slotool.planning.promise import Promise, Verdict

# Shown of those that hold, besides the plan.
RUNNERS_UP = 5


@dataclass(frozen=True, repr=False, eq=False)
class Plan(Result):
    """``rows``: fleets, those that hold the promise first, cheapest first. Of one model the smallest fleet of each
    worker type and policy; of several, fleets that serve all of them, of ``kind`` ``shared``, one per worker type, and
    ``apart``, a fleet for each model.

    ``explanation``: why not one worker fewer. ``out``: the service file written; where models are served apart, that of
    the first, and ``others`` those of the others. ``verified``: figures planned and served by
    this machine; ``kept``: whether the promise was kept then, None where that is not decided, and ``verdict`` says by
    how much. ``scaling``: limits of workers that come with the load, where the service file has them.
    """

    rows: Sequence[Mapping[str, Any]]
    facts: Mapping[str, Any]
    explanation: str
    out: Path | None = None
    others: Sequence[Path] = ()
    verified: Sequence[Mapping[str, Any]] = ()
    kept: bool | None = None
    verdict: str = ""
    scaling: Mapping[str, Any] | None = None

    rows_key = "fleets"

    @property
    def schema(self) -> str:  # type: ignore[override]
        """Name of the document: of several models it lists their promises, and the models of each fleet."""
        return "plan-models" if self._is_of_several else "plan"

    @property
    def _is_of_several(self) -> bool:
        return "promises" in self.facts

    @property
    def holds(self) -> bool:
        """True if a fleet keeps the promise."""
        return bool(self.rows and self.rows[0]["holds"])

    def judge(self) -> None:
        """Raises ``PromiseBroken`` when no fleet keeps the promise, or the one that was served did not."""
        if not self.holds:
            raise PromiseBroken(self.explanation)
        if self.kept is False:
            raise PromiseBroken(self.verdict.replace("\n", "; "))  # of several models a line each

    def _read(self) -> list[Part]:
        """Return the parts that a notebook shows: no error tells it the explanation."""
        return super()._read() if self.holds else [*super()._read(), self.explanation]

    def findings(self) -> Mapping[str, Any]:
        others = {"others": [str(path) for path in self.others]} if self._is_of_several else {}
        return {
            **self.facts,
            "fleets": list(self.rows),
            "explanation": self.explanation,
            "verified": list(self.verified),
            "kept": self.kept,
            "verdict": self.verdict,
            "scaling": self.scaling,
            "out": None if self.out is None else str(self.out),
            **others,
        }

    def shown(self) -> list[Part]:
        shown = [*(self._models() if self._is_of_several else self._fleets())]
        shown += [self.explanation] if self.holds else []  # else it is the error's sentence
        shown += _service_lines(self.rows[0], self.facts) if self.holds else []
        shown += [self.scaling["sentence"]] if self.scaling else []
        shown += [f"wrote {path}" for path in (self.out, *self.others) if path is not None]
        if self.verified:
            title = f"The busiest {duration(self.facts['verify_s'])} on this machine"
            of = ["model"] if self._is_of_several else []
            columns = [*of, "", "requests", "in time", "accuracy", "p99"]
            shown.append(table(title, columns, map(_verified_cells, self.verified)))
        if self.verdict and self.kept is not False:  # else it is the error's sentence
            shown.append(self.verdict)
        return shown

    def _fleets(self) -> list[Part]:
        """Fleets of one model that hold, or all of them."""
        facts, holding = self.facts, [row for row in self.rows if row["holds"]] or list(self.rows)
        if facts["strictest"]:
            holding = strictest_of(holding)
        accuracy = f", mean accuracy {facts['min_accuracy']:g}" if facts["min_accuracy"] else ""
        title = (
            f"{facts['subject']}: {facts['attainment']:g} of {facts['requests']:,} requests within "
            f"{facts['deadline_ms']:g} ms{accuracy}, confidence {facts['confidence']:g}"
        )
        shown: list[Part] = []
        if holding:
            known = "accuracy" if holding[0]["accuracy_at_least"] is None else "accuracy ≥"
            columns = ["workers", "type", "policy", "cost", "in time ≥", known, "p99", "busy", "with fewer, short of"]
            shown.append(table(title, columns, map(_fleet_cells, holding[: RUNNERS_UP + 1])))
        left = len(self.rows) - len(holding[: RUNNERS_UP + 1])
        return [*shown, f"{left} more worker types and policies; --json lists all"] if left else shown

    def _models(self) -> list[Part]:
        """The models that share the best fleet, or have fleets of their own."""
        facts, best = self.facts, self.rows[0]
        how = f"on {_workers(best['replicas'])} of {best['worker']} that they share"
        how = how if best["kind"] == "shared" else "apart"
        title = f"{len(facts['promises'])} models {how}, confidence {facts['confidence']:g}"
        promises = {promise["model"]: promise for promise in facts["promises"]}
        bounded = any(model["accuracy_at_least"] is not None for model in best["models"])
        columns = [
            "model", "requests/s", "within", "policy", "in time ≥", "promised", "accuracy ≥" if bounded else "accuracy",
            "promised", "p99", "apart",
        ]  # fmt: skip
        apart = next(row for row in self.rows if row["kind"] == "apart")
        alone = {model["model"]: model for model in apart["models"]}
        cells = [_model_cells(model, promises[model["model"]], alone) for model in best["models"]]
        return [table(title, columns, cells)]


def fleet_row(found: Found, planner: Planner) -> dict[str, Any]:
    """Return the row of a fleet of one model."""
    fleet, pool, fewer = found.tried, found.tried.pool, found.fewer
    ((name, promise),) = planner.promises.items()
    return {
        "worker": pool.worker.name,
        "threads": pool.worker.threads,
        "policy": pool.policy,
        "replicas": fleet.replicas,
        "cost": fleet.cost,
        "holds": found.holds,
        "confirmed": found.confirmed,
        **asdict(fleet.verdict),
        "misses": fleet.verdict.misses(promise),
        "tiers": planner.alone[name].promised(fleet),
        "fewer": None
        if fewer is None
        else {"replicas": fewer.replicas, **asdict(fewer.verdict), "misses": fewer.verdict.misses(promise)},
        "max_batch": pool.max_batch,
        "max_queue": planner.max_queue(fleet.pools),
    }


def shared_row(found: Found, planner: Planner) -> dict[str, Any]:
    """Return the row of a fleet that all models share."""
    fleet, fewer = found.tried, found.fewer
    misses = fleet.misses(planner.promises)
    shown_fewer = None
    if fewer is not None:
        shown_fewer = {
            "replicas": fewer.replicas,
            "utilisation": fewer.utilisation,
            "misses": fewer.misses(planner.promises),
            "models": [{"model": name, **asdict(verdict)} for name, verdict in fewer.verdicts.items()],
        }
    return {
        "kind": "shared",
        "worker": fleet.pool.worker.name,
        "threads": fleet.pool.worker.threads,
        "replicas": fleet.replicas,
        "cost": fleet.cost,
        "holds": found.holds,
        "utilisation": fleet.utilisation,
        "max_queue": planner.max_queue(fleet.pools),
        "models": [_model_row(name, fleet, planner, name not in misses) for name in fleet.pools],
        "fewer": shown_fewer,
    }


def apart_row(apart: Mapping[str, Sequence[Found]], planner: Planner) -> dict[str, Any]:
    """Return the row of a fleet for each model."""
    fleets = {name: found[0].tried for name, found in apart.items()}
    workers = {fleet.pool.worker.name: fleet.pool.worker.threads for fleet in fleets.values()}
    replicas = sum(fleet.replicas for fleet in fleets.values())
    return {
        "kind": "apart",
        "worker": " + ".join(workers),
        "threads": next(iter(workers.values())) if len(workers) == 1 else None,
        "replicas": replicas,
        "cost": sum(fleet.cost for fleet in fleets.values()),
        "holds": all(found[0].holds for found in apart.values()) and replicas <= planner.max_workers,
        "utilisation": sum(fleet.replicas * fleet.utilisation for fleet in fleets.values()) / replicas,
        "max_queue": None,
        "models": [_model_row(name, fleet, planner, apart[name][0].holds) for name, fleet in fleets.items()],
        "fewer": None,
    }


def _model_row(name: str, fleet: Fleet, planner: Planner, holds: bool) -> dict[str, Any]:
    pool, verdict = fleet.pools[name], fleet.verdicts[name]
    return {
        "model": name,
        "worker": pool.worker.name,
        "replicas": fleet.replicas,
        "policy": pool.policy,
        "max_batch": pool.max_batch,
        "holds": holds,
        **asdict(verdict),
        "misses": verdict.misses(planner.promises[name]),
    }


def explained(found: Sequence[Found], promise: Promise) -> str:
    """Explain of the first of ``found`` why not one worker fewer and, of the strictest tier that holds, why not a
    stricter one."""
    best = found[0]
    stricter = [each for each in found if best.holds and not each.holds and each.rank < best.rank]
    said = _explained(best, promise, found)
    if not stricter:
        return said
    closest = max(stricter, key=lambda each: (each.rank, -each.tried.verdict.shortfall(promise)))
    return f"{said}; a stricter tier does not: {closest.tried}, {_short_and_busy(closest.tried, promise)}"


def _explained(best: Found, promise: Promise, found: Sequence[Found]) -> str:
    fleet = best.tried
    if not best.holds:
        reaches = [each.most for each in found if each.most is not None]
        if len(reaches) == len(found):
            most = max(reaches, key=lambda each: each.shown)
            return f"no fleet keeps the promise: {most.short_of(promise)}"
        limited = "; more workers would not change that" if best.limited else ""
        return f"no fleet keeps the promise; closest: {fleet}, with {_short_and_busy(fleet, promise)}{limited}"
    if best.fewer is None:
        return f"the promise holds with {fleet}; there is no smaller fleet"
    return f"the promise holds with {fleet}, not with {best.fewer.replicas:,}: {_short_and_busy(best.fewer, promise)}"


def why_shared(found: Sequence[Found], apart: Mapping[str, Sequence[Found]], planner: Planner) -> str:
    """Explain what the models take together and apart, why not one worker fewer, and where sharing does not pay,
    why."""
    failing = [name for name, each in apart.items() if not each[0].holds]
    if failing:
        return "; ".join(f"{name}: {explained(apart[name], planner.promises[name])}" for name in failing)
    fleets = [each[0].tried for each in apart.values()]
    best = found[0] if found else None
    return _compared(best, fleets, planner)


def _compared(best: Found | None, fleets: Sequence[Fleet], planner: Planner) -> str:
    """The ``best`` shared fleet beside the ``fleets`` of each model."""
    cost, limit = sum(fleet.cost for fleet in fleets), planner.max_workers
    over = sum(fleet.replicas for fleet in fleets) > limit
    said = f"apart {_together(fleets)} (cost {cost:g}{', more than the limit' if over else ''}), together"
    if best is None or not best.holds:
        why = "no type of workers serves all of the models in time"
        if best is not None:
            why = f"{best.tried.replicas:,} of {best.tried.pool.worker.name} would leave {_left(best.tried, planner)}"
        if over:
            return f"no plan within the limit, {_workers(limit)} of all models: {said} more too: {why}"
        limited = best is not None and best.tried.replicas == limit and best.tried.cost < cost
        none = f"none within the limit, {_workers(limit)} of all models" if limited else "no fewer"
        return f"{said} {none}: {why if limited or best is None else f'sharing does not pay, as {why}'}"
    said = f"{said} {_fleet(best, planner)}"
    if over or best.tried.cost < cost:
        return said
    if best.tried.cost > cost:
        return f"{said}; sharing does not pay, as this costs more"
    return (
        f"{said}; sharing saves nothing: of equal cost the shared fleet is the plan, as one service in place of "
        f"{len(fleets)}"
    )


def _fleet(found: Found, planner: Planner) -> str:
    """Describe a fleet that holds, and why one worker fewer does not."""
    tried, fewer = found.tried, "there is no smaller fleet"
    if found.fewer is not None:
        fewer = f"not with {found.fewer.replicas:,}, which would leave {_left(found.fewer, planner)}"
    fleet = f"{tried.replicas:,} of {tried.pool.worker.name} (cost {tried.cost:g})"
    return f"{fleet}, busy {tried.utilisation:.0%} of the time; {fewer}"


def _together(fleets: Sequence[Fleet]) -> str:
    """``2 + 1 workers of 1 thread``, or each with its type where they differ."""
    types = {fleet.pool.worker.name for fleet in fleets}
    if len(types) > 1:
        return " + ".join(f"{fleet.replicas:,} of {fleet.pool.worker.name}" for fleet in fleets) + " workers"
    replicas = " + ".join(f"{fleet.replicas:,}" for fleet in fleets)
    return f"{replicas} worker{'' if replicas == '1' else 's'} of {min(types)}"


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


def _service_lines(row: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Describe how to start a service of the fleet, and what its tiers promise."""
    if row.get("kind") == "apart":
        return []
    if row.get("kind") == "shared":
        sizes = ", ".join(f"{model['max_batch']:,} of {model['model']}" for model in row["models"])
        return [f"batches of up to {sizes}, a queue of up to {row['max_queue']:,} requests, of all models"]
    how = "by each request's own tier" if row["tiers"] else "at their fastest point"
    batches = f"batches of up to {row['max_batch']:,}" if row["max_batch"] > 1 else "no batches"
    return [
        *(tier_lines(row, facts) if row["tiers"] else []),
        f"{batches}, a queue of up to {row['max_queue']:,} requests, as many as the workers can answer within a "
        f"deadline {how}, and no more than a server reads in that time",
    ]


def _workers(count: int) -> str:
    return f"{count:,} worker{'s' if count > 1 else ''}"


def _fleet_cells(row: Mapping[str, Any]) -> list[str]:
    fewer = row["fewer"]
    return [
        f"{row['replicas']:,}",
        row["worker"],
        row["policy"],
        f"{row['cost']:g}",
        f"{row['attainment_at_least']:.4f}",
        _accuracy(row),
        _p99(row),
        f"{row['utilisation']:.0%}",
        "–" if fewer is None else f"{fewer['replicas']:,}: {' and '.join(fewer['misses']) or 'by chance'}",
    ]


def _model_cells(model: Mapping[str, Any], promise: Mapping[str, Any], alone: Mapping[str, Any]) -> list[str]:
    own, rate = alone[model["model"]], promise["rate_per_s"]
    return [
        model["model"],
        f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}",
        f"{promise['deadline_ms']:g} ms",
        model["policy"],
        f"{model['attainment_at_least']:.4f}",
        f"{promise['attainment']:g}",
        _accuracy(model),
        f"{promise['min_accuracy']:g}" if promise["min_accuracy"] else "–",
        _p99(model),
        f"{own['replicas']:,} of {own['worker']}" if own["holds"] else "none holds",
    ]


def _accuracy(row: Mapping[str, Any]) -> str:
    bound = row["accuracy_at_least"]
    return f"{row['accuracy'] if bound is None else bound:.4f}"


def _p99(row: Mapping[str, Any]) -> str:
    return duration(row["p99_us"] / 1e6) if row["p99_us"] < float("inf") else "never"


def _verified_cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of figures that were planned or served."""
    p99 = duration(row["p99_s"]) if row["p99_s"] < float("inf") else "never"
    of = [row["model"]] if "model" in row else []
    return [*of, row["what"], f"{row['requests']:,}", f"{row['attainment']:.4f}", f"{row['accuracy']:.4f}", p99]
