"""Fleets of ``slotool.plan``: of one model, or of several, apart and shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.planning.plan_interference import note_sharing
from slotool.commands.planning.plan_models import PlannedModel
from slotool.commands.planning.planned import Plan, apart_row, explained, fleet_row, shared_row, why_shared
from slotool.commands.progress import Reporter
from slotool.errors import InputError

if TYPE_CHECKING:
    from slotool.planning.fleet import Fleet, Found
    from slotool.planning.planner import Planner


class PlannedFleets:
    """Fleets for the models of ``planner``: ``apart`` by model, and those that all models ``share``; ``best``: the
    shared fleet that is the plan, None where models are served apart."""

    def __init__(self, planner: Planner, entries: Mapping[str, PlannedModel], reporter: Reporter):
        self._planner, self._entries, self._reporter = planner, entries, reporter
        self._is_of_one = "" in entries
        for search in planner.alone.values():
            for remark in search.remarks:
                reporter.warn(remark)
        self._apart: dict[str, list[Found]] = {}
        self._shared: list[Found] = []
        self._best: Found | None = None

    def plan(self, facts: Mapping[str, Any]) -> Plan:
        """Search, and say what was found."""
        if (cause := self._why_nothing_fits()) is not None:
            return Plan([], facts, f"no fleet keeps the promise: {cause}")
        planner, requests = self._planner, f"{self._planner.requests:,} requests"
        with self._reporter.progress(f"fleets for {requests}") as steps:
            self._apart = {name: planner.apart(name, steps.advance) for name in planner.alone}
        if self._is_of_one:
            self._best = self._apart[""][0]
            rows = [fleet_row(each, planner) for each in self._apart[""]]
            plan = Plan(rows, facts, explained(self._apart[""], planner.promises[""]))
        else:
            if all(each[0].holds for each in self._apart.values()):
                with self._reporter.progress(f"shared fleets for {requests}", len(planner.worker_types)) as steps:
                    self._shared = self._sharing(steps.advance)
            rows = [*(shared_row(each, planner) for each in self._shared), apart_row(self._apart, planner)]
            # Of equal cost the shared one: one service in place of several.
            rows.sort(key=lambda row: (not row["holds"], row["cost"], row["kind"] == "apart"))
            plan = Plan(rows, facts, why_shared(self._shared, self._apart, planner))
            self._best = self._shared[0] if plan.holds and rows[0]["kind"] == "shared" else None
        return plan

    def _why_nothing_fits(self) -> str | None:
        """Why the only model can be served by no fleet at all, None where it can. Raises ``InputError`` for one of
        several."""
        for name, search in self._planner.alone.items():
            workers = list(self._planner.demands[name].workers.values())
            fitting = [worker for worker, _ in self._planner.choices_of(name)]
            if not fitting and self._is_of_one:
                return search.why_nothing_fits(workers)
            if not fitting:
                raise InputError(f"{name}: no fleet keeps the promise: {search.why_nothing_fits(workers)}")
            for worker in workers:
                if not any(worker is each for each in fitting):
                    of = f"{name}: " if name else ""
                    self._reporter.note(f"{of}no fleet of {worker.name}: {search.why_nothing_fits([worker])}")
        return None

    def _sharing(self, advance: Callable[[], None]) -> list[Found]:
        """Fleets that all models share, one per type of workers, the cheapest that holds first."""
        found = []
        for worker_type in self._planner.worker_types:
            shared = self._planner.shared(worker_type, self._apart)
            found += [] if shared is None else [shared]
            advance()
        promises = self._planner.promises
        return sorted(found, key=lambda each: (not each.holds, each.tried.shortfall(promises), each.tried.cost))

    def note_sharing(self) -> None:
        """Say what is not known of workers that share a machine."""
        note_sharing({name: (self._planner.alone[name], fleet) for name, fleet in self._of_models()}, self._reporter)

    def _of_models(self) -> list[tuple[str, Fleet]]:
        """The fleet that serves each model."""
        return [(name, own[0].tried if self._best is None else self._best.tried) for name, own in self._apart.items()]

    def served(self, plan: Plan, out: Path, rules: Any, verify_s: float | None) -> Plan:
        """Write the service files of ``plan`` and, if wanted, serve them on this machine."""
        from slotool.commands.planning.plan_service import write_service, write_services_apart
        from slotool.commands.planning.plan_verified import verified_plan

        planner, entries, reporter = self._planner, self._entries, self._reporter
        if self._best is None:
            fleets = dict(self._of_models())
            written, scaling = write_services_apart(out, entries, planner, fleets, reporter)
            plan = replace(plan, out=written[0], others=written[1:], scaling=scaling)
            apart = "not verified: models apart are verified one by one, by a plan for each"
            return plan if verify_s is None else replace(plan, verdict=apart)
        path = None if rules is None else Path(str(rules))
        plan = replace(plan, out=out, scaling=write_service(out, entries, planner, self._best.tried, path, reporter))
        if verify_s is None:
            return plan
        verified, kept, verdict = verified_plan(out, entries, planner, self._best.tried, verify_s, reporter)
        return replace(plan, verified=verified, kept=kept, verdict=verdict)
