"""What ``slotool.plan`` returns: the fleets found, as rows, in tables and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.display import Part, duration, table
from slotool.api.plan_tiers import strictest_of, tier_lines
from slotool.api.result import Result
from slotool.errors import PromiseBroken

if TYPE_CHECKING:
    from slotool.planning.fleet import Fleet, Found
    from slotool.planning.fleet_search import FleetSearch
    from slotool.planning.promise import Promise

# Shown of those that hold, besides the plan.
RUNNERS_UP = 5


@dataclass(frozen=True, repr=False, eq=False)
class Plan(Result):
    """``rows``: the smallest fleet of each worker type and policy, those that hold the promise first, cheapest first;
    ``explanation``: why not one worker fewer. ``out``: the service file written;
    ``plots``: files drawn; ``verified``: figures planned and served by this machine, if it was asked; ``kept``: whether
    the promise was kept then, None where that is not decided, and ``verdict`` says by how much. ``scaling``: limits of
    workers that come with the load, where the service file has them. ``reasons``: with ``explain``, why not fewer or
    other workers, and what would have to change; its ``sentences`` are what is shown, and all there is of it where no
    fleet holds."""

    rows: Sequence[Mapping[str, Any]]
    facts: Mapping[str, Any]
    explanation: str
    out: Path | None = None
    plots: Sequence[Path] = ()
    verified: Sequence[Mapping[str, Any]] = ()
    kept: bool | None = None
    verdict: str = ""
    scaling: Mapping[str, Any] | None = None
    reasons: Mapping[str, Any] | None = None

    schema = "plan"
    rows_key = "fleets"

    @property
    def holds(self) -> bool:
        """Whether any fleet keeps the promise."""
        return bool(self.rows and self.rows[0]["holds"])

    def judge(self) -> None:
        """Raises ``PromiseBroken`` when no fleet keeps the promise, or the one that was served did not."""
        if not self.holds:
            raise PromiseBroken(self.explanation)
        if self.kept is False:
            raise PromiseBroken(self.verdict.replace("\n", "; "))  # of several models a line each

    def _read(self) -> list[Part]:
        """As a notebook shows it, which hears of no error."""
        return super()._read() if self.holds else [*super()._read(), self.explanation]

    def findings(self) -> Mapping[str, Any]:
        out = None if self.out is None else str(self.out)
        plots = [str(path) for path in self.plots]
        found: dict[str, Any] = {
            "fleets": list(self.rows),
            "explanation": self.explanation,
            "verified": list(self.verified),
        }
        found |= {"kept": self.kept, "verdict": self.verdict, "scaling": self.scaling, "reasons": self.reasons}
        return {**self.facts, **found, "out": out, "plots": plots}

    def shown(self) -> list[Part]:
        facts = self.facts
        accuracy = f", mean accuracy {facts['min_accuracy']:g}" if facts["min_accuracy"] else ""
        title = (
            f"{facts['subject']}: {facts['attainment']:g} of {facts['requests']:,} requests within "
            f"{facts['deadline_ms']:g} ms{accuracy}, confidence {facts['confidence']:g}"
        )
        holding = [row for row in self.rows if row["holds"]] or list(self.rows)
        if facts["strictest"]:
            holding = strictest_of(holding)
        left = len(self.rows) - len(holding[: RUNNERS_UP + 1])
        more = [f"{left} more worker types and policies; --json lists all"] if left else []
        wrote = [f"wrote {path}" for path in (self.out, *self.plots) if path is not None]
        shown: list[Part] = [
            *([table(title, _columns(holding), map(_cells, holding[: RUNNERS_UP + 1]))] if holding else []),
            *more,
            *([self.explanation] if self.holds else []),  # else it is the error's sentence
            *(self.reasons["sentences"] if self.reasons else []),
            *(tier_lines(self.rows[0], facts) if self.holds and self.rows[0]["tiers"] else []),
            *([_limits(self.rows[0])] if self.holds else []),
            *([self.scaling["sentence"]] if self.scaling else []),
            *wrote,
        ]
        if self.verified:
            requests = self.verified[0]["requests"]
            title = f"The busiest {duration(facts['verify_s'])}, {requests:,} requests, on this machine"
            shown.append(table(title, VERIFIED_COLUMNS, map(verified_cells, self.verified)))
        if self.verdict and self.kept is not False:  # else it is the error's sentence
            shown.append(self.verdict)
        return shown


def fleet_row(found: Found, promise: Promise, search: FleetSearch) -> dict[str, Any]:
    """What is said of a fleet."""
    fleet = found.tried
    fewer = None
    if found.fewer is not None:
        verdict = found.fewer.verdict
        fewer = {"replicas": found.fewer.replicas, **asdict(verdict), "misses": verdict.misses(promise)}
    return {
        "worker": fleet.pool.worker.name,
        "threads": fleet.pool.worker.threads,
        "policy": fleet.pool.policy,
        "replicas": fleet.replicas,
        "cost": fleet.cost,
        "holds": found.holds,
        "confirmed": found.confirmed,
        **asdict(fleet.verdict),
        "misses": fleet.verdict.misses(promise),
        "tiers": search.promised(fleet),
        "fewer": fewer,
        "max_batch": fleet.pool.max_batch,
        "max_queue": search.max_queue(fleet.pool),
    }


def _limits(row: Mapping[str, Any]) -> str:
    """Return what a service of the fleet is to be started with."""
    how = "by each request's own tier" if row["tiers"] else "at their fastest point"
    batches = f"batches of up to {row['max_batch']:,}" if row["max_batch"] > 1 else "no batches"
    return (
        f"{batches}, a queue of up to {row['max_queue']:,} requests, as many as the workers can answer within a "
        f"deadline {how}, and no more than a server reads in that time"
    )


def explained(best: Found, promise: Promise, found: Sequence[Found]) -> str:
    """Why not one worker fewer and, of the strictest tier that holds, why not a stricter one."""
    stricter = [each for each in found if best.holds and not each.holds and each.rank < best.rank]
    said = _explained(best, promise, found)
    if not stricter:
        return said
    closest = max(stricter, key=lambda each: (each.rank, -each.tried.verdict.shortfall(promise)))
    return f"{said}; a stricter tier does not: {closest.tried}, {_shortfall(closest.tried, promise)}"


def _explained(best: Found, promise: Promise, found: Sequence[Found]) -> str:
    fleet = best.tried
    said = str(fleet)
    if not best.holds:
        reaches = [each.most for each in found if each.most is not None]
        if len(reaches) == len(found):
            most = max(reaches, key=lambda each: each.shown)
            return f"no fleet keeps the promise: {most.short_of(promise)}"
        limited = "; more workers would not change that" if best.limited else ""
        return f"no fleet keeps the promise; closest: {said}, with {_shortfall(fleet, promise)}{limited}"
    if best.fewer is None:
        return f"the promise holds with {said}; there is no smaller fleet"
    return f"the promise holds with {said}, not with {best.fewer.replicas:,}: {_shortfall(best.fewer, promise)}"


def _shortfall(fleet: Fleet, promise: Promise) -> str:
    verdict, busy = fleet.verdict, f"busy {fleet.verdict.utilisation:.0%} of the time"
    parts = []
    for what in verdict.misses(promise):
        shown, least = getattr(verdict, f"{what}_at_least"), getattr(promise, what)
        bound = "" if shown is None else f", at least {shown:.4f} at this confidence"
        parts.append(f"{what} of {getattr(verdict, what):.4f}{bound}, for {least:g}")
    return f"{' and '.join(parts) or 'all of it kept by chance'}; {busy}"


VERIFIED_COLUMNS = ("", "in time", "accuracy", "p99")


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of a table of fleets, all of whose accuracies are bounded or known."""
    accuracy = "accuracy" if rows[0]["accuracy_at_least"] is None else "accuracy ≥"
    return ["workers", "type", "policy", "cost", "in time ≥", accuracy, "p99", "busy", "with fewer, short of"]


def _cells(row: Mapping[str, Any]) -> list[str]:
    fewer, bound = row["fewer"], row["accuracy_at_least"]
    return [
        f"{row['replicas']:,}",
        row["worker"],
        row["policy"],
        f"{row['cost']:g}",
        f"{row['attainment_at_least']:.4f}",
        f"{row['accuracy'] if bound is None else bound:.4f}",
        duration(row["p99_us"] / 1e6) if row["p99_us"] < float("inf") else "never",
        f"{row['utilisation']:.0%}",
        "–" if fewer is None else f"{fewer['replicas']:,}: {' and '.join(fewer['misses']) or 'by chance'}",
    ]


def verified_cells(row: Mapping[str, Any]) -> list[str]:
    """Of one row of figures that were planned or served."""
    return [
        row["what"],
        f"{row['attainment']:.4f}",
        f"{row['accuracy']:.4f}",
        duration(row["p99_s"]) if row["p99_s"] < float("inf") else "never",
    ]
