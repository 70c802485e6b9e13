"""``slotool.gen_switching_plan``: highest arrival rate that each operating point may serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool import devices
from slotool.commands.command_line import command_line
from slotool.commands.display import Part, table
from slotool.commands.outputs import writes
from slotool.commands.result import Result, Verdict, listed, output, result, unlisted
from slotool.commands.values import at_least
from slotool.errors import ArgumentError
from slotool.printable import duration
from slotool.progress import Reporting, reporter_of
from slotool.sources import FilePath
from slotool.timing.interference import NOT_DECIDED, QUIET_CORES, OtherWork, state

if TYPE_CHECKING:
    import pandas as pd

    from slotool.data import DataSource
    from slotool.rules.switching import SwitchingPlan

MIN_TEST_S = 0.5
Configurations = Sequence[tuple[int, int]]


@result
class PlannedSwitching(Verdict):
    """Plan for the best configuration, and ``plans`` for all tried; ``busy_cores``: cores taken by other processes."""

    plan: SwitchingPlan = unlisted()
    plans: Sequence[SwitchingPlan] = unlisted()
    out: Path = output()
    busy_cores: float = listed("cores_busy_with_others")

    schema = "gen-switching-plan"

    def frame(self) -> pd.DataFrame:
        """Return rates in requests per second, a row per point, a column per configuration."""
        import pandas as pd

        rates = {f"{plan.replicas}x{plan.threads}": plan.rates_per_s for plan in self.plans}
        return pd.DataFrame(rates).assign(accuracy=pd.Series(self.plan.accuracy))

    def findings(self) -> Mapping[str, Any]:
        return {**super().findings(), "plan": self.plan.document(), "timing": state(self.decided)}

    @property
    def decided(self) -> bool:
        return self.busy_cores < QUIET_CORES

    @property
    def verdict(self) -> str | None:
        """Reason why the rates are lower bounds; None where nothing disturbed the load tests."""
        if self.decided:
            return None
        return f"rates are lower bounds, {NOT_DECIDED}: other processes kept {self.busy_cores:.1f} cores busy"

    @property
    def warnings(self) -> list[str]:
        return [self.verdict] if self.verdict else []

    def shown(self) -> list[Part]:
        from slotool.rules.switching import EFFECTIVE_ACCURACY

        plan = self.plan
        columns = ["point", "accuracy", *(f"⟨{other.replicas}, {other.threads}⟩, requests/s" for other in self.plans)]
        cells = [
            [point, f"{plan.accuracy[point]:.4f}", *(f"{other.rates_per_s[point]:,.0f}" for other in self.plans)]
            for point in plan.rates_per_s
        ]
        limit = f"P99 ≤ {plan.deadline_s * 1e3:g} ms"
        if plan.by == EFFECTIVE_ACCURACY:
            limit = f"no faster point is right more often within {plan.deadline_s * 1e3:g} ms"
        steps = "; ".join(f"up to {rate:,.0f}/s {point}" for rate, point in plan.breakpoints)
        return [
            table(f"{plan.subject}: rates up to which {limit}", columns, cells),
            f"plan on ⟨{plan.replicas}, {plan.threads}⟩: {steps}; beyond that the same",
            f"timing: {state(self.decided)}",
        ]


@result
class SwitchingPlanCost(Result):
    """Effort of a search: ``load_tests`` and ``seconds``."""

    subject: str = unlisted()
    points: int = unlisted()
    load_tests: int
    seconds: float
    configurations: Configurations

    schema = "gen-switching-plan-dry-run"

    def shown(self) -> list[Part]:
        tried = ", ".join(f"⟨{replicas}, {threads}⟩" for replicas, threads in self.configurations)
        return [
            f"{self.subject}: {self.points} points on ⟨replicas, threads⟩ {tried}, about {self.load_tests} load tests, "
            f"{duration(self.seconds)}"
        ]


def configurations_in(text: str) -> tuple[tuple[int, int], ...]:
    """Return ⟨replicas, threads⟩ of each part of ``1x1,2x1``."""
    try:
        parsed = tuple((int(r), int(t)) for r, _, t in (part.partition("x") for part in text.split(",")))
    except ValueError:
        parsed = ((0, 0),)
    if min(min(configuration) for configuration in parsed) < 1:
        raise ValueError(f"{text!r} is no list like 1x1,2x1 (replicas x threads)")
    return parsed


@command_line(
    arguments=("artifact",),
    values={"configurations": configurations_in},
    panels={"Search": ("configurations", "device", "duration_s", "dry_run")},
)
@writes("out")
def gen_switching_plan(
    artifact: FilePath,
    out: FilePath,
    *,
    outcomes: FilePath,
    latency: FilePath,
    deadline_ms: Annotated[float, at_least(0.1)],
    by: str = "p99",
    configurations: Configurations | None = None,
    device: str = "cpu",
    duration_s: float = 4.0,
    data: str | DataSource = "auto",
    dry_run: bool = False,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> PlannedSwitching | SwitchingPlanCost:
    """Find by load tests the load that each point may serve.

    Load tests of real servers find the highest arrival rate at which each point keeps the deadline. With
    effective-accuracy, a point serves up to the load at which a less accurate one answers more requests correctly and
    in time. ``slotool serve --policy switching --plan`` follows the plan. Exit code 4: the rates are lower bounds, as
    other work disturbed the machine (written).

    Source: Model-Switching, sections 3 and 4.

    Example: slotool gen-switching-plan family --outcomes family-outcomes.parquet --latency family-latency.parquet
    --deadline-ms 20 -o plan.json

    Args:
        artifact: The artifact to serve.
        out: File for the plan.
        outcomes: Its outcome table.
        latency: Its latency table, with all batch sizes that it may use.
        deadline_ms: Deadline of every request, milliseconds.
        by: A point serves while this is good enough: ``"p99"`` latency, or ``"effective-accuracy"``.
        configurations: Replicas x threads to try, such as 1x1,2x1; None: all that the cores allow.
        device: Device of the servers: cpu, cuda or cuda:N. Rows of other devices do not count.
        duration_s: Duration of each load test.
        data: Data set of the requests, with labels or without.
        dry_run: Only print the number of load tests and the expected time; start no server.

    Returns:
        ``plan``, and rates by point and configuration (``frame()``); for a dry run ``load_tests`` and ``seconds``.

    Raises:
        ArtifactError: ``artifact`` is damaged.
        TableError: A table cannot be read, or lacks a point.
        RunError: A server did not start.
    """
    from slotool.data import DataSource
    from slotool.planning import PlanSearch, possible_configurations
    from slotool.rules.switching import CRITERIA, best_configuration

    written = Path(out)
    if by not in CRITERIA:
        raise ArgumentError("by", f"{by!r} is neither {' nor '.join(CRITERIA)}")
    if duration_s < MIN_TEST_S:
        raise ArgumentError("duration_s", f"{duration(duration_s)} is shorter than {MIN_TEST_S:g} s")
    if configurations is not None and (not configurations or min(map(min, configurations)) < 1):
        raise ArgumentError("configurations", "pairs of replicas and threads, each at least 1, are expected")
    tried = possible_configurations() if configurations is None else tuple(configurations)
    search = PlanSearch(
        Path(artifact), Path(outcomes), Path(latency), deadline_ms / 1e3, duration_s, tried, DataSource.of(data), seed,
        by, devices.required(device),
    )  # fmt: skip
    points = len(search.grid.points)
    cost = SwitchingPlanCost(search.model.name, points, search.load_tests, search.expected_s, tried)
    reporter = reporter_of(progress)
    for remark in search.grid.remarks:
        reporter.warn(remark)
    if dry_run:
        return cost
    reporter.note(str(cost))
    others = OtherWork()
    with reporter.progress("load tests of points", total=len(tried) * points) as steps:
        plans = search.run(steps.advance)
    _, busy_cores = others.read()
    plan = best_configuration(plans).beside(plans)
    plan.save(written)
    return PlannedSwitching(plan, plans, written, busy_cores)
