"""``slotool.gen_switching_plan``: up to which arrival rate each operating point may serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool import devices
from slotool.api.arguments import typed
from slotool.api.display import Part, duration, table
from slotool.api.inputs import FilePath
from slotool.api.outputs import writes
from slotool.api.progress import Reporting, reporter_of
from slotool.api.result import Result
from slotool.errors import ArgumentError
from slotool.timing.interference import NOT_DECIDED, QUIET_CORES, OtherWork, state

if TYPE_CHECKING:
    import pandas as pd

    from slotool.data import DataSource
    from slotool.planning import PlanSearch
    from slotool.rules.switching import SwitchingPlan

MIN_TEST_S = 0.5
Configurations = Sequence[tuple[int, int]]


@dataclass(frozen=True, repr=False, eq=False)
class PlannedSwitching(Result):
    """``plan``: on the best configuration; ``plans``: on each that was tried. ``busy_cores``: kept busy by other
    processes meanwhile. ``plots``: files drawn."""

    plan: SwitchingPlan
    plans: Sequence[SwitchingPlan]
    out: Path
    busy_cores: float
    plots: Sequence[Path] = ()

    schema = "gen-switching-plan"

    def frame(self) -> pd.DataFrame:
        """Rates in requests per second, one row a point, one column a configuration."""
        import pandas as pd

        rates = {f"{plan.replicas}x{plan.threads}": plan.rates_per_s for plan in self.plans}
        return pd.DataFrame(rates).assign(accuracy=pd.Series(self.plan.accuracy))

    def findings(self) -> Mapping[str, Any]:
        plots = [str(path) for path in self.plots]
        timing = {"timing": self._timing, "cores_busy_with_others": self.busy_cores}
        return {"out": str(self.out), "plan": self.plan.document(), **timing, "plots": plots}

    @property
    def _timing(self) -> str:
        return state(self.busy_cores < QUIET_CORES)

    @property
    def warnings(self) -> list[str]:
        if self.busy_cores < QUIET_CORES:
            return []
        return [f"rates are lower bounds, {NOT_DECIDED}: other processes kept {self.busy_cores:.1f} cores busy"]

    def shown(self) -> list[Part]:
        from slotool.rules.switching import EFFECTIVE_ACCURACY

        plan = self.plan
        columns = ["point", "accuracy", *(f"⟨{each.replicas}, {each.threads}⟩, requests/s" for each in self.plans)]
        cells = [
            [point, f"{plan.accuracy[point]:.4f}", *(f"{each.rates_per_s[point]:,.0f}" for each in self.plans)]
            for point in plan.rates_per_s
        ]
        limit = f"P99 ≤ {plan.deadline_s * 1e3:g} ms"
        if plan.by == EFFECTIVE_ACCURACY:
            limit = f"no faster point is right more often within {plan.deadline_s * 1e3:g} ms"
        steps = "; ".join(f"up to {rate:,.0f}/s {point}" for rate, point in plan.breakpoints)
        return [
            table(f"{plan.subject}: rates up to which {limit}", columns, cells),
            f"plan on ⟨{plan.replicas}, {plan.threads}⟩: {steps}; beyond that the same",
            f"timing: {self._timing}",
            *(f"wrote {path}" for path in (self.out, *self.plots)),
        ]


@dataclass(frozen=True, repr=False, eq=False)
class SwitchingPlanCost(Result):
    """What a search would take: ``load_tests`` and ``seconds``."""

    subject: str
    points: int
    load_tests: int
    seconds: float
    configurations: Configurations

    schema = "gen-switching-plan-dry-run"

    def findings(self) -> Mapping[str, Any]:
        return {"load_tests": self.load_tests, "seconds": self.seconds, "configurations": self.configurations}

    def shown(self) -> list[Part]:
        tried = ", ".join(f"⟨{replicas}, {threads}⟩" for replicas, threads in self.configurations)
        return [
            f"{self.subject}: {self.points} points on ⟨replicas, threads⟩ {tried}, about {self.load_tests} load tests, "
            f"{duration(self.seconds)}"
        ]


@writes("out", folders=("plots",))
def gen_switching_plan(
    artifact: FilePath,
    out: FilePath,
    *,
    outcomes: FilePath,
    latency: FilePath,
    deadline_ms: float,
    by: str = "p99",
    configurations: Configurations | None = None,
    device: str = "cpu",
    duration_s: float = 4.0,
    data: str | DataSource = "auto",
    plots: FilePath | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> PlannedSwitching:
    """Find by load tests of real servers which operating point may serve which load.

    ``slotool serve --policy switching --plan`` follows the plan. Source: Model-Switching, sections 3 and 4.

    Args:
        artifact: The artifact to serve.
        out: Write the plan here.
        outcomes: Its outcome table.
        latency: Its latency table, over batch sizes where it may batch.
        deadline_ms: Deadline of every request, milliseconds.
        by: ``"p99"``: a point serves while it keeps the deadline at P99; ``"effective-accuracy"``: as long as no less
            accurate one answers more requests correctly and in time.
        configurations: Replicas and threads to try; None: what the cores allow.
        device: That the servers compute on, ``"cpu"`` or ``"cuda:N"``; rows of other devices do not count.
        duration_s: Seconds of each load test.
        data: Data set that requests are taken from, with labels or without: a name or file, or with how to read it.
        plots: Folder for plots (PNG) of the plan and of P99 by load.
        seed: Of arrivals and examples.
        force: Replace ``out`` if it exists.
        progress: Who hears how far it is; see ``slotool.api.progress``.

    Returns:
        ``plan``, and rates by point and configuration (``frame()``).

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        ArtifactError: ``artifact`` is damaged.
        TableError: A table cannot be read, or lacks a point.
        RunError: A server did not start.
        AlreadyExistsError: ``out`` exists.
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.rules.switching import best_configuration

    written = Path(out)
    refuse_existing(written, force)
    search = _search(artifact, outcomes, latency, deadline_ms, by, configurations, device, duration_s, data, seed)
    reporter = reporter_of(progress)
    reporter.note(str(_cost(search).shown()[0]))
    others = OtherWork()
    with reporter.progress("load tests", total=search.load_tests) as steps:
        plans = search.run(steps.advance)
    _, busy_cores = others.read()
    plan = best_configuration(plans).beside(plans)
    plan.save(written)
    drawn = [] if plots is None else _draw(plan, written, Path(plots))
    return PlannedSwitching(plan, plans, written, busy_cores, drawn)


@typed
def switching_plan_cost(
    artifact: FilePath,
    *,
    outcomes: FilePath,
    latency: FilePath,
    deadline_ms: float,
    by: str = "p99",
    configurations: Configurations | None = None,
    device: str = "cpu",
    duration_s: float = 4.0,
    data: str | DataSource = "auto",
) -> SwitchingPlanCost:
    """Say how many load tests ``gen_switching_plan`` would run and for how long, and start no server.

    Args:
        artifact: As of ``gen_switching_plan``.
        outcomes: As of ``gen_switching_plan``.
        latency: As of ``gen_switching_plan``.
        deadline_ms: As of ``gen_switching_plan``.
        by: As of ``gen_switching_plan``.
        configurations: As of ``gen_switching_plan``.
        device: As of ``gen_switching_plan``.
        duration_s: As of ``gen_switching_plan``.
        data: As of ``gen_switching_plan``.

    Returns:
        ``load_tests`` and ``seconds``.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        ArtifactError: ``artifact`` is damaged.
        TableError: A table cannot be read, or lacks a point.
    """
    return _cost(_search(artifact, outcomes, latency, deadline_ms, by, configurations, device, duration_s, data, 0))


def _search(
    artifact: FilePath,
    outcomes: FilePath,
    latency: FilePath,
    deadline_ms: float,
    by: str,
    configurations: Configurations | None,
    device: str,
    duration_s: float,
    data: str | DataSource,
    seed: int,
) -> PlanSearch:
    from slotool.data import DataSource
    from slotool.planning import PlanSearch, possible_configurations
    from slotool.rules.switching import CRITERIA

    if by not in CRITERIA:
        raise ArgumentError("by", f"{by!r} is neither {' nor '.join(CRITERIA)}")
    if duration_s < MIN_TEST_S:
        raise ArgumentError("duration_s", f"{duration(duration_s)} is shorter than {MIN_TEST_S:g} s")
    if configurations is not None and (not configurations or min(map(min, configurations)) < 1):
        raise ArgumentError("configurations", "pairs of replicas and threads, each at least 1, are expected")
    tried = possible_configurations() if configurations is None else tuple(configurations)
    paths = (Path(artifact), Path(outcomes), Path(latency))
    on = devices.required(device)
    return PlanSearch(*paths, deadline_ms / 1e3, duration_s, tried, DataSource.of(data), seed, by, on)


def _cost(search: PlanSearch) -> SwitchingPlanCost:
    tried = search.configurations
    return SwitchingPlanCost(search.subject, search.points, search.load_tests, search.expected_s, tried)


def _draw(plan: SwitchingPlan, out: Path, folder: Path) -> list[Path]:
    from slotool.reports.plots import save_plots
    from slotool.reports.series.switching import plan_figures

    return save_plots(plan_figures(plan, out.name), folder)
